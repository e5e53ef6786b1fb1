"""How long a server waits for the client of a connection, from the first byte to the last.

Each wait is for a peer, which may be slow, gone or hostile; when it is over the connection is closed or cut off.  A
server has these; a test of what happens then gives shorter ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds.  ``Listener`` hands it to all that keeps a connection."""

    # TLS

    #: from the connection to the end of the handshake
    handshake_s: float = 10.0
    #: for what was written before it was closed
    flush_s: float = 10.0
    #: for the peer's own closing, after ours
    farewell_s: float = 2.0

    # Accepting

    #: until connections are accepted again after the system refused one, as without descriptors
    rest_s: float = 1.0

    # HTTP

    #: until the head of a request is complete
    request_head_s: float = 30.0
    #: for what is still taken in of a body that was answered without being read, so that its sender sees the answer
    unread_s: float = 10.0
    #: without any request
    keep_alive_s: float = 90.0
    #: in which a client takes nothing of what is written to it; a stream has limits of its own
    stalled_s: float = 30.0
