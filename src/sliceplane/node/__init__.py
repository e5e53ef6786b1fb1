"""A node's model of services: which endpoints may this node use for which service port.

``model`` has the values; ``servicemap`` makes service ports out of Services, ``slicecache`` endpoints out of
EndpointSlices (``selections`` says which, ``endpoints`` reads Endpoints instead, ``addresses`` spells them).
``claims`` says which Service gets an address that several ask for (``grounds``: or none of them), ``bounds`` how much
of one is served.  ``usable`` is the rule which endpoints may be used from a place, for all
consumers; ``tracker`` ties these together, ``schedule`` says when to write, and in which portions.
``aftermath``, ``conntrack`` and ``progress`` are what follows once the kernel has it.

Promises: change tracking in proportion to what changed; the endpoints that kube-proxy would use
(``pkg/proxy/topology.go``); the answer depends on the newest objects alone, never on the order of their events.
Never: knows nftables or any other data plane.
"""
