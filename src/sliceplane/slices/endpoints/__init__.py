"""The older API beside EndpointSlices: Endpoints out of Services and Pods, slices out of others'
Endpoints, and back.

``engine`` routes changes to the state of each Service; ``shape`` is what a Service asks for,
``members`` keeps the addresses of its Pods and encodes writes, ``subsets`` packs them into the
canonical form in which two objects are compared and says how many of them one object may hold.
``mirroring`` makes slices of Endpoints (KEP-0752), with state of its own; ``reverse`` makes
Endpoints of slices, for readers that know nothing else.

Promises: pure decisions and owned per-service state; one Pod's change costs one address, although
an object is written whole; what the server holds already is not written again, truncated or not;
equal input gives equal bytes. Never: talks to an API server, knows a queue; touches Endpoints of a
Service without a selector, but to hand them over.
"""
