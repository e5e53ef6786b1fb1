"""The listener of the xDS server, with TLS and optional client certificates, or plain on loopback:
authentication, limits, shutdown.

The ``Handler`` gets a call when its user is authenticated. The listener authenticates an open call
again each minute, because certificates and tokens expire and accounts are deleted. It ends a call
after ``AGE_S_MAX``, or up to a fifth earlier, so that clients spread over all replicas. Clients
reconnect by themselves, and use their current resources meanwhile.

``stop`` ends calls spread over some time, because each reconnected client costs the next replica a
full synchronisation.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from sliceplane.api.users import User
from sliceplane.kit.http2.grpc import GrpcStatus
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.tls.acceptor import TlsAcceptor
from sliceplane.kit.io.tls.unauthenticated import ConnectionTiming, UnauthenticatedConnections
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.rng import Rng
from sliceplane.xds.io.authentication import UNSECURED, Authenticator, CallRefused
from sliceplane.xds.io.budget import ACCOUNT_BYTES_MAX, Budget, account_of
from sliceplane.xds.io.connection import Call, GrpcProtocol, Handler

CONNECTIONS_MAX: Final = 10_000
#: calls of one user, or of one Pod for a token that is bound to it; not limited on the plain port
CALLS_PER_USER_MAX: Final = 200
#: seconds between authentications of an open call
RECHECK_S: Final = 60.0
AGE_S_MAX: Final = 1800.0
#: seconds at shutdown for output to leave before connections are aborted
_FLUSH_S_MAX: Final = 2.0
_FLUSH_CHECK_S: Final = 0.01
#: seconds until connections are accepted again after ``accept`` failed, e.g. without descriptors
_ACCEPT_DELAY_S: Final = ConnectionTiming().rest_s
#: ALPN (RFC 9113 section 3.2)
PROTOCOL: Final = "h2"

_log = get_logger("xds")

Then = Callable[[GrpcProtocol, Call, "User | CallRefused"], None]


class GrpcListener:
    """The listener.  Used from one task: ``start``, ``start_plain`` or both, once each, then
    ``stop``.
    """

    def __init__(
        self,
        handler: Handler,
        rng: Rng,
        *,
        calls_per_user_max: int = CALLS_PER_USER_MAX,
    ) -> None:
        self._handler = handler
        self._rng = rng
        self._connections_max = CONNECTIONS_MAX
        self._calls_per_user_max = calls_per_user_max
        self._acceptor: TlsAcceptor | None = None
        #: without TLS: the listening socket, and accepted connections that have no protocol yet
        self._plain: socket.socket | None = None
        self._accepting: dict[asyncio.Task[Any], None] = {}
        #: in the order of arrival
        self._connections: dict[GrpcProtocol, None] = {}
        self._calls_by_account: dict[str, int] = {}
        #: the bound on memory of an account grows with that on its calls
        self.budget: Final = Budget(
            ACCOUNT_BYTES_MAX * max(1, calls_per_user_max // CALLS_PER_USER_MAX)
        )
        self._authentications: dict[Call, asyncio.Task[None]] = {}
        self._is_stopping = False
        #: connections with unwritten output
        self._to_flush: list[GrpcProtocol] = []
        self.unauthenticated = UnauthenticatedConnections()
        metrics = self.metrics = Metrics()
        metrics.include(self.unauthenticated.metrics.families)
        metrics.computed(
            "gauge",
            "sliceplane_xds_connections",
            "Open connections.",
            lambda: len(self._connections),
        )
        metrics.computed(
            "gauge",
            "sliceplane_xds_calls",
            "Open calls of clients that are known.",
            lambda: sum(self._calls_by_account.values()),
        )
        metrics.computed(
            "gauge",
            "sliceplane_xds_account_bytes",
            "Memory that clients that are known are charged with, together.",
            lambda: self.budget.shares.total,
        )
        self.sent_bytes = metrics.counter(
            "sliceplane_xds_sent_bytes_total", "Written to connections, before TLS."
        )
        self._limits = metrics.counters(
            "sliceplane_xds_limits_total",
            "Calls and connections that were ended or refused, by the limit.",
            "limit",
        )
        self._refused = metrics.counters(
            "sliceplane_xds_unauthenticated_calls_total",
            "Calls that were refused for who asked.",
            "code",
        )

    def start(
        self, sock: socket.socket, context: ssl.SSLContext, authenticator: Authenticator
    ) -> None:
        """Serves TLS on *sock*, which is bound; the listener owns it from now on."""
        context.set_alpn_protocols([PROTOCOL])
        self._acceptor = TlsAcceptor(
            sock,
            context,
            partial(GrpcProtocol, self, authenticator),
            room=lambda: self._connections_max - len(self._connections),
            unauthenticated=self.unauthenticated,
        )
        self._acceptor.start()

    def start_plain(self, sock: socket.socket, authenticator: Authenticator) -> None:
        """Serves without TLS on *sock*, which the caller has bound to loopback."""
        sock.setblocking(False)
        self._plain = sock
        self._accept_from(sock, partial(GrpcProtocol, self, authenticator))

    def _accept_from(self, sock: socket.socket, make: Callable[[], GrpcProtocol]) -> None:
        if not self._is_stopping:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock, make)

    def _accept(self, sock: socket.socket, make: Callable[[], GrpcProtocol]) -> None:
        """Accepts a connection.  ``asyncio.Server`` would lose accepted connections without a
        protocol when it is closed.
        """
        loop = asyncio.get_running_loop()
        try:
            accepted, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("a connection was not accepted", problem=os.strerror(error.errno or 0))
            loop.remove_reader(sock)
            loop.call_later(_ACCEPT_DELAY_S, self._accept_from, sock, make)
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = loop.create_task(loop.connect_accepted_socket(make, accepted))
        self._accepting[task] = None
        task.add_done_callback(self._accepting.pop)

    def use(self, context: ssl.SSLContext, *, distrusting: bool) -> None:
        """Sets the TLS *context* of new connections.  *distrusting*: clients that are authenticated
        by a certificate must reconnect.
        """
        if self._acceptor is None:
            return
        context.set_alpn_protocols([PROTOCOL])
        self._acceptor.use(context, distrusting=self._connections if distrusting else None)

    async def stop(self, spread_s: float) -> None:
        """Stops accepting connections, and closes the open ones one by one within *spread_s*."""
        self._is_stopping = True
        if self._acceptor is not None:
            self._acceptor.close()
        if self._plain is not None:
            asyncio.get_running_loop().remove_reader(self._plain)
            self._plain.close()
            self._plain = None
            await asyncio.gather(*self._accepting, return_exceptions=True)
        connections = list(self._connections)
        for connection in connections:
            if connection in self._connections:
                connection.shut_down(GrpcStatus.UNAVAILABLE, "the server stops")
            await asyncio.sleep(spread_s / len(connections))
        loop = asyncio.get_running_loop()
        cut_at = loop.time() + _FLUSH_S_MAX
        while self._connections and loop.time() < cut_at:
            await asyncio.sleep(_FLUSH_CHECK_S)
        for connection in list(self._connections):
            connection.abort()
        if self._acceptor is not None:
            self._acceptor.abort_handshakes()
        while self._connections:
            await asyncio.sleep(0)
        tasks = list(self._authentications.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.budget.stop()

    # Events of connections

    def enter(self, connection: GrpcProtocol) -> bool:
        """Registers *connection*; returns False if there are too many, or if the listener stops:
        then the server no longer follows the cluster.
        """
        if self._is_stopping:
            return False
        if len(self._connections) >= self._connections_max:
            self.count_limit("connections")
            return False
        self._connections[connection] = None
        return True

    def remove(self, connection: GrpcProtocol) -> None:
        self._connections.pop(connection, None)

    def flush_soon(self, connection: GrpcProtocol) -> None:
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush()

    def count_limit(self, limit: str) -> None:
        self._limits.of(limit).value += 1

    def on_opened(self, connection: GrpcProtocol, call: Call) -> None:
        self._authenticate(connection, call, self._on_user)

    def on_message(self, call: Call, data: bytes) -> None:
        try:
            self._handler.message(call, data)
        except Exception as error:
            self._fail(call, error)

    def on_half_closed(self, call: Call) -> None:
        try:
            self._handler.half_closed(call)
        except Exception as error:
            self._fail(call, error)

    def _fail(self, call: Call, error: Exception) -> None:
        """Ends the call in which an unexpected *error* occurred; others are unaffected."""
        _log.error("a call failed", path=call.path[:200], peer=call.peer, exc_info=error)
        if call.is_open:
            self._handler.closed(call)
            call.finish(GrpcStatus.INTERNAL, "internal error")

    def on_closed(self, call: Call) -> None:
        self.on_finished(call)
        if call.early_messages is None:
            self._handler.closed(call)

    def on_finished(self, call: Call) -> None:
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        task = self._authentications.pop(call, None)
        if task is not None:
            task.cancel()
        call.discharge()
        if call.early_messages is None:
            key = account_of(call.user)
            self._calls_by_account[key] -= 1
            if not self._calls_by_account[key]:
                del self._calls_by_account[key]

    # Authentication

    def _authenticate(self, connection: GrpcProtocol, call: Call, then: Then) -> None:
        try:
            user = connection.authenticator.user(
                connection.certificate, call.authorization, connection.peer
            )
        except CallRefused as error:
            then(connection, call, error)
            return
        if isinstance(user, User):
            then(connection, call, user)
        else:
            self._authentications[call] = asyncio.create_task(
                self._await_user(connection, call, user, then)
            )

    async def _await_user(
        self, connection: GrpcProtocol, call: Call, pending: Awaitable[User], then: Then
    ) -> None:
        answer: User | CallRefused
        try:
            answer = await asyncio.shield(pending)
        except CallRefused as error:
            answer = error
        except Exception as error:
            _log.error("authentication failed unexpectedly", peer=call.peer, exc_info=error)
            answer = CallRefused(GrpcStatus.INTERNAL, "internal error")
        del self._authentications[call]  # or the end of the call would cancel this task
        then(connection, call, answer)

    def _refuse(self, connection: GrpcProtocol, call: Call, error: CallRefused) -> None:
        self._refused.of(error.status.name).value += 1
        connection.end(call, error.status, error.text)

    def _on_user(self, connection: GrpcProtocol, call: Call, user: User | CallRefused) -> None:
        if isinstance(user, CallRefused):
            self._refuse(connection, call, user)
            return
        key = account_of(user)
        if self._calls_by_account.get(key, 0) >= self._calls_per_user_max and user is not UNSECURED:
            self.count_limit("calls-of-user")
            text = f"{user.name} has {self._calls_per_user_max} open calls, which is the maximum"
            connection.end(call, GrpcStatus.RESOURCE_EXHAUSTED, text)
            return
        self._calls_by_account[key] = self._calls_by_account.get(key, 0) + 1
        call.user = user
        call.charge(self.budget.open(user))
        messages = connection.take_early_messages(call)
        if not connection.on_authenticated(user):
            return
        self._schedule_recheck(
            connection, call, call.began + self._rng.uniform(0.8 * AGE_S_MAX, AGE_S_MAX)
        )
        try:
            self._handler.opened(call)
        except Exception as error:
            self._fail(call, error)
        for message in messages:
            if not call.is_open:
                return
            if message is None:
                self.on_half_closed(call)
            else:
                self.on_message(call, message)

    def _schedule_recheck(self, connection: GrpcProtocol, call: Call, ends_at: float) -> None:
        loop = asyncio.get_running_loop()
        when = min(loop.time() + RECHECK_S, ends_at)
        call.timer = loop.call_at(when, self._recheck, connection, call, ends_at)

    def _recheck(self, connection: GrpcProtocol, call: Call, ends_at: float) -> None:
        """Authenticates an open call again, or ends it if it has reached its maximum age."""
        if asyncio.get_running_loop().time() >= ends_at:
            connection.end(
                call, GrpcStatus.UNAVAILABLE, "the stream has reached its maximum age: reconnect"
            )
            return

        def on_rechecked(connection: GrpcProtocol, call: Call, user: User | CallRefused) -> None:
            if isinstance(user, User) and account_of(user) != account_of(call.user):
                user = CallRefused(
                    GrpcStatus.UNAUTHENTICATED, f"the credentials are now those of {user.name}"
                )
            if isinstance(user, User) or user.status is GrpcStatus.UNAVAILABLE:
                # The call goes on while the API server cannot review the token.
                self._schedule_recheck(connection, call, ends_at)
            else:
                self._refuse(connection, call, user)

        self._authenticate(connection, call, on_rechecked)
