"""What clients and watchers saw, and whether that can have been one plane.

The *truth* is etcd's log, read at the end: every batch, in order, with every event.  Against it:

- **writes**: an acknowledged one is in the log, once, with its revision; a refused one is not; one
  without an answer is there at most once.
- **linearizable per key**: a key's versions are in one order (the log's). Every operation takes
  effect somewhere in it (a write at its version; a read at the version that it returned; a refusal
  at any version that explains it), between its call and its return.
- **watches** (names as in etcd's robustness tests): Ordered, Unique, Reliable, Resumable: what a
  watcher got, over all its streams, is exactly the log's events of its resource after the list that
  it began with; Bookmarkable: a bookmark's revision comes after everything up to it; Atomic: lists
  and bookmarks are never of the midst of a batch, and a list is exactly the state at its revision.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Outcome = Literal["ok", "refused", "unknown"]


class Version(NamedTuple):
    """One event of the log; ``value`` is "" for a deletion."""

    revision: int
    type: str
    name: str
    value: str


@dataclass
class Operation:
    """One request.  Times are of one clock.  ``value`` is what a write wrote (unique) or a read
    returned.
    """

    client: str
    verb: Literal["create", "update", "delete", "read"]
    name: str
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"
    value: str = ""
    #: that it made or returned
    revision: int = 0
    #: that an update named as its condition; 0: none
    condition: int = 0
    #: of a refusal
    code: int = 0
    reason: str = ""


@dataclass
class Segment:
    """What one watcher got without a break in its knowledge: a list, then events over any number of
    streams.
    """

    watcher: str
    #: the list that it began with
    revision: int
    state: dict[str, tuple[int, str]]
    #: events, and bookmarks with the type BOOKMARK
    events: list[Version] = field(default_factory=list)


class Truth:
    """The log: batches of versions."""

    def __init__(self, batches: Iterable[list[Version]], first: int = 1) -> None:
        self.versions: list[Version] = []
        #: revisions between batches
        self.ends: set[int] = {first}
        self.by_name: dict[str, list[Version]] = {}
        for batch in batches:
            for version in batch:
                assert not self.versions or version.revision > self.versions[-1].revision, (
                    "the log is out of order"
                )
                self.versions.append(version)
                self.by_name.setdefault(version.name, []).append(version)
            if batch:
                self.ends.add(batch[-1].revision)

    def close_at(self, revisions: Iterable[int]) -> None:
        """Batches that hold nothing of this resource end at these revisions, too."""
        self.ends.update(revisions)

    def state_at(self, revision: int) -> dict[str, tuple[int, str]]:
        state = {}
        for name, versions in self.by_name.items():
            index = bisect_right(versions, revision, key=lambda version: version.revision) - 1
            if index >= 0 and versions[index].type != "DELETED":
                state[name] = (versions[index].revision, versions[index].value)
        return state


def check(truth: Truth, operations: list[Operation], segments: list[Segment]) -> list[str]:
    """Every violation, a line each."""
    found = _find_deletions(truth, operations)
    found += _check_writes(truth, operations)
    for name in sorted({operation.name for operation in operations}):
        mine = [operation for operation in operations if operation.name == name]
        found += _check_key(name, truth.by_name.get(name, []), mine)
    for segment in segments:
        found += _check_segment(truth, segment)
    return found


def _find_deletions(truth: Truth, operations: list[Operation]) -> list[str]:
    """The answer to a deletion tells no revision; it is the version after the one that was its
    condition.
    """
    found = []
    for operation in operations:
        if operation.verb == "delete" and operation.outcome == "ok" and not operation.revision:
            versions = truth.by_name.get(operation.name, [])
            index = bisect_right(
                versions, operation.condition, key=lambda version: version.revision
            )
            if index < len(versions) and versions[index].type == "DELETED":
                operation.revision = versions[index].revision
            else:
                found.append(f"acknowledged and lost: {operation}")
    return found


def _check_writes(truth: Truth, operations: list[Operation]) -> list[str]:
    found = []
    times = Counter(version.value for version in truth.versions if version.type != "DELETED")
    at = {version.revision: version for version in truth.versions}
    for operation in operations:
        if operation.verb not in ("create", "update"):
            continue
        if times[operation.value] > 1:
            found.append(f"written twice: {operation}")
        if operation.outcome == "refused" and times[operation.value]:
            found.append(f"refused and written: {operation}")
        if operation.outcome == "ok":
            version = at.get(operation.revision)
            if version is None or (version.name, version.value) != (
                operation.name,
                operation.value,
            ):
                found.append(f"acknowledged and lost: {operation}; at its revision is {version}")
    return found


def _check_key(name: str, versions: list[Version], operations: list[Operation]) -> list[str]:
    """*versions* have indexes from 1; 0 is the time before the first."""
    index_of = {version.revision: number for number, version in enumerate(versions, 1)}
    index_of_value = {
        version.value: number
        for number, version in enumerate(versions, 1)
        if version.type != "DELETED"
    }
    found: list[str] = []
    placed: list[tuple[Operation, int]] = []
    for operation in operations:
        if operation.outcome == "ok" and operation.revision:
            index = index_of.get(operation.revision)
            if index is None:
                found.append(f"{name}: there is no such version: {operation}")
                continue
            placed.append((operation, index))
            version = versions[index - 1]
            if operation.verb == "read" and version.value != operation.value:
                found.append(f"{name}: read what was never written: {operation}; it was {version}")
            if operation.condition and (
                index < 2 or versions[index - 2].revision != operation.condition
            ):
                found.append(f"{name}: the condition did not hold: {operation}")
        elif operation.outcome == "unknown" and operation.value in index_of_value:
            placed.append((operation, index_of_value[operation.value]))
    bounds = _Bounds(placed, index_of_value, operations, len(versions))
    for operation, index in placed:
        low, high = bounds.of(operation)
        if operation.verb != "read":
            low += 1
        if not low <= index <= high:
            found.append(
                f"{name}: version {index} of {low}..{high} cannot be the effect of {operation}"
            )
    for operation in operations:
        explains = _explanation(operation)
        if explains is not None:
            low, high = bounds.of(operation)
            states = [versions[index - 1] if index else None for index in range(low, high + 1)]
            if not any(explains(state) for state in states):
                found.append(f"{name}: nothing in {states} explains {operation}")
    return found


class _Bounds:
    """Which versions of a key may have been the newest at some time of an operation."""

    def __init__(
        self,
        placed: list[tuple[Operation, int]],
        index_of_value: dict[str, int],
        operations: list[Operation],
        newest: int,
    ) -> None:
        ended = sorted(
            (operation.end, index) for operation, index in placed if operation.end != float("inf")
        )
        self._ends = [end for end, _ in ended]
        self._reached: list[int] = []
        for _, index in ended:
            self._reached.append(max(index, self._reached[-1] if self._reached else 0))
        # Versions that nobody had asked for yet cannot be seen: from each time on, the first that
        # is asked for later.
        asked = sorted(
            [
                (operation.start, index_of_value[operation.value])
                for operation in operations
                if operation.verb in ("create", "update") and operation.value in index_of_value
            ]
            + [
                (operation.start, index)
                for operation, index in placed
                if operation.verb == "delete"
            ]
        )
        self._asked = [start for start, _ in asked]
        self._first_later = [newest + 1]
        for _, index in reversed(asked):
            self._first_later.append(min(index, self._first_later[-1]))
        self._first_later.reverse()

    def of(self, operation: Operation) -> tuple[int, int]:
        before = bisect_right(self._ends, operation.start)
        low = self._reached[before - 1] if before else 0
        return low, self._first_later[bisect_right(self._asked, operation.end)] - 1


def _explanation(operation: Operation) -> Callable[[Version | None], bool] | None:
    """What a refusal says about the state; ``None``: nothing."""

    def gone(state: Version | None) -> bool:
        return state is None or state.type == "DELETED"

    if operation.outcome != "refused":
        return None
    if operation.reason == "NotFound":
        return gone
    if operation.reason == "AlreadyExists":
        return lambda state: not gone(state)
    if operation.reason == "Conflict" and operation.condition:
        return lambda state: state is None or gone(state) or state.revision != operation.condition
    return None


def _check_segment(truth: Truth, segment: Segment) -> list[str]:
    found = []
    who = f"watch {segment.watcher} from {segment.revision}"
    expected_state = truth.state_at(segment.revision)
    if segment.state != expected_state:
        found.append(f"{who}: Atomic: the list is not the state at its revision")
    if segment.revision not in truth.ends:
        found.append(f"{who}: Atomic: the list is of the midst of a batch")
    seen = [event for event in segment.events if event.type != "BOOKMARK"]
    revisions = [event.revision for event in seen]
    if revisions != sorted(revisions):
        found.append(f"{who}: Ordered: {revisions}")
    if len(set(revisions)) != len(revisions):
        found.append(
            f"{who}: Unique: "
            f"{[revision for revision, times in Counter(revisions).items() if times > 1]}"
        )
    reached = max((event.revision for event in segment.events), default=segment.revision)
    expected = [
        version for version in truth.versions if segment.revision < version.revision <= reached
    ]
    if seen != expected:
        missing = [version for version in expected if version not in set(seen)]
        wrong = [event for event in seen if event not in set(expected)]
        found.append(f"{who}: Reliable, Resumable: missing {missing[:5]}, wrong {wrong[:5]}")
    newest = segment.revision
    for event in segment.events:
        if event.type == "BOOKMARK":
            if event.revision < newest:
                found.append(f"{who}: Bookmarkable: a bookmark at {event.revision} after {newest}")
            if event.revision not in truth.ends:
                found.append(f"{who}: Atomic: a bookmark at {event.revision}, the midst of a batch")
            newest = max(newest, event.revision)
        elif event.revision <= newest:
            found.append(f"{who}: Bookmarkable: {event} after {newest} was told to be complete")
        else:
            newest = event.revision
    return found
