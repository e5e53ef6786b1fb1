"""The versions that nodes have applied, from the Leases of node proxies (``consume.progress``).

Clocks of machines differ, so a Lease lives as long as it says from the moment at which *we* saw it
change.

**Which slices concern a node?**  Those that it reads (``consume.selections``), and for each reading
the node tells a version of its own; so what is asked for is a version for each reading. A proxy of
an older release tells one version for all. A node whose cache lost an event
(``consume.node_caches``) holds no version, whatever it says.

**Stopped or removed?**  A Lease that ran out is of a proxy that stopped, or of a node that is gone.
A proxy lets its Node own the Lease, so the garbage collector takes the Lease with the Node: one
that ran out, has such an owner and is still there, is of a node whose rules stay as the proxy left
them. That node counts, with the version that it had, for ``STOPPED_KEPT_S``; an operator who takes
proxies away deletes the Leases, or waits for so long. Without an owner (a proxy on a machine that
is no Node) it cannot be told, and it counts no more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from sliceplane.api.core import Lease
from sliceplane.api.meta import Object, OwnerReference, revision_of
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.node_caches import NodeCaches, Verdict
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    BEHIND_S,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_PREFIX,
    ProgressReport,
    read_report,
)
from sliceplane.consume.selections import ALL, SHARED
from sliceplane.kit.metrics import Metrics
from sliceplane.watch.cache import Change, Mark

#: the sorted lists of all revisions are made anew at most so often: thousands of nodes, and as many
#: Services that ask
REFRESH_S: Final = 1.0
#: a proxy that has not reported for so long was taken away on purpose
STOPPED_KEPT_S: Final = 86_400.0
#: nodes that a sentence names
NAMED_MAX: Final = 3
#: what metrics call the states of nodes; the first that fits counts
STATES: Final = ("stopped", "cache_differs", "rules_damaged", "behind", "current")
#: the reading of a proxy that tells one version for all
_EVERY: Final = ""
_COMMON: Final = (ALL, SHARED, _EVERY)


class Lag(NamedTuple):
    """``examples``: nodes that are behind, those that are furthest first, ``NAMED_MAX`` at most,
    each with what is to be said of it. ``reporting``: how many of the ``nodes`` are heard of.
    """

    behind: int
    nodes: int
    reporting: int
    examples: tuple[str, ...]

    @property
    def text(self) -> str:
        """The nodes that are behind: the first few, and how many more; "" if none is."""
        more = self.behind - len(self.examples)
        return ", ".join(self.examples) + (f" and {more} more" if more else "")


class Differing(NamedTuple):
    """A node whose cache turned out to differ."""

    node: str
    owner: OwnerReference | None
    verdict: Verdict


class _Node(NamedTuple):
    name: str
    owner: OwnerReference | None
    #: by reading
    revisions: dict[str, int]
    problems: tuple[str, ...]
    until: float
    kept: float


class NodeProgress:
    """Owned by ``TrafficDistributionController``."""

    def __init__(self) -> None:
        #: by the name of the Lease
        self._nodes: dict[str, _Node] = {}
        self._caches = NodeCaches()
        #: by reading: version and Lease of every node that has it, the lowest first
        self._sorted: dict[str, list[tuple[int, str]]] = {}
        self._sorted_at = float("-inf")
        self._reporting = 0

    def on_change(self, change: Change[Object]) -> None:
        """Takes a change of a slice or Service; other changes are ignored."""
        self._caches.on_change(change)

    def on_mark(self, mark: Mark, now: float) -> tuple[Differing, ...]:
        return tuple(self._differing(name) for name in self._caches.on_mark(mark, now))

    def on_lease(
        self, name: str, new: Lease | None, now: float
    ) -> tuple[bool, tuple[Differing, ...]]:
        """True: this is the first node, or the last one went.  And whose cache turned out to
        differ.
        """
        before = bool(self._nodes)
        differs = False
        if new is None or (new.metadata.labels or {}).get(LABEL_COMPONENT) != COMPONENT:
            self._forget(name)
        else:
            annotations = new.metadata.annotations or {}
            report = read_report(annotations.get(ANNOTATION_PROGRESS, ""))
            self._nodes[name] = _node_of(
                name, new, report, annotations.get(ANNOTATION_REVISION, ""), now
            )
            differs = self._caches.on_report(name, report, now)
        if before is not bool(self._nodes):
            self._sorted_at = float("-inf")
        return before is not bool(self._nodes), (self._differing(name),) if differs else ()

    def _forget(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._caches.on_report(name, None, 0.0)

    def _differing(self, name: str) -> Differing:
        node = self._nodes[name]
        return Differing(node.name, node.owner, self._caches.verdict(name))

    def lag(self, wanted: Mapping[str, int], now: float) -> Lag:
        """Returns which nodes have not applied the versions *wanted*, by reading. O(log nodes) and
        the nodes that are behind in zones and regions; O(nodes * log nodes) once in ``REFRESH_S``.
        """
        self._refresh(now)
        wanted = {**wanted, _EVERY: max(wanted.values(), default=0)}
        count = 0
        furthest: list[tuple[int, str]] = []
        more: dict[str, int] = dict.fromkeys(self._caches.differing, 0)
        for reading, revision in wanted.items():
            nodes = self._sorted.get(reading, [])
            behind = bisect_left(nodes, (revision, ""))
            if reading in _COMMON:  # each node has one of these
                count += behind
                furthest += nodes[: min(behind, NAMED_MAX)]
            else:
                for held, name in nodes[:behind]:
                    more[name] = min(held, more.get(name, held))
        for name, held in more.items():
            if name in self._nodes and not self._is_counted(name, wanted):
                count += 1
                furthest.append((held, name))
        names = dict.fromkeys(name for _, name in sorted(furthest) if name in self._nodes)
        examples = tuple(self._shown(name, now) for name in list(names)[:NAMED_MAX])
        return Lag(count, len(self._nodes), self._reporting, examples)

    def _is_counted(self, name: str, wanted: Mapping[str, int]) -> bool:
        revisions = self._nodes[name].revisions
        return any(
            revisions[reading] < wanted.get(reading, 0)
            for reading in _COMMON
            if reading in revisions
        )

    def _refresh(self, now: float) -> None:
        if now - self._sorted_at < REFRESH_S:
            return
        for name in [name for name, node in self._nodes.items() if node.kept <= now]:
            self._forget(name)
        self._sorted = {}
        for name, node in self._nodes.items():
            for reading, revision in node.revisions.items():
                self._sorted.setdefault(reading, []).append((revision, name))
        for nodes in self._sorted.values():
            nodes.sort()
        self._reporting = sum(node.until > now for node in self._nodes.values())
        self._sorted_at = now

    def _shown(self, name: str, now: float) -> str:
        node = self._nodes[name]
        if node.until <= now:
            return f"{node.name} (its proxy stopped reporting)"
        return (
            f"{node.name} (its cache lost an event)"
            if name in self._caches.differing
            else node.name
        )

    # -- metrics

    def metrics(self, now: float) -> Metrics:
        """Returns the current figures. O(nodes)."""
        states: Counter[str] = Counter()
        longest_s = 0.0
        for name, node in self._nodes.items():
            since = self._caches.behind_since(name)
            behind_s = 0.0 if since is None or now - since < BEHIND_S else now - since
            states[self._state(name, node, behind_s, now)] += 1
            longest_s = max(longest_s, behind_s)
        metrics = Metrics()
        metrics.computed(
            "gauge",
            "sliceplane_node_proxies",
            "Node proxies, by what their Leases tell.",
            lambda: [((state,), states[state]) for state in STATES] if self._nodes else [],
            "state",
        )
        metrics.computed(
            "gauge",
            "sliceplane_node_proxies_behind_seconds",
            "How long the oldest change of EndpointSlices waits that a node has not told it holds.",
            lambda: longest_s,
        )
        return metrics

    def _state(self, name: str, node: _Node, behind_s: float, now: float) -> str:
        if node.until <= now:
            return "stopped"
        if name in self._caches.differing:
            return "cache_differs"
        if node.problems:
            return "rules_damaged"
        return "behind" if behind_s else "current"

    def check(self) -> None:
        self._caches.check()


def _node_of(
    name: str, lease: Lease, report: ProgressReport | None, revision: str, now: float
) -> _Node:
    until = now + (lease.spec.lease_duration_seconds or LEASE_DURATION_S)
    owner = next(
        (owner for owner in lease.metadata.owner_references or () if owner.kind == "Node"), None
    )
    revisions = {_EVERY: revision_of(revision)}
    if report is not None:
        revisions = {
            reading: held.revision
            for (resource, reading), held in report.places().items()
            if resource == EndpointSlices.plural
        }
    return _Node(
        lease.spec.holder_identity or name.removeprefix(LEASE_PREFIX),
        owner,
        revisions,
        report.problems if report is not None else (),
        until,
        until + STOPPED_KEPT_S if owner is not None else until,
    )
