"""Calls and messages of gRPC over one HTTP/2 connection ("gRPC over HTTP2", a document of
grpc/grpc).

    CallOpened --> CallMessage ... --> CallHalfClosed        a call of ours to ``finish`` ends it
       '---------------'------------------'----> CallClosed, when it ended otherwise: reset, too large, out of time

Events of a call come in that order; after ``finish`` there are none. Messages are not compressed: a
request that says otherwise gets UNIMPLEMENTED. Headers of an answer leave with its first message.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from sliceplane.kit.http2.connection import Http2Connection, StreamData, StreamGone, StreamRequest
from sliceplane.kit.http2.fields import Fields, literals
from sliceplane.kit.http2.limits import MESSAGE_BYTES_MAX, PARTIAL_BYTES_MAX

#: maximum bytes of ``grpc-message``
_TEXT_MAX: Final = 1024

_PREFIX: Final = struct.Struct(">BL")
_PREFIX_BYTES: Final = 5
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_IDENTITY: Final = b"identity"
_CONTENT: Final = ((b"content-type", b"application/grpc"),)
_OK: Final = b"\x88"  # ":status: 200" of the static table
_HEADERS: Final = _OK + literals(_CONTENT)


class GrpcStatus(enum.IntEnum):
    """The gRPC status codes that our servers return."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class CallOpened(msgspec.Struct, frozen=True):
    call_id: int
    path: str
    #: headers as sent, in lower case and without pseudo-headers
    headers: Mapping[str, str]


class CallMessage(msgspec.Struct, frozen=True):
    call_id: int
    data: bytes


class CallHalfClosed(msgspec.Struct, frozen=True):
    """The client sends no more messages, and waits for ours."""

    call_id: int


class CallClosed(msgspec.Struct, frozen=True):
    call_id: int
    text: str


CallEvent = CallOpened | CallMessage | CallHalfClosed | CallClosed


class _Call:
    __slots__ = ("deadline", "headed", "partial")

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        #: whether the headers of the answer were sent
        self.headed = False
        #: bytes of an incomplete message
        self.partial = bytearray()


class _CallFault(Exception):
    """Ends a call that is open."""

    def __init__(self, status: GrpcStatus, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.limit = limit


class GrpcConnection:
    """Owned by one connection's protocol, which writes the output of ``http.take_output``."""

    def __init__(self, now: float) -> None:
        self.http: Final = Http2Connection(now)
        self._calls: dict[int, _Call] = {}
        self._deadlines: dict[int, float] = {}
        self._partial_bytes = 0

    @property
    def partial_bytes(self) -> int:
        """Bytes of incomplete messages."""
        return self._partial_bytes

    def next_deadline(self) -> float:
        return min((self.http.next_deadline(), *self._deadlines.values()))

    def on_time(self, now: float) -> list[CallEvent]:
        """Handles the time; may be called when nothing is due."""
        late = [call_id for call_id, deadline in self._deadlines.items() if deadline <= now]
        for call_id in late:
            self.finish(
                call_id, GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed"
            )
        self.http.on_time(now)
        closed: list[CallEvent] = [
            CallClosed(call_id, "its deadline has passed") for call_id in late
        ]
        if self.http.fault is not None:
            closed += [CallClosed(call_id, self.http.fault.text) for call_id in self._calls]
            self._forget_all()
        return closed

    def _forget_all(self) -> None:
        self._calls.clear()
        self._deadlines.clear()
        self._partial_bytes = 0

    # Receiving

    def receive(self, data: bytes, now: float) -> list[CallEvent]:
        events: list[CallEvent] = []
        for event in self.http.receive(data, now):
            match event:
                case StreamData(call_id, received, ended):
                    self._on_data(call_id, received, ended, events)
                case StreamRequest(call_id, fields, ended):
                    self._on_request(call_id, fields, ended, now, events)
                case StreamGone(call_id, text):
                    if self._forget(call_id):
                        events.append(CallClosed(call_id, text))
        return events

    def _on_request(
        self, call_id: int, fields: Fields, ended: bool, now: float, events: list[CallEvent]
    ) -> None:
        if fields[b":method"] != b"POST":
            self._refuse(
                call_id, b"405", GrpcStatus.UNIMPLEMENTED, "the method of a gRPC call is POST"
            )
        elif not re.match(rb"application/grpc(?:[+;]|$)", fields.get(b"content-type", b"")):
            self._refuse(
                call_id,
                b"415",
                GrpcStatus.INTERNAL,
                "the content-type of a gRPC call is application/grpc",
            )
        elif (encoding := fields.get(b"grpc-encoding", _IDENTITY)) != _IDENTITY:
            text = (
                f"grpc-encoding {encoding[:40].decode('latin-1')} is not taken: send messages as "
                "they are"
            )
            self._refuse(call_id, b"200", GrpcStatus.UNIMPLEMENTED, text)
        else:
            timeout = _TIMEOUT.fullmatch(fields.get(b"grpc-timeout", b"99999999H"))
            if timeout is None:
                self._refuse(call_id, b"200", GrpcStatus.INTERNAL, "grpc-timeout is no time")
                return
            call = self._calls[call_id] = _Call(None)
            if b"grpc-timeout" in fields:
                self._deadlines[call_id] = call.deadline = (
                    now + int(timeout[1]) * _UNITS_S[timeout[2]]
                )
            headers = {
                name.decode("ascii"): value.decode("latin-1")
                for name, value in fields.items()
                if not name.startswith(b":")
            }
            events.append(CallOpened(call_id, fields[b":path"].decode("latin-1"), headers))
            if ended:
                events.append(CallHalfClosed(call_id))

    def _refuse(self, call_id: int, http_status: bytes, status: GrpcStatus, text: str) -> None:
        first = _OK if http_status == b"200" else literals(((b":status", http_status),))
        accept = (
            ((b"grpc-accept-encoding", _IDENTITY),) if status is GrpcStatus.UNIMPLEMENTED else ()
        )
        self.http.send_trailers(
            call_id, first + literals((*_CONTENT, *accept)) + _trailers(status, text)
        )

    def _on_data(self, call_id: int, data: bytes, ended: bool, events: list[CallEvent]) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        try:
            self._take_messages(call_id, call, data, events)
            if ended:
                if call.partial:
                    raise _CallFault(GrpcStatus.INTERNAL, "the last message is not whole")
                events.append(CallHalfClosed(call_id))
        except _CallFault as fault:
            if fault.limit:
                self.http.met.append(fault.limit)
            self.finish(call_id, fault.status, fault.text)
            events.append(CallClosed(call_id, fault.text))

    def _take_messages(
        self, call_id: int, call: _Call, data: bytes, events: list[CallEvent]
    ) -> None:
        partial = call.partial
        if partial:
            partial += data
            self._partial_bytes += len(data)
            if (
                len(partial)
                < _PREFIX_BYTES + int.from_bytes(partial[1:5], "big")
                <= MESSAGE_BYTES_MAX
            ):
                self._check_partial()
                return
            data = bytes(partial)
            self._partial_bytes -= len(partial)
            partial.clear()
        start = 0
        while len(data) - start >= _PREFIX_BYTES:
            compressed, size = _PREFIX.unpack_from(data, start)
            if compressed:
                raise _CallFault(
                    GrpcStatus.INTERNAL, "a message is compressed, and no grpc-encoding says how"
                )
            if size > MESSAGE_BYTES_MAX:
                text = f"a message of {size} bytes; {MESSAGE_BYTES_MAX} are taken"
                raise _CallFault(GrpcStatus.RESOURCE_EXHAUSTED, text, "message")
            end = start + _PREFIX_BYTES + size
            if end > len(data):
                break
            events.append(CallMessage(call_id, data[start + _PREFIX_BYTES : end]))
            start = end
        if start < len(data):
            partial += data[start:]
            self._partial_bytes += len(partial)
            self._check_partial()

    def _check_partial(self) -> None:
        if self._partial_bytes > PARTIAL_BYTES_MAX:
            text = (
                f"the calls of this connection have sent {self._partial_bytes} bytes of messages "
                "that are not whole"
            )
            raise _CallFault(GrpcStatus.RESOURCE_EXHAUSTED, text, "partial-messages")

    def _forget(self, call_id: int) -> bool:
        call = self._calls.pop(call_id, None)
        if call is None:
            return False
        self._partial_bytes -= len(call.partial)
        self._deadlines.pop(call_id, None)
        return True

    # Sending

    def send(self, call_id: int, message: bytes) -> None:
        """Sends a message; dropped if the call has ended."""
        call = self._calls.get(call_id)
        if call is None:
            return
        if not call.headed:
            call.headed = True
            self.http.send_headers(call_id, _HEADERS)
        self.http.send_data(call_id, (_PREFIX.pack(0, len(message)), message))

    def finish(self, call_id: int, status: int, text: str = "") -> None:
        """Ends a call after all sent messages; it produces no more events. Idempotent."""
        call = self._calls.get(call_id)
        if call is None:
            return
        self._forget(call_id)
        block = _trailers(status, text)
        self.http.send_trailers(call_id, block if call.headed else _HEADERS + block)

    def check(self) -> None:
        self.http.check()
        assert self._partial_bytes == sum(len(call.partial) for call in self._calls.values()), (
            "bytes are lost"
        )
        assert self._deadlines.keys() <= self._calls.keys(), "a call that is over has a deadline"


def _trailers(status: int, text: str) -> bytes:
    fields = [(b"grpc-status", b"%d" % status)]
    if text:
        fields.append((b"grpc-message", _percent_encoded(text)))
    return literals(fields)


def _percent_encoded(text: str) -> bytes:
    """Encodes a text for ``grpc-message``: printable ASCII but "%"."""
    octets = text[:_TEXT_MAX].encode("utf-8", "replace")
    return b"".join(
        b"%c" % octet if 0x20 <= octet < 0x7F and octet != 0x25 else b"%%%02X" % octet
        for octet in octets
    )
