"""Accepts TLS connections as far as there is room for them.

TLS is 1.2 or newer, client certificates optional but, if sent, of a trusted authority. No session
is handed out to be resumed, but for what TLS 1.2 does without tickets, which the ssl module cannot
turn off: a resumed session brings the certificate of the first one, unverified. It does so within
its own context alone and for two hours at most, so a change of the trusted authorities makes a new
context, and the dates of a certificate are checked for each request
(``watch.io.certificates.Certificate``). Clients of Kubernetes resume none.

The room has two limits: the configuration, and the process's descriptors. The highest descriptors
are never given to clients, so that storage, logs and everything else in the process can open files
when clients hold all the rest. The system gives the lowest free number, so the number of an
accepted connection tells how many are in use.

Without room, the oldest unauthenticated connection makes some (see ``unauthenticated``); if all are
authenticated, the new one is refused: closed at once, counted, and logged once a minute. The same
where the system itself refuses to accept; then accepting rests a little too, or the loop would be
called for it repeatedly.
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

from sliceplane.kit.io.batches import BatchQueue
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.transport import (
    GREETING_HEAD_BYTES,
    ProtocolFactory,
    TlsTransport,
)
from sliceplane.kit.io.tls.unauthenticated import ConnectionTiming, UnauthenticatedConnections

#: kept for everything that is no connection of a client; of a small limit it is a quarter
RESERVED_DESCRIPTORS: Final = 128
_ACCEPTS_PER_BATCH: Final = 64
#: between two lines about connections that were refused
REPORT_PERIOD_S: Final = 60.0
#: of every connection: they inherit them from the socket that listens. A peer that vanished is
#: noticed after 4 minutes even if nothing is ever sent to it (Kubernetes' servers ask every 3
#: minutes)
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.SOL_SOCKET, socket.SO_RCVLOWAT, GREETING_HEAD_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 180),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_log = get_logger("apiserver")


def serving_context(cert_file: Path, key_file: Path, client_ca_file: Path | None) -> ssl.SSLContext:
    """Raises ``StartError`` if a file is missing or damaged.

    A certificate of a foreign authority fails the handshake; no certificate at all is fine here and
    left to authentication.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    # The client's order of ciphers counts: all of them are good, and Go clients put AES-128 first,
    # which encrypts faster than OpenSSL's own first choice, AES-256.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # No client does it any more (TLS 1.3 has none, nor have Go's servers), and a write would have
    # to wait for a read.
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
        """The signer of its certificate is not trusted any more."""


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
        """*room*: how many connections more there may be, handshakes not counted."""
        self._sock = sock
        #: of the connections that come from now on
        self._context = context
        self._make_protocol = make_protocol
        self._room = room
        self._batches = BatchQueue()
        self._unauthenticated = unauthenticated
        self._timing = timing
        self._shaking: set[TlsTransport] = set()
        self._rest: asyncio.TimerHandle | None = None
        self._closed = False
        #: closed at once for want of room, and failures of accept(2), since the process began
        self.refused = 0
        self.failures = 0
        #: not told of yet; the next line may come then
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
        """No new connection; handshakes under way go on.  Idempotent."""
        if not self._closed:
            self._closed = True
            if self._rest is not None:
                self._rest.cancel()
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()

    def use(self, context: ssl.SSLContext, *, distrusting: Iterable[Distrustable] | None) -> None:
        """Gives connections from now on *context*. *distrusting*: the open connections, if it lacks
        an authority that the former one had: clients with certificates must shake hands again.
        """
        self._context = context
        if distrusting is not None:
            # Handshakes under way are those of the former context.
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
        """No descriptor or no memory is left, the reserve included."""
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
        """Why there is no room for *plain*; "" if there is."""
        if self._room() <= len(self._shaking):
            return "there are as many as the server takes"
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and plain.fileno() >= limit - min(
            RESERVED_DESCRIPTORS, limit // 4
        ):
            return "the rest of the file descriptors is kept for storage and logs"
        return ""

    def _report_refusals(self, reason: str) -> None:
        """Once in a while, with what to do."""
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
        return "nearly all"  # to look takes one
