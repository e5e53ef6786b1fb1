"""The node proxy: the rules that a node needs for its Services, and the time of their writes.

``tracker`` follows Services and slices, by the model that every consumer shares (``consume``).
``schedule`` decides when to write, and in which portions; ``plane`` owns the rules of a back end
(``nft``, ``iptables``; ``ipvs`` and ``hns`` only render). ``context`` derives the inputs of static
rules from flags, Node and interfaces. ``post_sync`` and ``conntrack`` decide the actions after the
kernel has applied a write.

Promises: change tracking in proportion to the change; the endpoints that kube-proxy would use
(``pkg/proxy/topology.go``); the rules depend only on the newest objects, never on the order of their
events. Never: loads a server, its kinds or the slice engine; does I/O outside ``io``.
"""
