"""The xDS server's doors: TLS with optional client certificates, and a plain one that only this machine reaches."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from sliceplane.kit.rng import Rng
from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.server.connections.tls import serving_context
from sliceplane.shell.transport.base import Client
from sliceplane.shell.transport.child import ChildService
from sliceplane.shell.transport.service import ServiceContext
from sliceplane.shell.xds.authentication import ReviewedTokens, Unsecured
from sliceplane.shell.xds.connection import Handler
from sliceplane.shell.xds.transport import GrpcListener

_BACKLOG = 1024


class XdsService(ChildService):
    """The xDS server of an embedded plane (``sliceplane up --xds``), with the plane's certificate and authority."""

    def __init__(self, listen: tuple[str, int]) -> None:
        super().__init__("xds", "--bind-address", listen)

    def flags(self, context: ServiceContext) -> tuple[str, ...]:
        pki = context.pki
        return (
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """*tls*: where, if anywhere; with it ``cert_file`` and ``key_file``."""

    tls: tuple[str, int] | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    plain: tuple[str, int] | None = None


class XdsDoors:
    """``open`` once, then ``close``."""

    def __init__(self, doors: Doors, handler: Handler, client: Client, rng: Rng, clock: Callable[[], float]) -> None:
        self._doors = doors
        self.listeners: list[GrpcListener] = []
        if doors.tls is not None:
            self._secured = GrpcListener(handler, ReviewedTokens(client, clock), rng.fork())
            self.listeners.append(self._secured)
        if doors.plain is not None:
            self._unsecured = GrpcListener(handler, Unsecured(), rng.fork())
            self.listeners.append(self._unsecured)

    async def open(self) -> tuple[tuple[str, int], ...]:
        """Where it listens: TLS first.  Raises ``StartError``."""
        doors = self._doors
        listening = []
        if doors.tls is not None:
            assert doors.cert_file is not None, "TLS has a certificate"
            assert doors.key_file is not None, "and its key"
            context = serving_context(doors.cert_file, doors.key_file, doors.client_ca_file)
            sock = _bound(*doors.tls)
            listening.append(sock.getsockname()[:2])
            self._secured.start(sock, context)
        if doors.plain is not None:
            if not ip_address(doors.plain[0]).is_loopback:
                raise StartError(f"without TLS only this machine may come: {doors.plain[0]} is no loopback address")
            sock = _bound(*doors.plain)
            listening.append(sock.getsockname()[:2])
            await self._unsecured.start_plain(sock)
        return tuple(listening)

    async def close(self, spread_s: float) -> None:
        await asyncio.gather(*[listener.stop(spread_s) for listener in self.listeners])


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise StartError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from error
    return sock
