"""Thousands of watches at once: what is live is held once for all of them, and of the state at the
start of a WatchList each holds a portion, never the collection.

Real store, hub, encoder and streams; the connections are counters, and like the kernel's buffers
they take some and then no more until somebody reads.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable

import pytest

from sliceplane.api.scheme import EndpointSlices
from sliceplane.kit.io.batches import BatchQueue
from sliceplane.kit.metrics import Count
from sliceplane.server.io.metrics import WatchTraffic
from sliceplane.server.io.requests.encoders import encoder_for
from sliceplane.server.io.requests.response import negotiate
from sliceplane.server.io.requests.watch import SEND_BYTES, Stream
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record
from sliceplane.server.store.watcher import Interest

OBJECTS, OBJECT_BYTES = 800, 25_000
CLIENTS = 500
#: what one that waits may hold: what it writes next and one event more, and its own small state
EACH_MAX = SEND_BYTES + OBJECT_BYTES + 16 * 1024


class Connection:
    """Takes *window* bytes, then pauses; keeps nothing."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.taken = 0
        self.tail = b""
        self.resume: Callable[[], None] = lambda: None

    @property
    def write_paused(self) -> bool:
        return self.taken >= self.window

    def write(self, data: bytes) -> None:
        assert not self.write_paused, "a stream writes to a connection that is full"
        self.taken += len(data)
        self.tail = bytes(data[-200:])

    def attach(self, on_resumed: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self.resume = on_resumed

    def detach(self) -> None: ...

    def abort(self) -> None: ...


class Plane:
    def __init__(self) -> None:
        self.store = Store()
        self.hub = Hub(self.store)
        self.encoder = encoder_for(
            EndpointSlices, negotiate("application/json", watch=True), "Metadata", lambda: 0.0
        )
        self.turns, self.traffic = BatchQueue(), WatchTraffic(Count(), Count())

    def put(self, number: int) -> None:
        key = Key(EndpointSlices.storage_key, "default", f"web-{number:04}")

        previous = self.store.latest(key)

        def record(revision: int) -> Record:
            head = (
                b'{"kind":"EndpointSlice","metadata":{"name":"%s","resourceVersion":"%d"},"x":"'
                % (
                    key.name.encode(),
                    revision,
                )
            )
            return Record(
                key=key,
                revision=revision,
                created=revision if previous is None else previous.created,
                uid=key.name,
                body=head + b"x" * (OBJECT_BYTES - len(head)) + b'"}\n',
                labels={},
                fields={},
            )

        self.store.stage_put(key, record)

    def commit(self) -> None:
        self.store.take_staged()
        self.hub.publish(self.store.on_durable(self.store.staged_revision))

    def open(self, connection: Connection) -> asyncio.Task[bool]:
        interest = Interest(resource=EndpointSlices.storage_key, encoder=self.encoder)
        watcher = self.hub.subscribe(interest, now=0.0, initial=True, bookmarks=True)
        stream = Stream(connection, watcher, self.encoder, self.turns, self.traffic)
        return asyncio.create_task(stream.run())


@pytest.fixture
def plane() -> Plane:
    made = Plane()
    for number in range(OBJECTS):
        made.put(number)
    made.commit()
    return made


async def settle() -> None:
    """Until every stream has written what its connection takes."""
    for _ in range(CLIENTS):
        await asyncio.sleep(0)


async def end(plane: Plane, streams: list[asyncio.Task[bool]]) -> None:
    plane.hub.close_all()
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


async def test_five_hundred_that_stop_reading_hold_a_portion_each(plane: Plane) -> None:
    connections = [Connection(window=100_000 + 1_000 * number) for number in range(CLIENTS)]
    tracemalloc.start()
    try:
        streams = [plane.open(connection) for connection in connections]
        await settle()
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(connection.write_paused for connection in connections)
    # The whole of it would be 500 x 20 MB.
    assert held < CLIENTS * EACH_MAX, f"{held / CLIENTS:.0f} bytes each"
    assert peak < CLIENTS * EACH_MAX, f"{peak / CLIENTS:.0f} bytes each, for a moment"
    await end(plane, streams)


async def test_live_events_that_thousands_do_not_read_are_there_once(plane: Plane) -> None:
    interest = Interest(resource=EndpointSlices.storage_key, encoder=plane.encoder)
    watchers = [plane.hub.subscribe(interest, now=0.0) for _ in range(1_000)]
    events = watchers[0].bound // (OBJECT_BYTES + 100)
    tracemalloc.start()
    try:
        for number in range(events):
            plane.put(number)
            plane.commit()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not any(watcher.closed for watcher in watchers)
    # The new versions, the events, and what the queues are made of: a reference is eight bytes, and
    # lists have room.
    assert held < 2 * events * (OBJECT_BYTES + 1_000) + len(watchers) * events * 8 * 1.2, (
        f"{held / 1e6:.0f} MB"
    )
    for number in range(10):
        plane.put(number)
    plane.commit()
    assert all(watcher.closed and not watcher.queue for watcher in watchers), "one event too many"
    assert len(plane.hub) == 0


async def test_those_who_read_on_get_all_of_it(plane: Plane) -> None:
    connections = [Connection(window=100_000) for _ in range(3)]
    streams = [plane.open(connection) for connection in connections]
    await settle()
    for connection in connections:
        while b"initial-events-end" not in connection.tail:
            connection.window += 1_000_000
            connection.resume()
            await asyncio.sleep(0)
        assert connection.taken > OBJECTS * OBJECT_BYTES
    assert plane.traffic.events.value == 3 * (OBJECTS + 1)
    await end(plane, streams)
