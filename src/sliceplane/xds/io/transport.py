"""The port of the xDS server: TLS with optional client certificates, or plain on loopback; who
asks, limits, the end.

A call is handed to the ``Handler`` when it is known who asks. As long as it goes on that is asked
again each minute, as certificates end, tokens expire and accounts are deleted; and after
``AGE_S_MAX`` or a little less it ends, so that clients spread over all replicas. Clients come again
by themselves, and hold what they have meanwhile.

``stop`` spreads the ends over a time: a client that comes to the next replica has that much to ask
for.
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
from sliceplane.kit.io.tls.newcomers import ConnectionTiming, Newcomers
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.rng import Rng
from sliceplane.xds.io.authentication import UNSECURED, Authenticator, CallRefused
from sliceplane.xds.io.budget import ACCOUNT_BYTES_MAX, Budget, account_of
from sliceplane.xds.io.connection import Call, GrpcProtocol, Handler

CONNECTIONS_MAX: Final = 10_000
#: of one user; of a token that is bound to a Pod, of that Pod; the plain port's has as many as
#: there are connections
CALLS_PER_USER_MAX: Final = 200
#: how often it is asked who has an open call
RECHECK_S: Final = 60.0
AGE_S_MAX: Final = 1800.0
#: at a stop: for what was written, before connections are cut
_FLUSH_S_MAX: Final = 2.0
_LOOK_S: Final = 0.01
#: ALPN (RFC 9113 section 3.2)
PROTOCOL: Final = "h2"

_log = get_logger("xds")

Then = Callable[[GrpcProtocol, Call, "User | CallRefused"], None]


class GrpcListener:
    """Used from one task: ``start``, ``start_plain`` or both, once each, then ``stop``."""

    def __init__(
        self,
        handler: Handler,
        rng: Rng,
        *,
        connections_max: int = CONNECTIONS_MAX,
        calls_per_user_max: int = CALLS_PER_USER_MAX,
        newcomers: Newcomers | None = None,
        timing: ConnectionTiming = ConnectionTiming(),  # noqa: B008  # it is frozen
    ) -> None:
        """*newcomers*: those of the API server in this process; it has metrics of its own then."""
        self._handler = handler
        self._rng = rng
        self._connections_max = connections_max
        self._calls_per_user_max = calls_per_user_max
        self._timing = timing
        self._acceptor: TlsAcceptor | None = None
        #: without TLS: the socket that listens, and connections that asyncio is taking over
        self._plain: socket.socket | None = None
        self._coming: dict[asyncio.Task[Any], None] = {}
        #: in the order of their coming
        self._connections: dict[GrpcProtocol, None] = {}
        self._calls_of: dict[str, int] = {}
        #: who may have more calls than usual may have as many times the memory
        self.budget: Final = Budget(
            ACCOUNT_BYTES_MAX * max(1, calls_per_user_max // CALLS_PER_USER_MAX)
        )
        self._asking: dict[Call, asyncio.Task[None]] = {}
        self._is_stopping = False
        #: connections that have something to write
        self._to_flush: list[GrpcProtocol] = []
        self.newcomers = Newcomers() if newcomers is None else newcomers
        metrics = self.metrics = Metrics()
        if newcomers is None:
            metrics.include(self.newcomers.metrics.families)
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
            lambda: sum(self._calls_of.values()),
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
        """Serve TLS on *sock*, which is bound, and the listener's from here on."""
        context.set_alpn_protocols([PROTOCOL])
        self._acceptor = TlsAcceptor(
            sock,
            context,
            partial(GrpcProtocol, self, authenticator),
            room=lambda: self._connections_max - len(self._connections),
            newcomers=self.newcomers,
            timing=self._timing,
        )
        self._acceptor.start()

    def start_plain(self, sock: socket.socket, authenticator: Authenticator) -> None:
        """Without TLS; the caller sees to it that *sock* is bound to loopback."""
        sock.setblocking(False)
        self._plain = sock
        self._accept_from(sock, partial(GrpcProtocol, self, authenticator))

    def _accept_from(self, sock: socket.socket, make: Callable[[], GrpcProtocol]) -> None:
        if not self._is_stopping:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock, make)

    def _accept(self, sock: socket.socket, make: Callable[[], GrpcProtocol]) -> None:
        """A server of asyncio that is closed loses what it has accepted and not yet made a
        connection of.
        """
        loop = asyncio.get_running_loop()
        try:
            accepted, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("a connection was not accepted", problem=os.strerror(error.errno or 0))
            loop.remove_reader(sock)
            loop.call_later(self._timing.rest_s, self._accept_from, sock, make)
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = loop.create_task(loop.connect_accepted_socket(make, accepted))
        self._coming[task] = None
        task.add_done_callback(self._coming.pop)

    def use(self, context: ssl.SSLContext, *, distrusting: bool) -> None:
        """Connections from now on get *context*; *distrusting*: those by certificate must come
        anew.
        """
        if self._acceptor is None:
            return
        context.set_alpn_protocols([PROTOCOL])
        self._acceptor.context = context
        if distrusting:
            self._acceptor.abort_handshakes()
            for connection in list(self._connections):
                connection.distrust_certificate()

    async def stop(self, spread_s: float) -> None:
        """Take no connection any more, and send the clients away one after the other within
        *spread_s*.
        """
        self._is_stopping = True
        if self._acceptor is not None:
            self._acceptor.close()
        if self._plain is not None:
            asyncio.get_running_loop().remove_reader(self._plain)
            self._plain.close()
            self._plain = None
            await asyncio.gather(*self._coming, return_exceptions=True)
        connections = list(self._connections)
        for connection in connections:
            if connection in self._connections:
                connection.leave(GrpcStatus.UNAVAILABLE, "the server stops")
            await asyncio.sleep(spread_s / len(connections))
        loop = asyncio.get_running_loop()
        cut_at = loop.time() + _FLUSH_S_MAX
        while self._connections and loop.time() < cut_at:
            await asyncio.sleep(_LOOK_S)
        for connection in list(self._connections):
            connection.abort()
        if self._acceptor is not None:
            self._acceptor.abort_handshakes()
        while self._connections:
            await asyncio.sleep(0)
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.budget.stop()

    # What connections tell

    def enter(self, connection: GrpcProtocol) -> bool:
        """False: there is no room, or the listener stops: the client would stay with a server that
        follows nothing.
        """
        if self._is_stopping:
            return False
        if len(self._connections) >= self._connections_max:
            self.met("connections")
            return False
        self._connections[connection] = None
        return True

    def leave(self, connection: GrpcProtocol) -> None:
        self._connections.pop(connection, None)

    def flush_soon(self, connection: GrpcProtocol) -> None:
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush()

    def met(self, limit: str) -> None:
        self._limits.of(limit).value += 1

    def on_opened(self, connection: GrpcProtocol, call: Call) -> None:
        self._ask(connection, call, self._on_user)

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
        """A fault of ours ends the call that met it, and no other."""
        _log.error("a call failed", path=call.path[:200], peer=call.peer, exc_info=error)
        if call.is_open:
            self._handler.closed(call)
            call.finish(GrpcStatus.INTERNAL, "internal error")

    def on_closed(self, call: Call) -> None:
        self.on_finished(call)
        if call.held is None:
            self._handler.closed(call)

    def on_finished(self, call: Call) -> None:
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        asking = self._asking.pop(call, None)
        if asking is not None:
            asking.cancel()
        call.discharge()
        if call.held is None:
            key = account_of(call.user)
            self._calls_of[key] -= 1
            if not self._calls_of[key]:
                del self._calls_of[key]

    # Who asks

    def _ask(self, connection: GrpcProtocol, call: Call, then: Then) -> None:
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
            self._asking[call] = asyncio.create_task(self._await_user(connection, call, user, then))

    async def _await_user(
        self, connection: GrpcProtocol, call: Call, asked: Awaitable[User], then: Then
    ) -> None:
        answer: User | CallRefused
        try:
            answer = await asyncio.shield(asked)
        except CallRefused as error:
            answer = error
        except Exception as error:
            _log.error("it was not found out who asks", peer=call.peer, exc_info=error)
            answer = CallRefused(GrpcStatus.INTERNAL, "internal error")
        del self._asking[call]  # or the end of the call would cancel this task
        then(connection, call, answer)

    def _refuse(self, connection: GrpcProtocol, call: Call, error: CallRefused) -> None:
        self._refused.of(error.status.name).value += 1
        connection.end(call, error.status, error.text)

    def _on_user(self, connection: GrpcProtocol, call: Call, user: User | CallRefused) -> None:
        if isinstance(user, CallRefused):
            self._refuse(connection, call, user)
            return
        key = account_of(user)
        if self._calls_of.get(key, 0) >= self._calls_per_user_max and user is not UNSECURED:
            self.met("calls-of-user")
            text = f"{user.name} has {self._calls_per_user_max} calls open, and may have no more"
            connection.end(call, GrpcStatus.RESOURCE_EXHAUSTED, text)
            return
        self._calls_of[key] = self._calls_of.get(key, 0) + 1
        call.user = user
        call.charge(self.budget.open(user))
        held = connection.take_held(call)
        if not connection.known(user):
            return
        self._look_later(
            connection, call, call.began + self._rng.uniform(0.8 * AGE_S_MAX, AGE_S_MAX)
        )
        try:
            self._handler.opened(call)
        except Exception as error:
            self._fail(call, error)
        for message in held:
            if not call.is_open:
                return
            if message is None:
                self.on_half_closed(call)
            else:
                self.on_message(call, message)

    def _look_later(self, connection: GrpcProtocol, call: Call, ends_at: float) -> None:
        loop = asyncio.get_running_loop()
        when = min(loop.time() + RECHECK_S, ends_at)
        call.timer = loop.call_at(when, self._look, connection, call, ends_at)

    def _look(self, connection: GrpcProtocol, call: Call, ends_at: float) -> None:
        """Is it still the same user, and has the call not its age?"""
        if asyncio.get_running_loop().time() >= ends_at:
            connection.end(call, GrpcStatus.UNAVAILABLE, "the stream has its age: come again")
            return

        def again(connection: GrpcProtocol, call: Call, user: User | CallRefused) -> None:
            if isinstance(user, User) and account_of(user) != account_of(call.user):
                user = CallRefused(
                    GrpcStatus.UNAUTHENTICATED, f"the credentials are now those of {user.name}"
                )
            if isinstance(user, User) or user.status is GrpcStatus.UNAVAILABLE:
                # What a client has is better than nothing while the API server is away.
                self._look_later(connection, call, ends_at)
            else:
                self._refuse(connection, call, user)

        self._ask(connection, call, again)
