"""The other end is the ``h2`` library: whatever is said in whatever pieces, both ends have the same
messages.
"""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.http2.frames_of_a_client import POST, message

from sliceplane.kit.http2.grpc import CallHalfClosed, CallMessage, CallOpened, GrpcConnection


class Ends:
    """A client of h2 and a server of ours, and what each has heard by call."""

    def __init__(self, window: int) -> None:
        self.server = GrpcConnection(0.0)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.client.initiate_connection()
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.heard: dict[int, list[bytes]] = {}
        self.received: dict[int, bytes] = {}
        self.statuses: dict[int, str] = {}
        self.to_send: dict[int, bytes] = {}
        self.half_closed: set[int] = set()

    def exchange(self, size: int) -> None:
        """All that either has to say, in pieces of *size*."""
        while True:
            self._push()
            up = self.client.data_to_send()
            for start in range(0, len(up), size):
                for event in self.server.receive(up[start : start + size], 0.0):
                    self._hear(event)
            down = b""
            while output := self.server.http.take_output():
                down += output
            for start in range(0, len(down), size):
                for event in self.client.receive_data(down[start : start + size]):
                    self._take(event)
            self.server.check()
            if not up and not down:
                return

    def _push(self) -> None:
        for number, left in self.to_send.items():
            room = min(self.client.local_flow_control_window(number), 16_384, len(left))
            if room > 0:
                self.client.send_data(number, left[:room])
                self.to_send[number] = left[room:]

    def _hear(self, event: object) -> None:
        match event:
            case CallOpened(number):
                self.heard[number] = []
            case CallMessage(number, data):
                self.heard[number].append(data)
            case CallHalfClosed(number):
                self.half_closed.add(number)

    def _take(self, event: Any) -> None:
        match event:
            case h2.events.DataReceived():
                self.received[event.stream_id] = (
                    self.received.get(event.stream_id, b"") + event.data
                )
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.TrailersReceived() | h2.events.ResponseReceived():
                status = dict(event.headers).get("grpc-status")
                if status is not None:
                    self.statuses[event.stream_id] = status


BODIES = st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 90_000).map(bytes)), max_size=4)


@effort(60)
@given(
    st.lists(st.tuples(BODIES, BODIES), min_size=1, max_size=4),
    st.sampled_from((1_000, 16_393, 10_000_000)),
    st.sampled_from((100, 65_535, 2**31 - 1)),
)
def test_both_ends_have_the_same_messages(
    calls: list[tuple[list[bytes], list[bytes]]], size: int, window: int
) -> None:
    ends = Ends(window)
    numbers = {}
    for asked, _ in calls:
        number = ends.client.get_next_available_stream_id()
        numbers[number] = len(numbers)
        ends.client.send_headers(number, POST)
        ends.to_send[number] = b"".join(map(message, asked))
    ends.exchange(size)
    for number, index in numbers.items():
        assert ends.heard[number] == calls[index][0]
        for body in calls[index][1]:
            ends.server.send(number, body)
    ends.exchange(size)
    for number, index in numbers.items():
        assert ends.received.get(number, b"") == b"".join(map(message, calls[index][1]))
        if index % 2:
            ends.client.end_stream(number)
    ends.exchange(size)
    assert ends.half_closed == {number for number, index in numbers.items() if index % 2}
    for number in numbers:
        ends.server.finish(number, number % 17)
    ends.exchange(size)
    assert ends.statuses == {number: str(number % 17) for number in numbers}
    assert ends.server.http.stream_count == 0
