"""One connection of the xDS server: an asyncio protocol around ``kit.http2.grpc``, and the calls on
it.

A ``Handler`` receives the events of a call in order, beginning when its user is authenticated::

    opened --> message ... --> half_closed --> closed

``closed`` is called once, unless the handler itself has finished the call. Everything runs in the
thread of the loop, and a handler may send at any time. Messages that are sent in one iteration of
the loop leave in one write.
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
from sliceplane.kit.io.tls.unauthenticated import OPEN_BYTES
from sliceplane.watch.io.certificates import certificate_of
from sliceplane.xds.io.budget import CONNECTION_BYTES, Charge

if TYPE_CHECKING:
    from sliceplane.xds.io.authentication import Authenticator
    from sliceplane.xds.io.transport import GrpcListener

#: bytes of one call that its client has not received
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
#: bytes of these that are not charged to the account: a response in transit
UNSENT_BYTES_FREE: Final = 64 * 1024
#: bytes of an unauthenticated call, beside its credentials and messages
CALL_BYTES: Final = 2 * 1024
#: characters of a path that are retained
PATH_MAX: Final = 200
#: seconds between checks of a connection whose reading is suspended
_SUSPENDED_CHECK_S: Final = 1.0
#: seconds for which a client may receive nothing of the output
STALLED_S_MAX: Final = 60.0
#: unwritten frames beyond which reading is suspended
UNWRITTEN_FRAMES_MAX: Final = 1000

_UNKNOWN_USER: Final = User(name=ANONYMOUS_NAME)


class Handler(Protocol):
    """The receiver of the events of calls."""

    def opened(self, call: Call) -> None: ...

    def message(self, call: Call, data: bytes) -> None: ...

    def half_closed(self, call: Call) -> None:
        """The client has sent its last message, and waits for the end of the call."""

    def closed(self, call: Call) -> None: ...


class Call:
    """One gRPC call, which is one HTTP/2 stream."""

    __slots__ = (
        "_charge",
        "_connection",
        "_number",
        "authorization",
        "began",
        "early_bytes",
        "early_messages",
        "is_open",
        "path",
        "state_bytes",
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
        #: the only header that is needed later
        self.authorization = headers.get("authorization", "")
        self.began = began
        self.user = _UNKNOWN_USER
        #: messages received before the user is authenticated, ``None`` for the end; ``None`` in
        #: place of the list afterwards.  Used by the listener
        self.early_messages: list[bytes | None] | None = []
        #: bytes that count for the unauthenticated connection
        self.early_bytes = CALL_BYTES + len(self.authorization)
        #: bytes charged to the account of the user: of the handler's state, and of responses that
        #: the client has not received
        self.state_bytes = self.unsent_bytes = 0
        self._charge: Charge | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_open = True

    @property
    def peer(self) -> str:
        """The address of the client, for logs."""
        return self._connection.peer

    @property
    def pending_bytes(self) -> int:
        """Bytes that were sent and do not fit into the client's flow-control windows yet."""
        return self._connection.grpc.http.pending_bytes(self._number)

    def charge(self, charge: Charge) -> None:
        """Sets the charge of the account of the user."""
        self._charge = charge

    def charge_state(self, state_bytes: int) -> bool:
        """Charges the account with the memory of the handler for this call.  Returns False if that
        exceeds a bound: then the handler ends the call.
        """
        self.state_bytes = state_bytes
        self.unsent_bytes = self.pending_bytes
        return self.recharge()

    def recharge(self) -> bool:
        """Updates the charge.  Returns False if that exceeds a bound."""
        if self._charge is None:
            return True
        return self._charge.set(self.state_bytes + max(0, self.unsent_bytes - UNSENT_BYTES_FREE))

    def discharge(self) -> None:
        """Releases the charge at the end of the call.  Idempotent."""
        if self._charge is not None:
            self._charge.close()
            self._charge = None

    def count_limit(self, limit: str) -> None:
        """Counts that the client exceeded a limit of the handler."""
        self._connection.count_limit(limit)

    def suspend_input(self, *, is_suspended: bool) -> None:
        """Suspends reading from the connection while messages wait for the handler."""
        self._connection.suspend_input(self, is_suspended=is_suspended)

    def send(self, message: bytes) -> None:
        """Sends *message*, which is referenced, not copied, until it is written.  After the end of
        the call it is dropped.
        """
        self._connection.send(self, message)

    def finish(self, status: int, text: str = "") -> None:
        """Ends the call after all sent messages.  Idempotent."""
        self._connection.finish(self, status, text)


class GrpcProtocol(asyncio.Protocol):
    """One connection; see the module docstring."""

    def __init__(self, listener: GrpcListener, authenticator: Authenticator) -> None:
        self._listener = listener
        #: authenticates the calls of this port
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
        self._is_input_paused = False
        #: too many frames are unwritten
        self._is_output_full = False
        #: calls whose messages wait for the handler
        self._suspended_calls: dict[Call, None] = {}
        self._flush_scheduled = False
        self._is_authenticated = False
        self._charge: Charge | None = None
        #: bytes of all unauthenticated calls
        self._early_bytes = 0

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
            self.on_authenticated(self.certificate.user)
        self._set_timer()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._flush_scheduled = True
        for event in self.grpc.receive(data, self._loop.time()):
            self._dispatch(event)
        self.flush()
        waiting_bytes = self.grpc.partial_bytes + self._early_bytes
        if not self._is_authenticated:
            self._listener.unauthenticated.charge(self._transport, OPEN_BYTES + waiting_bytes)
        elif self._charge is not None and self._charge.amount != CONNECTION_BYTES + waiting_bytes:
            self._recharge(waiting_bytes)

    def _recharge(self, waiting_bytes: int) -> bool:
        assert self._charge is not None, "the connection is authenticated"
        if self._charge.set(CONNECTION_BYTES + waiting_bytes):
            return True
        self._listener.count_limit("account-bytes")
        self.shut_down(
            GrpcStatus.RESOURCE_EXHAUSTED,
            "the account uses the maximum of memory of this server",
        )
        return False

    def eof_received(self) -> None:
        """Closes the connection, and with it all calls."""

    def pause_writing(self) -> None:
        self._is_paused = True
        self._stalled = self._loop.call_later(STALLED_S_MAX, self._abort_at_limit, "stalled")

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._is_output_full = False
        self._pause_or_resume()
        self.flush()

    def suspend_input(self, call: Call, *, is_suspended: bool) -> None:
        if is_suspended:
            self._suspended_calls[call] = None
        else:
            self._suspended_calls.pop(call, None)
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        is_paused = bool(self._suspended_calls) or self._is_output_full
        if is_paused == self._is_input_paused or self._transport.is_closing():
            return
        self._is_input_paused = is_paused
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
        self._listener.remove(self)

    # Calls

    def _dispatch(self, event: CallEvent) -> None:
        match event:
            case CallMessage(number, data):
                call = self.calls.get(number)
                if call is None:
                    return  # the handler finished it after an earlier message
                if call.early_messages is None:
                    self._listener.on_message(call, data)
                else:
                    self._queue_early_message(call, data)
            case CallOpened(number, path, headers):
                call = self.calls[number] = Call(self, number, path, headers, self._loop.time())
                self._early_bytes += call.early_bytes
                self._listener.on_opened(self, call)
                self._set_timer()
            case CallHalfClosed(number):
                call = self.calls.get(number)
                if call is not None and call.early_messages is None:
                    self._listener.on_half_closed(call)
                elif call is not None:
                    self._queue_early_message(call, None)
            case CallClosed(number):
                self._on_closed(number)

    def _queue_early_message(self, call: Call, data: bytes | None) -> None:
        assert call.early_messages is not None, "the call is not authenticated"
        call.early_messages.append(data)
        call.early_bytes += _message_bytes(data)
        self._early_bytes += _message_bytes(data)
        if self._early_bytes > MESSAGE_BYTES_MAX:
            self._listener.count_limit("held")
            self.end(
                call,
                GrpcStatus.RESOURCE_EXHAUSTED,
                "the client sent too many bytes before it was authenticated",
            )

    def take_early_messages(self, call: Call) -> list[bytes | None]:
        """Returns the messages that waited for the authentication of *call*; later ones do not
        wait.
        """
        messages, call.early_messages = call.early_messages or [], None
        self._release_early_messages(call)
        return messages

    def _release_early_messages(self, call: Call) -> None:
        self._early_bytes -= call.early_bytes
        call.early_bytes = 0

    def on_authenticated(self, user: User) -> bool:
        """Charges the connection to *user*, who is now authenticated.  Returns False if that
        exceeds a bound: then all calls have ended.
        """
        if self._is_authenticated:
            return True
        self._is_authenticated = True
        self._listener.unauthenticated.remove(self._transport)
        self._charge = self._listener.budget.open(user)
        return self._recharge(self.grpc.partial_bytes + self._early_bytes)

    def count_limit(self, limit: str) -> None:
        self._listener.count_limit(limit)

    def _on_closed(self, number: int) -> None:
        call = self.calls.pop(number, None)
        if call is not None:
            call.is_open = False
            self._release_early_messages(call)
            self._listener.on_closed(call)
            self.suspend_input(call, is_suspended=False)

    def send(self, call: Call, message: bytes) -> None:
        if not call.is_open:
            return
        self.grpc.send(call._number, message)
        pending_bytes = call.pending_bytes
        if pending_bytes > UNSENT_BYTES_FREE or call.unsent_bytes > UNSENT_BYTES_FREE:
            call.unsent_bytes = pending_bytes
            if pending_bytes > UNSENT_BYTES_MAX or not call.recharge():
                self._listener.count_limit("unsent")
                self.end(
                    call,
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"the client has not received {pending_bytes} bytes",
                )
        self._flush_soon()

    def finish(self, call: Call, status: int, text: str) -> None:
        if call.is_open:
            del self.calls[call._number]
            call.is_open = False
            self._release_early_messages(call)
            self._listener.on_finished(call)
            self.suspend_input(call, is_suspended=False)
            self.grpc.finish(call._number, status, text)
            self._flush_soon()

    def end(self, call: Call, status: int, text: str) -> None:
        """Ends the call, and notifies the handler."""
        if call.is_open:
            self.grpc.finish(call._number, status, text)
            self._on_closed(call._number)
            self._flush_soon()

    # The connection

    def shut_down(self, status: int, text: str) -> None:
        """Sends GOAWAY, ends all calls, and closes the connection when that is written."""
        self.grpc.http.go_away()
        for call in list(self.calls.values()):
            self.end(call, status, text)
        self._flush_soon()

    def abort(self) -> None:
        self._transport.abort()

    def _abort_at_limit(self, limit: str) -> None:
        self._listener.count_limit(limit)
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
                self._listener.count_limit(limit)
            http.met.clear()
        if http.is_over and not self._is_paused:
            self._transport.close()
        elif self._is_paused and http.unwritten_frames > UNWRITTEN_FRAMES_MAX:
            self._is_output_full = True
            self._pause_or_resume()

    def _set_timer(self) -> None:
        when = self.grpc.next_deadline()
        if self._timer is not None:
            if self._timer.when() <= when:
                return  # the earlier timer sets the next one
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._suspended_calls:  # answers to our pings are not read
            self._timer = self._loop.call_later(_SUSPENDED_CHECK_S, self._on_time)
            return
        for event in self.grpc.on_time(self._loop.time()):
            self._dispatch(event)
        self.flush()
        if not self._transport.is_closing():
            self._set_timer()

    def distrust_certificate(self) -> None:
        """Closes the connection if it is authenticated by a certificate: its signer may have lost
        trust.
        """
        if self.certificate is not None:
            self.shut_down(
                GrpcStatus.UNAUTHENTICATED,
                "the signer of the client certificate is no longer trusted",
            )


def _message_bytes(data: bytes | None) -> int:
    return 64 + len(data or b"")
