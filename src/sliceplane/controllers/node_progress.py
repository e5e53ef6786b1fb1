"""The versions that nodes have applied, from the Leases of node proxies (``consume.progress``).

Clocks of machines differ, so a Lease is valid for its duration from the moment at which *we*
observed its change.

**Selections.** A node needs the slices of the selections that it reads (``consume.selections``),
and reports a version for each. So a goal is a version for each selection. A proxy of an older
release reports one version for all. A node whose cache lost an event (``consume.node_caches``) has
applied no version, whatever it reports.

**Stopped or removed.** An expired Lease belongs to a proxy that stopped, or to a node that is gone.
A Node owns the Lease of its proxy, so the garbage collector deletes the Lease with the Node. An
expired Lease with such an owner therefore belongs to a node that keeps the rules of its stopped
proxy. That node counts, with its last version, for ``STOPPED_KEPT_S``; an operator who removes
proxies deletes the Leases, or waits for so long. Without an owner (a proxy on a machine that is no
Node) the two cases look the same, and the node no longer counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from sliceplane.api.core import Lease
from sliceplane.api.meta import Object, OwnerReference, revision_of
from sliceplane.api.scheme import EndpointSlices, Leases
from sliceplane.consume.drain.relayed import (
    NODE_LEASES_SELECTOR,
    RELAY_DELAY_S,
    NodeLeases,
    relayed_by,
)
from sliceplane.consume.node_caches import NodeCaches, Verdict
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    BEHIND_S,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    VIEW,
    XDS,
    ProgressReport,
    lease_prefix,
    read_report,
)
from sliceplane.consume.selections import ALL, SHARED
from sliceplane.kit.metrics import Metrics
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import Selection

#: the Leases of xDS servers, and of views in the namespaces of their Services
REQUEST_LEASES: Final = Selection(Leases, "", f"{LABEL_COMPONENT} in ({VIEW},{XDS})")
#: the Leases of node proxies, and of relays that report for them; every controller that reads them shares this watch
PROXY_LEASES: Final = Selection(Leases, LEASE_NAMESPACE, NODE_LEASES_SELECTOR)
#: minimum seconds between two rebuilds of the sorted lists of revisions, for thousands of nodes and
#: as many Services
REFRESH_S: Final = 1.0
#: seconds without a report after which a proxy counts as removed on purpose
STOPPED_KEPT_S: Final = 86_400.0
#: nodes that a sentence names
NAMED_MAX: Final = 3
#: states of nodes in metrics; the first that applies counts
STATES: Final = ("stopped", "cache_differs", "rules_damaged", "behind", "current")
#: the selection of a proxy that reports one version for all
_EVERY: Final = ""
_COMMON: Final = (ALL, SHARED, _EVERY)


def requests_of(lease: Lease) -> str | None:
    """Returns the namespace for whose Services the requests in *lease* count, of
    ``REQUEST_LEASES``: "" for those of all namespaces, ``None`` for none. Who may write a Lease
    in a namespace reports for that namespace alone.
    """
    name, namespace = lease.metadata.name, lease.metadata.namespace
    if name.startswith(lease_prefix(XDS)):
        return "" if namespace == LEASE_NAMESPACE else None
    return namespace if name.startswith(lease_prefix(VIEW)) else None


class Lag(NamedTuple):
    """The nodes that are behind.

    ``examples``: at most ``NAMED_MAX`` of them with a remark, those furthest behind first.
    ``reporting``: the number of the ``nodes`` that report.
    """

    behind: int
    nodes: int
    reporting: int
    examples: tuple[str, ...]

    @property
    def text(self) -> str:
        """The first few nodes that are behind, and the number of others; "" if none is."""
        more = self.behind - len(self.examples)
        return ", ".join(self.examples) + (f" and {more} more" if more else "")


class Differing(NamedTuple):
    """A node whose cache was found to differ."""

    node: str
    owner: OwnerReference | None
    verdict: Verdict


class _Node(NamedTuple):
    name: str
    owner: OwnerReference | None
    #: revisions by selection
    revisions: dict[str, int]
    problems: tuple[str, ...]
    valid_until: float
    kept_until: float
    is_relayed: bool


class NodeProgress:
    """The progress of all nodes. Owned by ``TrafficDistributionController``."""

    def __init__(self) -> None:
        #: nodes by the name of the Lease
        self._nodes: dict[str, _Node] = {}
        self._leases = NodeLeases()
        self._caches = NodeCaches()
        #: version and Lease of every node with a selection, by selection, the lowest first
        self._sorted: dict[str, list[tuple[int, str]]] = {}
        self._sorted_at = float("-inf")
        self._reporting = 0

    def on_change(self, change: Change[Object]) -> None:
        """Handles a change of a slice or Service; other changes are ignored."""
        self._caches.on_change(change)

    def on_mark(self, mark: Mark, now: float) -> tuple[Differing, ...]:
        return tuple(self._differing(name) for name in self._caches.on_mark(mark, now))

    def on_change_of_lease(
        self, old: Lease | None, new: Lease | None, now: float
    ) -> tuple[bool, tuple[Differing, ...]]:
        """Handles a Lease of a node or of a relay. Returns True if it has the first node or the last
        one was removed, and the nodes whose caches were found to differ.
        """
        had_nodes = bool(self._nodes)
        differing: tuple[Differing, ...] = ()
        for before, after, age_s in self._leases.on_lease(old, new):
            lease = after or before
            assert lease is not None, "a change has an old or a new object"
            differing += self.on_lease(lease.metadata.name, after, now - age_s)[1]
        return had_nodes is not bool(self._nodes), differing

    def on_lease(
        self, name: str, new: Lease | None, now: float
    ) -> tuple[bool, tuple[Differing, ...]]:
        """Handles the Lease of a node, which wrote it at *now*. Returns True if this is the first
        node or the last one was removed, and the node if its cache was found to differ.
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

    def lag(self, goal: Mapping[str, int], now: float) -> Lag:
        """Returns the nodes that have not applied the versions *goal*, by selection. Costs O(log
        nodes) and the nodes that are behind in zones and regions; O(nodes * log nodes) once in
        ``REFRESH_S``.
        """
        self._refresh(now)
        goal = {**goal, _EVERY: max(goal.values(), default=0)}
        count = 0
        furthest: list[tuple[int, str]] = []
        more: dict[str, int] = dict.fromkeys(self._caches.differing, 0)
        for selection, revision in goal.items():
            nodes = self._sorted.get(selection, [])
            behind = bisect_left(nodes, (revision, ""))
            if selection in _COMMON:  # each node has one of these
                count += behind
                furthest += nodes[: min(behind, NAMED_MAX)]
            else:
                for applied, name in nodes[:behind]:
                    more[name] = min(applied, more.get(name, applied))
        for name, applied in more.items():
            if name in self._nodes and not self._is_counted(name, goal):
                count += 1
                furthest.append((applied, name))
        names = dict.fromkeys(name for _, name in sorted(furthest) if name in self._nodes)
        examples = tuple(self._remark(name, now) for name in list(names)[:NAMED_MAX])
        return Lag(count, len(self._nodes), self._reporting, examples)

    def _is_counted(self, name: str, goal: Mapping[str, int]) -> bool:
        revisions = self._nodes[name].revisions
        return any(
            revisions[selection] < goal.get(selection, 0)
            for selection in _COMMON
            if selection in revisions
        )

    def _refresh(self, now: float) -> None:
        if now - self._sorted_at < REFRESH_S:
            return
        for name in [name for name, node in self._nodes.items() if node.kept_until <= now]:
            self._forget(name)
        self._sorted = {}
        for name, node in self._nodes.items():
            for selection, revision in node.revisions.items():
                self._sorted.setdefault(selection, []).append((revision, name))
        for nodes in self._sorted.values():
            nodes.sort()
        self._reporting = sum(node.valid_until > now for node in self._nodes.values())
        self._sorted_at = now

    def _remark(self, name: str, now: float) -> str:
        node = self._nodes[name]
        if node.valid_until <= now:
            return f"{node.name} (its proxy stopped reporting)"
        return (
            f"{node.name} (its cache lost an event)"
            if name in self._caches.differing
            else node.name
        )

    # -- metrics

    def metrics(self, now: float) -> Metrics:
        """Returns the current metrics. Costs O(nodes)."""
        states: Counter[str] = Counter()
        longest_s = 0.0
        for name, node in self._nodes.items():
            since = self._caches.behind_since(name)
            after_s = BEHIND_S + (RELAY_DELAY_S if node.is_relayed else 0.0)
            behind_s = 0.0 if since is None or now - since < after_s else now - since
            states[self._state(name, node, behind_s, now)] += 1
            longest_s = max(longest_s, behind_s)
        metrics = Metrics()
        metrics.computed(
            "gauge",
            "sliceplane_node_proxies",
            "Node proxies, by the state that their Leases report.",
            lambda: [((state,), states[state]) for state in STATES] if self._nodes else [],
            "state",
        )
        metrics.computed(
            "gauge",
            "sliceplane_node_proxies_behind_seconds",
            "Age of the oldest change of EndpointSlices that a node has not reported as applied.",
            lambda: longest_s,
        )
        return metrics

    def _state(self, name: str, node: _Node, behind_s: float, now: float) -> str:
        if node.valid_until <= now:
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
    valid_until = now + (lease.spec.lease_duration_seconds or LEASE_DURATION_S)
    owner = next(
        (owner for owner in lease.metadata.owner_references or () if owner.kind == "Node"), None
    )
    revisions = {_EVERY: revision_of(revision)}
    if report is not None:
        revisions = {
            selection: applied.revision
            for (resource, selection), applied in report.applied_by_scope().items()
            if resource == EndpointSlices.plural
        }
    return _Node(
        lease.spec.holder_identity or name.removeprefix(LEASE_PREFIX),
        owner,
        revisions,
        report.problems if report is not None else (),
        valid_until,
        valid_until + STOPPED_KEPT_S if owner is not None else valid_until,
        bool(relayed_by(lease).lease),
    )
