"""A node's model of services: which endpoints may this node use for which service port.

Promises: change tracking in proportion to what changed; categorisation exactly as kube-proxy's.
Never: knows nftables or any other data plane.
"""
