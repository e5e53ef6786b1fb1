"""Services and EndpointSlices as xDS resources: what Envoy and proxyless gRPC are told, byte by
byte.

``catalog`` is the way in: Services, slices and Nodes go into it, resources and what changed of them
come out, per place of a client. ``model`` keeps a Service by differences, ``pools`` decides through
``consume.usable`` which endpoints a place may use, ``endpoints``, ``clusters`` and ``listeners``
write the messages.

Promises: the same objects give the same bytes and the same versions in every process (members of
collections apart, whose names carry an epoch); a change costs what changed; nothing is written that
a client refuses for its form. Never: waits, looks at a clock, or knows of a stream.
"""
