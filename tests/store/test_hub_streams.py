"""Recorded watch streams against named guarantees (Ordered, Unique, Reliable, Resumable,
Bookmarkable, Filter), over interleaved writes, takes, selectors, bookmarks, overflows and
compactions.

The validators know nothing of the hub: they have the list of all commits, and what a client
received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.effort import machine

from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent
from sliceplane.server.store.watcher import Interest, Watcher

KEYS = [Key("pods", namespace, name) for namespace in ("a", "b") for name in ("x", "y")] + [
    Key("nodes", "", "x")
]


class BodyEncoder:
    """Type, revision and body; counts how often it works."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def event(self, kind: EventType, record: Record) -> bytes:
        self.calls.append((kind.value, record.revision))
        return kind.value.encode() + b" " + record.body

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        return b"BOOKMARK %d%s" % (revision, b" complete" if initial_events_end else b"")


ENCODERS = (BodyEncoder(), BodyEncoder())
PREDICATES: dict[str, Callable[[Record], bool] | None] = {
    "": None,
    "app=web": lambda record: record.labels.get("app") == "web",
    "app": lambda record: "app" in record.labels,
}


@dataclass
class Stream:
    """One client: what it asked for and what it was sent."""

    watcher: Watcher
    #: the state first, as it was at this revision; ``None``: events after ``since`` only
    initial_at: int | None
    since: int
    items: list[Any] = field(default_factory=list)

    def wants(self, record: Record | None) -> bool:
        interest = self.watcher.interest
        if record is None or record.key.resource != interest.resource:
            return False
        matches = PREDICATES[interest.selector]
        return (
            interest.namespace in ("", record.key.namespace)
            and interest.name in ("", record.key.name)
            and (matches is None or matches(record))
        )

    def initial(self, history: list[StoreEvent]) -> list[tuple[str, int, bytes]]:
        if self.initial_at is None:
            return []
        state: dict[str, Record] = {}
        for event in history:
            if event.revision <= self.initial_at:
                state.pop(event.record.key.path, None)
                if event.type is not EventType.DELETED and self.wants(event.record):
                    state[event.record.key.path] = event.record
        return [
            ("ADDED", state[path].revision, b"ADDED " + state[path].body) for path in sorted(state)
        ]

    def live(self, history: list[StoreEvent]) -> list[tuple[str, int, bytes]]:
        """What a perfect server sends after ``since``."""
        sent = []
        for event in history:
            if event.revision <= self.since:
                continue
            there = event.type is not EventType.DELETED and self.wants(event.record)
            was = self.wants(event.previous)
            if there:
                kind, body = ("MODIFIED" if was else "ADDED"), event.record.body
            elif was:
                kind, body = "DELETED", event.record.body
                if event.type is not EventType.DELETED:
                    document = msgspec.json.decode(event.previous.body)
                    document["metadata"]["resourceVersion"] = str(event.revision)
                    body = msgspec.json.encode(document)
            else:
                continue
            sent.append((kind, event.revision, kind.encode() + b" " + body))
        return sent


def split(stream: Stream, history: list[StoreEvent]) -> tuple[list[Any], list[Any]]:
    """The synthetic start and the rest."""
    if stream.initial_at is None:
        return [], stream.items
    count = len(stream.initial(history)) + (1 if stream.watcher.bookmarks else 0)
    return stream.items[:count], stream.items[count:]


def ordered(stream: Stream, history: list[StoreEvent]) -> None:
    _, rest = split(stream, history)
    newest = stream.since
    for item in rest:
        assert item.revision > newest or (item.type == "BOOKMARK" and item.revision == newest), (
            stream.items
        )
        newest = item.revision


def unique(stream: Stream, history: list[StoreEvent]) -> None:
    _, rest = split(stream, history)
    events = [item.revision for item in rest if item.type != "BOOKMARK"]
    assert len(events) == len(set(events)), stream.items


def reliable(stream: Stream, history: list[StoreEvent]) -> None:
    start, rest = split(stream, history)
    expected = stream.initial(history)
    if stream.watcher.bookmarks and stream.initial_at is not None:
        expected = [
            *expected,
            ("BOOKMARK", stream.initial_at, b"BOOKMARK %d complete" % stream.initial_at),
        ]
    assert start == expected[: len(start)]
    got = [item for item in rest if item.type != "BOOKMARK"]
    expected = stream.live(history)
    assert got == expected[: len(got)], "a gap, or something that was never asked for"
    if not stream.watcher.closed and not stream.watcher.pending:
        assert len(got) == len(expected), "drained, and something is missing"


def bookmarkable(stream: Stream, history: list[StoreEvent]) -> None:
    _, rest = split(stream, history)
    before = 0
    for item in rest:
        if item.type != "BOOKMARK":
            before += 1
            continue
        assert item.data == b"BOOKMARK %d" % item.revision
        assert before >= sum(
            revision <= item.revision for _, revision, _ in stream.live(history)
        ), stream.items


def filtered(stream: Stream, history: list[StoreEvent]) -> None:
    """A client that just applies what it is sent has what a list with its selector would give."""
    if stream.initial_at is None or stream.watcher.pending or stream.watcher.closed:
        return
    cache: dict[str, bytes] = {}
    for item in stream.items:
        if item.type == "BOOKMARK":
            continue
        document = msgspec.json.decode(item.data.partition(b" ")[2])
        assert document["metadata"]["resourceVersion"] == str(item.revision)
        name = document["metadata"]["name"]
        assert (item.type == "ADDED") == (name not in cache), stream.items
        if item.type == "DELETED":
            del cache[name]
        else:
            cache[name] = item.data.partition(b" ")[2]
    state: dict[Key, Record] = {}
    for event in history:
        state[event.record.key] = event.record
        if event.type is EventType.DELETED:
            del state[event.record.key]
    assert cache == {
        record.key.path: record.body for record in state.values() if stream.wants(record)
    }


VALIDATORS = (ordered, unique, reliable, bookmarkable, filtered)


class HubMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.hub = Hub(self.store)
        self.history: list[StoreEvent] = []
        self.streams: list[Stream] = []
        self.now = 1000.0
        self.notified: set[int] = set()

    def commit(self) -> None:
        self.store.take_staged()
        events = self.store.on_durable(self.store.staged_revision)
        self.history += events
        for encoder in ENCODERS:
            encoder.calls.clear()
        self.hub.publish(events)
        for encoder in ENCODERS:
            assert len(encoder.calls) == len(set(encoder.calls)), "encoded twice"

    def stage(self, key: Key, labels: dict[str, str] | None) -> None:
        previous = self.store.latest(key)
        if labels is None and previous is None:
            return

        def build(revision: int) -> Record:
            metadata = {"name": key.path, "resourceVersion": str(revision), "labels": labels or {}}
            kept = labels if labels is not None else previous.labels
            return Record(
                key=key,
                revision=revision,
                created=previous.created if previous else revision,
                uid="",
                body=msgspec.json.encode({"kind": "Pod", "metadata": metadata}),
                labels=kept,
                fields={},
            )

        if labels is None:
            self.store.stage_delete(key, build)
        else:
            self.store.stage_put(key, build)

    @rule(
        writes=st.lists(
            st.tuples(
                st.sampled_from(KEYS), st.sampled_from((None, {}, {"app": "web"}, {"app": "db"}))
            ),
            min_size=1,
            max_size=4,
        )
    )
    def write(self, writes: list[tuple[Key, dict[str, str] | None]]) -> None:
        for key, labels in writes:
            self.stage(key, labels)
        self.commit()

    @rule(data=st.data(), bookmarks=st.booleans(), bound=st.sampled_from((10_000, 300)))
    def subscribe(self, data: Any, bookmarks: bool, bound: int) -> None:
        resource, namespace, name = data.draw(
            st.sampled_from(
                (
                    ("pods", "", ""),
                    ("pods", "a", ""),
                    ("pods", "a", "x"),
                    ("pods", "", "y"),
                    ("nodes", "", "x"),
                )
            )
        )
        selector = data.draw(st.sampled_from(sorted(PREDICATES)))
        interest = Interest(
            resource=resource,
            namespace=namespace,
            name=name,
            selector=selector,
            matches=PREDICATES[selector],
            encoder=data.draw(st.sampled_from(ENCODERS)),
        )
        mode = data.draw(st.sampled_from(("initial", "now", "since")))
        since = data.draw(st.integers(1, self.store.revision + 2)) if mode == "since" else None
        watcher = self.hub.subscribe(
            interest,
            now=self.now,
            since=since,
            initial=mode == "initial",
            bookmarks=bookmarks,
            bound_bytes=bound,
        )
        if since is not None and since < self.store.compacted:
            assert watcher.closed
            assert watcher.error is not None
            assert (
                watcher.error.message
                == f"too old resource version: {since} ({self.store.compacted})"
            )
            return
        watcher.notify = lambda: self.notified.add(watcher.number)
        at = self.store.revision
        self.streams.append(
            Stream(watcher, at if mode == "initial" else None, at if since is None else since)
        )

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), limit=st.sampled_from((1, 100, 10_000)))
    def take(self, data: Any, limit: int) -> None:
        stream = data.draw(st.sampled_from(self.streams))
        stream.items += stream.watcher.take(limit)
        if not stream.watcher.pending:
            self.notified.discard(stream.watcher.number)

    @rule(seconds=st.sampled_from((1.0, 20.0, 61.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.hub.on_tick(self.now)
        deadline = self.hub.next_deadline()
        assert deadline is None or deadline > self.now

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        stream = data.draw(st.sampled_from(self.streams))
        self.hub.unsubscribe(stream.watcher)

    @rule(data=st.data())
    def compact(self, data: Any) -> None:
        self.store.compact(data.draw(st.integers(self.store.compacted, self.store.revision)))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        """Resumable: a new watch from any live revision seen gets what the old one got after it."""
        stream = data.draw(st.sampled_from(self.streams))
        stream.items += stream.watcher.take(10_000)
        _, rest = split(stream, self.history)
        if not rest:
            return
        position = data.draw(st.integers(0, len(rest) - 1))
        again = self.hub.subscribe(
            stream.watcher.interest, now=self.now, since=rest[position].revision
        )
        if again.closed:
            assert rest[position].revision < self.store.compacted
            return
        got = again.take(1_000_000)
        assert not again.pending
        known = [item for item in rest[position + 1 :] if item.type != "BOOKMARK"]
        assert list(got[: len(known)]) == known
        self.hub.unsubscribe(again)

    @invariant()
    def holds(self) -> None:
        self.hub.check()
        for stream in self.streams:
            watcher = stream.watcher
            assert watcher.size <= watcher.bound + 200, "bounded (bookmarks are let in)"
            if watcher.queue:
                assert watcher.number in self.notified, "something waits and nobody was told"

    def teardown(self) -> None:
        for stream in self.streams:
            while stream.watcher.pending:
                stream.items += stream.watcher.take(500)
            assert stream.watcher.error is None or stream.watcher.error.reason == "Expired"
            for validate in VALIDATORS:
                validate(stream, self.history)


HubMachine.TestCase.settings = machine(100)
TestHubStreams = HubMachine.TestCase
