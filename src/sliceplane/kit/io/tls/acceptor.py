"""Accepts TLS connections as long as there is room for them.

TLS is 1.2 or newer; client certificates are optional but must be of a trusted authority. Session
resumption is disabled, except the ticketless form of TLS 1.2, which the ssl module cannot turn off:
a resumed session has the certificate of the first one, unverified. It is limited to one context and
two hours. So a change of the trusted authorities creates a new context, and the dates of a
certificate are checked for each request (``watch.io.certificates.Certificate``). Kubernetes clients
resume no sessions.

The room has two limits: the configuration, and the process's descriptors. The highest descriptors
are reserved, so storage, logs and everything else in the process can open files when clients use
all others. The system assigns the lowest free number, so the number of an accepted connection shows
how many are in use.

Without room, the oldest unauthenticated connection is dropped (see ``unauthenticated``). If all are
authenticated, the new one is refused: closed immediately, counted, and logged once a minute. The
same happens if the system refuses to accept; then accepting also pauses briefly, because the loop
would otherwise retry continuously.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from sliceplane.kit.io.batches import BatchQueue
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.transport import (
    GREETING_HEAD_BYTES,
    ProtocolFactory,
    TlsTransport,
)
from sliceplane.kit.io.tls.unauthenticated import ConnectionTiming, UnauthenticatedConnections

#: descriptors reserved for everything except client connections; a quarter of a small limit
RESERVED_DESCRIPTORS: Final = 128
_ACCEPTS_PER_BATCH: Final = 64
#: seconds between two log lines about refused connections
REPORT_PERIOD_S: Final = 60.0
#: options of every connection, inherited from the listening socket. A vanished peer is detected
#: after 4 minutes even if nothing is sent to it (Kubernetes' servers probe every 3 minutes)
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.SOL_SOCKET, socket.SO_RCVLOWAT, GREETING_HEAD_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 180),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_log = get_logger("apiserver")


class FrontProxies(msgspec.Struct, frozen=True):
    """The front proxies of a server, which say for which user a request is: clients whose certificate
    the authorities of the file signed. *names*: of their certificates; empty: any.
    """

    authority_file: Path
    names: frozenset[str] = frozenset()


class ServingContext(ssl.SSLContext):
    """Knows which of its authorities signs for users, and which for front proxies (both DER)."""

    users: frozenset[bytes] = frozenset()
    proxies: frozenset[bytes] = frozenset()
    proxy_names: frozenset[str] = frozenset()

    def add(self, proxies: FrontProxies) -> None:
        """Trusts *proxies*, too; what was trusted before is for users. Raises ``StartError``, also if
        an authority is for both, and so every user could be any other.
        """
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(alone, proxies.authority_file)
        self.users = frozenset(self.get_ca_certs(binary_form=True))
        self.proxies = frozenset(alone.get_ca_certs(binary_form=True))
        self.proxy_names = proxies.names
        if self.users & self.proxies and not proxies.names:
            raise StartError(
                f"an authority of {proxies.authority_file} also signs certificates of users, each of "
                "which could act as any other: name those of the front proxies with "
                "--requestheader-allowed-names"
            )
        trust(self, proxies.authority_file)


def serving_context(
    cert_file: Path,
    key_file: Path,
    client_ca_file: Path | None,
    proxies: FrontProxies | None = None,
) -> ServingContext:
    """Raises ``StartError`` if a file is missing or damaged.

    A certificate of a foreign authority fails the handshake; a missing certificate is accepted here
    and left to authentication.
    """
    context = ServingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    # The client's order of ciphers decides: all of them are good, and Go clients prefer AES-128,
    # which is faster than OpenSSL's first choice, AES-256.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # No client renegotiates any more (TLS 1.3 and Go's servers do not support it), and a write
    # would have to wait for a read.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    if client_ca_file is not None:
        trust(context, client_ca_file)
    try:
        context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"cannot use the server certificate {cert_file}: {error}") from error
    if proxies is not None:
        context.add(proxies)
    return context


def trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise StartError(
            f"cannot use the certificate authority {authority}: it holds no certificate in PEM"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StartError(f"cannot use the certificate authority {authority}: {reason}") from error


class Distrustable(Protocol):
    """An open connection."""

    def distrust_certificate(self) -> None:
        """Notes that the signer of its certificate is not trusted any more."""


class TlsAcceptor:
    """Accepts on a listening socket.  Used from one task: ``start`` once, ``close`` once, then
    ``abort_handshakes``.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        make_protocol: ProtocolFactory,
        *,
        room: Callable[[], int],
        unauthenticated: UnauthenticatedConnections,
        timing: ConnectionTiming = ConnectionTiming(),  # noqa: B008  # it is frozen
    ) -> None:
        """*room*: returns how many further connections are allowed, handshakes not counted."""
        self._sock = sock
        #: context of new connections
        self._context = context
        self._make_protocol = make_protocol
        self._room = room
        self._batches = BatchQueue()
        self._unauthenticated = unauthenticated
        self._timing = timing
        self._shaking: set[TlsTransport] = set()
        self._rest: asyncio.TimerHandle | None = None
        self._closed = False
        #: connections refused for lack of room, and failures of accept(2), since the process began
        self.refused = 0
        self.failures = 0
        #: refusals since the last log line, and the earliest time of the next one
        self._unreported = 0
        self._next_report_at = float("-inf")

    def start(self) -> None:
        self._sock.setblocking(False)
        for level, option, value in _OPTIONS:
            self._sock.setsockopt(level, option, value)
        self._resume()

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Stops accepting; handshakes in progress continue. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._rest is not None:
                self._rest.cancel()
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()

    def use(self, context: ssl.SSLContext, *, distrusting: Iterable[Distrustable] | None) -> None:
        """Uses *context* for new connections. *distrusting*: the open connections, if it lacks an
        authority of the former one: clients with certificates must reconnect.
        """
        self._context = context
        if distrusting is not None:
            # Handshakes in progress use the former context.
            self.abort_handshakes()
            for connection in tuple(distrusting):
                connection.distrust_certificate()

    def abort_handshakes(self) -> None:
        for transport in tuple(self._shaking):
            transport.abort()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_BATCH):
            try:
                plain, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._on_failure(error)
                return
            self._start_connection(plain)

    def _on_failure(self, error: OSError) -> None:
        """Handles the lack of descriptors or memory, including the reserve."""
        self.failures += 1
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock.fileno())
        self._rest = loop.call_later(self._timing.rest_s, self._resume)
        for _ in range(_ACCEPTS_PER_BATCH):
            if not self._unauthenticated.drop_oldest():
                break
        self._report_refusals((error.strerror or str(error)).lower())

    def _start_connection(self, plain: socket.socket) -> None:
        reason = self._full(plain)
        if reason and not self._unauthenticated.drop_oldest():
            plain.close()
            self.refused += 1
            self._report_refusals(reason)
            return
        plain.setblocking(False)
        transport = TlsTransport(
            plain,
            self._context,
            self._make_protocol,
            self._shaking.discard,
            self._unauthenticated,
            timing=self._timing,
            batches=self._batches,
        )
        self._shaking.add(transport)
        transport.start()

    def _full(self, plain: socket.socket) -> str:
        """Returns why there is no room for *plain*; "" if there is."""
        if self._room() <= len(self._shaking):
            return "there are as many as the server takes"
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and plain.fileno() >= limit - min(
            RESERVED_DESCRIPTORS, limit // 4
        ):
            return "the rest of the file descriptors is kept for storage and logs"
        return ""

    def _report_refusals(self, reason: str) -> None:
        """Logs refusals at most once per period, with a remedy."""
        self._unreported += 1
        now = asyncio.get_running_loop().time()
        if now < self._next_report_at:
            return
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _log.error(
            "connections are refused",
            why=reason,
            refused=self._unreported,
            descriptors=f"{_open_descriptors()} of {limit}",
            advice="raise the limit of open files (ulimit -n; LimitNOFILE= of a systemd unit), or "
            "see who connects: "
            f"ss -tnp state established '( sport = :{self._sock.getsockname()[1]} )'",
        )
        self._unreported = 0
        self._next_report_at = now + REPORT_PERIOD_S


def _open_descriptors() -> int | str:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return "nearly all"  # listing them needs one
