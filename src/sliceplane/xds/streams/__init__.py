"""Streams of clients: what they ask, hold and are sent next (``xds_protocol`` of Envoy's documents;
cncf/xds TP1, TP3).

``whole`` is the state of the world, as gRPC uses it; ``delta`` the incremental variant, as Envoy
does. ``stream`` has what both are, ``channel`` what a stream knows of a type, ``messages`` the
octets, ``status`` what the server tells of them all.
"""
