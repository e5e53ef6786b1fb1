"""The Unix socket of a server whose port is served by further processes of it (``relay.io.reader``).

They terminate TLS and pass on what they do not answer. A header of each request says which client
certificate they verified, and where the client is. It is believed on this socket alone, which only
processes of this user can open: its mode is 0600, in a folder of mode 0700. The processes take the
header out of what clients send, and a request without it has no certificate.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from sliceplane.api.users import User
from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.connections.connection import AUTHENTICATED_HEAD, HttpConnection
from sliceplane.watch.io.certificates import Certificate

if TYPE_CHECKING:
    from sliceplane.server.io.connections.listener import App, Listener
    from sliceplane.server.io.requests.request import Receive, Send

PEER_HEADER: Final = b"x-sliceplane-peer"


class Peer(msgspec.Struct, frozen=True):
    """The client of a request that was passed on; or a process itself (*is_process*)."""

    certificate: Certificate | None = None
    #: IP address and port; ``None``: the client is gone
    address: tuple[str, int] | None = None
    is_process: bool = False

    def header(self) -> bytes:
        """The value of ``PEER_HEADER``.  Names of certificates may have any character."""
        return base64.b64encode(msgspec.json.encode(self))

    @classmethod
    def of(cls, headers: Iterable[tuple[bytes, bytes]]) -> Peer:
        """Raises ``ValueError`` if it is damaged or there are two."""
        values = [value for name, value in headers if name == PEER_HEADER]
        if len(values) > 1:
            raise ValueError("two peers")
        return msgspec.json.decode(base64.b64decode(values[0]), type=cls) if values else cls()


class Readers(Protocol):
    """The processes, as the server that they belong to sees them."""

    def around(self, app: App) -> App:
        """Returns the application of the socket: *app* and what the processes themselves need."""

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Returns when each process serves one of *sockets*.  Raises ``StartError``."""

    def drain(self) -> None:
        """Has clients leave, as ``Listener.drain``."""

    async def stop(self) -> None:
        """Ends the processes.  Idempotent."""


class LocalConnection(HttpConnection):
    """A connection of a process of this server: one request after another, of many users."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._head_limits = AUTHENTICATED_HEAD

    def authenticated(self, user: User) -> bool:
        """The process has counted the client's own connection."""
        return True


class LocalAcceptor:
    """In the place of a ``TlsAcceptor``.  TLS, and room for clients, are the processes' matter."""

    refused = failures = 0

    def __init__(self, server: asyncio.AbstractServer, on_context: Callable[[], None]) -> None:
        self._server = server
        self._on_context = on_context

    def close(self) -> None:
        self._server.close()

    def use(self, context: ssl.SSLContext, *, distrusting: Iterable[Any] | None) -> None:
        self._on_context()

    def abort_handshakes(self) -> None:
        """There are none."""


def with_peers(app: App) -> App:
    """Returns *app* for requests of the socket, which it gets as if it had accepted the clients."""

    async def serve(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        peer = Peer.of(headers)
        scope["headers"] = [field for field in headers if field[0] != PEER_HEADER]
        scope["state"].update(certificate=peer.certificate, is_process=peer.is_process)
        scope["client"] = peer.address
        scope["scheme"] = "https"
        await app(scope, receive, send)

    return serve


def private_socket(folder: Path) -> tuple[socket.socket, Path]:
    """Returns a listening socket and its path in *folder*, which is made.  Raises
    ``StartError``.
    """
    path = folder / "socket"
    server = socket.socket(socket.AF_UNIX)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        path.unlink(missing_ok=True)  # of a process that was killed; the data folder is locked
        server.bind(str(path))
        path.chmod(0o600)
        server.listen(4096)
    except OSError as error:
        server.close()
        why = (error.strerror or str(error)).lower()
        raise StartError(
            f"cannot listen on {path}: {why}; its path may have 107 bytes: --data-dir chooses "
            "another folder"
        ) from error
    return server, path
