"""Services and EndpointSlices as xDS resources for Envoy and proxyless gRPC, byte by byte.

``catalog`` is the entry: it receives Services, slices and Nodes, and returns resources and their
changes for each location of clients. ``model`` updates a Service by differences. ``pools`` decides
by ``consume.usable`` which endpoints a location may use. ``endpoints``, ``clusters`` and
``listeners`` encode the messages.

Promises: the same objects result in the same bytes and versions in every process (except members of
collections, whose names have an epoch); work in proportion to the change; no message has a form that
a client refuses. Never: waits, reads a clock, or depends on a stream.
"""
