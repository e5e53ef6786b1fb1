"""The older API beside EndpointSlices: Endpoints from Services and Pods, slices from other writers'
Endpoints, and Endpoints from slices.

``engine`` routes changes to the state of each Service. ``shape`` has the fields of a Service that
its Endpoints depend on. ``members`` keeps the addresses of its Pods and encodes writes. ``subsets``
packs addresses into the canonical form in which two objects are compared, and limits how many one
object holds. ``mirroring`` makes slices of Endpoints (KEP-0752), with state of its own; ``reverse``
makes Endpoints of slices, for readers of Endpoints only.

Promises: pure decisions and owned per-service state; a Pod's change costs one address, although an
object is written whole; content that the server has, truncated or not, is not written again; equal
input gives equal bytes. It never talks to an API server, has no queue, and changes Endpoints of a
Service without a selector only to hand them over.
"""
