"""Aggregated streams of clients: subscriptions, sent versions and the next responses
(``xds_protocol`` of Envoy's documents; cncf/xds TP1, TP3).

``whole`` implements the state-of-the-world variant, which gRPC uses; ``delta`` the incremental
variant, which Envoy uses. ``stream`` is their common base, ``channel`` the state of one resource
type on a stream, ``gate`` the wait of listeners for clusters, ``messages`` the encoding, and
``status`` the report on all clients.
"""
