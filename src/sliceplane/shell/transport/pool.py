"""The connections to one server: its HTTP proxy, certificates as they are now, and peers whose death is noticed.

aiohttp is loaded with the first request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

from sliceplane.shell.transport.base import Unreachable

if TYPE_CHECKING:
    import aiohttp

    from sliceplane.shell.transport.kubeconfig import Connection


#: connections kept open although nothing uses them
IDLE_CONNECTION_S: Final = 60.0
READ_BYTES: Final = 256 * 1024
#: after so long without a packet the kernel asks the peer's kernel whether the connection is still there, every
#: ``KEEPALIVE_INTERVAL_S``, and gives up after ``KEEPALIVE_PROBES``: a watch whose peer vanished ends within 30 s,
#: long before its silence would tell, and costs the server's process nothing
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3
#: how many turns of the loop connections get to be gone when a pool is closed
CLOSING_TURNS_MAX: Final = 10
SCHEMES = ("http", "https")


class ConnectionPool:
    """Owned by one client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: those that are not let go yet
        self.sockets: WeakSet[socket.socket] = WeakSet()
        self._session: aiohttp.ClientSession | None = None
        #: made before the certificates changed; its watches go on
        self._retired: aiohttp.ClientSession | None = None
        self._tls_number = 0
        self._closed = False

    async def session(self, *, look: bool) -> aiohttp.ClientSession:
        """With the certificates as they are now.  *look*: who we are was refused, so look at their files at once."""
        import aiohttp

        if self._closed:
            raise Unreachable("the client is closed")
        tls = self._connection.tls
        context: ssl.SSLContext | bool = self._connection.ssl_context or True
        if tls is not None:
            if look:
                tls.look_again()
            number, context = tls.current()
            if number != self._tls_number:
                # A connection has the certificate that it was opened with: no request may use it any more.
                self._tls_number = number
                oldest, self._retired, self._session = self._retired, self._session, None
                if oldest is not None:
                    await oldest.close()
        if self._session is None:
            # No limit: watches hold one connection each, and requests are bounded by those who make them.
            connector = aiohttp.TCPConnector(
                ssl=context, limit=0, keepalive_timeout=IDLE_CONNECTION_S, socket_factory=self._new_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector, read_bufsize=READ_BYTES, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    async def close(self) -> None:
        """Idempotent.  Open watches end as if the connection broke."""
        self._closed = True
        sessions = [session for session in (self._session, self._retired) if session is not None]
        self._session = self._retired = None
        for session in sessions:
            await session.close()
        # Aborted connections are let go in the next turn of the loop, which may be its last.  One whose opening was
        # cancelled before its first callback knows nothing of that, and goes on with its handshake until it finds
        # that its peer is gone.
        for turn in range(CLOSING_TURNS_MAX if sessions else 0):
            await asyncio.sleep(0)
            left = [opened for opened in self.sockets if opened.fileno() >= 0]
            if not left:
                return
            if turn == 0:
                for opened in left:
                    with suppress(OSError):
                        opened.shutdown(socket.SHUT_RDWR)

    def _new_socket(self, address: tuple[Any, ...]) -> socket.socket:
        opened = watchful_socket(address)
        self.sockets.add(opened)
        return opened


def watchful_socket(address: tuple[Any, ...]) -> socket.socket:
    """For aiohttp: a socket for one entry of ``getaddrinfo``'s answer, whose peer's death is noticed."""
    family, kind, protocol, *_ = address
    opened = socket.socket(family=family, type=kind, proto=protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        # The same bound for what was sent and never acknowledged.
        ("TCP_USER_TIMEOUT", (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES) * 1000),
    ):
        if hasattr(socket, name):  # not on every system
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


class ProxyError(Exception):
    """The proxy cannot be used; a sentence for a person."""


def configured(url: str) -> str:
    """``proxy-url`` of a kubeconfig, if it can be used.  Raises ``ProxyError``."""
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES or not urlsplit(url).hostname:
        raise ProxyError(f"proxy-url {url!r} must be an http or https URL")
    return url


def from_environment(server: str, environment: Mapping[str, str] = os.environ) -> str:
    """The proxy for *server* by HTTP_PROXY, HTTPS_PROXY and NO_PROXY; "" for none.  Never for this machine itself."""
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    url = environment.get(name.upper()) or environment.get(name) or ""
    host = parts.hostname or ""
    without = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not url or _local(host) or _excluded(host, parts.port or (443 if parts.scheme == "https" else 80), without):
        return ""
    return url if "://" in url else f"http://{url}"


def _local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _excluded(host: str, port: int, without: str) -> bool:
    address = _address(host)
    for part in (text.strip().lower() for text in without.split(",")):
        if part == "*":
            return True
        if not part:
            continue
        if "/" in part:
            try:
                network = ipaddress.ip_network(part, strict=False)
            except ValueError:
                continue
            if address is not None and address.version == network.version and address in network:
                return True
            continue
        name, colon, number = part.rpartition(":")
        if colon and number.isdecimal() and name.count(":") != 1 and _address(part) is None:
            if int(number) != port:
                continue
            part = name.strip("[]")
        if host == part.lstrip("*").removeprefix(".") or (address is None and host.endswith(f".{part.lstrip('*.')}")):
            return True
    return False
