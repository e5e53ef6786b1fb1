"""Commits that have a revision and are not durable yet.

Writers build on them (two updates of one object may wait for the same fsync, and the second must
see the first); readers and watchers never see them. The back end either makes all of them durable,
oldest first, or they are all forgotten: a later one may rest on an earlier one.

A *step* is what one request staged: it becomes durable whole or not at all. A back end that writes
so much at a time takes as many whole steps as it has room for.

A revision that was forgotten is never given out again in this process. So "revision 12" names one
commit for ever, and a writer that asks late whether its commit is durable cannot be told of another
writer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from sliceplane.server.store.types import EventType, Key, Record, StoreEvent


class BatchLimit(NamedTuple):
    """The bounds of one batch of a back end."""

    keys: int
    #: of bodies
    size_bytes: int


class Staging:
    """Owned by one ``Store``, which alone calls it."""

    __slots__ = ("_ends", "_newest", "_pending", "_taken", "last_assigned")

    def __init__(self, revision: int) -> None:
        self._pending: deque[StoreEvent] = deque()
        #: how many of ``_pending``, from the left, were handed to the committer
        self._taken = 0
        #: revisions of ``_pending`` that end a step
        self._ends: deque[int] = deque()
        #: resource -> key -> its newest pending event
        self._newest: dict[str, dict[Key, StoreEvent]] = {}
        #: the highest revision ever assigned to a commit
        self.last_assigned = revision

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, event: StoreEvent) -> None:
        assert event.revision == self.last_assigned + 1, (
            f"revision {event.revision} follows {self.last_assigned}"
        )
        self.last_assigned = event.revision
        self._pending.append(event)
        self._newest.setdefault(event.record.key.resource, {})[event.record.key] = event

    def find(self, key: Key) -> StoreEvent | None:
        """The newest pending event of *key*."""
        newest = self._newest.get(key.resource)
        return newest.get(key) if newest else None

    def overlay(self, resource: str, namespace: str) -> list[tuple[str, StoreEvent]]:
        """``(path, newest event)`` of the keys that have one, in key order."""
        newest = self._newest.get(resource, {})
        return sorted(
            (
                (key.path, event)
                for key, event in newest.items()
                if not namespace or key.namespace == namespace
            ),
            key=lambda pair: pair[0],
        )

    def end_step(self) -> None:
        """Allows that what follows becomes durable later than what is there."""
        if self._pending and (not self._ends or self._ends[-1] < self._pending[-1].revision):
            self._ends.append(self._pending[-1].revision)

    def take(self, limit: BatchLimit | None = None) -> tuple[StoreEvent, ...]:
        """Returns the events that were not handed out yet, in order; with *limit*, as many whole
        steps as fit, and at least one.
        """
        events = tuple(islice(self._pending, self._taken, None))
        if limit is not None:
            events = self._fitting(events, limit)
        self._taken += len(events)
        return events

    def _fitting(self, events: tuple[StoreEvent, ...], limit: BatchLimit) -> tuple[StoreEvent, ...]:
        ends = frozenset(self._ends)
        keys = set[Key]()
        size = 0
        whole = 0
        for number, event in enumerate(events, 1):
            keys.add(event.record.key)
            size += len(event.record.body)
            if whole and (len(keys) > limit.keys or size > limit.size_bytes):
                return events[:whole]
            if event.revision in ends:
                whole = number
        return events

    def pop_durable(self, revision: int) -> list[StoreEvent]:
        """Removes and returns the events up to *revision*, which became durable, in order."""
        durable = []
        while self._pending and self._pending[0].revision <= revision:
            assert self._taken > 0, (
                f"{self._pending[0].revision} is durable and was never handed out"
            )
            event = self._pending.popleft()
            self._taken -= 1
            newest = self._newest[event.record.key.resource]
            if newest[event.record.key] is event:
                del newest[event.record.key]
            durable.append(event)
        while self._ends and self._ends[0] <= revision:
            self._ends.popleft()
        return durable

    def abort(self) -> tuple[StoreEvent, ...]:
        events = tuple(self._pending)
        self._pending.clear()
        self._ends.clear()
        self._newest.clear()
        self._taken = 0
        return events

    def check(self, durable: int) -> None:
        revisions = [event.revision for event in self._pending]
        assert revisions == sorted(set(revisions)), f"staged out of order: {revisions}"
        assert all(durable < revision <= self.last_assigned for revision in revisions), (
            f"{revisions} after {durable}"
        )
        newest: dict[str, dict[Key, StoreEvent]] = {}
        for event in self._pending:
            newest.setdefault(event.record.key.resource, {})[event.record.key] = event
        assert {name: events for name, events in self._newest.items() if events} == newest, (
            "overlay is not the newest staged"
        )
        assert set(self._ends) <= set(revisions), (
            f"steps end at {list(self._ends)}, staged are {revisions}"
        )
        assert 0 <= self._taken <= len(self._pending), (
            f"{self._taken} of {len(self._pending)} taken"
        )


def overlaid(durable: Iterable[Record], staged: list[tuple[str, StoreEvent]]) -> Iterator[Record]:
    """*durable* with the *staged* events on top, both and the result in key order."""
    index = 0
    for record in durable:
        path = record.key.path
        while index < len(staged) and staged[index][0] < path:
            if staged[index][1].type is not EventType.DELETED:
                yield staged[index][1].record
            index += 1
        if index < len(staged) and staged[index][0] == path:
            if staged[index][1].type is not EventType.DELETED:
                yield staged[index][1].record
            index += 1
        else:
            yield record
    for _, event in staged[index:]:
        if event.type is not EventType.DELETED:
            yield event.record
