"""Whose cache is the server's state: digests that node proxies tell, against those that this
controller had.

A proxy tells version and digest of each thing that it reads (``consume.progress``); the controller
computes the same from its own watch and keeps what it was at each version of the last minutes.
Equal at one version: that node's cache *is* what the server held. Unequal: an event was lost, on
the node's way or on ours (if all nodes differ at once it is ours, and a restart of the controllers
mends it). A version that we have not reached yet waits until we have; one from before our memory
(before a list, which tells a sum and no history) is not judged, and the node's next report is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from typing import Final, NamedTuple

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.progress import FOLLOWED, Held, Place, ProgressReport
from sliceplane.consume.selections import SERVICE_READING, readings_of_service, readings_of_slice
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import Terms, digest_text

#: how long it is remembered what a digest was; more than two reports of a proxy
KEPT_S: Final = 120.0
#: and of how many changes of one reading
KEPT_MAX: Final = 20_000

_PLURALS: Final = {resource.key: resource.plural for resource in FOLLOWED}


class Verdict(NamedTuple):
    """The verdict on a node's cache: since when it is known to ``differ``, in what and at which
    version; or that all of it is ``equal``; or neither.
    """

    kind: str = ""
    place: Place = ("", "")
    revision: int = 0
    since: float = 0.0


class _History:
    """The history of one reading: its digests, each with the version from which on it held. O(1) a
    change, O(log changes) a question.
    """

    def __init__(self, revision: int, value: int, now: float) -> None:
        self._revisions, self._values, self._times = [revision], [value], [now]

    @property
    def value(self) -> int:
        return self._values[-1]

    def append(self, revision: int, value: int, now: float) -> None:
        self._revisions.append(revision)
        self._values.append(value)
        self._times.append(now)
        half = len(self._times) // 2
        if half > 32 and (self._times[half] < now - KEPT_S or len(self._times) > KEPT_MAX):
            del self._revisions[:half], self._values[:half], self._times[:half]

    def at(self, revision: int) -> int | None:
        """``None``: not remembered."""
        index = bisect_right(self._revisions, revision) - 1
        return self._values[index] if index >= 0 else None

    def changed_after(self, revision: int) -> float | None:
        """When the first change after *revision* came to us; ``None``: there was none that we
        remember.
        """
        index = max(bisect_right(self._revisions, revision), 1)
        return self._times[index] if index < len(self._times) else None


class NodeCaches:
    """Owned by ``NodeProgress``.  Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._terms = {resource.plural: Terms() for resource in FOLLOWED}
        self._values: dict[Place, int] = {}
        self._histories: dict[Place, _History] = {}
        self._changed: set[Place] = set()
        #: of each resource: how far we are, and from where on we know every version
        self._marks = {resource.plural: 0 for resource in FOLLOWED}
        self._floors = {resource.plural: 0 for resource in FOLLOWED}
        self._reports: dict[str, dict[Place, Held]] = {}
        self._judged: dict[str, dict[Place, Verdict]] = {}
        #: nodes with a verdict that says so; to look at, not to change
        self.differing: set[str] = set()
        #: (version, node) of reports that were ahead of us, the lowest first; each node once
        self._ahead: dict[str, list[tuple[int, str]]] = {
            resource.plural: [] for resource in FOLLOWED
        }
        self._waiting: dict[str, set[str]] = {resource.plural: set() for resource in FOLLOWED}

    # Our own watch

    def on_change(self, change: Change[Object]) -> None:
        plural = _PLURALS.get(change.resource)
        if plural is None:
            return
        goes, comes = self._terms[plural].of(change.old, change.new)
        for value, readings in (
            (goes, _readings(plural, change.old)),
            (comes, _readings(plural, change.new)),
        ):
            for reading in readings:
                place = (plural, reading)
                self._values[place] = self._values.get(place, 0) ^ value
                self._changed.add(place)

    def on_mark(self, mark: Mark, now: float) -> tuple[str, ...]:
        """Everything up to *mark* is known.  The nodes whose caches turn out to differ."""
        plural = _PLURALS.get(mark.resource)
        if plural is None:
            return ()
        if mark.listed or not self._marks[plural] or mark.revision < self._marks[plural]:
            self._floors[plural] = mark.revision
            for place in [place for place in self._values if place[0] == plural]:
                self._histories[place] = _History(mark.revision, self._values[place], now)
        else:
            for place in self._changed:
                if place not in self._histories:  # it was empty until now
                    self._histories[place] = _History(self._floors[plural], 0, now)
                self._histories[place].append(mark.revision, self._values[place], now)
        self._changed.clear()
        self._marks[plural] = mark.revision
        return tuple(sorted(node for node in self._caught_up(plural) if self._judge(node, now)))

    def _caught_up(self, plural: str) -> tuple[str, ...]:
        """Nodes whose reports are ahead of us no more."""
        ahead, nodes = self._ahead[plural], []
        while ahead and ahead[0][0] <= self._marks[plural]:
            _, node = heapq.heappop(ahead)
            self._waiting[plural].discard(node)
            nodes.append(node)
        for node in nodes:
            self._note_ahead(node)
        return tuple(nodes)

    def _note_ahead(self, node: str) -> None:
        for (plural, _), held in self._reports.get(node, {}).items():
            if (
                held.revision > self._marks.get(plural, held.revision)
                and node not in self._waiting[plural]
            ):
                heapq.heappush(self._ahead[plural], (held.revision, node))
                self._waiting[plural].add(node)

    # Reports

    def on_report(self, node: str, report: ProgressReport | None, now: float) -> bool:
        """*report* ``None``: the node tells nothing, or is gone.  True: its cache turns out to
        differ.
        """
        if report is None:
            self._reports.pop(node, None)
            self._judged.pop(node, None)
            self.differing.discard(node)
            return False
        places = self._reports[node] = report.places()
        judged = self._judged.setdefault(node, {})
        for place in [place for place in judged if place not in places]:
            del judged[place]
        self._note_ahead(node)
        return self._judge(node, now)

    def _judge(self, node: str, now: float) -> bool:
        """True: it differs, and did not before."""
        judged = self._judged.get(node)
        if judged is None:
            return False
        for place, held in self._reports[node].items():
            own = self._digest_at(place, held.revision)
            if own is None:
                continue
            old = judged.get(place)
            kind = "equal" if own == held.digest else "differ"
            since = old.since if old is not None and old.kind == kind else now
            judged[place] = Verdict(kind, place, held.revision, since)
        differed = node in self.differing
        if any(verdict.kind == "differ" for verdict in judged.values()):
            self.differing.add(node)
        else:
            self.differing.discard(node)
        return not differed and node in self.differing

    def _digest_at(self, place: Place, revision: int) -> str | None:
        plural, _ = place
        if (
            plural not in self._marks
            or not self._floors[plural] <= revision <= self._marks[plural]
            or not revision
        ):
            return None
        if place[1].startswith(SERVICE_READING):
            return None  # we keep none of single Services
        history = self._histories.get(place)
        value = 0 if history is None else history.at(revision)
        return None if value is None else digest_text(value)

    # Answers

    def verdict(self, node: str) -> Verdict:
        judged = self._judged.get(node, {})
        differing = [judged[place] for place in sorted(judged) if judged[place].kind == "differ"]
        if differing:
            return differing[0]
        whole = bool(judged) and judged.keys() == self._reports[node].keys()
        return min(judged.values(), key=lambda verdict: verdict.revision) if whole else Verdict()

    def behind_since(self, node: str) -> float | None:
        """When the first change of EndpointSlices came that *node* has not told it holds; ``None``:
        it holds all.
        """
        since = [
            history.changed_after(held.revision)
            for place, held in self._reports.get(node, {}).items()
            if place[0] == EndpointSlices.plural
            and (history := self._histories.get(place)) is not None
        ]
        return min((moment for moment in since if moment is not None), default=None)

    def check(self) -> None:
        for place, history in self._histories.items():
            assert place in self._changed or history.value == self._values[place], (
                f"{place} has an old digest"
            )
        for plural, ahead in self._ahead.items():
            assert sorted(node for _, node in ahead) == sorted(self._waiting[plural]), (
                f"{plural}: {ahead}"
            )
        assert self.differing == {
            node for node in self._judged if self.verdict(node).kind == "differ"
        }, self.differing
        assert self._judged.keys() == self._reports.keys(), "verdicts on nodes that told nothing"


def _readings(plural: str, seen: Object | None) -> tuple[str, ...]:
    if plural == EndpointSlices.plural:
        return readings_of_slice(seen if isinstance(seen, EndpointSlice) else None)
    return readings_of_service(seen if isinstance(seen, Service) else None)
