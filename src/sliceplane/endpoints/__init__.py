"""The older API beside EndpointSlices: Endpoints made from Services and Pods, and slices made from others' Endpoints.

``engine`` routes changes to ``service`` states; ``shape`` is what a Service asks for, ``members`` keeps the addresses
of its Pods, ``truncate`` says how many of them one object may hold, ``repack`` is the canonical form in which two
objects are compared, ``writes`` encodes.  ``mirroring`` is the other direction, with state of its own.  Reference 3, 4.

Promises: pure decisions and owned per-service state; one Pod's change costs one address, although an object is written
whole; what the server holds already is not written again, truncated or not; equal input gives equal bytes.
Never: talks to an API server, knows a queue; touches Endpoints of a Service without a selector, but to hand them over.
"""
