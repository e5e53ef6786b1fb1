"""Observes the rules of another program's node proxy (kube-proxy), read-only.

- ``graph``: the rules of one IP family, reduced to the addresses to which a Service may lead.
- ``nftables`` and ``saved`` decode rules into a graph: netlink messages, and ``iptables-save``.
- ``agreement``: compares a graph with the Services and EndpointSlices of the API.
"""
