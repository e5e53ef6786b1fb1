"""One connection of the xDS server: an asyncio protocol around ``kit.http2.grpc``, and the calls on
it.

A ``Handler`` is told of a call when it is known who asks, and from then on of everything in order::

    opened --> message ... --> half_closed --> closed

``closed`` comes once, unless the handler itself has finished the call. All of it happens in the
loop's thread, and a handler sends whenever it likes. What is sent in one turn of the loop leaves in
one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from sliceplane.api.users import ANONYMOUS_NAME, User
from sliceplane.kit.http2.grpc import (
    CallClosed,
    CallEvent,
    CallHalfClosed,
    CallMessage,
    CallOpened,
    GrpcConnection,
    GrpcStatus,
)
from sliceplane.kit.http2.limits import MESSAGE_BYTES_MAX, OUTPUT_BYTES
from sliceplane.kit.io.tls.newcomers import OPEN_BYTES
from sliceplane.watch.io.certificates import certificate_of
from sliceplane.xds.io.budget import CONNECTION_BYTES, Charge

if TYPE_CHECKING:
    from sliceplane.xds.io.authentication import Authenticator
    from sliceplane.xds.io.transport import GrpcListener

#: of one call, that its client does not take
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
#: of these so many are not charged to its account: an answer is on its way
UNSENT_BYTES_FREE: Final = 64 * 1024
#: of a call of which it is not known who asks, beside its credentials and messages
CALL_BYTES: Final = 2 * 1024
#: characters of a path that are kept
PATH_MAX: Final = 200
#: between two looks at a connection that is not read
_UNREAD_S: Final = 1.0
#: in which a client takes nothing of what is written
STALLED_S_MAX: Final = 60.0
#: frames of ours that the socket does not take, before nothing more is read
UNWRITTEN_FRAMES_MAX: Final = 1000

_NOBODY: Final = User(name=ANONYMOUS_NAME)


class Handler(Protocol):
    def opened(self, call: Call) -> None: ...

    def message(self, call: Call, data: bytes) -> None: ...

    def half_closed(self, call: Call) -> None:
        """The client sends no more messages, and waits for the end."""

    def closed(self, call: Call) -> None: ...


class Call:
    """One gRPC call, which is one HTTP/2 stream."""

    __slots__ = (
        "_charge",
        "_connection",
        "_number",
        "authorization",
        "began",
        "held",
        "held_bytes",
        "is_open",
        "kept_bytes",
        "path",
        "timer",
        "unsent_bytes",
        "user",
    )

    def __init__(
        self,
        connection: GrpcProtocol,
        number: int,
        path: str,
        headers: Mapping[str, str],
        began: float,
    ) -> None:
        self._connection = connection
        self._number = number
        self.path = path[:PATH_MAX]
        #: of all headers the one that is needed again
        self.authorization = headers.get("authorization", "")
        self.began = began
        #: who asks
        self.user = _NOBODY
        #: until that is known: what the client has sent, ``None`` for its end; the listener's
        self.held: list[bytes | None] | None = []
        #: with which a connection of strangers is charged
        self.held_bytes = CALL_BYTES + len(self.authorization)
        #: with which the account is charged, when it is known: what the handler keeps, and what
        #: waits to be taken
        self.kept_bytes = self.unsent_bytes = 0
        self._charge: Charge | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_open = True

    @property
    def peer(self) -> str:
        """The address of the other end, for logs."""
        return self._connection.peer

    @property
    def pending_bytes(self) -> int:
        """Sent, and not yet taken by the client's windows."""
        return self._connection.grpc.http.pending_bytes(self._number)

    def charge(self, charge: Charge) -> None:
        """Its account pays from now on."""
        self._charge = charge

    def keep(self, kept_bytes: int) -> bool:
        """Charges the account with what the handler keeps for this call. Returns False if that is
        too much: the handler ends the call.
        """
        self.kept_bytes = kept_bytes
        self.unsent_bytes = self.pending_bytes
        return self.recharge()

    def recharge(self) -> bool:
        if self._charge is None:
            return True
        return self._charge.set(self.kept_bytes + max(0, self.unsent_bytes - UNSENT_BYTES_FREE))

    def discharge(self) -> None:
        """It is over.  Idempotent."""
        if self._charge is not None:
            self._charge.close()
            self._charge = None

    def met(self, limit: str) -> None:
        """Counts that the client met a limit of the handler."""
        self._connection.met(limit)

    def hold_reading(self, *, is_held: bool) -> None:
        """While messages wait for the handler, nothing more is read of the connection."""
        self._connection.hold_reading(self, is_held=is_held)

    def send(self, message: bytes) -> None:
        """*message* is kept, not copied, until it is written.  After the end it is dropped."""
        self._connection.send(self, message)

    def finish(self, status: int, text: str = "") -> None:
        """Behind what was sent.  Idempotent."""
        self._connection.finish(self, status, text)


class GrpcProtocol(asyncio.Protocol):
    """See the module docstring."""

    def __init__(self, listener: GrpcListener, authenticator: Authenticator) -> None:
        self._listener = listener
        #: says who asks at this door
        self.authenticator: Final = authenticator
        self._loop = asyncio.get_running_loop()
        self.grpc = GrpcConnection(self._loop.time())
        self.calls: dict[int, Call] = {}
        self.certificate: Any = None
        self.peer = ""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_reading_paused = False
        #: too many frames wait for the socket
        self._is_clogged = False
        #: calls whose messages wait
        self._busy: dict[Call, None] = {}
        self._flush_scheduled = False
        self._is_known = False
        self._charge: Charge | None = None
        #: of all calls of which it is not known who asks
        self._held_bytes = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else ""
        tls = transport.get_extra_info("ssl_object")
        self.certificate = None if tls is None else certificate_of(tls)
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES)
        if not self._listener.enter(self):
            self._transport.abort()
            return
        if self.certificate is not None:
            self.known(self.certificate.user)
        self._set_timer()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._flush_scheduled = True
        for event in self.grpc.receive(data, self._loop.time()):
            self._perform(event)
        self.flush()
        waiting_bytes = self.grpc.partial_bytes + self._held_bytes
        if not self._is_known:
            self._listener.newcomers.charge(self._transport, OPEN_BYTES + waiting_bytes)
        elif self._charge is not None and self._charge.amount != CONNECTION_BYTES + waiting_bytes:
            self._recharge(waiting_bytes)

    def _recharge(self, waiting_bytes: int) -> bool:
        assert self._charge is not None, "it is known who pays"
        if self._charge.set(CONNECTION_BYTES + waiting_bytes):
            return True
        self._listener.met("account-bytes")
        self.leave(
            GrpcStatus.RESOURCE_EXHAUSTED,
            "the account keeps as much memory of this server as it may",
        )
        return False

    def eof_received(self) -> None:
        """No call outlives its client."""

    def pause_writing(self) -> None:
        self._is_paused = True
        self._stalled = self._loop.call_later(STALLED_S_MAX, self._cut, "stalled")

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._is_clogged = False
        self._pause_or_resume()
        self.flush()

    def hold_reading(self, call: Call, *, is_held: bool) -> None:
        if is_held:
            self._busy[call] = None
        else:
            self._busy.pop(call, None)
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        is_paused = bool(self._busy) or self._is_clogged
        if is_paused == self._is_reading_paused or self._transport.is_closing():
            return
        self._is_reading_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        else:
            self.grpc.http.excuse(self._loop.time())
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        self._timer = self._stalled = None
        if self._charge is not None:
            self._charge.close()
            self._charge = None
        for number in list(self.calls):
            self._on_closed(number)
        self._listener.leave(self)

    # Calls

    def _perform(self, event: CallEvent) -> None:
        match event:
            case CallMessage(number, data):
                call = self.calls.get(number)
                if call is None:
                    return  # the handler finished it on hearing what came before
                if call.held is None:
                    self._listener.on_message(call, data)
                else:
                    self._hold(call, data)
            case CallOpened(number, path, headers):
                call = self.calls[number] = Call(self, number, path, headers, self._loop.time())
                self._held_bytes += call.held_bytes
                self._listener.on_opened(self, call)
                self._set_timer()
            case CallHalfClosed(number):
                call = self.calls.get(number)
                if call is not None and call.held is None:
                    self._listener.on_half_closed(call)
                elif call is not None:
                    self._hold(call, None)
            case CallClosed(number):
                self._on_closed(number)

    def _hold(self, call: Call, data: bytes | None) -> None:
        assert call.held is not None, "it is known who asks"
        call.held.append(data)
        call.held_bytes += _held_size(data)
        self._held_bytes += _held_size(data)
        if self._held_bytes > MESSAGE_BYTES_MAX:
            self._listener.met("held")
            self.end(
                call,
                GrpcStatus.RESOURCE_EXHAUSTED,
                "too much was sent before it was known who asks",
            )

    def take_held(self, call: Call) -> list[bytes | None]:
        """What *call* has waited with; from now on nothing waits."""
        held, call.held = call.held or [], None
        self._forget_held(call)
        return held

    def _forget_held(self, call: Call) -> None:
        self._held_bytes -= call.held_bytes
        call.held_bytes = 0

    def known(self, user: User) -> bool:
        """It is known who is there: what the connection costs is *user*'s, and no more a
        stranger's. Returns False if that is too much, and all calls have ended.
        """
        if self._is_known:
            return True
        self._is_known = True
        self._listener.newcomers.leave(self._transport)
        self._charge = self._listener.budget.open(user)
        return self._recharge(self.grpc.partial_bytes + self._held_bytes)

    def met(self, limit: str) -> None:
        self._listener.met(limit)

    def _on_closed(self, number: int) -> None:
        call = self.calls.pop(number, None)
        if call is not None:
            call.is_open = False
            self._forget_held(call)
            self._listener.on_closed(call)
            self.hold_reading(call, is_held=False)

    def send(self, call: Call, message: bytes) -> None:
        if not call.is_open:
            return
        self.grpc.send(call._number, message)
        pending_bytes = call.pending_bytes
        if pending_bytes > UNSENT_BYTES_FREE or call.unsent_bytes > UNSENT_BYTES_FREE:
            call.unsent_bytes = pending_bytes
            if pending_bytes > UNSENT_BYTES_MAX or not call.recharge():
                self._listener.met("unsent")
                self.end(
                    call,
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"the client has {pending_bytes} bytes to take",
                )
        self._flush_soon()

    def finish(self, call: Call, status: int, text: str) -> None:
        if call.is_open:
            del self.calls[call._number]
            call.is_open = False
            self._forget_held(call)
            self._listener.on_finished(call)
            self.hold_reading(call, is_held=False)
            self.grpc.finish(call._number, status, text)
            self._flush_soon()

    def end(self, call: Call, status: int, text: str) -> None:
        """We end it, and the handler is told."""
        if call.is_open:
            self.grpc.finish(call._number, status, text)
            self._on_closed(call._number)
            self._flush_soon()

    # The connection

    def leave(self, status: int, text: str) -> None:
        """Tell the client to go elsewhere, end its calls, and close when that is written."""
        self.grpc.http.leave()
        for call in list(self.calls.values()):
            self.end(call, status, text)
        self._flush_soon()

    def abort(self) -> None:
        self._transport.abort()

    def _cut(self, limit: str) -> None:
        self._listener.met(limit)
        self._transport.abort()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._listener.flush_soon(self)

    def flush(self) -> None:
        self._flush_scheduled = False
        if self._transport.is_closing():
            return
        http = self.grpc.http
        while not self._is_paused and (output := http.take_output()):
            self._listener.sent_bytes.value += len(output)
            self._transport.write(output)
        if http.met:
            for limit in http.met:
                self._listener.met(limit)
            http.met.clear()
        if http.is_over and not self._is_paused:
            self._transport.close()
        elif self._is_paused and http.unwritten_frames > UNWRITTEN_FRAMES_MAX:
            self._is_clogged = True
            self._pause_or_resume()

    def _set_timer(self) -> None:
        when = self.grpc.next_deadline()
        if self._timer is not None:
            if self._timer.when() <= when:
                return  # it looks again
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._busy:  # what the client says is not heard
            self._timer = self._loop.call_later(_UNREAD_S, self._on_time)
            return
        for event in self.grpc.on_time(self._loop.time()):
            self._perform(event)
        self.flush()
        if not self._transport.is_closing():
            self._set_timer()

    def distrust_certificate(self) -> None:
        """Its signer is trusted no more."""
        if self.certificate is not None:
            self.leave(
                GrpcStatus.UNAUTHENTICATED,
                "the signer of the client certificate is trusted no more",
            )


def _held_size(data: bytes | None) -> int:
    return 64 + len(data or b"")
