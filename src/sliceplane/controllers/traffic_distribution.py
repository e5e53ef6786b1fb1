"""Conditions of Services with ``trafficDistribution`` (KEP-4444, "Status Reporting"), from what
others wrote.

    TrafficDistributionAccepted    the value is one that we know, and it is in effect
    TrafficDistributionProgrammed  the EndpointSlices carry the hints for it
    TrafficDistributionHonored     the node proxies' kernels hold these slices

It watches Services, EndpointSlices and the node proxies' Leases, so it works in any cluster. Writes
are strategic patches of the status subresource, of our conditions alone, and only where one of them
changed: texts have no numbers that move with every Pod, a change is looked at after ``SETTLE_S``,
and a node is late only after ``GRACE_S``. So a rolling update of a Service whose hints stay costs
no write at all. A message begins with the code of the finding that ``sliceplane explain`` has of
it, with names and numbers.

*Honored* compares with a **goal**: the newest revision of the Service's slices at some moment, for
each reading that shows them (``consume.selections``). When all nodes hold it, the next goal is set;
slices that change all the time do not make it false, nodes that stay behind do. They are named, a
few of them; so are those whose proxy stopped (``controllers.node_progress``), for their kernels go
on with old rules, and those whose cache lost an event, which are also told of in an Event of the
Node.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.findings.codes import cause_of
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document, Object, ObjectMeta, ObservedCondition, is_older
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Services
from sliceplane.consume.progress import COMPONENT, LABEL_COMPONENT, LEASE_NAMESPACE
from sliceplane.consume.selections import readings_of_slice
from sliceplane.controllers.node_progress import Differing, NodeProgress
from sliceplane.controllers.service_syncs import HintProblems
from sliceplane.kit.metrics import Family, merged
from sliceplane.kit.names import is_domain_qualified
from sliceplane.kit.times import format_time
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.shape import is_headless, requests_annotation_hints, traffic_distribution
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
#: the finding that a Service gets no hints from what it names; its code begins messages, as those
#: of others do
NO_HINTS: Final = "Z13"
TYPES: Final = (ACCEPTED, PROGRAMMED, HONORED)

#: from a change to the look at it: slices come one by one
SETTLE_S: Final = 1.0
#: between two looks at a Service whose nodes are behind
BEHIND_PERIOD_S: Final = 10.0
#: a node that is behind for so long is late
GRACE_S: Final = 30.0
#: between two looks at a Service where nothing happens: proxies may have gone, reasons changed
PERIOD_S: Final = 60.0


class WantedCondition(NamedTuple):
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
    """Jobs are keyed ``namespace/name`` of the Service."""

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
                    Selection(
                        Leases,
                        namespace=LEASE_NAMESPACE,
                        label_selector=f"{LABEL_COMPONENT}={COMPONENT}",
                    ),
                ),
            )
        )
        self._find = find
        self._problems = problems or HintProblems()
        self._gates = gates or Gates()
        #: those with the field, or with conditions of ours
        self._services: dict[str, Service] = {}
        #: by service and name, of all services: any of them may get the field
        self._slices: dict[str, dict[str, EndpointSlice]] = {}
        #: the newest revision of each service's slices, by reading, those that went included
        self._newest: dict[str, dict[str, int]] = {}
        #: services and readings of slices that went at a revision which only the next mark tells
        self._going: set[tuple[str, str]] = set()
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
            case Lease() as lease:
                known = None if change.new is None else lease
                first_or_last, differing = self._progress.on_lease(lease.metadata.name, known, now)
                self._tell(differing, now)
                if first_or_last:
                    self._look_at_all(now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_service(self, service: Service, *, gone: bool, now: float) -> None:
        key = service.metadata.key
        known = self._services.get(key)
        if gone or not (service.spec.traffic_distribution or _ours(service)):
            if known is not None:
                del self._services[key]
                self._goals.pop(key, None)
                self._counted.pop(key, None)
        elif known is None or not _is_outdated(service, known):
            self._services[key] = service
            self.enqueue_after(key, SETTLE_S, now)

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
        for key, seen in ((before, old), (after, new)):
            if key in self._slices:
                newest = self._newest.setdefault(key, {})
                for reading in readings_of_slice(seen):
                    if new is None:
                        self._going.add((key, reading))
                    else:
                        newest[reading] = max(newest.get(reading, 0), new.metadata.revision)
            if key in self._services:
                self.enqueue_after(key, SETTLE_S, now)

    def on_mark(self, mark: Mark, now: float) -> None:
        """A ``watch.controller.base.MarkReader``."""
        self._tell(self._progress.on_mark(mark, now), now)
        if mark.resource == EndpointSlices.key:
            for key, reading in self._going:
                if key in self._newest:
                    self._newest[key][reading] = max(
                        self._newest[key].get(reading, 0), mark.revision
                    )
            self._going.clear()

    def _look_at_all(self, now: float) -> None:
        for key in self._services:
            self.enqueue_after(key, SETTLE_S, now)

    def _tell(self, differing: tuple[Differing, ...], now: float) -> None:
        if differing:
            self._look_at_all(now)
        for node, owner, verdict in differing:
            resource, reading = verdict.place
            text = (
                f"the node proxy's cache of {resource} ({reading}) at version {verdict.revision} "
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
        changes = _changes(service, self._verdicts(key, service, now), now)
        if not changes:
            return ()
        status = {"status": {"conditions": changes}}
        return (
            object_patch(
                Services, service.metadata, status, "status", "strategic", tolerate=("NotFound",)
            ),
        )

    def finished(self, done: Done, now: float) -> None:
        """Takes the answer before the cache shows it, so that nothing is written twice."""
        for answer in done.results:
            known = self._services.get(done.job.key)
            if answer and known is not None:
                service = decode(answer, Service)
                if service.metadata.uid == known.metadata.uid and not _is_outdated(service, known):
                    self._services[done.job.key] = service

    def _verdicts(self, key: str, service: Service, now: float) -> tuple[WantedCondition, ...]:
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
        if is_headless(service):  # no matter of node proxies
            return (accepted, programmed)
        noted = _ours(service).get(ACCEPTED)
        another = noted is None or noted.message != accepted.message
        if another:
            self._goals.pop(key, None)
        return (accepted, programmed, self._honored(key, service, now, another=another))

    def _accepted(self, service: Service) -> WantedCondition:
        value = service.spec.traffic_distribution or ""
        if requests_annotation_hints(service.metadata.annotations or {}):
            text = (
                "the annotation service.kubernetes.io/topology-mode is stronger than "
                "trafficDistribution"
            )
            return WantedCondition(ACCEPTED, "False", "AnnotationOverrides", text)
        if not traffic_distribution(service, self._gates):
            text = (
                f"{NO_HINTS}: nothing here gives hints for {value}: its feature gate is off, or "
                "it has no meaning"
            )
            return WantedCondition(ACCEPTED, "False", "UnsupportedValue", text)
        if is_domain_qualified(value):
            heuristic = self._find(value)
            if isinstance(heuristic, str):
                return WantedCondition(
                    ACCEPTED, "False", "UnsupportedValue", f"{NO_HINTS}: {heuristic}"
                )
        return WantedCondition(ACCEPTED, "True", "Accepted", f"{value} is supported")

    def _programmed(self, key: str, service: Service) -> WantedCondition:
        problem = self._problems.get(key)
        if problem:
            return WantedCondition(
                PROGRAMMED, "False", "HintsUnavailable", f"{NO_HINTS}: {problem}"
            )
        endpoints = self._count(key)
        if not endpoints.ready:
            return WantedCondition(PROGRAMMED, "False", "NoReadyEndpoints", "no endpoint is ready")
        if endpoints.hinted == endpoints.ready:
            return WantedCondition(
                PROGRAMMED, "True", "HintsProgrammed", "every ready endpoint has hints"
            )
        if endpoints.zoneless and not is_domain_qualified(service.spec.traffic_distribution or ""):
            return _programmed_not("EndpointsWithoutZone", "Z2")
        if endpoints.hinted:
            return _programmed_not("IncompleteHints", "Z4")
        return WantedCondition(
            PROGRAMMED, "False", "NoHints", "Z4: the EndpointSlices have no hints"
        )

    def _count(self, key: str) -> _Endpoints:
        before = self._counted.get(key, {})
        counted = self._counted[key] = {}
        total = _Endpoints()
        for name, endpoint_slice in self._slices.get(key, {}).items():
            version = endpoint_slice.metadata.resource_version
            known = before.get(name)
            counted[name] = (
                known
                if known is not None and known[0] == version
                else (version, _endpoints_of(endpoint_slice))
            )
            total = _Endpoints(*map(sum, zip(total, counted[name][1], strict=True)))
        return total

    def _honored(self, key: str, service: Service, now: float, *, another: bool) -> WantedCondition:
        """*another*: the Service asks for something that it did not ask for before."""
        newest = self._newest.get(key, {})
        goal = self._goals.get(key)
        if goal is None:
            goal = self._goals[key] = _Goal(dict(newest), now)
        lag = self._progress.lag(goal.revisions, now)
        if not lag.behind and newest != goal.revisions:
            goal = self._goals[key] = _Goal(dict(newest), now)
            lag = self._progress.lag(newest, now)
        self.enqueue_after(key, BEHIND_PERIOD_S if lag.behind or another else PERIOD_S, now)
        if not lag.reporting or not newest:
            text = "no node proxy reports which EndpointSlices it holds"
            return WantedCondition(
                HONORED, "Unknown", "NoReports", f"{text}: {lag.text}" if lag.behind else text
            )
        if not lag.behind and not another:
            return WantedCondition(
                HONORED,
                "True",
                "NodesUpToDate",
                "every node proxy that reports holds the EndpointSlices",
            )
        if now - goal.since < GRACE_S:
            known = _ours(service).get(HONORED)  # while nodes catch up, what was so stays so
            if known is not None and known.status != "Unknown" and not another:
                return WantedCondition(HONORED, known.status, known.reason, known.message)
            return WantedCondition(
                HONORED,
                "Unknown",
                "NodesCatchUp",
                "not every node proxy holds the EndpointSlices yet",
            )
        text = (
            f"N2: {lag.behind} of {lag.nodes} nodes do not hold the EndpointSlices of "
            f"{format_time(goal.since)} yet"
        )
        return WantedCondition(
            HONORED, "False", "NodesBehind", f"{text}: {lag.text}" if lag.behind else text
        )

    def check(self) -> None:
        super().check()
        self._progress.check()
        for key, slices in self._slices.items():
            assert slices, f"{key} has no slices"
            for endpoint_slice in slices.values():
                for reading in readings_of_slice(endpoint_slice):
                    known = self._newest[key].get(reading, 0)
                    newest = endpoint_slice.metadata.revision
                    assert known >= newest, f"{key} {reading}: {known}, a slice has {newest}"
        assert self._newest.keys() == self._slices.keys(), (
            f"{self._newest.keys() ^ self._slices.keys()} have one only"
        )
        assert self._goals.keys() <= self._services.keys(), "goals of services that are not watched"
        assert self._counted.keys() <= self._services.keys(), (
            "counts of services that are not watched"
        )


def _ours(service: Service) -> dict[str, ObservedCondition]:
    return {
        condition.type: condition
        for condition in service.status.conditions or ()
        if condition.type in TYPES
    }


def _programmed_not(reason: str, code: str) -> WantedCondition:
    return WantedCondition(PROGRAMMED, "False", reason, f"{code}: {cause_of(code).title}")


def _key_of(seen: EndpointSlice | None) -> str:
    """Returns the key of the slice's Service; "" if it has none."""
    owner = (seen.metadata.labels or {}).get(LABEL_SERVICE_NAME) if seen is not None else ""
    return f"{seen.metadata.namespace}/{owner}" if seen is not None and owner else ""


def _is_outdated(seen: Service, known: Service) -> bool:
    same = seen.metadata.uid == known.metadata.uid
    return same and is_older(seen.metadata.resource_version, known.metadata.resource_version)


def _endpoints_of(seen: EndpointSlice) -> _Endpoints:
    ready = [
        endpoint for endpoint in seen.endpoints or () if endpoint.conditions.ready is not False
    ]
    hinted = sum(
        endpoint.hints is not None and bool(endpoint.hints.for_zones or endpoint.hints.for_nodes)
        for endpoint in ready
    )
    return _Endpoints(len(ready), hinted, sum(not endpoint.zone for endpoint in ready))


def _changes(service: Service, wanted: tuple[WantedCondition, ...], now: float) -> list[Document]:
    """The strategic patch of the list of conditions (merged by type); empty if all are as
    *wanted*.
    """
    have = _ours(service)
    generation = service.metadata.generation
    changes: list[Document] = []
    for verdict in wanted:
        known = have.pop(verdict.type, None)
        same = known is not None and (known.status, known.reason, known.message) == verdict[1:]
        if known is not None and same and (known.observed_generation or 0) == generation:
            continue
        stays = known is not None and known.status == verdict.status and known.last_transition_time
        changes.append(
            {
                **verdict._asdict(),
                "lastTransitionTime": stays or format_time(now),
                **({"observedGeneration": generation} if generation else {}),
            }
        )
    changes.extend({"$patch": "delete", "type": name} for name in sorted(have))
    return changes
