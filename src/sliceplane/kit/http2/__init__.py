"""The server's side of gRPC over HTTP/2: bytes in, bytes out, messages between.

``frames`` is the table of RFC 9113, ``fields`` reads and writes header lists, ``connection`` is the
state of one connection, ``outbox`` what waits to be sent on it, and ``grpc`` makes calls and
messages of it. Nothing here knows a socket or a clock; ``xds.io`` has both. Memory is bounded
whatever a peer sends (``limits``).
"""
