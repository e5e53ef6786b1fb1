"""Comparison of the caches of node proxies with the controller's own, by digest.

A proxy reports revision and digest of each selection that it reads (``consume.progress``). The
controller computes the same digests from its own watch, and retains those of the last minutes.
Equal at one revision: that node's cache *is* the server's state. Unequal: an event was lost, on its
way to the node or to the controller (if all nodes differ at once it was the controller's, and a
restart of the controllers repairs that). A revision that the controller has not reached yet is
judged when it has. A revision older than the retained digests (or than a list, which has no
history), or without a digest (``consume.drain.relayed``), is not judged; the node's next report is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from typing import Final, NamedTuple

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.progress import FOLLOWED, AppliedRevision, ProgressReport, Scope
from sliceplane.consume.selections import (
    SERVICE_SELECTION_PREFIX,
    list_selections_of_service,
    list_selections_of_slice,
)
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import Terms, digest_text

#: seconds for which former digests are retained; more than two reports of a proxy
KEPT_S: Final = 120.0
#: maximum number of retained digests of one selection
KEPT_MAX: Final = 20_000

_PLURALS: Final = {resource.key: resource.plural for resource in FOLLOWED}


class Verdict(NamedTuple):
    """The verdict on a node's cache: ``differ``, with the scope, the revision and since when;
    ``equal`` in all scopes; or "", neither.
    """

    kind: str = ""
    scope: Scope = ("", "")
    revision: int = 0
    since: float = 0.0


class _History:
    """The history of one selection: its digests, each with its first revision. O(1) per change,
    O(log changes) per query.
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
        """Returns the digest at *revision*; ``None``: not retained."""
        index = bisect_right(self._revisions, revision) - 1
        return self._values[index] if index >= 0 else None

    def changed_after(self, revision: int) -> float | None:
        """Returns when the first change after *revision* was observed; ``None``: none is
        retained.
        """
        index = max(bisect_right(self._revisions, revision), 1)
        return self._times[index] if index < len(self._times) else None


class NodeCaches:
    """Owned by ``NodeProgress``.  Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._terms = {resource.plural: Terms() for resource in FOLLOWED}
        self._values: dict[Scope, int] = {}
        self._histories: dict[Scope, _History] = {}
        self._changed: set[Scope] = set()
        #: by resource: the observed revision, and the first one from which all are retained
        self._marks = {resource.plural: 0 for resource in FOLLOWED}
        self._floors = {resource.plural: 0 for resource in FOLLOWED}
        self._reports: dict[str, dict[Scope, AppliedRevision]] = {}
        self._verdicts: dict[str, dict[Scope, Verdict]] = {}
        #: nodes with a verdict ``differ``; read-only for others
        self.differing: set[str] = set()
        #: (revision, node) of reports that are ahead of the controller, as a heap; each node once
        self._ahead: dict[str, list[tuple[int, str]]] = {
            resource.plural: [] for resource in FOLLOWED
        }
        self._waiting: dict[str, set[str]] = {resource.plural: set() for resource in FOLLOWED}

    # The watch of the controller

    def on_change(self, change: Change[Object]) -> None:
        plural = _PLURALS.get(change.resource)
        if plural is None:
            return
        removed, added = self._terms[plural].of(change.old, change.new)
        for value, selections in (
            (removed, _list_selections(plural, change.old)),
            (added, _list_selections(plural, change.new)),
        ):
            for selection in selections:
                scope = (plural, selection)
                self._values[scope] = self._values.get(scope, 0) ^ value
                self._changed.add(scope)

    def on_mark(self, mark: Mark, now: float) -> tuple[str, ...]:
        """Notes that all up to *mark* is observed. Returns nodes whose caches newly differ."""
        plural = _PLURALS.get(mark.resource)
        if plural is None:
            return ()
        if mark.listed or not self._marks[plural] or mark.revision < self._marks[plural]:
            self._floors[plural] = mark.revision
            for scope in [scope for scope in self._values if scope[0] == plural]:
                self._histories[scope] = _History(mark.revision, self._values[scope], now)
        else:
            for scope in self._changed:
                if scope not in self._histories:  # it was empty until now
                    self._histories[scope] = _History(self._floors[plural], 0, now)
                self._histories[scope].append(mark.revision, self._values[scope], now)
        self._changed.clear()
        self._marks[plural] = mark.revision
        return tuple(sorted(node for node in self._caught_up(plural) if self._judge(node, now)))

    def _caught_up(self, plural: str) -> tuple[str, ...]:
        """Returns the nodes whose reports are no longer ahead of the controller."""
        ahead, nodes = self._ahead[plural], []
        while ahead and ahead[0][0] <= self._marks[plural]:
            _, node = heapq.heappop(ahead)
            self._waiting[plural].discard(node)
            nodes.append(node)
        for node in nodes:
            self._note_ahead(node)
        return tuple(nodes)

    def _note_ahead(self, node: str) -> None:
        for (plural, _), applied in self._reports.get(node, {}).items():
            if (
                applied.revision > self._marks.get(plural, applied.revision)
                and node not in self._waiting[plural]
            ):
                heapq.heappush(self._ahead[plural], (applied.revision, node))
                self._waiting[plural].add(node)

    # Reports

    def on_report(self, node: str, report: ProgressReport | None, now: float) -> bool:
        """Returns True if the cache of *node* newly differs. *report* is ``None`` if the node
        reports nothing or is gone.
        """
        if report is None:
            self._reports.pop(node, None)
            self._verdicts.pop(node, None)
            self.differing.discard(node)
            return False
        applied_by_scope = self._reports[node] = report.applied_by_scope()
        verdicts = self._verdicts.setdefault(node, {})
        for scope in [scope for scope in verdicts if scope not in applied_by_scope]:
            del verdicts[scope]
        self._note_ahead(node)
        return self._judge(node, now)

    def _judge(self, node: str, now: float) -> bool:
        """Returns True if the cache of *node* differs now and did not before."""
        verdicts = self._verdicts.get(node)
        if verdicts is None:
            return False
        for scope, applied in self._reports[node].items():
            own = self.digest_at(scope, applied.revision)
            if own is None or not applied.digest:
                continue
            old = verdicts.get(scope)
            kind = "equal" if own == applied.digest else "differ"
            since = old.since if old is not None and old.kind == kind else now
            verdicts[scope] = Verdict(kind, scope, applied.revision, since)
        differed = node in self.differing
        if any(verdict.kind == "differ" for verdict in verdicts.values()):
            self.differing.add(node)
        else:
            self.differing.discard(node)
        return not differed and node in self.differing

    def digest_at(self, scope: Scope, revision: int) -> str | None:
        """Returns the digest of the controller's own cache; ``None``: not retained."""
        plural, _ = scope
        if (
            plural not in self._marks
            or not self._floors[plural] <= revision <= self._marks[plural]
            or not revision
        ):
            return None
        if scope[1].startswith(SERVICE_SELECTION_PREFIX):
            return None  # no digests are retained of single Services
        history = self._histories.get(scope)
        value = 0 if history is None else history.at(revision)
        return None if value is None else digest_text(value)

    # Queries

    def is_equal(self, node: str) -> bool:
        """Returns True if the cache of *node* is equal at all revisions of its last report."""
        verdicts = self._verdicts.get(node, {})
        return bool(verdicts) and all(
            (verdict := verdicts.get(scope, Verdict())).kind == "equal"
            and verdict.revision == applied.revision
            for scope, applied in self._reports[node].items()
        )

    def verdict(self, node: str) -> Verdict:
        verdicts = self._verdicts.get(node, {})
        differing = [
            verdicts[scope] for scope in sorted(verdicts) if verdicts[scope].kind == "differ"
        ]
        if differing:
            return differing[0]
        whole = bool(verdicts) and verdicts.keys() == self._reports[node].keys()
        return min(verdicts.values(), key=lambda verdict: verdict.revision) if whole else Verdict()

    def behind_since(self, node: str) -> float | None:
        """Returns when the first change of EndpointSlices was observed that *node* has not reported
        as applied; ``None``: it has applied all.
        """
        since = [
            history.changed_after(applied.revision)
            for scope, applied in self._reports.get(node, {}).items()
            if scope[0] == EndpointSlices.plural
            and (history := self._histories.get(scope)) is not None
        ]
        return min((moment for moment in since if moment is not None), default=None)

    def check(self) -> None:
        for scope, history in self._histories.items():
            assert scope in self._changed or history.value == self._values[scope], (
                f"{scope} has an old digest"
            )
        for plural, ahead in self._ahead.items():
            assert sorted(node for _, node in ahead) == sorted(self._waiting[plural]), (
                f"{plural}: {ahead}"
            )
        assert self.differing == {
            node for node in self._verdicts if self.verdict(node).kind == "differ"
        }, self.differing
        assert self._verdicts.keys() == self._reports.keys(), "verdicts on nodes without a report"


def _list_selections(plural: str, subject: Object | None) -> tuple[str, ...]:
    if plural == EndpointSlices.plural:
        return list_selections_of_slice(subject if isinstance(subject, EndpointSlice) else None)
    return list_selections_of_service(subject if isinstance(subject, Service) else None)
