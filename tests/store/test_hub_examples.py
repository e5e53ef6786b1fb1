"""The hub by example: sharing, bounds, bookmarks, ends and faults."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sliceplane.server.store.hub import BOOKMARK_PERIOD_S, Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import EventType, Key, Record
from sliceplane.server.store.watcher import Interest, Watcher

A = Key("pods", "ns", "a")
B = Key("pods", "ns", "b")


class PlainEncoder:
    def __init__(self) -> None:
        self.calls = 0

    def event(self, kind: EventType, record: Record) -> bytes:
        self.calls += 1
        return b"%s %d" % (kind.value.encode(), record.revision)

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        self.calls += 1
        return b"BOOKMARK"


class Plane:
    """A store, its hub and a writer."""

    def __init__(self, writer_of) -> None:
        self.store = Store()
        self.hub = Hub(self.store)
        self.writer = writer_of(self.store)
        self.encoder = PlainEncoder()

    def put(self, key: Key, **columns) -> None:
        self.writer.put(key, **columns)
        self.hub.publish(self.writer.commit())

    def delete(self, key: Key) -> None:
        self.writer.delete(key)
        self.hub.publish(self.writer.commit())

    def watch(self, resource: str = "pods", **options) -> Watcher:
        names = ("namespace", "name", "matches", "selector", "local")
        scope = {name: options.pop(name) for name in names if name in options}
        encoder = options.pop("encoder", self.encoder)
        return self.hub.subscribe(
            Interest(resource=resource, encoder=encoder, **scope), now=0.0, **options
        )


@pytest.fixture
def plane(writer_of) -> Plane:
    return Plane(writer_of)


def types(watcher: Watcher) -> list[tuple[str, int]]:
    return [(item.type, item.revision) for item in watcher.take()]


def test_bytes_are_encoded_once_and_shared(plane):
    watchers = [plane.watch() for _ in range(10)] + [
        plane.watch(namespace="ns"),
        plane.watch(name="a"),
    ]
    plane.put(A)
    taken = [watcher.take() for watcher in watchers]
    assert plane.encoder.calls == 1
    assert len({id(items[0].data) for items in taken}) == 1
    assert (plane.hub.delivered.value, plane.hub.encoded.value) == (12, 1)


def test_it_counts_to_how_many_watchers_elsewhere_an_event_went(plane):
    told: list[tuple[int, int, int]] = []
    plane.hub.on_sent["pods"] = lambda event, watchers, size: told.append(
        (event.revision, watchers, size)
    )

    def web(record: Record) -> bool:
        return record.labels.get("app") == "web"

    encoder = PlainEncoder()
    watchers = [plane.watch(encoder=encoder) for _ in range(3)]
    watchers.append(plane.watch(namespace="other", encoder=encoder))
    watchers.append(plane.watch(matches=web, selector="app=web", encoder=PlainEncoder()))
    plane.watch(encoder=PlainEncoder(), local=True)
    plane.put(Key("pods", "ns", "a"), labels={"app": "db"})
    plane.put(Key("pods", "ns", "a"), labels={"app": "web"})
    plane.delete(Key("pods", "ns", "a"))
    plane.put(Key("nodes", "", "n"))
    taken = [[len(item.data) for item in watcher.take()] for watcher in watchers]
    assert [len(items) for items in taken] == [3, 3, 3, 0, 2]
    assert [(revision, number) for revision, number, _ in told] == [(2, 3), (3, 4), (4, 4)]
    assert sum(size for *_, size in told) == sum(map(sum, taken))


def test_only_watchers_in_scope_are_asked(plane):
    def never(record: Record) -> bool:
        raise AssertionError("asked about something out of scope")

    for scope in (
        {"namespace": "other"},
        {"name": "b"},
        {"namespace": "ns", "name": "b"},
        {"resource": "nodes"},
    ):
        assert not plane.watch(matches=never, **scope).closed
    plane.put(A)
    assert len(plane.hub) == 4
    plane.hub.check()


def test_selector_transitions(plane):
    watcher = plane.watch(
        matches=lambda record: record.labels.get("app") == "web", selector="app=web"
    )
    plane.put(A)
    plane.put(A, labels={"app": "web"})
    plane.put(A, labels={"app": "web"})
    plane.put(A)
    plane.delete(A)
    assert types(watcher) == [("ADDED", 3), ("MODIFIED", 4), ("DELETED", 5)]


def test_a_slow_watcher_is_closed_and_nobody_else(plane):
    slow, quick = plane.watch(bound_bytes=20), plane.watch(bound_bytes=20)
    calls: list[str] = []
    slow.notify = lambda: calls.append("slow")
    for _ in range(3):
        plane.put(A)
        quick.take()
    assert slow.closed
    assert slow.error is not None
    assert (slow.error.code, slow.error.reason) == (410, "Expired")
    assert slow.error.message == "too old resource version: 1 (4)"
    assert slow.take() == []
    assert calls == ["slow", "slow"], "once for the first item, once for the end"
    assert not quick.closed
    assert (plane.hub.overflowed.value, len(plane.hub)) == (1, 1)
    plane.hub.check()


def test_the_state_then_its_end_then_live(plane):
    plane.put(B)
    plane.put(A)
    watcher = plane.watch(initial=True, bookmarks=True)
    plane.delete(B)
    assert types(watcher) == [("ADDED", 3), ("ADDED", 2), ("BOOKMARK", 3), ("DELETED", 4)]
    assert types(plane.watch(initial=True)) == [("ADDED", 3)]
    assert types(plane.watch(initial=True, bookmarks=True, resource="nodes")) == [("BOOKMARK", 4)]


def test_a_starting_watch_holds_no_bytes_and_comes_in_portions(plane):
    for number in range(1200):
        plane.writer.put(Key("pods", "ns", f"{number:04}"))
    plane.hub.publish(plane.writer.commit())
    watcher = plane.watch(initial=True, matches=lambda record: record.key.name >= "1000")
    assert (watcher.queue, watcher.size, plane.encoder.calls) == ([], 0, 0)
    portions = []
    while watcher.pending:
        portions.append(len(watcher.take(1000)))
    assert sum(portions) == 200
    assert portions[0] == 0, "a page without a match is a pause, not the end"
    assert max(portions) <= 120


def test_a_start_slower_than_the_history_is_long(plane):
    for _ in range(2):
        for number in range(600):
            plane.writer.put(Key("pods", "ns", f"{number:04}"))
    plane.hub.publish(plane.writer.commit())
    starting, resuming, ended = (
        plane.watch(initial=True),
        plane.watch(since=10),
        plane.watch(initial=True),
    )
    plane.hub.close_all()
    for watcher in (starting, resuming, ended):
        assert len(watcher.take(100)) > 0
    plane.put(A)
    plane.store.compact(plane.store.revision)
    for watcher in (starting, resuming, ended):
        while watcher.pending:
            watcher.take()
        assert watcher.closed
        assert watcher.error is not None
        assert watcher.error.reason == "Expired"


def test_a_future_start_is_silent_until_then(plane):
    watcher = plane.watch(since=3, bookmarks=True)
    present = plane.watch()
    plane.put(A)
    plane.hub.on_tick(1000.0)
    assert types(watcher) == [], "a bookmark would take the client back"
    plane.put(A)
    plane.put(A)
    assert types(watcher) == [("MODIFIED", 4)]
    assert len(types(present)) == 3


def test_bookmarks_are_spread_and_carry_the_newest_revision(plane):
    watchers = [plane.watch(bookmarks=True) for _ in range(100)]
    quiet = plane.watch()
    plane.put(Key("nodes", "", "n"))
    times: list[float] = []
    while (due := plane.hub.next_deadline()) is not None and due < 1.2 * BOOKMARK_PERIOD_S:
        plane.hub.on_tick(due)
        times.append(due)
    assert len(times) > 90
    assert times[0] >= BOOKMARK_PERIOD_S / 2
    assert max(later - earlier for earlier, later in pairwise(times)) < 2.0
    for watcher in watchers:
        assert types(watcher)[0] == ("BOOKMARK", 2)
    assert not quiet.pending
    assert plane.encoder.calls == plane.hub.bookmarked.value, (
        "one at a time here, so nothing to share"
    )
    for watcher in watchers[:-1]:
        plane.hub.unsubscribe(watcher)
    assert plane.hub.next_deadline() is not None
    plane.hub.unsubscribe(watchers[-1])
    assert plane.hub.next_deadline() is None


def test_bookmarks_of_one_tick_are_shared(plane):
    watchers = [plane.watch(bookmarks=True) for _ in range(50)]
    plane.hub.on_tick(BOOKMARK_PERIOD_S)
    assert plane.encoder.calls == 1
    assert all(watcher.pending for watcher in watchers)


def test_a_watch_ends_after_a_last_bookmark(plane):
    watcher = plane.watch(bookmarks=True, ends_at=20.0)
    plane.put(A)
    assert plane.hub.next_deadline() == 18.0
    plane.hub.on_tick(18.0)
    assert plane.hub.next_deadline() == 20.0
    plane.hub.on_tick(20.0)
    assert (watcher.closed, watcher.error) == (True, None)
    assert types(watcher) == [("ADDED", 2), ("BOOKMARK", 2)]
    assert len(plane.hub) == 0
    without = plane.watch(ends_at=30.0)
    assert plane.hub.next_deadline() == 30.0
    plane.hub.on_tick(30.0)
    assert without.closed


def test_shutdown_lets_clients_take_what_they_have(plane):
    watcher = plane.watch()
    told: list[bool] = []
    plane.put(A)
    watcher.notify = lambda: told.append(watcher.closed)
    plane.hub.close_all()
    assert told == [True]
    assert (types(watcher), watcher.error) == ([("ADDED", 2)], None)


def test_shutdown_says_where_to_go_on(plane):
    asked, silent = plane.watch(bookmarks=True), plane.watch()
    plane.put(A)
    plane.put(B)
    plane.hub.close_all()
    assert types(asked) == [("ADDED", 2), ("ADDED", 3), ("BOOKMARK", 3)]
    assert types(silent) == [("ADDED", 2), ("ADDED", 3)]
    ahead = plane.watch(bookmarks=True, since=9)
    plane.hub.close_all()
    assert types(ahead) == [], "it would take the client back"


def test_a_fault_ends_the_watches_that_it_concerns_and_no_others(plane):
    class Broken(PlainEncoder):
        def event(self, kind: EventType, record: Record) -> bytes:
            raise ValueError("no such column")

    broken, sound = plane.watch(encoder=Broken()), plane.watch()
    plane.put(A)
    assert broken.closed
    assert broken.error is not None
    assert broken.error.code == 500
    assert "no such column" in broken.error.message
    assert types(sound) == [("ADDED", 2)]
    assert plane.hub.faults.value == 1
    plane.hub.check()


def test_a_fault_in_what_is_there_ends_the_watch_and_not_its_taker(plane):
    class Broken(PlainEncoder):
        def event(self, kind: EventType, record: Record) -> bytes:
            raise ValueError("no such column")

    plane.put(A)
    broken = plane.watch(encoder=Broken(), initial=True)
    assert broken.take() == []
    assert (broken.closed, broken.pending) == (True, False)
    assert broken.error is not None
    assert (broken.error.code, "no such column" in broken.error.message) == (500, True)
    plane.hub.check()


def test_the_hub_must_not_lag_behind_the_store(plane):
    plane.writer.put(A)
    plane.writer.commit()
    with pytest.raises(AssertionError, match="hub at 1, store at 2"):
        plane.watch()


def test_leaving_while_being_notified(plane):
    first, second = plane.watch(), plane.watch()
    first.notify = lambda: plane.hub.unsubscribe(second)
    plane.put(A)
    assert second.closed
    assert second.take() == []
    assert len(first.take()) == 1
    plane.hub.check()
