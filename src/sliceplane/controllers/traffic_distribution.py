"""Conditions of Services with ``trafficDistribution`` (KEP-4444, "Status Reporting"), computed from
the objects of other writers.

    TrafficDistributionAccepted    the value is supported, and it is in effect
    TrafficDistributionProgrammed  the EndpointSlices have the hints for it
    TrafficDistributionHonored     the kernels of the node proxies have applied these slices

The controller watches Services, EndpointSlices and the node proxies' Leases, so it works in any
cluster. Writes are strategic patches of the status subresource, of our conditions only, and only if
one of them changed. Texts have no numbers that vary with every Pod, a change is checked after
``DELAY_S``, and a node is late only after ``GRACE_S``. So a rolling update of a Service whose
hints stay costs no write. A message begins with the code of the corresponding finding of
``sliceplane explain``, with names and numbers.

*Honored* compares with a **goal**: the newest revision of the Service's slices at some moment, for
each selection with them (``consume.selections``). When all nodes have applied it, the next goal is
set; so slices that change all the time do not make the condition false, but nodes that stay behind
do. The message names a few of these nodes. It also names nodes whose proxy stopped
(``controllers.node_progress``), because their kernels keep old rules, and nodes whose cache lost an
event, which an Event of the Node reports, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.findings.codes import cause_of
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document, Object, ObjectMeta, ObservedCondition, is_older
from sliceplane.api.scheme import EndpointSlices, Nodes, Services
from sliceplane.api.selectors.distribution import annotation_heuristic, requests_annotation_hints
from sliceplane.consume.selections import list_selections_of_slice
from sliceplane.controllers.node_progress import PROXY_LEASES, Differing, NodeProgress
from sliceplane.controllers.service_syncs import HintProblems
from sliceplane.kit.metrics import Family, merged
from sliceplane.kit.names import is_domain_qualified
from sliceplane.kit.times import format_time
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.shape import is_headless, traffic_distribution
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import (
    CACHE_DIFFERS,
    ControllerInfo,
    Done,
    Selection,
    Write,
    object_patch,
)
from sliceplane.watch.controller.keyed import KeyedController

ACCEPTED: Final = "TrafficDistributionAccepted"
PROGRAMMED: Final = "TrafficDistributionProgrammed"
HONORED: Final = "TrafficDistributionHonored"
#: the code of the finding that a Service gets no hints from its heuristic
NO_HINTS: Final = "Z13"
TYPES: Final = (ACCEPTED, PROGRAMMED, HONORED)

#: seconds from a change to its check: slices change one by one
DELAY_S: Final = 1.0
#: seconds between two checks of a Service whose nodes are behind
BEHIND_PERIOD_S: Final = 10.0
#: seconds after which a node that is behind is late
GRACE_S: Final = 30.0
#: seconds between two checks of a Service without events: proxies may have stopped, reasons changed
PERIOD_S: Final = 60.0


class DesiredCondition(NamedTuple):
    """The desired content of a condition."""

    type: str
    status: str
    reason: str
    message: str


class _Endpoints(NamedTuple):
    """Counts of the ready endpoints of one slice, or of several."""

    ready: int = 0
    hinted: int = 0
    zoneless: int = 0


class _Goal(NamedTuple):
    revisions: dict[str, int]
    since: float


class TrafficDistributionController(KeyedController):
    """The controller. Jobs are keyed ``namespace/name`` of the Service."""

    def __init__(
        self, find: Find, problems: HintProblems | None = None, gates: Gates | None = None
    ) -> None:
        super().__init__(
            ControllerInfo(
                name="traffic-distribution-controller",
                aliases=("traffic-distribution",),
                component="sliceplane-controllers",
                watches=(
                    Selection(Services),
                    Selection(EndpointSlices),
                    PROXY_LEASES,
                ),
            )
        )
        self._find = find
        self._problems = problems or HintProblems()
        self._gates = gates or Gates()
        #: Services with the field, or with conditions of ours
        self._services: dict[str, Service] = {}
        #: slices by Service and name; of all Services, since any of them may get the field
        self._slices: dict[str, dict[str, EndpointSlice]] = {}
        #: the newest revision of each Service's slices, by selection, deleted slices included
        self._newest: dict[str, dict[str, int]] = {}
        #: Services and selections of slices that were deleted at a revision which only the next
        #: mark reveals
        self._removed: set[tuple[str, str]] = set()
        self._counted: dict[str, dict[str, tuple[str, _Endpoints]]] = {}
        self._goals: dict[str, _Goal] = {}
        self._progress = NodeProgress()

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        self._progress.on_change(change)
        match change.object:
            case Service() as service:
                self._on_service(service, gone=change.new is None, now=now)
            case EndpointSlice():
                self._on_slice(*change.typed(EndpointSlice), now)
            case Lease():
                old, new = change.typed(Lease)
                first_or_last, differing = self._progress.on_change_of_lease(old, new, now)
                self._report_differing(differing, now)
                if first_or_last:
                    self._enqueue_all(now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_service(self, service: Service, *, gone: bool, now: float) -> None:
        key = service.metadata.key
        cached = self._services.get(key)
        if gone or not (service.spec.traffic_distribution or conditions_of(service)):
            if cached is not None:
                del self._services[key]
                self._goals.pop(key, None)
                self._counted.pop(key, None)
        elif cached is None or not is_outdated(service, cached):
            self._services[key] = service
            self.enqueue_after(key, DELAY_S, now)

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None, now: float) -> None:
        before, after = _key_of(old), _key_of(new)
        if old is not None and before and before != after:
            slices = self._slices[before]
            del slices[old.metadata.name]
            if not slices:
                del self._slices[before]
                self._newest.pop(before, None)
        if new is not None and after:
            self._slices.setdefault(after, {})[new.metadata.name] = new
        for key, observed in ((before, old), (after, new)):
            if key in self._slices:
                newest = self._newest.setdefault(key, {})
                for selection in list_selections_of_slice(observed):
                    if new is None:
                        self._removed.add((key, selection))
                    else:
                        newest[selection] = max(newest.get(selection, 0), new.metadata.revision)
            if key in self._services:
                self.enqueue_after(key, DELAY_S, now)

    def on_mark(self, mark: Mark, now: float) -> None:
        """Implements ``watch.controller.base.MarkReader``."""
        self._report_differing(self._progress.on_mark(mark, now), now)
        if mark.resource == EndpointSlices.key:
            for key, selection in self._removed:
                if key in self._newest:
                    self._newest[key][selection] = max(
                        self._newest[key].get(selection, 0), mark.revision
                    )
            self._removed.clear()

    def _enqueue_all(self, now: float) -> None:
        for key in self._services:
            self.enqueue_after(key, DELAY_S, now)

    def _report_differing(self, differing: tuple[Differing, ...], now: float) -> None:
        if differing:
            self._enqueue_all(now)
        for node, owner, verdict in differing:
            resource, selection = verdict.scope
            text = (
                f"the node proxy's cache of {resource} ({selection}) at version {verdict.revision} "
                "is not what the server"
            )
            meta = ObjectMeta(name=node, uid=owner.uid if owner is not None else node)
            self.report(
                Nodes,
                Node(metadata=meta),
                "Warning",
                CACHE_DIFFERS,
                f"{text} had then: it lost an event; restart the proxy, which lists anew",
                action="Compare",
            )

    def samples(self, now: float) -> tuple[Family, ...]:
        return merged(super().samples(now), self._progress.metrics(now).families())

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        service = self._services.get(key)
        if service is None or service.metadata.is_deleting:
            return ()
        return condition_writes(service, self._verdicts(key, service, now), now)

    def finished(self, done: Done, now: float) -> None:
        """Takes the answer before the cache shows it, so that nothing is written twice."""
        if (cached := self._services.get(done.job.key)) is not None:
            self._services[done.job.key] = newest_answer(done, cached)

    def _verdicts(self, key: str, service: Service, now: float) -> tuple[DesiredCondition, ...]:
        if not service.spec.traffic_distribution:
            return ()
        accepted = self._accepted(service)
        if accepted.status != "True":
            return (accepted, accepted._replace(type=PROGRAMMED))
        programmed = self._programmed(key, service)
        if programmed.status != "True":
            self._goals.pop(key, None)
            self.enqueue_after(key, PERIOD_S, now)
            return (accepted, programmed)
        if is_headless(service):  # node proxies ignore it
            return (accepted, programmed)
        written_condition = conditions_of(service).get(ACCEPTED)
        is_new_request = written_condition is None or written_condition.message != accepted.message
        if is_new_request:
            self._goals.pop(key, None)
        return (
            accepted,
            programmed,
            self._honored(key, service, now, is_new_request=is_new_request),
        )

    def _accepted(self, service: Service) -> DesiredCondition:
        value = service.spec.traffic_distribution or ""
        annotations = service.metadata.annotations or {}
        if requests_annotation_hints(annotations) or annotation_heuristic(annotations):
            text = (
                "the annotation service.kubernetes.io/topology-mode takes precedence over "
                "trafficDistribution"
            )
            return DesiredCondition(ACCEPTED, "False", "AnnotationOverrides", text)
        if not traffic_distribution(service, self._gates):
            text = (
                f"{NO_HINTS}: no hints are given for {value}: its feature gate is off, or it "
                "is unknown"
            )
            return DesiredCondition(ACCEPTED, "False", "UnsupportedValue", text)
        if is_domain_qualified(value):
            heuristic = self._find(value)
            if isinstance(heuristic, str):
                return DesiredCondition(
                    ACCEPTED, "False", "UnsupportedValue", f"{NO_HINTS}: {heuristic}"
                )
        return DesiredCondition(ACCEPTED, "True", "Accepted", f"{value} is supported")

    def _programmed(self, key: str, service: Service) -> DesiredCondition:
        problem = self._problems.get(key)
        if problem:
            return DesiredCondition(
                PROGRAMMED, "False", "HintsUnavailable", f"{NO_HINTS}: {problem}"
            )
        endpoints = self._count(key)
        if not endpoints.ready:
            return DesiredCondition(PROGRAMMED, "False", "NoReadyEndpoints", "no endpoint is ready")
        if endpoints.hinted == endpoints.ready:
            return DesiredCondition(
                PROGRAMMED, "True", "HintsProgrammed", "every ready endpoint has hints"
            )
        if endpoints.zoneless and not is_domain_qualified(service.spec.traffic_distribution or ""):
            return _not_programmed("EndpointsWithoutZone", "Z2")
        if endpoints.hinted:
            return _not_programmed("IncompleteHints", "Z4")
        return DesiredCondition(
            PROGRAMMED, "False", "NoHints", "Z4: the EndpointSlices have no hints"
        )

    def _count(self, key: str) -> _Endpoints:
        before = self._counted.get(key, {})
        counted = self._counted[key] = {}
        total = _Endpoints()
        for name, endpoint_slice in self._slices.get(key, {}).items():
            version = endpoint_slice.metadata.resource_version
            counted_before = before.get(name)
            counted[name] = (
                counted_before
                if counted_before is not None and counted_before[0] == version
                else (version, _endpoints_of(endpoint_slice))
            )
            total = _Endpoints(*map(sum, zip(total, counted[name][1], strict=True)))
        return total

    def _honored(
        self, key: str, service: Service, now: float, *, is_new_request: bool
    ) -> DesiredCondition:
        """Returns the condition. *is_new_request*: the Service requests another distribution
        than before.
        """
        newest = self._newest.get(key, {})
        goal = self._goals.get(key)
        if goal is None:
            goal = self._goals[key] = _Goal(dict(newest), now)
        lag = self._progress.lag(goal.revisions, now)
        if not lag.behind and newest != goal.revisions:
            goal = self._goals[key] = _Goal(dict(newest), now)
            lag = self._progress.lag(newest, now)
        self.enqueue_after(key, BEHIND_PERIOD_S if lag.behind or is_new_request else PERIOD_S, now)
        if not lag.reporting or not newest:
            text = "no node proxy reports which EndpointSlices it has applied"
            return DesiredCondition(
                HONORED, "Unknown", "NoReports", f"{text}: {lag.text}" if lag.behind else text
            )
        if not lag.behind and not is_new_request:
            return DesiredCondition(
                HONORED,
                "True",
                "NodesUpToDate",
                "every reporting node proxy has applied the EndpointSlices",
            )
        if now - goal.since < GRACE_S:
            condition = conditions_of(service).get(HONORED)  # kept while nodes catch up
            if condition is not None and condition.status != "Unknown" and not is_new_request:
                return DesiredCondition(
                    HONORED, condition.status, condition.reason, condition.message
                )
            return DesiredCondition(
                HONORED,
                "Unknown",
                "NodesCatchUp",
                "not every node proxy has applied the EndpointSlices yet",
            )
        text = (
            f"N2: {lag.behind} of {lag.nodes} nodes have not applied the EndpointSlices of "
            f"{format_time(goal.since)} yet"
        )
        return DesiredCondition(
            HONORED, "False", "NodesBehind", f"{text}: {lag.text}" if lag.behind else text
        )

    def check(self) -> None:
        super().check()
        self._progress.check()
        for key, slices in self._slices.items():
            assert slices, f"{key} has no slices"
            for endpoint_slice in slices.values():
                for selection in list_selections_of_slice(endpoint_slice):
                    recorded = self._newest[key].get(selection, 0)
                    newest = endpoint_slice.metadata.revision
                    assert recorded >= newest, (
                        f"{key} {selection}: {recorded}, a slice has {newest}"
                    )
        assert self._newest.keys() == self._slices.keys(), (
            f"{self._newest.keys() ^ self._slices.keys()} have one only"
        )
        assert self._goals.keys() <= self._services.keys(), "goals of services that are not watched"
        assert self._counted.keys() <= self._services.keys(), (
            "counts of services that are not watched"
        )


def conditions_of(service: Service, types: Collection[str] = TYPES) -> dict[str, ObservedCondition]:
    """Returns the conditions of *types*, by type."""
    return {
        condition.type: condition
        for condition in service.status.conditions or ()
        if condition.type in types
    }


def _not_programmed(reason: str, code: str) -> DesiredCondition:
    return DesiredCondition(PROGRAMMED, "False", reason, f"{code}: {cause_of(code).title}")


def _key_of(observed: EndpointSlice | None) -> str:
    """Returns the key of the slice's Service; "" if it has none."""
    owner = (observed.metadata.labels or {}).get(LABEL_SERVICE_NAME) if observed is not None else ""
    return f"{observed.metadata.namespace}/{owner}" if observed is not None and owner else ""


def is_outdated(observed: Service, cached: Service) -> bool:
    """Returns True if *observed* is an earlier version of *cached*."""
    is_same = observed.metadata.uid == cached.metadata.uid
    return is_same and is_older(
        observed.metadata.resource_version, cached.metadata.resource_version
    )


def newest_answer(done: Done, cached: Service) -> Service:
    """Returns the Service of the server's answers to *done*, or *cached* if that is newer."""
    for answer in filter(None, done.results):
        service = decode(answer, Service)
        if service.metadata.uid == cached.metadata.uid and not is_outdated(service, cached):
            cached = service
    return cached


def _endpoints_of(observed: EndpointSlice) -> _Endpoints:
    ready = [
        endpoint for endpoint in observed.endpoints or () if endpoint.conditions.ready is not False
    ]
    hinted = sum(
        endpoint.hints is not None and bool(endpoint.hints.for_zones or endpoint.hints.for_nodes)
        for endpoint in ready
    )
    return _Endpoints(len(ready), hinted, sum(not endpoint.zone for endpoint in ready))


def condition_writes(
    service: Service,
    desired: tuple[DesiredCondition, ...],
    now: float,
    types: Collection[str] = TYPES,
) -> tuple[Write, ...]:
    """Returns the write that makes the conditions of *types* as *desired*; none if they are."""
    changes = _changes(service, desired, now, types)
    status = {"status": {"conditions": changes}}
    patch = object_patch(
        Services, service.metadata, status, "status", "strategic", tolerate=("NotFound",)
    )
    return (patch,) if changes else ()


def _changes(
    service: Service,
    desired: tuple[DesiredCondition, ...],
    now: float,
    types: Collection[str] = TYPES,
) -> list[Document]:
    """Returns the strategic patch of the list of conditions (merged by type); empty if all are as
    *desired*.
    """
    present = conditions_of(service, types)
    generation = service.metadata.generation
    changes: list[Document] = []
    for verdict in desired:
        before = present.pop(verdict.type, None)
        is_same = (
            before is not None and (before.status, before.reason, before.message) == verdict[1:]
        )
        if before is not None and is_same and (before.observed_generation or 0) == generation:
            continue
        transition_time = (
            before is not None and before.status == verdict.status and before.last_transition_time
        )
        changes.append(
            {
                **verdict._asdict(),
                "lastTransitionTime": transition_time or format_time(now),
                **({"observedGeneration": generation} if generation else {}),
            }
        )
    changes.extend({"$patch": "delete", "type": name} for name in sorted(present))
    return changes
