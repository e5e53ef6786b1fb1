"""Ways to run a consumer: an ``EndpointView`` in this process (``view``), any program that prints
its belief (``program``), any name server by DNS queries (``name_server``), any node proxy by its
rules (``node_proxy``).
"""
