"""The pending output of one HTTP/2 connection, which waits for the windows of stream and
connection, and for the socket.

``take`` returns at most ``OUTPUT_BYTES`` per call; the writer calls it again when the socket has
accepted that. Streams are served round-robin, one frame each. Pending data is not copied: a message
to a thousand slow clients is in memory once.
"""

from __future__ import annotations

from collections import deque

from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.frames import ConnectionFault, ErrorCode, StreamFault
from sliceplane.kit.http2.limits import OUTPUT_BYTES

Piece = bytes | memoryview


class _Sending:
    """The sending side of one stream."""

    __slots__ = ("number", "queue", "queued", "trailers", "window")

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.window = window
        #: pending data
        self.queue: deque[Piece] = deque()
        self.queued = 0
        #: the frames that end the stream after the queue
        self.trailers = b""


class Outbox:
    """Owned by the connection. It contains streams from ``open`` to ``drop``."""

    def __init__(self, first: bytes) -> None:
        self._streams: dict[int, _Sending] = {}
        #: streams with a queue and an open window, in round-robin order
        self._waiting: dict[int, _Sending] = {}
        self._window = frames.FIRST_WINDOW
        self._first_window = frames.FIRST_WINDOW
        self._out: list[Piece] = [first]
        self._out_bytes = 0
        #: streams whose trailers were sent; the connection takes them from here
        self.ended: list[int] = []

    def open(self, stream_id: int) -> None:
        self._streams[stream_id] = _Sending(stream_id, self._first_window)

    def drop(self, stream_id: int) -> None:
        """Removes a stream and its pending data. Idempotent."""
        self._streams.pop(stream_id, None)
        self._waiting.pop(stream_id, None)

    def clear(self) -> None:
        self._streams.clear()
        self._waiting.clear()

    def put(self, frame: bytes) -> None:
        """Queues frames without flow control, and headers: they are sent before pending data."""
        self._out.append(frame)

    def send(self, stream_id: int, pieces: tuple[bytes, ...]) -> None:
        """Queues *pieces*, which are one body in that order."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.trailers:
            return
        size = sum(map(len, pieces))
        room = min(stream.window, self._window, frames.FRAME_BYTES_MAX)
        if not stream.queue and size <= room and self._out_bytes < OUTPUT_BYTES:
            stream.window -= size
            self._window -= size
            self._out_bytes += size
            self._out += (frames.head(size, frames.DATA, 0, stream_id), *pieces)
            return
        stream.queue += filter(None, pieces)
        stream.queued += size
        self._wake(stream)

    def end(self, stream_id: int, block: bytes) -> None:
        """Ends a stream with trailers after all sent data; without data they are sent as headers."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.trailers:
            return
        stream.trailers = frames.header_block(block, stream_id, end_stream=True)
        if not stream.queue:
            self._end(stream)

    def _end(self, stream: _Sending) -> None:
        self._out.append(stream.trailers)
        self.drop(stream.number)
        self.ended.append(stream.number)

    def pending_bytes(self, stream_id: int) -> int:
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.queued

    @property
    def frame_count(self) -> int:
        """The number of frames that only the socket delays."""
        return len(self._out)

    # Windows (section 6.9)

    def on_window_update(self, stream_id: int, more: int) -> None:
        if stream_id == 0:
            self._window += more
            if more == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            if self._window > frames.MAX_31:
                raise ConnectionFault(
                    ErrorCode.FLOW_CONTROL_ERROR, "WINDOW_UPDATE makes a window too large"
                )
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.window += more
        if more == 0:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        if stream.window > frames.MAX_31:
            raise StreamFault(
                ErrorCode.FLOW_CONTROL_ERROR, "WINDOW_UPDATE makes a window too large"
            )
        self._wake(stream)

    def on_first_window(self, size: int) -> None:
        """Applies SETTINGS_INITIAL_WINDOW_SIZE, which also changes open streams and may make their
        windows negative.
        """
        if size > frames.MAX_31:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {size}")
        more = size - self._first_window
        self._first_window = size
        for stream in self._streams.values():
            stream.window += more
            if stream.window > frames.MAX_31:
                raise ConnectionFault(
                    ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE makes a window too large"
                )
            self._wake(stream)

    def _wake(self, stream: _Sending) -> None:
        if stream.queue and stream.window > 0:
            self._waiting[stream.number] = stream
        else:
            self._waiting.pop(stream.number, None)

    # Writing

    def take(self) -> bytes:
        """Returns the bytes to write next; "" if there are none."""
        while self._waiting and self._window > 0 and self._out_bytes < OUTPUT_BYTES:
            stream = self._waiting.pop(next(iter(self._waiting)))
            self._send_frame(stream)
            self._wake(stream)
        output = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        return output

    def _send_frame(self, stream: _Sending) -> None:
        """Writes the next DATA frame of a queue, or the trailers after the last one."""
        size = min(stream.queued, stream.window, self._window, frames.FRAME_BYTES_MAX)
        stream.queued -= size
        stream.window -= size
        self._window -= size
        self._out_bytes += size
        self._out.append(frames.head(size, frames.DATA, 0, stream.number))
        while size:
            piece = stream.queue[0]
            if len(piece) <= size:
                self._out.append(stream.queue.popleft())
                size -= len(piece)
            else:
                view = memoryview(piece)
                self._out.append(view[:size])
                stream.queue[0] = view[size:]
                size = 0
        if not stream.queue and stream.trailers:
            self._end(stream)

    def check(self) -> None:
        for stream in self._streams.values():
            assert stream.queued == sum(map(len, stream.queue)), (
                f"stream {stream.number} has another queue"
            )
            assert bool(stream.queue) or not stream.trailers, (
                f"stream {stream.number} is over and still there"
            )
            waits = bool(stream.queue) and stream.window > 0
            assert waits == (stream.number in self._waiting), (
                f"stream {stream.number} would wait for ever"
            )
        assert self._waiting.keys() <= self._streams.keys(), "a stream that is over waits"
