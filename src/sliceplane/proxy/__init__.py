"""A node's model of services: which endpoints may this node use for which service port.

``model`` has the values; ``servicemap`` makes service ports out of Services, ``slicecache`` endpoints out of
EndpointSlices (``selections`` says which, ``endpoints`` reads Endpoints instead, ``addresses`` spells them).
``claims`` says which Service gets an address that several ask for (``grounds``: or nobody), ``bounds`` how much of one
is served, ``portions`` in which steps.  ``categorize`` picks the endpoints that this node may use, ``tracker`` ties
these together, ``schedule`` says when to write.
``aftermath``, ``conntrack`` and ``progress`` are what follows once the kernel has it.

Promises: change tracking in proportion to what changed; categorisation exactly as kube-proxy's
(reference A4); the answer depends on the newest objects alone, never on the order of their events.
Never: knows nftables or any other data plane.
"""
