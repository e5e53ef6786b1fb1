"""How a consumer is started and asked: an ``EndpointView`` in this process (``view``), any program
that prints what it believes (``program``), any name server that is asked by DNS (``name_server``).
"""
