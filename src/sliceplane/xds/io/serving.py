"""The ports of the xDS server: one with TLS and optional client certificates, and a plain one on
loopback.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import msgspec

from sliceplane.consume.io.accounts import Rule
from sliceplane.consume.io.child import ChildService
from sliceplane.kit.io.files import FILE_CHECK_PERIOD_S
from sliceplane.kit.io.identity import in_use
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.files import FileTls
from sliceplane.kit.ip import join_host_port
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.service import ServiceContext
from sliceplane.xds.io.authentication import ReviewedTokens, Unsecured
from sliceplane.xds.io.connection import Handler
from sliceplane.xds.io.transport import CALLS_PER_USER_MAX, GrpcListener

_BACKLOG = 1024
#: the same as in the chart (``xds-rbac.yaml``)
RULES: Final = (
    Rule("", ("services", "nodes"), ("list", "watch")),
    Rule("discovery.k8s.io", ("endpointslices",), ("list", "watch")),
    Rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    Rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
    Rule("events.k8s.io", ("events",), ("create", "patch")),
)


class XdsService(ChildService):
    """The xDS server of an embedded plane (``sliceplane up --xds``), with the plane's certificate
    and authority.

    *pages*: address of the page that ``sliceplane xds status`` reads; ``None``: the default
    address.
    """

    def __init__(self, listen: tuple[str, int], pages: tuple[str, int] | None = None) -> None:
        super().__init__("xds", "--bind-address", listen, RULES)
        self._pages = () if pages is None else (f"--metrics-bind-address={join_host_port(*pages)}",)

    def flags(self, context: ServiceContext) -> tuple[str, ...]:
        pki = context.pki
        return (
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            *self._pages,
        )


class Doors(msgspec.Struct, frozen=True, kw_only=True):
    """Ports and files.  With *tls*, ``cert_file`` and ``key_file`` are required."""

    tls: tuple[str, int] | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    plain: tuple[str, int] | None = None
    calls_per_user_max: int = CALLS_PER_USER_MAX


class XdsDoors:
    """The open ports.  Call ``open`` once, run ``follow`` until cancelled, then ``close``."""

    def __init__(
        self, doors: Doors, handler: Handler, client: Client, rng: Rng, clock: Callable[[], float]
    ) -> None:
        self._doors = doors
        self._client = client
        self._clock = clock
        self._tls: FileTls | None = None
        self.listener: Final = GrpcListener(
            handler, rng, calls_per_user_max=doors.calls_per_user_max
        )

    async def open(self) -> tuple[tuple[str, int], ...]:
        """Opens the ports and returns their addresses, TLS first.  Raises ``StartError``."""
        doors = self._doors
        listening = []
        if doors.tls is not None:
            assert doors.cert_file is not None, "TLS has a certificate"
            assert doors.key_file is not None, "and its key"
            self._tls = FileTls(doors.cert_file, doors.key_file, doors.client_ca_file)
            sock = _bound(*doors.tls)
            listening.append(sock.getsockname()[:2])
            reviewed = ReviewedTokens(self._client, self._clock)
            self.listener.metrics.include(reviewed.metrics.families)
            self.listener.start(sock, self._tls.context, reviewed)
        if doors.plain is not None:
            if not ip_address(doors.plain[0]).is_loopback:
                raise StartError(
                    f"a port without TLS needs a loopback address: {doors.plain[0]} is none"
                )
            sock = _bound(*doors.plain)
            listening.append(sock.getsockname()[:2])
            self.listener.start_plain(sock, Unsecured())
        return tuple(listening)

    async def follow(self, period_s: float = FILE_CHECK_PERIOD_S) -> None:
        """Reloads certificates whenever their files change."""
        if self._tls is not None:
            await self._tls.follow(self.listener.use, period_s)

    async def close(self, spread_s: float) -> None:
        await self.listener.stop(spread_s)


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        reason = in_use(os.strerror(error.errno or 0), host, port)
        raise StartError(f"cannot listen on {host} port {port}: {reason}") from error
    return sock
