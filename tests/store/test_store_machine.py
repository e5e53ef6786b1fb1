"""The store against an oracle that keeps a full copy of the state for every revision."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.effort import machine

from sliceplane.server.store.mvcc import Compacted, Store
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent

RESOURCES = ("pods", "nodes")
#: names whose byte order is not the order of namespaces
KEYS = [
    Key("pods", namespace, name)
    for namespace in ("zz", "zz-b", "zz0", "a")
    for name in ("c1", "c-1", "c.1")
]
KEYS += [Key("nodes", "", name) for name in ("n1", "n2")]
UIDS = ("u1", "u2")


class Oracle:
    """States by revision, and every event ever; compaction is only a number here."""

    def __init__(self) -> None:
        self.states: dict[int, dict[Key, Record]] = {1: {}}
        self.events: list[StoreEvent] = []
        self.revision = 1
        self.compacted = 1
        self.staged: list[StoreEvent] = []

    def latest(self) -> dict[Key, Record]:
        state = dict(self.states[self.revision])
        for event in self.staged:
            self._apply(state, event)
        return state

    def durable(self, revision: int) -> list[StoreEvent]:
        settled = [event for event in self.staged if event.revision <= revision]
        self.staged = self.staged[len(settled) :]
        for event in settled:
            state = dict(self.states[self.revision])
            self._apply(state, event)
            # A revision that was given up reads as the one before it.
            for skipped in range(self.revision + 1, event.revision):
                self.states[skipped] = self.states[self.revision]
            self.states[event.revision] = state
            self.revision = event.revision
            self.events.append(event)
        return settled

    @staticmethod
    def _apply(state: dict[Key, Record], event: StoreEvent) -> None:
        if event.type is EventType.DELETED:
            del state[event.record.key]
        else:
            state[event.record.key] = event.record

    def list(self, resource: str, namespace: str, revision: int) -> list[Record]:
        found = [
            record for key, record in self.states[revision].items() if key.resource == resource
        ]
        return sorted(
            (record for record in found if not namespace or record.key.namespace == namespace),
            key=lambda record: record.key.path.encode(),
        )


def record(key: Key, revision: int, created: int, owners: tuple[str, ...]) -> Record:
    return Record(
        key=key,
        revision=revision,
        created=created,
        uid="",
        body=b"%d" % revision,
        labels={},
        fields={},
        owners=owners,
    )


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.oracle = Oracle()
        self.taken = 0
        self.given = {1}

    @rule(key=st.sampled_from(KEYS), owners=st.lists(st.sampled_from(UIDS), max_size=2).map(tuple))
    def put(self, key: Key, owners: tuple[str, ...]) -> None:
        previous = self.oracle.latest().get(key)
        assert self.store.latest(key) == previous
        made = self.store.stage_put(
            key,
            lambda revision: record(
                key, revision, previous.created if previous else revision, owners
            ),
        )
        assert made.revision not in self.given, "a revision names one commit for ever"
        self.given.add(made.revision)
        kind = EventType.MODIFIED if previous else EventType.ADDED
        self.oracle.staged.append(StoreEvent(made.revision, kind, made, previous))

    @precondition(lambda self: self.oracle.latest())
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        state = self.oracle.latest()
        key = data.draw(st.sampled_from(sorted(state)))
        previous = state[key]
        made = self.store.stage_delete(
            key, lambda revision: record(key, revision, previous.created, previous.owners)
        )
        assert made.revision not in self.given
        self.given.add(made.revision)
        self.oracle.staged.append(StoreEvent(made.revision, EventType.DELETED, made, previous))

    @rule()
    def take(self) -> None:
        assert list(self.store.take_staged()) == self.oracle.staged[self.taken :]
        self.taken = len(self.oracle.staged)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def durable(self, data: Any) -> None:
        count = data.draw(st.integers(1, self.taken))
        revision = self.oracle.staged[count - 1].revision
        assert list(self.store.on_durable(revision)) == self.oracle.durable(revision)
        self.taken -= count

    @rule()
    def abort(self) -> None:
        assert list(self.store.abort_staged()) == self.oracle.staged
        self.oracle.staged = []
        self.taken = 0

    @rule(data=st.data())
    def compact(self, data: Any) -> None:
        revision = data.draw(st.integers(1, self.oracle.revision))
        self.store.compact(revision)
        self.oracle.compacted = max(self.oracle.compacted, revision)

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES), limit=st.integers(0, 4))
    def list_in_pages(self, data: Any, resource: str, limit: int) -> None:
        namespace = data.draw(st.sampled_from(("", "zz", "missing"))) if resource == "pods" else ""
        revision = data.draw(st.integers(1, self.oracle.revision))
        if revision < self.oracle.compacted:
            with pytest.raises(Compacted) as raised:
                self.store.list(resource, namespace=namespace, revision=revision, limit=limit)
            assert (raised.value.revision, raised.value.oldest) == (revision, self.oracle.compacted)
            return
        expected = self.oracle.list(resource, namespace, revision)
        after, got = "", []
        while True:
            page = self.store.list(
                resource, namespace=namespace, revision=revision, after=after, limit=limit
            )
            got += page.records
            assert page.revision == revision
            assert page.remaining == len(expected) - len(got)
            assert page.more == (page.remaining > 0)
            if not page.more:
                break
            assert len(page.records) == limit
            after = page.records[-1].key.path
        assert got == expected

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES), limit=st.integers(0, 3))
    def resume(self, data: Any, resource: str, limit: int) -> None:
        revision = data.draw(st.integers(1, self.oracle.revision + 2))
        if revision < self.oracle.compacted:
            with pytest.raises(Compacted):
                self.store.events_since(revision, resource)
            return
        events = [event for event in self.oracle.events if event.revision > revision]
        expected = [event for event in events if event.record.key.resource == resource]
        assert (
            list(self.store.events_since(revision, resource, limit=limit))
            == expected[: limit or None]
        )

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def get_in_the_past(self, data: Any, key: Key) -> None:
        revision = data.draw(st.integers(self.oracle.compacted, self.oracle.revision))
        assert self.store.get_at(key, revision) == self.oracle.states[revision].get(key)

    @invariant()
    def agrees(self) -> None:
        store, oracle = self.store, self.oracle
        store.check()
        durable = oracle.states[oracle.revision]
        assert store.revision == oracle.revision
        assert store.staged_revision == (
            oracle.staged[-1].revision if oracle.staged else oracle.revision
        )
        assert {key: store.get(key) for key in KEYS} == {key: durable.get(key) for key in KEYS}
        latest = oracle.latest()
        for resource, namespace in (("pods", ""), ("pods", "zz"), ("nodes", "")):
            expected = [
                key
                for key in latest
                if key.resource == resource and namespace in ("", key.namespace)
            ]
            expected.sort(key=lambda key: key.path)
            assert [found.key for found in store.iter_latest(resource, namespace)] == expected
            assert store.count(resource, namespace) == len(
                oracle.list(resource, namespace, oracle.revision)
            )
        for uid in UIDS:
            assert list(store.owned_by(uid)) == sorted(
                (found for found in durable.values() if uid in found.owners),
                key=lambda found: found.key,
            )

    @invariant()
    def restores(self) -> None:
        """What a back end would remember gives the same store."""
        state = sorted(
            self.oracle.states[self.oracle.compacted].values(), key=lambda found: found.revision
        )
        history = [StoreEvent(found.revision, EventType.ADDED, found, None) for found in state]
        history += [event for event in self.oracle.events if event.revision > self.oracle.compacted]
        restored = Store.restore(history, self.oracle.revision, self.oracle.compacted)
        restored.check()
        for resource in RESOURCES:
            assert restored.list(resource) == self.store.list(resource)
            assert restored.events_since(self.store.compacted, resource) == self.store.events_since(
                self.store.compacted, resource
            )


StoreMachine.TestCase.settings = machine(60)
TestStoreMachine = StoreMachine.TestCase
