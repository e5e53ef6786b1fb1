"""How much history is kept, and the one body that the store makes."""

from __future__ import annotations

import tracemalloc

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.codec import encode
from sliceplane.server.store.shelf import Retention
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent, restamp, restamp_body


def test_history_is_dropped_when_it_is_old_enough():
    retention = Retention(keep_s=300.0)
    retention.on_commit(5, 4, 100, live=0)
    retention.on_tick(1000.0)
    retention.on_commit(9, 4, 100, live=0)
    retention.on_tick(1010.0)
    retention.on_tick(1299.0)
    assert retention.target == 0
    retention.on_tick(1300.0)
    assert retention.target == 5
    retention.on_tick(1310.0)
    assert (retention.target, retention.events, retention.bytes) == (9, 0, 0)


def test_a_storm_is_bounded_by_events_and_by_bytes():
    retention = Retention(events_max=1000, bytes_max=10**9)
    for revision in range(2, 5002):
        retention.on_commit(revision, 1, 1, live=0)
        assert retention.events <= 1000
    assert 4001 <= retention.target <= 4015
    retention = Retention(events_max=10**9, bytes_max=1000)
    retention.on_commit(2, 1, 5000, live=0)
    assert retention.target == 0, "the newest commit stays, however large"
    retention.on_commit(3, 1, 10, live=0)
    assert retention.target == 2


def test_history_has_as_many_bytes_as_the_objects_within_bounds():
    retention = Retention(bytes_min=10_000, bytes_max=100_000)
    for revision, (live, most) in enumerate(
        [(0, 10_000), (50_000, 50_000), (10**9, 100_000), (50_000, 50_000)]
    ):
        for number in range(200):
            retention.on_commit(200 * revision + number + 2, 1, 1_000, live=live)
        assert most - 1_000 <= retention.bytes <= most
    retention.on_commit(1_000, 1, 1_000, live=0)
    assert retention.bytes <= 10_000, "objects that were deleted take their history with them"


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 50)), max_size=60))
def test_nothing_younger_than_the_time_is_dropped_unless_a_bound_is_hit(
    steps: list[tuple[int, float]],
):
    """Against the plain record of every commit and its time."""
    retention = Retention(keep_s=100.0, events_max=200, bytes_max=10**9)
    now, revision = 0.0, 1
    commits: list[tuple[int, float]] = []
    for count, pause in steps:
        for _ in range(count):
            revision += 1
            commits.append((revision, now))
            retention.on_commit(revision, 1, 1, live=0)
        now += pause
        retention.on_tick(now)
        kept = [number for number, _ in commits if number > retention.target]
        young = [number for number, at in commits if at > now - 100.0]
        assert set(young[-198:]) <= set(kept)
        assert len(kept) <= 200
        assert retention.events == len(kept)


def test_restamp_changes_the_resource_version_and_nothing_else():
    body = (
        b'{"involvedObject":{"resourceVersion":"7"},"metadata":{"annotations":{"x":"\\"resourceVersion\\":\\"7\\""},'
        b'"resourceVersion":"7","name":"a"},"big":123456789012345678901234567890,"f":1.10}'
    )
    record = Record(
        key=Key("events", "ns", "a"),
        revision=7,
        created=7,
        uid="u",
        body=body,
        labels={},
        fields={},
    )
    stamped = restamp(record, 12)
    assert stamped.revision == 12
    assert stamped.body == body.replace(
        b'"resourceVersion":"7","name"', b'"resourceVersion":"12","name"'
    )
    assert msgspec.json.decode(stamped.body)["metadata"]["resourceVersion"] == "12"


def test_a_body_that_is_kept_has_no_spare_room() -> None:
    """An encoder leaves the spare room of its buffer in what it returns: history had half as much
    again.
    """
    body = restamp_body(
        encode({"metadata": {"resourceVersion": "1", "name": "a"}, "data": "x" * 4000}), 2
    )
    tracemalloc.start()
    kept = [restamp_body(body, revision) for revision in range(200)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1.1 * sum(len(body) for body in kept)


def test_an_event_names_the_last_version_of_its_object() -> None:
    """A deletion has a revision of its own, which no version of the object ever had."""
    key = Key("pods", "ns", "a")
    old, new = (
        Record(key=key, revision=at, created=1, uid="", body=b"", labels={}, fields={})
        for at in (3, 5)
    )
    kinds = {EventType.ADDED: None, EventType.MODIFIED: old, EventType.DELETED: old}
    events = [StoreEvent(5, kind, new, previous) for kind, previous in kinds.items()]
    assert [(event.last_version, event.is_end) for event in events] == [
        (5, False),
        (5, False),
        (3, True),
    ]
