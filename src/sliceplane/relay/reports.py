"""Reports of a relay's children, aggregated into one Lease (``consume.drain.relayed`` has its form).

Nodes that report the same selections share a group with the least revision of each. Any number of
nodes may so be told of by few words; those that differ are named with their own reports:

    differs     its cache lost an event: no digest of the group can say so
    late        its proxy has stopped, or hangs
    open        it counts open connections for a drain (``consume.flow_counts``)
    behind      it would hold back the revision of all others
    problems    of its kernel's rules

**More than ``EXCEPTIONS_MAX`` of them** are folded into groups that claim less: no revision for
nodes that are late, no answer to a drain's request for open connections, a sentence for problems.
So what a reader concludes is the same or later, and never earlier.

**Digests.**  The relay compares each report's digest with its own copy at that revision. A group
has the digest of that copy at the group's revision, so readers compare the relay's copy, and with
it all equal ones, with the server. Nodes that could not be compared are groups without a digest.

**Relays.**  The Lease also has what this relay and those below it report of themselves
(``subtree``).

**When.**  As often as one node: ``CHANGED_PERIOD_S``, or ``IDLE_PERIOD_S`` if nothing changed; and
every ``BEHIND_PERIOD_S`` if there is a new node, and for a while after a slice requested reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Services
from sliceplane.consume.drain.barrier import FORGET_S
from sliceplane.consume.drain.relayed import (
    ANNOTATION_NODES,
    EXCEPTIONS_MAX,
    RELAY,
    RELAY_PREFIX,
    NodeGroup,
    RelayedNodes,
    is_relay_lease,
    nodes_of,
    pack_names,
)
from sliceplane.consume.drain.relays import ANNOTATION_RELAYS, RelayReport, relays_of
from sliceplane.consume.node_caches import NodeCaches
from sliceplane.consume.progress import (
    ANNOTATION_DEMAND,
    ANNOTATION_PROGRESS,
    ANNOTATION_REPORT,
    ANNOTATION_REVISION,
    BEHIND_PERIOD_S,
    BEHIND_S,
    CHANGED_PERIOD_S,
    COMPONENT,
    IDLE_PERIOD_S,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    REPORT_LATE_S,
    SPREAD_MAX_S,
    AppliedRevision,
    ProgressReport,
    Scope,
    read_report,
)
from sliceplane.kit.times import format_micro_time, time_or_zero
from sliceplane.relay.records import Mirrored
from sliceplane.relay.subtree import Subtree, lasting
from sliceplane.watch.cache import Change, Mark

#: nodes of one relay, and bytes of their names. Annotations have at most 256 KiB, and names of DNS
#: have 38 characters, so they take at most nine tenths of this when they are packed.
NODES_MAX: Final = 5_000
NAMES_BYTES_MAX: Final = 200 * 1024
#: different sets of selections
SHAPES_MAX: Final = 64
#: bytes of the reports that name exceptions
EXCEPTIONS_BYTES_MAX: Final = 48 * 1024
#: seconds for which a stopped proxy is reported; its node may keep its rules
STOPPED_KEPT_S: Final = 86_400.0
FOLDED_PROBLEMS: Final = f"problems of more than {EXCEPTIONS_MAX} nodes; see this node's log"
#: why a node is named, the most important first; "": it is in a group
_REASONS: Final = ("differs", "late", "open", "behind", "problems", "old")
_FOLLOWED: Final[dict[str, type[Object]]] = {Services.key: Service, EndpointSlices.key: Object}


class _Entry(NamedTuple):
    """The newest report of a node, and when it came."""

    report: ProgressReport
    heard: float
    has_owner: bool


class _GroupKey(NamedTuple):
    """Nodes with equal keys share a group."""

    scopes: frozenset[Scope]
    observed: str
    flows: str
    is_disconnected: bool
    is_compared: bool
    has_owner: bool
    reason: str


class NodeReports:
    """Owned by one relay.  Times are seconds since the epoch."""

    def __init__(self, name: str) -> None:
        """*name*: of the relay, as its Lease has it."""
        self.lease: Final = f"{RELAY_PREFIX}{name}"
        self._name = name
        self.relays: Final = Subtree(name)
        #: False: there are no slices to compare reports of nodes with, so these are passed on
        self.compares = True
        self._entries: dict[str, _Entry] = {}
        self._names_bytes = 0
        self._shapes: set[tuple[frozenset[Scope], str]] = set()
        #: nodes whose Leases are passed on now
        self._passed: set[str] = set()
        self._caches = NodeCaches()
        self._nodes: set[str] | None = None
        self._listed_nodes: set[str] = set()
        self._requested_until = 0.0
        self._has_new_node = False
        self._written: tuple[NodeGroup, ...] = ()
        self._written_relays: list[RelayReport] = []
        self._written_at = self._checked_at = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, lease: str) -> bool:
        """Returns True if the node of that *lease* is reported."""
        return lease.removeprefix(LEASE_PREFIX) in self._entries

    # The relay's own copy

    def on_change(self, change: Change[Mirrored], now: float) -> None:
        if change.resource == Nodes.key:
            name = change.object.metadata.name
            (self._listed_nodes.discard if change.new is None else self._listed_nodes.add)(name)
        elif change.resource in _FOLLOWED:
            old, new = (_typed(change.resource, item) for item in (change.old, change.new))
            self._caches.on_change(Change(change.resource, old, new))
            if _request(new) and _request(new) != _request(old):
                self._requested_until = now + 2 * SPREAD_MAX_S

    def on_mark(self, mark: Mark, now: float) -> None:
        if mark.resource == Nodes.key:
            self._nodes = self._listed_nodes
        self._caches.on_mark(mark, now)

    # Reports

    def accepts(self, lease: Lease) -> bool:
        """Returns True if *lease* can be aggregated. Demand (``consume.demand``) is per node, so a
        Lease that has some is passed on, like one of an older release.
        """
        nodes = nodes_of(lease)
        if not (self.relays.accepts(lease) if is_relay_lease(lease) else _is_plain(lease)):
            return False
        new = [node for node in map(_node_of, nodes) if node not in self._entries]
        shapes = {_shape(report) for each in nodes if (report := _report_of(each.lease))}
        return (
            bool(self.compares if nodes else relays_of(lease))
            and len(self._entries) + len(new) <= NODES_MAX
            and self._names_bytes + sum(map(_name_bytes, new)) <= NAMES_BYTES_MAX
            and len(self._shapes | shapes) <= SHAPES_MAX
        )

    def on_lease(self, lease: Lease, now: float) -> None:
        """Notes an accepted Lease of a node, or of a relay."""
        for each in nodes_of(lease):
            self._on_report(each.lease, now - each.age_s, now)
        self.relays.on_lease(lease, now)

    def restore(self, lease: Lease, now: float) -> None:
        """Notes this relay's own Lease, of before its start: proxies may have stopped since."""
        for each in nodes_of(lease):
            self._on_report(each.lease, time_or_zero(each.lease.spec.renew_time), now)
        self.relays.on_lease(lease, now)

    def _on_report(self, lease: Lease, heard: float, now: float) -> None:
        node, report = lease.metadata.name.removeprefix(LEASE_PREFIX), _report_of(lease)
        before = self._entries.get(node)
        if report is None or (before is not None and heard < before.heard):
            return
        if before is None:
            self._has_new_node = True
            self._names_bytes += _name_bytes(node)
        self._entries[node] = _Entry(report, heard, bool(lease.metadata.owner_references))
        self._shapes.add(_shape(report))
        self._passed.discard(node)
        self._caches.on_report(node, report, now)

    def on_passed(self, lease: str) -> None:
        """Notes that the *lease*, its name, is passed on: its node soon counts with that one."""
        self._passed.add(lease.removeprefix(LEASE_PREFIX))

    def on_answer(self, lease: str, report: ProgressReport, now: float) -> None:
        """Notes a report that did not come by the *lease*, its name. Revisions alone count, as for
        barriers; and none of them if it is late, or of other selections: the Lease will tell.
        """
        node = lease.removeprefix(LEASE_PREFIX)
        entry = self._entries.get(node)
        if entry is None or report.behind or _shape(report) != _shape(entry.report):
            return
        if report.has_applied(entry.report.revisions()):
            newer = replace(
                entry.report, endpointslices=report.endpointslices, services=report.services
            )
            self._entries[node] = entry._replace(report=newer)
            self._caches.on_report(node, newer, now)

    def is_passed(self, lease: str) -> bool:
        """Returns True if the *lease*, its name, is passed on."""
        return lease.removeprefix(LEASE_PREFIX) in self._passed

    def forget(self, lease: str) -> None:
        node = lease.removeprefix(LEASE_PREFIX)
        self._passed.discard(node)
        if self._entries.pop(node, None) is not None:
            self._names_bytes -= _name_bytes(node)
            self._caches.on_report(node, None, 0.0)

    # The Lease

    def take_lease(self, now: float) -> Document | None:
        """Returns the Lease to write now, both a document to create and a merge patch; ``None``:
        none is due.
        """
        is_urgent = self._has_new_node or now < self._requested_until
        period_s = BEHIND_PERIOD_S if is_urgent else CHANGED_PERIOD_S
        if now < self._checked_at + period_s:
            return None
        self._checked_at, self._has_new_node = now, False
        self._forget_old(now)
        groups = self._groups(now)
        relays = self.relays.take(now, STOPPED_KEPT_S)
        is_same = _content(groups) == _content(self._written) and lasting(relays) == lasting(
            self._written_relays
        )
        is_empty = not (groups or self._written or relays)
        if (is_same and now < self._written_at + IDLE_PERIOD_S) or is_empty:
            return None
        self._written, self._written_relays, self._written_at = groups, relays, now
        relayed = RelayedNodes(len(self._entries), groups)
        revisions = [at.revision for each in groups for at in each.report.endpointslices.values()]
        annotations = {
            ANNOTATION_NODES: encode(relayed).decode(),
            ANNOTATION_REVISION: str(min(revisions, default=0)),
        }
        if relays:
            annotations[ANNOTATION_RELAYS] = encode(relays).decode()
        metadata: Document = {
            "name": self.lease,
            "namespace": LEASE_NAMESPACE,
            "labels": {LABEL_COMPONENT: RELAY},
            "annotations": annotations,
        }
        spec = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": format_micro_time(now),
        }
        return {
            "apiVersion": Leases.api_version,
            "kind": Leases.kind,
            "metadata": metadata,
            "spec": spec,
        }

    def least(self, now: float) -> ProgressReport:
        """Returns the least revisions of all nodes that are not late.  O(nodes)."""
        entries = self._entries.values()
        return _least(entry.report for entry in entries if now - entry.heard <= REPORT_LATE_S)

    def least_written(self) -> ProgressReport:
        """Returns those of the last Lease, which are what a barrier reads."""
        return _least(group.report for group in self._written if not group.is_late)

    def expedite(self) -> None:
        """Notes that all nodes have applied what a barrier requires: a Lease is due at once."""
        self._checked_at = float("-inf")

    def request(self, now: float) -> None:
        """Notes that a barrier requires what some nodes have not applied."""
        self._requested_until = max(self._requested_until, now + 2 * BEHIND_PERIOD_S)

    def on_failure(self) -> None:
        """Notes that the last Lease did not arrive: the next one is due as for a new node."""
        self._written, self._written_relays, self._has_new_node = (), [], True

    def _forget_old(self, now: float) -> None:
        for node, entry in list(self._entries.items()):
            age_s = now - entry.heard
            is_gone = entry.has_owner and self._nodes is not None and node not in self._nodes
            if (age_s > REPORT_LATE_S and (is_gone or node in self._passed)) or (
                age_s > STOPPED_KEPT_S
            ):
                self.forget(node)
        self._shapes = {_shape(entry.report) for entry in self._entries.values()}

    def _groups(self, now: float) -> tuple[NodeGroup, ...]:
        members: dict[_GroupKey, list[str]] = {}
        named: dict[str, list[str]] = {reason: [] for reason in _REASONS}
        for node in sorted(self._entries):
            reason = self._reason(node, now)
            if reason:
                named[reason].append(node)
            else:
                members.setdefault(self._key(node, ""), []).append(node)
        exceptions = list(self._exceptions(named, now))
        chosen = {group.node for group in exceptions}
        for reason, nodes in named.items():
            for node in nodes:
                if node not in chosen:
                    members.setdefault(self._key(node, reason), []).append(node)
        return (*(self._group(key, nodes) for key, nodes in members.items()), *exceptions)

    def _reason(self, node: str, now: float) -> str:
        report, heard, _ = self._entries[node]
        if node in self._caches.differing:
            return "differs"
        if now - heard > REPORT_LATE_S:
            return "old" if now - heard > LEASE_DURATION_S + FORGET_S else "late"
        if any(any(counts.values()) for counts in (report.flows or {}).values()):
            return "open"
        since = self._caches.behind_since(node)
        if since is not None and now - since > BEHIND_S:
            return "behind"
        return "problems" if report.problems else ""

    def _exceptions(self, named: Mapping[str, Iterable[str]], now: float) -> Iterator[NodeGroup]:
        """Yields the nodes that are named, with their own reports."""
        count = size = 0
        for reason in _REASONS:
            for node in named[reason]:
                report, heard, has_owner = self._entries[node]
                size += len(encode(report))
                if count == EXCEPTIONS_MAX or size > EXCEPTIONS_BYTES_MAX:
                    return
                count += 1
                yield NodeGroup(
                    report,
                    heard,
                    node=node,
                    is_late=now - heard > REPORT_LATE_S,
                    has_lost_event=reason == "differs",
                    has_owner=has_owner,
                )

    def _key(self, node: str, reason: str) -> _GroupKey:
        report, _, has_owner = self._entries[node]
        flows = report.flows
        if reason == "open":
            flows = {}  # as if it had not counted yet
        scopes, observed = _shape(report)
        return _GroupKey(
            scopes,
            observed,
            encode(flows).decode(),
            bool(report.inputs_since),
            self._caches.is_equal(node),
            has_owner,
            "problems" if not reason and report.problems else reason,
        )

    def _group(self, key: _GroupKey, nodes: list[str]) -> NodeGroup:
        entries = [self._entries[node] for node in nodes]
        reports = [entry.report for entry in entries]
        claims_nothing = key.reason in ("late", "old")
        least: dict[str, dict[str, AppliedRevision]] = {"endpointslices": {}, "services": {}}
        applied = [report.applied_by_scope() for report in reports]
        for scope in sorted(key.scopes):
            revision = 0 if claims_nothing else min(each[scope].revision for each in applied)
            digest = self._caches.digest_at(scope, revision) if key.is_compared else ""
            least[scope[0]][scope[1]] = AppliedRevision(revision, digest or "")
        unasked = set(reports[0].unasked).intersection(*(each.unasked for each in reports))
        report = ProgressReport(
            least["endpointslices"],
            least["services"],
            problems=(FOLDED_PROBLEMS,) if any(each.problems for each in reports) else (),
            inputs_since=min(each.inputs_since for each in reports),
            unasked=tuple(sorted(unasked)),
            observed=key.observed,
            flows=msgspec.json.decode(key.flows),
        )
        oldest, newest = (pick(entry.heard for entry in entries) for pick in (min, max))
        return NodeGroup(
            report,
            newest if claims_nothing else oldest,
            # A later end of a Lease is the safe one for nodes without a revision.
            spread_s=0.0 if claims_nothing else newest - oldest,
            packed=pack_names(nodes),
            is_late=claims_nothing,
            has_lost_event=key.reason == "differs",
            has_owner=key.has_owner,
        )

    def check(self) -> None:
        self._caches.check()
        assert self._names_bytes == sum(map(_name_bytes, self._entries)), "bytes of names"


def _content(groups: tuple[NodeGroup, ...]) -> list[NodeGroup]:
    """Returns all that is news: not that nodes reported the same."""
    return [group if group.is_late else replace(group, heard=0.0, spread_s=0.0) for group in groups]


def _typed(resource: str, mirrored: Mirrored | None) -> Object | None:
    """Returns *mirrored* as ``NodeCaches`` reads it."""
    if mirrored is None:
        return None
    if resource == Services.key:
        return decode(mirrored.record.body, Service)
    return EndpointSlice(metadata=mirrored.metadata)


def _request(subject: Object | None) -> str:
    """Returns the request for reports that a slice has."""
    annotations = subject.metadata.annotations if isinstance(subject, EndpointSlice) else None
    return (annotations or {}).get(ANNOTATION_REPORT, "")


def _is_plain(lease: Lease) -> bool:
    """Returns True for a Lease of a node proxy that has no more than a group can say."""
    meta = lease.metadata
    node = meta.name.removeprefix(LEASE_PREFIX)
    report = _report_of(lease)
    return (
        (meta.labels or {}).get(LABEL_COMPONENT) == COMPONENT
        and report is not None
        and not (report.behind or report.unacknowledged)
        and not (meta.annotations or {}).get(ANNOTATION_DEMAND)
        and lease.spec.holder_identity == node
        and lease.spec.lease_duration_seconds == LEASE_DURATION_S
        and all((one.kind, one.name) == ("Node", node) for one in meta.owner_references or ())
    )


def _least(reports: Iterable[ProgressReport]) -> ProgressReport:
    least: dict[str, dict[str, AppliedRevision]] = {"endpointslices": {}, "services": {}}
    for report in reports:
        for (plural, selection), revision in report.revisions().items():
            applied, by_selection = AppliedRevision(revision, ""), least[plural]
            by_selection[selection] = min(applied, by_selection.get(selection, applied))
    return ProgressReport(least["endpointslices"], least["services"])


def _report_of(lease: Lease) -> ProgressReport | None:
    return read_report((lease.metadata.annotations or {}).get(ANNOTATION_PROGRESS, ""))


def _shape(report: ProgressReport) -> tuple[frozenset[Scope], str]:
    return frozenset(report.applied_by_scope()), report.observed


def _node_of(lease: tuple[Lease, float]) -> str:
    return lease[0].metadata.name.removeprefix(LEASE_PREFIX)


def _name_bytes(node: str) -> int:
    return len(node.encode()) + 1
