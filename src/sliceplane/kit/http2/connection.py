"""One HTTP/2 connection as its server sees it (RFC 9113).

    receive(bytes) --> StreamRequest, StreamData, StreamGone ...
    send_headers, send_data, send_trailers --> take_output()

Output waits in the ``outbox``. Input is handed on immediately, so windows are refilled immediately;
they are large, because the first request of an Envoy is 60 KiB. The fragmentation of the input
makes no difference. PRIORITY and frames of unknown types are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.fields import FieldReader, Fields, check_trailers, request_fields
from sliceplane.kit.http2.frames import ConnectionFault, ErrorCode, StreamFault
from sliceplane.kit.http2.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_FRAMES_MAX,
    CONNECTION_WINDOW,
    IDLE_S_MAX,
    LIST_BYTES_MAX,
    PING_S,
    PONG_S_MAX,
    PREFACE_S_MAX,
    STREAM_WINDOW,
    STREAMS_MAX,
    Allowance,
)
from sliceplane.kit.http2.outbox import Outbox

#: maximum streams to remember that we reset before their client ended them: its frames may still be
#: in flight
_RESETS_KEPT: Final = 256

_SETTINGS: Final = frames.settings(
    {
        frames.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
        frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        frames.MAX_HEADER_LIST_SIZE: LIST_BYTES_MAX,
    }
) + frames.window_update(0, CONNECTION_WINDOW - frames.FIRST_WINDOW)
_SETTINGS_ACK: Final = frames.frame(frames.SETTINGS, frames.ACK, 0)
_PING: Final = frames.frame(frames.PING, 0, 0, b"sliceplh")
#: required payload length of frames with a fixed one
_LENGTHS: Final = {
    frames.PRIORITY: 5,
    frames.RST_STREAM: 4,
    frames.PING: 8,
    frames.WINDOW_UPDATE: 4,
}
_OF_STREAMS: Final = (
    frames.DATA,
    frames.HEADERS,
    frames.PRIORITY,
    frames.RST_STREAM,
    frames.CONTINUATION,
)
_OF_CONNECTION: Final = (frames.SETTINGS, frames.PING, frames.GOAWAY)


class StreamRequest(msgspec.Struct, frozen=True):
    stream_id: int
    fields: Fields
    ended: bool


class StreamData(msgspec.Struct, frozen=True):
    """Data of a stream. ``ended``: the client sends no more; trailers produce an empty one."""

    stream_id: int
    data: bytes
    ended: bool


class StreamGone(msgspec.Struct, frozen=True):
    """The stream ended before we ended it."""

    stream_id: int
    text: str


StreamEvent = StreamRequest | StreamData | StreamGone


class _Stream:
    """The receiving side of one stream."""

    __slots__ = ("declared", "receive_window", "remote_closed")

    def __init__(self, declared: int | None) -> None:
        self.receive_window = STREAM_WINDOW
        #: bytes of ``content-length`` that have not arrived
        self.declared = declared
        self.remote_closed = False


class Http2Connection:
    """Owned by one connection's protocol."""

    def __init__(self, now: float) -> None:
        self._streams: dict[int, _Stream] = {}
        self._outbox = Outbox(_SETTINGS)
        self._resets: dict[int, None] = {}
        self._last_id = 0
        self._fields = FieldReader()
        #: stream, frames and bytes of an incomplete header block
        self._block: bytearray | None = None
        self._block_head = (0, 0)
        self._block_frames = 0
        self._unread = bytearray()
        #: bytes needed before the next parse; a wrong preface is detected at its first wrong byte
        self._needed = 1
        self._has_preface = False
        self._has_settings = False
        self._receive_window = CONNECTION_WINDOW
        #: header of the frame that is being read
        self._events: list[StreamEvent] = []
        self._allowance = Allowance(now)
        self._now = now
        self._began = now
        self._last_input = now
        self._streamless_since = now
        self._pinged: float | None = None
        self._is_going_away = False
        #: the fault that ended the connection; nothing is read or sent once ``take_output`` is
        #: empty
        self.fault: ConnectionFault | None = None
        #: names of the limits that were exceeded since the owner cleared it
        self.met: list[str] = []

    @property
    def is_over(self) -> bool:
        """Returns True if the connection must be closed when the output is written."""
        return self.fault is not None or (self._is_going_away and not self._streams)

    @property
    def stream_count(self) -> int:
        return len(self._streams)

    # Time

    def next_deadline(self) -> float:
        if not self._has_settings:
            return self._began + PREFACE_S_MAX
        when = self._last_input + PING_S if self._pinged is None else self._pinged + PONG_S_MAX
        return when if self._streams else min(when, self._streamless_since + IDLE_S_MAX)

    def on_time(self, now: float) -> None:
        """Handles the time; may be called when nothing is due."""
        self._now = now
        if self.is_over or now < self.next_deadline():
            return
        if not self._has_settings:
            self._fail(ConnectionFault(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS came", "preface"))
        elif self._pinged is not None and now >= self._pinged + PONG_S_MAX:
            self._fail(ConnectionFault(ErrorCode.NO_ERROR, "a PING was not answered", "keepalive"))
        elif not self._streams and now >= self._streamless_since + IDLE_S_MAX:
            self.go_away()
        elif self._pinged is None:
            self._pinged = now
            self._outbox.put(_PING)

    def excuse(self, now: float) -> None:
        """Resets the idle time, because nothing was read from the connection until *now*."""
        self._last_input = now
        self._pinged = None

    # Receiving

    def receive(self, data: bytes, now: float) -> Iterator[StreamEvent]:
        """Yields the events that *data* completes. The caller must take all of them; its reaction
        to an event affects the next ones.
        """
        self._now = self._last_input = now
        self._pinged = None
        if self.fault is not None:
            return
        if self._unread:
            self._unread += data
            if len(self._unread) < self._needed:
                return
            data = bytes(self._unread)
            self._unread.clear()
        try:
            yield from self._take_frames(data)
        except ConnectionFault as fault:
            gone = [StreamGone(stream_id, fault.text) for stream_id in self._streams]
            self._fail(fault)
            yield from gone

    def _take_frames(self, data: bytes) -> Iterator[StreamEvent]:
        """Yields the complete frames of *data*; the rest waits."""
        start = 0
        size = len(data)
        if not self._has_preface:
            if data[: len(frames.PREFACE)] != frames.PREFACE[:size]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
            self._has_preface = size >= len(frames.PREFACE)
            start = len(frames.PREFACE) if self._has_preface else 0
        events = self._events
        unpack = frames.HEAD.unpack_from
        while self._has_preface and self.fault is None:
            self._needed = frames.HEAD_BYTES
            if size - start < frames.HEAD_BYTES:
                break
            high, low, kind, flags, stream_id = unpack(data, start)
            length = high << 8 | low
            if length > frames.FRAME_BYTES_MAX:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = start + frames.HEAD_BYTES + length
            if end > size:
                self._needed = end - start
                break
            stream_id &= frames.MAX_31
            try:
                self._on_frame(kind, flags, stream_id, data[start + frames.HEAD_BYTES : end])
            except StreamFault as fault:
                self._on_stream_fault(stream_id, fault)
            start = end
            if events:
                yield from events
                events.clear()
        self._unread += memoryview(data)[start:]

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (
            kind != frames.CONTINUATION or stream_id != self._block_head[0]
        ):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was not continued")
        if not self._has_settings and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if (kind in _OF_STREAMS) if stream_id == 0 else (kind in _OF_CONNECTION):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"{frames.NAMES[kind]} on stream {stream_id}"
            )
        if _LENGTHS.get(kind, len(payload)) != len(payload):
            text = f"{frames.NAMES[kind]} of {len(payload)} bytes"
            fault = StreamFault if kind == frames.PRIORITY else ConnectionFault
            raise fault(ErrorCode.FRAME_SIZE_ERROR, text)
        match kind:
            case frames.DATA:
                self._on_data(flags, stream_id, payload)
            case frames.WINDOW_UPDATE:
                self._on_window_update(stream_id, int.from_bytes(payload, "big") & frames.MAX_31)
            case frames.PING:
                self._on_ping(flags, payload)
            case frames.HEADERS:
                self._on_headers(flags, stream_id, payload)
            case frames.CONTINUATION:
                self._on_continuation(flags, stream_id, payload)
            case frames.RST_STREAM:
                self._on_reset(stream_id, int.from_bytes(payload, "big"))
            case frames.SETTINGS:
                self._on_settings(flags, payload)
            case frames.GOAWAY:
                self._is_going_away = True
            case frames.PUSH_PROMISE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client pushes nothing")
            case _:
                self._charge("PRIORITY" if kind == frames.PRIORITY else "unknown frames")

    def _charge(self, what: str) -> None:
        if not self._allowance.take(what, self._now):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many: {what}", "flood")

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._receive_window -= len(payload)
        if self._receive_window < 0:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window"
            )
        if self._receive_window < CONNECTION_WINDOW // 2:
            self._outbox.put(frames.window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_stray(stream_id, "DATA")
            return
        if stream.remote_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "DATA behind the end of a stream")
        stream.receive_window -= len(payload)
        if stream.receive_window < 0:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        ended = bool(flags & frames.END_STREAM)
        if not ended and stream.receive_window < STREAM_WINDOW // 2:
            self._outbox.put(frames.window_update(stream_id, STREAM_WINDOW - stream.receive_window))
            stream.receive_window = STREAM_WINDOW
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        if not payload and not ended:
            self._charge("empty DATA")
        if stream.declared is not None:
            self._check_length(stream, len(payload), ended)
        stream.remote_closed = ended
        self._events.append(StreamData(stream_id, payload, ended))

    def _check_length(self, stream: _Stream, size: int, ended: bool) -> None:
        assert stream.declared is not None, "there is a content-length"
        stream.declared -= size
        if stream.declared < 0 or (ended and stream.declared):
            raise StreamFault(
                ErrorCode.PROTOCOL_ERROR, "the body has another length than content-length says"
            )

    def _check_stray(self, stream_id: int, what: str) -> None:
        """Checks a frame of a stream that is not open."""
        if stream_id > self._last_id or not stream_id % 2:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which is not open"
            )
        if stream_id not in self._resets:
            raise StreamFault(ErrorCode.STREAM_CLOSED, f"{what} on a stream that is over")

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = frames.unpadded(flags, payload)
        if flags & frames.HAS_PRIORITY:
            if len(block) < 5:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for their priority"
                )
            block = block[5:]
        if flags & frames.END_HEADERS:
            self._on_block(flags, stream_id, block)
        else:
            self._block = bytearray(block)
            self._block_head = (stream_id, flags)
            self._block_frames = 1

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        self._block_frames += 1
        if len(self._block) > BLOCK_BYTES_MAX or self._block_frames > BLOCK_FRAMES_MAX:
            text = (
                f"a header block of more than {BLOCK_BYTES_MAX} bytes or {BLOCK_FRAMES_MAX} frames"
            )
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "continuation")
        if flags & frames.END_HEADERS:
            block = bytes(self._block)
            self._block = None
            self._on_block(self._block_head[1], stream_id, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        ended = bool(flags & frames.END_STREAM)
        stream = self._streams.get(stream_id)
        is_new = stream is None and stream_id > self._last_id
        if is_new:
            if not stream_id % 2:
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR, f"a client opened stream {stream_id}"
                )
            self._last_id = stream_id
        listed = self._fields.read(block)
        if is_new:
            self._open(stream_id, request_fields(listed), ended)
        elif stream is None:
            if stream_id not in self._resets:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a stream that is over")
        elif stream.remote_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS behind the end of a stream")
        elif not ended:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers that do not end the stream")
        else:
            check_trailers(listed)
            if stream.declared is not None:
                self._check_length(stream, 0, ended)
            stream.remote_closed = True
            self._events.append(StreamData(stream_id, b"", True))

    def _open(self, stream_id: int, fields: Fields, ended: bool) -> None:
        if self._is_going_away:
            raise StreamFault(ErrorCode.REFUSED_STREAM, "the connection takes no new streams")
        if len(self._streams) >= STREAMS_MAX:
            raise StreamFault(
                ErrorCode.REFUSED_STREAM, f"{STREAMS_MAX} streams are open", "streams"
            )
        declared = None
        if b"content-length" in fields:
            text = fields[b"content-length"]
            if not text.isdigit() or len(text) > 18 or (ended and int(text)):
                raise StreamFault(
                    ErrorCode.PROTOCOL_ERROR, "a content-length that is not the body's"
                )
            declared = int(text)
        stream = self._streams[stream_id] = _Stream(declared)
        self._outbox.open(stream_id)
        stream.remote_closed = ended
        self._events.append(StreamRequest(stream_id, fields, ended))

    def _on_reset(self, stream_id: int, code: int) -> None:
        self._charge("RST_STREAM")
        if stream_id in self._streams:
            self._drop(stream_id)
            self._events.append(StreamGone(stream_id, f"the client reset the stream, code {code}"))
        elif stream_id > self._last_id or not stream_id % 2:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}, which is not open"
            )

    def _on_ping(self, flags: int, payload: bytes) -> None:
        self._charge("PING")
        if not flags & frames.ACK:
            self._outbox.put(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if flags & frames.ACK:
            self._charge("SETTINGS")
            return
        if self._has_settings:
            self._charge("SETTINGS")
        self._has_settings = True
        for name, value in struct.iter_unpack(">HL", payload):
            if name == frames.ENABLE_PUSH and value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
            if name == frames.MAX_FRAME_SIZE and not frames.FRAME_BYTES_MAX <= value < 2**24:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
            if name == frames.INITIAL_WINDOW_SIZE:
                self._outbox.on_first_window(value)
        self._outbox.put(_SETTINGS_ACK)

    def _on_window_update(self, stream_id: int, more: int) -> None:
        if stream_id not in self._streams and (
            stream_id > self._last_id or (stream_id and not stream_id % 2)
        ):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {stream_id}, which is not open"
            )
        self._outbox.on_window_update(stream_id, more)

    # Ends

    def _on_stream_fault(self, stream_id: int, fault: StreamFault) -> None:
        self._charge("refused streams")
        if fault.limit:
            self.met.append(fault.limit)
        was_open = stream_id in self._streams
        self.reset(stream_id, fault.code)
        if was_open:
            self._events.append(StreamGone(stream_id, fault.text))

    def _fail(self, fault: ConnectionFault) -> None:
        self.fault = fault
        if fault.limit:
            self.met.append(fault.limit)
        self._streams.clear()
        self._outbox.clear()
        self._unread.clear()
        self._outbox.put(frames.goaway(self._last_id, fault.code, fault.text))

    def go_away(self) -> None:
        """Sends GOAWAY: no new stream is accepted, open ones continue. Idempotent."""
        if not self._is_going_away:
            self._is_going_away = True
            self._outbox.put(frames.goaway(self._last_id, ErrorCode.NO_ERROR))

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Resets a stream immediately and drops its pending output."""
        self._outbox.put(frames.rst_stream(stream_id, code))
        self._drop(stream_id)
        self._remember_reset(stream_id)

    def _remember_reset(self, stream_id: int) -> None:
        self._resets[stream_id] = None
        if len(self._resets) > _RESETS_KEPT:
            del self._resets[next(iter(self._resets))]

    def _drop(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self._outbox.drop(stream_id)
        if not self._streams:
            self._streamless_since = self._now

    # Sending

    def send_headers(self, stream_id: int, block: bytes) -> None:
        """Sends the headers of an answer, before any other frame of the stream."""
        if stream_id in self._streams:
            self._outbox.put(frames.header_block(block, stream_id, end_stream=False))

    def send_data(self, stream_id: int, pieces: tuple[bytes, ...]) -> None:
        """Sends *pieces*, which are one body in that order; dropped if the stream has ended."""
        self._allowance.on_sent()
        self._outbox.send(stream_id, pieces)

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """Ends a stream after all sent data; without data the trailers are sent as headers."""
        self._outbox.end(stream_id, block)
        self._take_ended()

    def pending_bytes(self, stream_id: int) -> int:
        """Returns the bytes of a stream that wait for windows or the socket."""
        return self._outbox.pending_bytes(stream_id)

    @property
    def unwritten_frames(self) -> int:
        """Returns the number of frames that only the socket delays."""
        return self._outbox.frame_count

    def take_output(self) -> bytes:
        """Returns the bytes to write next: about ``OUTPUT_BYTES`` at most, "" if there is
        nothing.
        """
        output = self._outbox.take()
        self._take_ended()
        return output

    def _take_ended(self) -> None:
        for stream_id in self._outbox.ended:
            if not self._streams[stream_id].remote_closed:
                # The answer is complete, so the client need not continue (section 8.1).
                self._outbox.put(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
                self._remember_reset(stream_id)
            self._drop(stream_id)
        self._outbox.ended.clear()

    def check(self) -> None:
        self._outbox.check()
        assert not self._outbox.ended, "streams have ended and are still there"
        assert len(self._streams) <= STREAMS_MAX, f"{len(self._streams)} streams"
