"""EndpointSlice policy: from Service, Pods and Nodes to the slices that must exist.

``engine`` routes changes to ``service`` states; ``facts``, ``ports`` and ``shape`` are what pods, nodes and
services say; ``members`` makes endpoints of them, ``packer`` puts these into slices, ``writes`` encodes the difference.
``oracle`` is the specification of it all, plain and slow.

Promises: pure decisions and owned per-service state; a change costs what it changes, whatever the size of the
service; never more writes than packing everything anew would make; equal input gives equal bytes.
Never: talks to an API server, knows a queue.
"""
