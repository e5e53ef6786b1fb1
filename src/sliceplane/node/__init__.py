"""The node proxy: which rules a node needs for its Services, and when they are written.

``tracker`` follows Services and slices, by the model that every consumer shares (``consume``);
``schedule`` decides when to write, and in which portions; ``plane`` owns the rules of a back end
(``nft``, ``iptables``; ``ipvs`` and ``hns`` only render). ``surroundings`` derives from flags, Node
and interfaces what static rules depend on; ``aftermath`` and ``conntrack`` decide what follows once
the kernel has them.

Promises: change tracking in proportion to what changed; the endpoints that kube-proxy would use
(``pkg/proxy/topology.go``); the answer depends on the newest objects alone, never on the order of
their events. Never: loads a server, its kinds or the slice engine; does I/O outside ``io``.
"""
