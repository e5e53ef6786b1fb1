"""The server side of gRPC over HTTP/2 as a core: bytes in, bytes and messages out.

``frames`` is the table of RFC 9113, ``fields`` reads and writes header lists, ``connection`` is the
state of one connection, ``outbox`` its pending output, and ``grpc`` builds calls and messages on
it. Nothing here uses a socket or a clock; ``xds.io`` has both. Memory is bounded whatever a peer
sends (``limits``).
"""
