"""The shadow of the EndpointSlice controller: runs the same engine, but never plans writes, and
compares it with slices that another controller writes; see ``shadow``.

A service is compared soon after a change of it. A difference is reported only after the grace
period and a read of the server: the Service, its slices, and some of the Pods and Nodes concerned.
The difference stands only if our caches have exactly these versions, so it is never an artefact of
a watch that is behind. Jobs of this controller consist of reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_CONTROLLER,
    EndpointSlice,
)
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Resource, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.diagnose.shadow.compare import compare
from sliceplane.diagnose.shadow.differences import SliceDifference
from sliceplane.diagnose.shadow.ledger import DifferenceLedger
from sliceplane.diagnose.shadow.metrics import shadow_metrics
from sliceplane.kit.metrics import Family
from sliceplane.kit.workqueue import RETRY_BACKOFF
from sliceplane.slices.adoption import EngineClaims
from sliceplane.slices.engine import Keys, SliceEngine
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, SelectorChanges
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Job, Selection, Work, Write
from sliceplane.watch.controller.keyed import QueueController

#: Seconds from a change to its comparison. Most differences are the other controller's reaction
#: time, and an immediate comparison would find them all.
COMPARE_DELAY_S: Final = 0.5
#: big services wait one more second for each so many endpoints: the cost of a comparison grows with
#: them
ENDPOINTS_PER_SECOND_OF_DELAY: Final = 10_000
BIG_SERVICE_ENDPOINTS: Final = 1_000
#: seconds until a cache that was behind is checked again
BEHIND_DELAY_S: Final = 1.0
#: Pods and Nodes that one confirmation reads; an informer is behind for all of its objects alike
PODS_READ_MAX: Final = 4
NODES_READ_MAX: Final = 2

_Versions = dict[tuple[str, str], str]


class _ConfirmationRequest(msgspec.Struct, frozen=True):
    """The differences to confirm, and the versions in our caches at that time."""

    due: tuple[SliceDifference, ...]
    versions: _Versions


@dataclass(slots=True)
class _Unrest:
    """Changes since the last comparison."""

    pods: set[str] = field(default_factory=set)
    everything: bool = False


class ShadowController(QueueController):
    """Its jobs read.  Keyed ``namespace/name`` of the service."""

    def __init__(self, config: EndpointSliceConfig, ledger: DifferenceLedger) -> None:
        super().__init__(
            ControllerInfo(
                name="endpointslice-shadow",
                watches=(
                    Selection(Services),
                    Selection(Pods),
                    Selection(Nodes),
                    Selection(EndpointSlices),
                ),
                queue="endpoint_slice_shadow",
            ),
            backoff=RETRY_BACKOFF,
        )
        self._ledger = ledger
        self._metrics = shadow_metrics(ledger, lambda: len(self._services))
        ledger.begin()
        self._engine = SliceEngine(
            *(config.max_endpoints_per_slice, config.gates, config.find_heuristic),
            subsetting=config.approach,
            claims=EngineClaims(unlabelled=config.claim_unlabelled_slices),
            selector_changes=config.selector_changes,
        )
        self._unrest: dict[str, _Unrest] = {}
        #: resourceVersions of Services and Nodes as last observed; the engine has those of Pods and
        #: slices
        self._services: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        #: slices that a Service controls and that lack the managed-by label: service -> names
        self._unlabelled: dict[str, dict[str, None]] = {}
        #: slices of a service that loses its selector are kept for ever, else until the time in
        #: ``_waiting``
        self._keeps_inactive = config.selector_changes is SelectorChanges.UPSTREAM
        self._waiting: dict[str, float] = {}
        #: endpoints of big services at their last comparison
        self._big: dict[str, int] = {}

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Service() as service:
                self._on_service(service, gone=change.new is None, now=now)
            case Pod() as pod:
                touched = self._engine.on_pod(*change.typed(Pod))
                for key in (*touched.urgent, *touched.later):
                    self._unrest_of(key).pods.add(pod.metadata.name)
                    self._add(key, now)
            case Node() as node:
                self._on_node(node, *change.typed(Node), now)
            case EndpointSlice():
                before, after = change.typed(EndpointSlice)
                self._ledger.managed += _is_managed(after) - _is_managed(before)
                for key in (
                    *self._engine.on_slice(before, after),
                    *self._note_unlabelled(before, after),
                ):
                    self._add(key, now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_service(self, service: Service, *, gone: bool, now: float) -> None:
        key = service.metadata.key
        before = self._engine.shape(key)
        if gone:
            self._engine.on_service_gone(service.metadata.namespace, service.metadata.name)
            self._services.pop(key, None)
        else:
            self._engine.on_service(service)
            self._services[key] = service.metadata.resource_version
        shape = self._engine.shape(key)
        if shape != before:
            self._unrest_of(key).everything = True
            if shape is None or shape.active or shape.external:
                self._waiting.pop(key, None)
            elif self._synced and (before is None or before.active or before.external):
                self._waiting[key] = now + HAND_OVER_TIMEOUT_S
        self._add(key, now)

    def _on_node(self, node: Node, old: Node | None, new: Node | None, now: float) -> None:
        if new is None:
            self._nodes.pop(node.metadata.name, None)
        else:
            self._nodes[node.metadata.name] = node.metadata.resource_version
        touched = self._engine.on_node(old, new)
        self._disturb((*touched.urgent, *touched.later), now)

    def _disturb(self, keys: Keys, now: float) -> None:
        for key in keys:
            self._unrest_of(key).everything = True
            self._add(key, now)

    def _unrest_of(self, key: str) -> _Unrest:
        return self._unrest.setdefault(key, _Unrest())

    def _note_unlabelled(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Keys:
        before = _unlabelled_of(old)
        after = _unlabelled_of(new)
        if before and old is not None and before != after:
            names = self._unlabelled.get(before, {})
            names.pop(old.metadata.name, None)
            if not names:
                self._unlabelled.pop(before, None)
        if after and new is not None:
            self._unlabelled.setdefault(after, {})[new.metadata.name] = None
        return (
            tuple(dict.fromkeys(key for key in (before, after) if key)) if before != after else ()
        )

    def _add(self, key: str, now: float) -> None:
        # No delay until the caches are filled: every service is compared once.
        delay = (
            COMPARE_DELAY_S + self._big.get(key, 0) / ENDPOINTS_PER_SECOND_OF_DELAY
            if self._synced
            else 0.0
        )
        self.enqueue_after(key, delay, now)

    # -- work

    def take_work(self, now: float, max_jobs: int) -> Work:
        if self._synced:
            self._disturb(self._engine.take_unconverged(), now)
        return super().take_work(now, max_jobs)

    def job(self, key: str, now: float) -> Job | None:
        self._compare(key, now)
        due = self._ledger.due(key, now)
        if due:
            return self._confirmation(key, due, now)
        self._recheck(key, now)
        return None

    def _compare(self, key: str, now: float) -> None:
        unrest = self._unrest.pop(key, None) or _Unrest()
        snapshot = self._engine.snapshot(key, now)
        if snapshot is None:
            self._big.pop(key, None)
            self._waiting.pop(key, None)
            self._ledger.forget(key, now)
            return
        size = sum(map(len, snapshot.desired.values()))
        if size >= BIG_SERVICE_ENDPOINTS:
            self._big[key] = size
        else:
            self._big.pop(key, None)
        until = self._waiting.pop(key, now)
        if now < until:
            self._waiting[key] = until
            self.enqueue_after(key, until - now, now)
        keeps_inactive = self._keeps_inactive or now < until
        differences = compare(
            snapshot, sorted(self._unlabelled.get(key, ())), keeps_inactive=keeps_inactive
        )
        self._ledger.observe(key, differences, unrest.pods, unrest=unrest.everything, now=now)

    def _recheck(self, key: str, now: float, *, behind_s: float = 0.0) -> None:
        due = self._ledger.next_due(key)
        if due is not None:
            self.enqueue_after(key, max(due - now, behind_s), now)

    def _confirmation(self, key: str, due: tuple[SliceDifference, ...], now: float) -> Job:
        """Builds the job that reads the slices, then one object each; ``_answers`` relies on this
        order.
        """
        namespace, _, name = key.partition("/")
        pods = sorted({difference.pod for difference in due if difference.pod})[:PODS_READ_MAX]
        cached = [self._engine.pod(namespace, pod) for pod in pods]
        nodes = sorted(
            {pod.spec.node_name for pod in cached if pod is not None and pod.spec.node_name}
        )[:NODES_READ_MAX]
        selector = f"{LABEL_SERVICE_NAME}={name},{LABEL_MANAGED_BY}={MANAGED_BY_CONTROLLER}"
        reads = [
            Write(
                verb="list", resource=EndpointSlices, namespace=namespace, label_selector=selector
            ),
            _get(Services, namespace, name),
            *(_get(Pods, namespace, pod) for pod in pods),
            *(_get(Nodes, "", node) for node in nodes),
        ]
        return Job(
            key=key,
            writes=tuple(reads),
            token=_ConfirmationRequest(due, self._cached(key, reads, now)),
        )

    def _cached(self, key: str, reads: list[Write] | tuple[Write, ...], now: float) -> _Versions:
        """Returns the cached versions of the objects that *reads* request; absent objects are
        missing.
        """
        versions: _Versions = {}
        snapshot = self._engine.snapshot(key, now)
        for name, stored in {} if snapshot is None else snapshot.slices.items():
            versions[EndpointSlices.key, name] = stored.meta.resource_version
        for read in reads:
            version = self._version(read)
            if read.verb == "get" and version:
                versions[read.resource.key, read.name] = version
        return versions

    def _version(self, read: Write) -> str:
        if read.resource is Services:
            return self._services.get(f"{read.namespace}/{read.name}", "")
        if read.resource is Nodes:
            return self._nodes.get(read.name, "")
        pod = self._engine.pod(read.namespace, read.name)
        return "" if pod is None else pod.metadata.resource_version

    def on_done(self, done: Done, now: float) -> None:
        key = done.job.key
        request = done.job.token
        assert isinstance(request, _ConfirmationRequest), (
            f"job {key} has a foreign token {request!r}"
        )
        if done.error is not None:
            self._ledger.confirmations["failed"] += 1
            self._queue.add_rate_limited(key, now)
            self._queue.done(key, now)
            return
        fresh = _answers(done)
        cached = self._cached(key, done.job.writes, now)
        current = fresh.keys() == cached.keys() and all(
            version in (cached[which], request.versions.get(which))
            for which, version in fresh.items()
        )
        unrest = self._unrest.get(key) or _Unrest()
        if current and not unrest.everything:
            self._ledger.confirmations["confirmed"] += 1
            self._ledger.confirm(
                key,
                (difference for difference in request.due if difference.pod not in unrest.pods),
                now,
            )
            behind_s = 0.0
        else:
            self._ledger.confirmations["behind"] += 1
            behind_s = BEHIND_DELAY_S
        self._queue.forget(key)
        self._queue.done(key, now)
        self._recheck(key, now, behind_s=behind_s)

    def samples(self, now: float) -> tuple[Family, ...]:
        return (*self._metrics.families(), *super().samples(now))

    def check(self) -> None:
        self._engine.check()
        super().check()
        self._ledger.check()


def _get(resource: Resource, namespace: str, name: str) -> Write:
    return Write(
        verb="get", resource=resource, namespace=namespace, name=name, tolerate=("NotFound",)
    )


class _Listed(msgspec.Struct):
    items: list[Object]


def _answers(done: Done) -> _Versions:
    """Returns the versions that the server answered; absent objects, and slices that are being
    deleted, are missing.
    """
    versions: _Versions = {}
    for read, answer in zip(done.job.writes, done.results, strict=True):
        if read.verb == "list":
            for item in msgspec.json.decode(answer, type=_Listed).items:
                if item.metadata.deletion_timestamp is None:
                    versions[read.resource.key, item.metadata.name] = item.metadata.resource_version
        elif answer:
            versions[read.resource.key, read.name] = decode(
                answer, Object
            ).metadata.resource_version
    return versions


def _is_managed(observed: EndpointSlice | None) -> bool:
    return (
        observed is not None
        and (observed.metadata.labels or {}).get(LABEL_MANAGED_BY) == MANAGED_BY_CONTROLLER
    )


def _unlabelled_of(observed: EndpointSlice | None) -> str:
    """Returns the service that controls a slice without the managed-by label; "" for any other
    slice.
    """
    if observed is None or observed.metadata.deletion_timestamp is not None:
        return ""
    labels = observed.metadata.labels or {}
    name = labels.get(LABEL_SERVICE_NAME, "")
    owners = observed.metadata.owner_references or ()
    controlled = any(
        (o.kind, o.api_version, o.name, o.controller) == ("Service", "v1", name, True)
        for o in owners
    )
    return (
        f"{observed.metadata.namespace}/{name}"
        if controlled and not labels.get(LABEL_MANAGED_BY)
        else ""
    )
