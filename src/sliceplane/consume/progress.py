"""How far a node has applied its inputs, and when it reports that.

A proxy reports in one Lease per node (``kube-node-lease/sliceplane-proxy-NODE``), in two
annotations, and a third one if it counts connections (``consume.demand``); the rest of the Lease
shows that the proxy is alive. ``endpointslices-revision`` is the lowest applied revision of all
selections of EndpointSlices. ``progress`` is a JSON object (``ProgressReport``): for each resource
and selection (``consume.selections``) the applied revision and the digest of the cache at that
revision (``watch.digest``), problems with the kernel's rules as sentences, and since when the caches
receive no events, if they do not.

**Sound.**  A revision counts when the informer has delivered *everything* up to it
(``watch.cache.Mark``), so bookmarks and lists count, and a slice that this node does not read
delays nothing. A write of rules carries the marks from its start; the report has the lowest of the
address families. So a revision is never reported early, and late by one report at most.

**When.**  At the proxy's own interval: ``CHANGED_PERIOD_S`` after the last time if anything but
revisions changed, else every ``IDLE_PERIOD_S``, as often as a kubelet at the most, whatever
Services do. And on demand: a slice whose annotation ``sliceplane.dev/report`` changes requests a
report from every node that reads it, as soon as the kernel has that slice. The value is any word,
or ``WORD/SECONDS``: the seconds over which nodes spread their answers. A node's delay follows from
its name and the word, so it needs no random numbers.

Revisions of one resource are ordered (``store``; KEP-5504 for other servers); a revision that is
not a number is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from math import inf
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Document, Object, OwnerReference
from sliceplane.api.scheme import EndpointSlices, Resource, Services
from sliceplane.consume.flow_counts import FlowCounts
from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_micro_time
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import Digest

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_PREFIX: Final = "sliceplane-proxy-"
LABEL_COMPONENT: Final = "sliceplane.dev/component"
COMPONENT: Final = "node-proxy"
#: kinds of other consumers: name servers, xDS servers and views (``consume.io.reporting``)
DNS: Final = "dns"
XDS: Final = "xds"
VIEW: Final = "view"
ANNOTATION_REVISION: Final = "sliceplane.dev/endpointslices-revision"
ANNOTATION_PROGRESS: Final = "sliceplane.dev/progress"
#: on a Lease: connections by Service (``consume.demand``); on a Service: the source of its demand
ANNOTATION_DEMAND: Final = "sliceplane.dev/demand"
#: on an EndpointSlice: requests a report from every node that reads it
ANNOTATION_REPORT: Final = "sliceplane.dev/report"

CHANGED_PERIOD_S: Final = 10.0
IDLE_PERIOD_S: Final = 30.0
#: minimum seconds between two reports on demand
ON_DEMAND_PERIOD_S: Final = 0.1
#: minimum seconds between two reports because of clients that are behind
BEHIND_PERIOD_S: Final = 1.0
#: reports on demand that a server takes in a second
REPORTS_PER_S: Final = 500
#: up to so many nodes need not spread their answers
SMALL_CLUSTER_NODES: Final = 50
#: seconds over which nodes spread answers, unless the request has a number
SPREAD_S: Final = 1.0
SPREAD_MAX_S: Final = 30.0
#: a proxy that has not renewed its Lease for so many seconds has stopped, or its node is gone
LEASE_DURATION_S: Final = 90
#: seconds to report a change as applied: a consumer's period is 10 s, and requests take time
BEHIND_S: Final = 15.0
#: seconds after which the next report is late: the proxy has stopped or is suspended, although its
#: Lease is still valid
REPORT_LATE_S: Final = 45.0
#: seconds since the caches were last current after which they count as disconnected from the API
#: server; a quiet and healthy watch is probed sooner
INPUTS_OLD_S: Final = 120.0
#: seconds without a request after which a health check port counts as unused; load balancers send
#: one every few seconds
UNASKED_S: Final = 600.0
UNASKED_MAX: Final = 50
#: problems of the kernel's rules in one report
PROBLEMS_MAX: Final = 3
#: characters of each of these problems
PROBLEM_LENGTH_MAX: Final = 200
#: transactions whose carried revisions are retained while large Services wait for their portions;
#: if there are more, the oldest is dropped and the report is later
TAKEN_MAX: Final = 64

#: plural of a resource, and name of a selection of its objects: what one revision of a report
#: covers
Scope = tuple[str, str]
FOLLOWED: Final[tuple[Resource, ...]] = (EndpointSlices, Services)
_PLURALS: Final = {resource.key: resource.plural for resource in FOLLOWED}


def lease_prefix(kind: str) -> str:
    """Returns the prefix of the names of Leases of a *kind* of consumer, a word."""
    return LEASE_PREFIX if kind == COMPONENT else f"sliceplane-{kind}-"


class AppliedRevision(NamedTuple):
    """A revision that is applied, and the digest of the cache at that revision."""

    revision: int
    digest: str


class ClientLag(NamedTuple):
    """The revision of EndpointSlices that a client of the consumer has, and the client's name for
    users.
    """

    revision: int
    client: str


class ProgressReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation ``progress``: ``[revision, digest]`` by selection, and problems of the rules.
    ``inputs_since``: seconds since the epoch when the caches were last current, if that is at least
    ``INPUTS_OLD_S`` ago, else 0.
    """

    endpointslices: dict[str, AppliedRevision] = {}
    services: dict[str, AppliedRevision] = {}
    problems: tuple[str, ...] = ()
    inputs_since: int = 0
    #: health check ports of Services that received no request for ``UNASKED_S`` seconds
    unasked: tuple[int, ...] = ()
    #: clients of a consumer that have less than it reports, by Service
    #: (``SERVICE_SELECTION_PREFIX``, ``NAMESPACE_SELECTION_PREFIX``)
    behind: dict[str, ClientLag] = {}
    #: clients that are behind and that drains no longer wait for, by Service
    unacknowledged: dict[str, str] = {}
    #: the rules that an observer compares, such as ``kube-proxy nftables``; "": the reporter's own
    observed: str = ""
    #: open connections by request and target (``consume.flow_counts``); ``None``: none are counted
    flows: dict[str, dict[str, int]] | None = None

    def revisions(self) -> dict[Scope, int]:
        """Returns the revisions by scope, with those of clients that are behind."""
        revisions = {scope: applied.revision for scope, applied in self.applied_by_scope().items()}
        for selection, lag in self.behind.items():
            revisions[EndpointSlices.plural, selection] = lag.revision
        return revisions

    def has_applied(self, required: Mapping[Scope, int]) -> bool:
        """Returns True if all *required* revisions of the selections that it has are applied."""
        applied = self.revisions()
        return all(applied.get(scope, revision) >= revision for scope, revision in required.items())

    def applied_by_scope(self) -> dict[Scope, AppliedRevision]:
        resources = ((EndpointSlices, self.endpointslices), (Services, self.services))
        return {
            (resource.plural, name): applied
            for resource, by_selection in resources
            for name, applied in by_selection.items()
        }


_decoder = msgspec.json.Decoder(ProgressReport)


def read_report(text: str) -> ProgressReport | None:
    """Returns the report in the annotation *text*; ``None`` if it cannot be decoded."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


class _Request(NamedTuple):
    """A requested report: due when *scope* is applied at *revision*, but not before *due*."""

    scope: Scope
    revision: int
    due: float


class Progress:
    """Owned by one node proxy.  Times are seconds since the epoch."""

    def __init__(
        self,
        node: str,
        families: tuple[Family, ...],
        *,
        changed_period_s: float = CHANGED_PERIOD_S,
        idle_period_s: float = IDLE_PERIOD_S,
        kind: str = COMPONENT,
        namespace: str = LEASE_NAMESPACE,
    ) -> None:
        """*node*: the name of the node, or of another *kind* of consumer (a word). Its Lease is in
        *namespace*.
        """
        self.changed_period_s: Final = changed_period_s
        self._idle_period_s = idle_period_s
        self.name: Final = f"{lease_prefix(kind)}{node}"
        self.namespace: Final = namespace
        self._kind = kind
        self._node = node
        #: the Node, which owns the Lease
        self._owner: OwnerReference | None = None
        self._digests: dict[Scope, Digest] = {}
        #: the revisions that the model has observed
        self._observed: dict[Scope, AppliedRevision] = {}
        #: the revisions that transactions under way carry, with the number of each transaction
        self._carried: dict[Family, deque[tuple[int, dict[Scope, AppliedRevision]]]] = {
            family: deque(maxlen=TAKEN_MAX) for family in families
        }
        #: the revisions that the kernel has applied
        self._applied_by_family: dict[Family, dict[Scope, AppliedRevision]] = {
            family: {} for family in families
        }
        self._problems: tuple[str, ...] = ()
        self._inputs_since = 0
        self._unasked: tuple[int, ...] = ()
        self._behind: Mapping[str, ClientLag] = {}
        self._unacknowledged: Mapping[str, str] = {}
        self._observed_rules = ""
        #: the annotation of demand; ``None`` in ``_reported_demand``: never written
        self._demand = ""
        self._reported_demand: str | None = None
        self._requests: list[_Request] = []
        #: set once it is known that connections can be counted
        self.flows: FlowCounts | None = None
        self._last_report: ProgressReport | None = None
        self._reported_at: float | None = None
        #: when the last periodic report was written; reports on demand do not replace one
        self._periodic_report_at = 0.0

    # -- events

    def on_change(self, change: Change[Object], selection: str, now: float) -> None:
        """Notes that the model observed *change* in *selection*."""
        subject = change.object
        if isinstance(subject, Node):
            if subject.metadata.name == self._node:
                uid = "" if change.new is None else subject.metadata.uid
                self._owner = (
                    OwnerReference(api_version="v1", kind="Node", name=self._node, uid=uid)
                    if uid
                    else None
                )
            return
        plural = _PLURALS.get(change.resource)
        if plural is None:
            return
        scope = (plural, selection)
        self._digests.setdefault(scope, Digest()).on_change(change.old, change.new)
        if isinstance(change.new, EndpointSlice):
            requested = (change.new.metadata.annotations or {}).get(ANNOTATION_REPORT, "")
            before = (
                (change.old.metadata.annotations or {}).get(ANNOTATION_REPORT, "")
                if change.old
                else ""
            )
            if requested and requested != before and self._reported_at is not None:
                spread_s, revision = _spread_s(requested), change.new.metadata.revision
                due = now + spread_s * _fraction(self._node, requested)
                if self.flows is None or not self.flows.on_request(
                    requested, now, due=due, spread_s=spread_s, scope=scope, revision=revision
                ):
                    self._requests.append(_Request(scope, revision, due))

    def on_mark(self, resource: str, selection: str, mark: Mark | None) -> None:
        """Notes that the model observed everything of *resource* (its key) up to *mark*; ``None``:
        it starts to read it.
        """
        plural = _PLURALS.get(resource)
        if plural is not None:
            scope = (plural, selection)
            digest = self._digests.setdefault(scope, Digest())
            self._observed[scope] = AppliedRevision(
                0 if mark is None else mark.revision, digest.text
            )

    def on_dropped(self, resource: str, selection: str) -> None:
        """Notes that the node no longer reads *selection* of *resource* (its key)."""
        plural = _PLURALS.get(resource)
        if plural is not None:
            self._digests.pop((plural, selection), None)
            self._observed.pop((plural, selection), None)

    def on_taken(self, family: Family, number: int = 0) -> None:
        """Notes that transaction *number* begins. It carries everything observed so far, except
        portions that are left to later transactions.
        """
        if not number:
            self._carried[family].clear()
        self._carried[family].append((number, dict(self._observed)))

    def on_written(self, family: Family, complete: int = 0) -> None:
        """Notes that the kernel accepted the last transaction, and has applied everything that was
        carried up to transaction *complete*.
        """
        carried = self._carried[family]
        while carried and carried[0][0] <= complete:
            self._applied_by_family[family] = carried.popleft()[1]

    def on_idle(self, family: Family) -> None:
        """Notes that no write is pending: everything observed is applied or needs no rules."""
        self._applied_by_family[family] = dict(self._observed)
        self._carried[family].clear()

    def on_problems(self, problems: tuple[str, ...]) -> None:
        """Notes problems of the kernel's rules, present or recent; a sentence each."""
        self._problems = tuple(problem[:PROBLEM_LENGTH_MAX] for problem in problems[:PROBLEMS_MAX])

    def on_inputs(self, age_s: float, now: float) -> None:
        """Notes that the oldest of the caches was last current *age_s* ago."""
        if age_s < INPUTS_OLD_S:
            self._inputs_since = 0
        elif not self._inputs_since and age_s < inf:
            self._inputs_since = int(now - age_s)

    def on_health_check_requests(
        self, last_request_by_port: Mapping[int, float], now: float
    ) -> None:
        """Notes when each health check port was last requested, or opened."""
        unasked = sorted(port for port, at in last_request_by_port.items() if now - at >= UNASKED_S)
        self._unasked = tuple(unasked[:UNASKED_MAX])

    def on_rules(self, rules: str) -> None:
        """Notes whose rules are reported, if they are another program's."""
        self._observed_rules = rules

    def on_behind(self, behind: Mapping[str, ClientLag], unacknowledged: Mapping[str, str]) -> None:
        """Notes the clients of this consumer that have less than it reports, by selection."""
        self._behind = behind
        self._unacknowledged = unacknowledged

    def on_demand(self, demand: str) -> None:
        """Notes the annotation of connections to Services (``consume.demand``); "": none."""
        self._demand = demand

    @property
    def applied(self) -> dict[Scope, AppliedRevision]:
        """Returns the revisions that the rules of every address family have. Former selections are
        included until no rules depend on them.
        """
        families = list(self._applied_by_family.values())
        scopes = sorted(self._observed.keys() | set[Scope]().union(*families))
        return {
            scope: min(applied.get(scope, AppliedRevision(0, "")) for applied in families)
            for scope in scopes
        }

    @property
    def revision(self) -> int:
        """The lowest applied revision of EndpointSlices; 0: none yet."""
        return _least(self.applied)

    # -- reports

    def next_deadline(self) -> float:
        """Returns when the next periodic report is due, if nothing changes before."""
        if self._reported_at is None:
            return 0.0
        last_report = self._last_report
        same = last_report is not None and _content(last_report) == _content(self.report())
        same = same and self._demand == (self._reported_demand or "")
        return self._periodic_report_at + (self._idle_period_s if same else self.changed_period_s)

    @property
    def has_requests(self) -> bool:
        """Returns True if reports were requested, due now or when the kernel has applied them."""
        return bool(self._requests)

    def on_demand_deadline(self) -> float | None:
        """Returns when a report is due on demand, or because problems, counted connections or
        clients that are behind changed; ``None``: not before the next write of rules, or request.
        """
        applied = self.applied
        due = [
            item.due for item in self._requests if _revision(applied, item.scope) >= item.revision
        ]
        if self._last_report is not None and self._last_report.problems != self._problems:
            due.append(0.0)
        if self._last_report is not None and self._last_report.behind.keys() != self._behind.keys():
            due.append((self._reported_at or 0.0) + BEHIND_PERIOD_S)
        if self.flows is not None and self._last_report is not None:
            reported = self._last_report.flows or {}
            if any(reported.get(nonce) != counts for nonce, counts in self.flows.report.items()):
                due.append(0.0)
        return max(min(due), (self._reported_at or 0.0) + ON_DEMAND_PERIOD_S) if due else None

    def on_failure(self) -> None:
        """Notes that the last report did not arrive: it is due again, like a change."""
        self._last_report = None

    def take_report(self, now: float, *, is_periodic: bool = True) -> bytes:
        """Returns the Lease to write now, both a document to create and a merge patch."""
        report = self._last_report = self.report()
        self._reported_at = now
        if is_periodic:
            self._periodic_report_at = now
        applied = report.applied_by_scope()
        self._requests = [
            item for item in self._requests if _revision(applied, item.scope) < item.revision
        ]
        metadata: Document = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": {LABEL_COMPONENT: self._kind},
            "annotations": {
                ANNOTATION_REVISION: str(_least(applied)),
                ANNOTATION_PROGRESS: encode(report).decode(),
            },
        }
        if self._demand or self._reported_demand is not None:
            self._reported_demand = self._demand
            metadata["annotations"][ANNOTATION_DEMAND] = self._demand
        if self._owner is not None:
            metadata["ownerReferences"] = [self._owner]
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": format_micro_time(now),
        }
        return encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": spec,
            }
        )

    def report(self) -> ProgressReport:
        """Returns the current report, without noting it as written."""
        by_resource: dict[str, dict[str, AppliedRevision]] = {
            resource.plural: {} for resource in FOLLOWED
        }
        for (resource, selection), applied in self.applied.items():
            by_resource[resource][selection] = applied
        return ProgressReport(
            by_resource[EndpointSlices.plural],
            by_resource[Services.plural],
            self._problems,
            self._inputs_since,
            self._unasked,
            dict(self._behind),
            dict(self._unacknowledged),
            self._observed_rules,
            None if self.flows is None else self.flows.report,
        )

    def check(self) -> None:
        for digest in self._digests.values():
            digest.check()


def _least(applied: dict[Scope, AppliedRevision]) -> int:
    slices = [
        at.revision for (resource, _), at in applied.items() if resource == EndpointSlices.plural
    ]
    return min(slices, default=0)


def _revision(applied: dict[Scope, AppliedRevision], scope: Scope) -> int:
    """Returns the revision of *scope*. A selection that is no longer read delays no request."""
    return applied[scope].revision if scope in applied else 2**64


def _content(report: ProgressReport) -> tuple[object, ...]:
    """Returns all of *report* but revisions, which bookmarks raise every minute."""
    digests = {
        scope: applied.digest
        for scope, applied in report.applied_by_scope().items()
        if applied.revision
    }
    clients = (report.behind, report.unacknowledged)
    return (
        digests,
        report.problems,
        report.inputs_since,
        report.unasked,
        clients,
        report.observed,
        report.flows,
    )


def spread_of(word: str, nodes: int) -> str:
    """Returns the request *word* with the seconds over which many *nodes* must spread their
    answers.
    """
    return f"{word}/{0 if nodes <= SMALL_CLUSTER_NODES else -(-nodes // REPORTS_PER_S)}"


def _spread_s(request: str) -> float:
    seconds = request.rpartition("/")[2] if "/" in request else ""
    return (
        min(float(seconds), SPREAD_MAX_S) if seconds.isascii() and seconds.isdecimal() else SPREAD_S
    )


def _fraction(node: str, request: str) -> float:
    """Returns the point of the spread at which *node* answers, from 0 to 1; always the same for the
    same *request*.
    """
    return (
        int.from_bytes(blake2b(f"{node}\0{request}".encode(), digest_size=4).digest(), "big")
        / 2**32
    )
