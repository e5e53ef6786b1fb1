"""The nodes that a barrier waits for, and the check that all of them have applied a goal.

**Required** are nodes that report in a valid Lease, and nodes whose Lease expired less than
``forget_s`` ago, because their kernels keep the last rules. Also required are Nodes that are Ready
and never reported, or stopped reporting longer ago. Their kernels are **unknown** (another proxy
serves them, or none does), and unknown is not drained. Nodes that are not Ready and silent for
longer than ``forget_s`` are not waited for. If that leaves no node at all, nothing is proven, and
all are unknown.

**Policy for the unknown**: ``wait`` for them until the timeout; ``fail`` immediately; or ignore
them ``after`` so many seconds, and list them in the answer.

A node whose cache lost an event counts as having applied nothing, whatever it reports.

**Other consumers** (views, name servers, ...) report in the same way, and a goal that concerns them
waits for them as long as their Leases last: a client that ended sends nothing. They do not prove
that nodes reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from sliceplane.api.core import Lease, Node
from sliceplane.api.meta import revision_of
from sliceplane.consume.drain.answer import (
    CANNOT_COUNT,
    NEVER_REPORTED,
    DrainVerdict,
    Missing,
    State,
    Use,
)
from sliceplane.consume.drain.relayed import Relayed, relayed_by
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    ProgressReport,
    Scope,
    read_report,
)
from sliceplane.consume.selections import (
    EVERY,
    NAMESPACE_SELECTION_PREFIX,
    SERVICE_SELECTION_PREFIX,
    SHARED,
    list_selections_of_node,
    required_revision,
)
from sliceplane.kit.times import parse_duration, time_or_zero

#: seconds after the end of its Lease after which a silent proxy was removed, or its node is gone
FORGET_S: Final = 300.0
#: minimum seconds between two requests for reports for one Pod; a request is itself a write, which
#: a goal may follow
ASK_PERIOD_S: Final = 1.0
#: characters by which a client of a consumer is named
CLIENT_MAX: Final = 120

Policy = Literal["wait", "fail", "after"]


class UnknownPolicy(NamedTuple):
    kind: Policy = "wait"
    after_s: float = 0.0


def parse_policy(text: str) -> UnknownPolicy:
    """Reads ``wait``, ``fail`` or ``after=DURATION`` (``after=60s``).  Raises ``ValueError``."""
    match text.partition("="):
        case ("wait", "", ""):
            return UnknownPolicy("wait")
        case ("fail", "", ""):
            return UnknownPolicy("fail")
        case ("after", "=", duration):
            seconds = parse_duration(duration)
            if seconds is not None and not duration.startswith(("-", "+")):
                return UnknownPolicy("after", seconds)
    raise ValueError(f"{text!r} is none of wait, fail, after=60s")


class ConsumerState(NamedTuple):
    """A node or another consumer. ``applied``: the revisions in its last report; ``None``: it never
    reported. ``until``: the end of its Lease, on our clock. ``ready``: the condition of its Node;
    ``None``: there is no Node, or it may not be read.
    """

    name: str
    applied: Mapping[Scope, int] | None
    until: float
    ready: bool | None
    differs: bool = False
    #: its kind if it is not a node, for example a view
    kind: str = ""
    #: by selection: its client that is behind, and its client that is no longer waited for
    behind: Mapping[str, str] = MappingProxyType({})
    unacknowledged: Mapping[str, str] = MappingProxyType({})
    #: open connections by request and target (``consume.flow_counts``); ``None``: it counts none
    flows: Mapping[str, Mapping[str, int]] | None = None


class Proof(NamedTuple):
    """The state of the nodes for one goal. ``required``: number of nodes that count; ``unknown``:
    nodes without a usable report; ``others``: number of further consumers that count;
    ``unacknowledged``: clients of these that did not acknowledge in time, and may still send.
    """

    required: int
    waiting: tuple[Missing, ...]
    unknown: tuple[Missing, ...]
    others: int = 0
    unacknowledged: tuple[Missing, ...] = ()


def compare(
    goal: Mapping[Scope, int],
    nodes: Iterable[ConsumerState],
    now: float,
    *,
    forget_s: float = FORGET_S,
    until_idle: bool = False,
) -> Proof:
    """Compares the reports with *goal*.  *until_idle*: nodes that count no connections are unknown.
    O(nodes).
    """
    required = others = 0
    waiting: list[Missing] = []
    unknown: list[Missing] = []
    unacknowledged: list[Missing] = []
    for node in nodes:
        silent_s = now - node.until
        if node.kind:
            if (
                node.applied
                and silent_s <= 0
                and any(required_revision(scope, goal) for scope in node.applied)
            ):
                others += 1
                if not _has_applied(node, goal):
                    waiting.append(Missing(f"{node.kind} {node.name}", _clients_behind(node, goal)))
                unacknowledged += [
                    Missing(
                        f"{node.kind} {node.name}",
                        f"{client} did not acknowledge {_subject(selection)}",
                    )
                    for selection, client in node.unacknowledged.items()
                    if goal.get((EVERY[0], selection))
                ]
            continue
        if node.applied is None or silent_s > forget_s:
            if node.ready:
                required += 1
                why = NEVER_REPORTED if node.applied is None else "its proxy stopped long ago"
                unknown.append(Missing(node.name, why))
            continue
        required += 1
        if until_idle and node.flows is None:
            unknown.append(Missing(node.name, CANNOT_COUNT))
        if _has_applied(node, goal):
            continue
        if node.differs:
            waiting.append(Missing(node.name, "its cache lost an event"))
        else:
            waiting.append(
                Missing(node.name, "its proxy stopped reporting" if silent_s > 0 else "")
            )
    if not required:
        unknown.append(Missing("every node", "none is Ready, and none reports"))
    return Proof(
        required,
        tuple(sorted(waiting)),
        tuple(sorted(unknown)),
        others,
        tuple(sorted(unacknowledged)),
    )


def _clients_behind(node: ConsumerState, goal: Mapping[Scope, int]) -> str:
    """Names clients of a consumer that lack something of *goal*; "" if it is the consumer
    itself.
    """
    applied = node.applied or {}
    return ", ".join(
        f"{client} has not acknowledged {_subject(selection)}"
        for selection, client in node.behind.items()
        if applied.get((EVERY[0], selection), 0) < required_revision((EVERY[0], selection), goal)
    )


def _subject(selection: str) -> str:
    """Returns the subject of a selection for users: a Service as ``namespace/name``."""
    if selection.startswith(NAMESPACE_SELECTION_PREFIX):
        return f"Services of {selection.removeprefix(NAMESPACE_SELECTION_PREFIX)}"
    return selection.removeprefix(SERVICE_SELECTION_PREFIX)


def _has_applied(node: ConsumerState, goal: Mapping[Scope, int]) -> bool:
    if node.differs or not node.applied:
        return False
    if EVERY in node.applied:  # one revision for all that it reads
        return node.applied[EVERY] >= max(
            (at for scope, at in goal.items() if scope[0] == EVERY[0]), default=0
        )
    return all(
        revision >= required_revision(scope, goal) for scope, revision in node.applied.items()
    )


def judge(
    uses: tuple[Use, ...],
    goal: Mapping[Scope, int],
    proof: Proof,
    policy: UnknownPolicy,
    waited_s: float,
) -> DrainVerdict:
    """Returns the verdict.  *waited_s*: seconds since the barrier began."""
    revision = max(goal.values(), default=0)
    policy_expired = policy.kind == "after" and waited_s >= policy.after_s
    unknown, let_go = ((), proof.unknown) if policy_expired else (proof.unknown, ())
    state: State
    if uses:
        state = "used"
    elif proof.waiting:
        state = "waiting"
    else:
        state = "unknown" if unknown else "proven"
    waiting = () if uses else proof.waiting
    return DrainVerdict(
        state,
        uses,
        waiting,
        unknown,
        let_go,
        revision,
        proof.required,
        proof.others,
        proof.unacknowledged,
    )


class Nodes:
    """The reports in Leases and Nodes, by the key of the Lease. Owned by one reader of them.

    Clocks of machines differ: a Lease is valid from when its change was observed; when it is first
    observed its own ``renewTime`` counts.
    """

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._until: dict[str, float] = {}
        self._applied: dict[str, dict[Scope, int] | None] = {}
        self._names: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._ready: dict[str, bool] = {}
        #: by Node: what a proxy there reads because of its labels, reported or not
        self._own: dict[str, tuple[Scope, ...]] = {}
        self._differs: frozenset[str] = frozenset()
        #: from the last report: clients that are behind, and clients that are not waited for
        self._clients: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        #: open connections in Leases, which arrive in order
        self._flows: dict[str, dict[str, dict[str, int]]] = {}
        self._relayed: dict[str, Relayed] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def on_lease(self, old: Lease | None, new: Lease | None, now: float) -> None:
        subject = new or old
        assert subject is not None, "a change has an old or a new object"
        lease = subject.metadata.key
        kind = "" if new is None else (new.metadata.labels or {}).get(LABEL_COMPONENT, "")
        own = subject.metadata.namespace == LEASE_NAMESPACE
        if new is None or not kind or (kind == COMPONENT and not own):
            for kept in (
                self._leases,
                self._until,
                self._applied,
                self._names,
                self._kinds,
                self._clients,
                self._flows,
                self._relayed,
            ):
                kept.pop(lease, None)
            return
        duration_s = new.spec.lease_duration_seconds or LEASE_DURATION_S
        renewed = time_or_zero(new.spec.renew_time)
        before = self._leases.get(lease)
        self._leases[lease] = new
        self._until[lease] = duration_s + (min(renewed, now) if before is None else now)
        self._kinds[lease] = "" if kind == COMPONENT else kind
        self._relayed[lease] = relayed_by(new)
        report = read_report((new.metadata.annotations or {}).get(ANNOTATION_PROGRESS, ""))
        if report is not None:
            self._clients[lease] = _clients_of(report, new.metadata.namespace)
        if report is None or report.flows is None:
            self._flows.pop(lease, None)
        else:
            self._flows[lease] = report.flows
        reported = _within(new.metadata.namespace, read_applied(new))
        goes_back = (
            before is None or new.metadata.revision < before.metadata.revision
        )  # a server was restored
        self._applied[lease] = (
            reported
            if reported is None or goes_back
            else merge_revisions(self._applied[lease], reported)
        )
        owner = next(
            (owner.name for owner in new.metadata.owner_references or () if owner.kind == "Node"),
            "",
        )
        self._names[lease] = (
            owner or new.spec.holder_identity or new.metadata.name.removeprefix(LEASE_PREFIX)
        )

    def on_report(self, lease: str, report: ProgressReport) -> bool:
        """Notes a report that did not come by the Lease. Returns False if there is no such
        Lease.
        """
        if lease not in self._leases:
            return False
        self._clients[lease] = _clients_of(report, lease.partition("/")[0])
        reported = _within(lease.partition("/")[0], report.revisions())
        self._applied[lease] = merge_revisions(self._applied[lease], reported or {})
        return True

    def on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._ready[new.metadata.name] = new.is_ready
            self._own[new.metadata.name] = tuple(
                (EVERY[0], selection) for selection in list_selections_of_node(new)
            )
        elif old is not None:
            self._ready.pop(old.metadata.name, None)
            self._own.pop(old.metadata.name, None)

    def on_differing(self, nodes: frozenset[str]) -> None:
        """Notes the keys of Leases of nodes whose caches lost an event."""
        self._differs = nodes

    def facts(self) -> list[ConsumerState]:
        reported = {name for lease, name in self._names.items() if not self._kinds[lease]}
        facts = [
            ConsumerState(
                name,
                self._applied_on(lease),
                # The end that keeps the node required: as one of unknown state if it is Ready.
                self._until[lease] + (0.0 if ready else self._relayed[lease].spread_s),
                ready,
                lease in self._differs or self._relayed[lease].has_lost_event,
                self._kinds[lease],
                *self._clients.get(lease, ({}, {})),
                self._flows.get(lease),
            )
            for lease, name in self._names.items()
            for ready in (None if self._kinds[lease] else self._ready.get(name),)
        ]
        return facts + [
            ConsumerState(name, None, 0.0, ready)
            for name, ready in self._ready.items()
            if name not in reported
        ]

    def _applied_on(self, lease: str) -> Mapping[Scope, int] | None:
        """Returns the applied revisions. A Node that moved to another zone may already read that
        zone's selections: 0 until they are reported.
        """
        applied = self._applied[lease]
        if not applied or self._kinds[lease] or (EVERY[0], SHARED) not in applied:
            return applied
        missing = [scope for scope in self._own.get(self._names[lease], ()) if scope not in applied]
        return {**applied, **dict.fromkeys(missing, 0)} if missing else applied


def _within(namespace: str, reported: dict[Scope, int] | None) -> dict[Scope, int] | None:
    """Returns the part of a report that its writer may report: writers of Leases in a namespace
    only report for readers of that namespace's Services.
    """
    if namespace == LEASE_NAMESPACE or reported is None:
        return reported
    own = f"{SERVICE_SELECTION_PREFIX}{namespace}/"
    return {scope: revision for scope, revision in reported.items() if scope[1].startswith(own)}


def read_applied(lease: Lease) -> dict[Scope, int] | None:
    """Returns the revisions in *lease*. A proxy of an older release reports one for all that it
    reads.
    """
    annotations = lease.metadata.annotations or {}
    report = read_report(annotations.get(ANNOTATION_PROGRESS, ""))
    if report is not None:
        return report.revisions()
    revision = revision_of(annotations.get(ANNOTATION_REVISION, ""))
    return {EVERY: revision} if revision else None


def _clients_of(report: ProgressReport, namespace: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the clients that are behind and those that are not waited for, limited like
    ``_within`` and printable.
    """
    own = "" if namespace == LEASE_NAMESPACE else f"{SERVICE_SELECTION_PREFIX}{namespace}/"
    both = (
        {selection: lag.client for selection, lag in report.behind.items()},
        report.unacknowledged,
    )
    behind, unacknowledged = (
        {
            selection: _printable(client)
            for selection, client in clients.items()
            if selection.startswith(own)
        }
        for clients in both
    )
    return behind, unacknowledged


def _printable(text: str) -> str:
    return "".join(mark if mark.isprintable() else "?" for mark in text[:CLIENT_MAX])


def merge_revisions(
    before: Mapping[Scope, int] | None, reported: dict[Scope, int]
) -> dict[Scope, int]:
    """Merges two reports, of which either may be late: the selections of *reported*, and the higher
    revisions.

    A late report lacks clients that have fallen behind since: those of *before* are kept.
    """
    before = before or {}
    merged = {scope: max(revision, before.get(scope, 0)) for scope, revision in reported.items()}
    if any(revision < before.get(scope, 0) for scope, revision in reported.items()):
        for scope, revision in before.items():
            if scope[1].startswith((SERVICE_SELECTION_PREFIX, NAMESPACE_SELECTION_PREFIX)):
                merged.setdefault(scope, revision)
    return merged
