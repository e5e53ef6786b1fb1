"""The Endpoints controller: Services and Pods in, Endpoints out (KEP-0752, "Endpoints Controller"; reference 3).

Policy and state are ``endpoints.EndpointsEngine``'s; this file decides *when* a Service is synced: at once after a
change of the Service or where traffic must leave an address, after the batch period for all else that its Pods do, a
second later for a foreign edit of its Endpoints, and with exponential back-off after a failure.

An object's end is this controller's, too: Endpoints have no ownerReference.  They go with their Service; and at the
start those without a Service go, a moment later, so that a Service that is just being made is not mistaken for none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sliceplane.api.core import Endpoints, Pod, Service
from sliceplane.api.errors import StatusError, is_namespace_terminating
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointsObjects, Pods, Services
from sliceplane.controllers.base import ControllerInfo, Done, EventNote, Job, Watched, Work, Write
from sliceplane.controllers.first_sync import FirstSync
from sliceplane.endpoints.engine import EndpointsEngine
from sliceplane.endpoints.truncate import capacity_at
from sliceplane.endpoints.writes import EndpointsPlan, EndpointsWrite
from sliceplane.informer.changes import Change
from sliceplane.kit.backoff import Backoff
from sliceplane.kit.samples import Family
from sliceplane.slices.engine import Touched
from sliceplane.slices.succession import SelectorChanges
from sliceplane.workqueue.queue import WorkQueue
from sliceplane.workqueue.samples import queue_families

MAX_RETRIES: Final = 15
RETRY_BACKOFF: Final = Backoff(base_s=0.005, cap_s=1000.0)
#: between a foreign edit of an object, or the event of our own write, and the look at it
EDIT_DELAY_S: Final = 1.0
#: between the finding that an object has no Service and its end
STRAY_DELAY_S: Final = 3.0
#: keys that are looked at before others in the process get their turn; at a start there are many, without a write
PLANS_PER_TURN: Final = 256
#: what an Event's message may hold, in characters
EVENT_NOTE_MAX: Final = 1024
EVENT_COMPONENT: Final = "endpoint-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointsConfig:
    """kube-controller-manager's flags of the same names, the gates, whose release decides what becomes of more
    than 1,000 addresses, and what becomes of objects whose Service loses its selector.

    Raises ``ValueError`` for what cannot work.
    """

    concurrent_endpoint_syncs: int = 5
    endpoint_updates_batch_period_s: float = 0.0
    selector_changes: SelectorChanges = SelectorChanges.HAND_OVER
    gates: Gates = field(default_factory=Gates)

    def __post_init__(self) -> None:
        if self.concurrent_endpoint_syncs < 1:
            raise ValueError(f"concurrent-endpoint-syncs must be positive, not {self.concurrent_endpoint_syncs}")


class EndpointsController:
    """A ``controllers.base.Controller``.  Jobs are keyed ``namespace/name`` of the Service, and of its Endpoints."""

    def __init__(self, config: EndpointsConfig | None = None, first_sync: FirstSync | None = None) -> None:
        self._config = config or EndpointsConfig()
        self._engine = EndpointsEngine(capacity_at(self._config.gates.release), self._config.selector_changes)
        self._queue: WorkQueue[str] = WorkQueue(backoff=RETRY_BACKOFF)
        self._notes: list[EventNote] = []
        self._synced = False
        #: when work was taken last, and whether more was due then
        self._turn, self._more = 0.0, False
        self._first_sync = first_sync or FirstSync()
        self._first_sync.begin()
        #: keys whose first turn has not ended
        self._unvisited: set[str] = set()
        self._info = ControllerInfo(
            name="endpoints-controller",
            aliases=("endpoint", "endpoints"),
            watches=(Watched(Services), Watched(Pods), Watched(EndpointsObjects)),
            queue="endpoint",
        )

    @property
    def info(self) -> ControllerInfo:
        return self._info

    # -- events -----------------------------------------------------------------------------------------

    def on_change(self, change: Change[Object], now: float) -> None:
        old, new = change.old, change.new
        match change.object:
            case Service() as service:
                self._on_service(service, gone=new is None, now=now)
            case Pod():
                assert old is None or isinstance(old, Pod), f"{old!r} became a Pod"
                assert new is None or isinstance(new, Pod), f"a Pod became {new!r}"
                self._add_touched(self._engine.on_pod(old, new), now)
            case Endpoints():
                assert old is None or isinstance(old, Endpoints), f"{old!r} became Endpoints"
                assert new is None or isinstance(new, Endpoints), f"Endpoints became {new!r}"
                for key in self._engine.on_endpoints(old, new):
                    self._add(key, STRAY_DELAY_S if self._engine.shape(key) is None else EDIT_DELAY_S, now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_service(self, service: Service, *, gone: bool, now: float) -> None:
        if gone:
            self._engine.on_service_gone(service.metadata.namespace, service.metadata.name)
            self._add(service.metadata.key, 0.0, now)
        else:
            self._add(self._engine.on_service(service), 0.0, now)

    def _add_touched(self, touched: Touched, now: float) -> None:
        """An address that traffic must leave is not waited with; the batch so far goes with it."""
        for key in touched.urgent:
            self._add(key, 0.0, now)
        for key in touched.later:
            self._add(key, self._config.endpoint_updates_batch_period_s, now)

    def _add(self, key: str, delay_s: float, now: float) -> None:
        if self._synced:
            self._queue.add_after(key, delay_s, now)
        else:
            # before the caches are filled there is nothing to batch: every Service will be synced once
            self._unvisited.add(key)
            self._queue.add(key, now)

    def on_synced(self, now: float) -> None:
        self._synced = True
        for key in self._engine.condemn_strays():
            self._queue.drop(key)
            self._unvisited.discard(key)
            self._queue.add_after(key, STRAY_DELAY_S, now)
        self._note_first_sync()

    # -- work -------------------------------------------------------------------------------------------

    def take_work(self, now: float, max_jobs: int) -> Work:
        if not self._synced:
            return Work()
        jobs: list[Job] = []
        self._turn, plans = now, 0
        limit = self._config.concurrent_endpoint_syncs
        while len(jobs) < max_jobs and self._queue.in_progress < limit and plans < PLANS_PER_TURN:
            key = self._queue.get(now)
            if key is None:
                break
            plans += 1
            plan = self._engine.plan(key, now)
            if plan.write is not None:
                jobs.append(Job(key=key, writes=(_to_write(plan.write),), token=plan))
            else:
                self._end(key, failed=plan.stale, now=now)
        self._more = plans == PLANS_PER_TURN
        notes, self._notes = tuple(self._notes), []
        return Work(jobs=tuple(jobs), notes=notes)

    def on_done(self, done: Done, now: float) -> None:
        plan = done.job.token
        assert isinstance(plan, EndpointsPlan), f"job {done.job.key} has a foreign token {plan!r}"
        assert plan.write is not None, f"job {done.job.key} has no write"
        error = done.error
        self._engine.finish(done.job.key, plan, done.results[0] if done.results else b"", error, now)
        if error is not None and plan.write.verb == "create" and is_namespace_terminating(error):
            error = None  # its namespace is going, and so will it
        if error is not None:
            self._report(done.job.key, plan.write, error)
        self._end(done.job.key, failed=error is not None, now=now)

    def _end(self, key: str, *, failed: bool, now: float) -> None:
        """A sync is over.  After 15 failures in a row the next event starts afresh (reference 1.2)."""
        if failed and self._engine.is_wanted(key) and self._queue.num_requeues(key) < MAX_RETRIES:
            self._queue.add_rate_limited(key, now)
        else:
            self._queue.forget(key)
        self._queue.done(key, now)
        deadline = self._engine.deadline(key)
        if deadline is not None and deadline > now:
            self._queue.add_after(key, deadline - now, now)
        if self._unvisited:
            self._unvisited.discard(key)
            self._note_first_sync()

    def _note_first_sync(self) -> None:
        """A Service that cannot be written counts as visited: it must not hold up all others."""
        if not self._unvisited:
            self._first_sync.end()

    def next_deadline(self) -> float | None:
        if self._more:
            return self._turn
        return self._queue.next_deadline() if self._synced else None

    def samples(self, now: float) -> tuple[Family, ...]:
        return queue_families("endpoint", self._queue, now)

    # -- events for people ------------------------------------------------------------------------------

    def _report(self, key: str, write: EndpointsWrite, error: StatusError) -> None:
        if error.reason in ("Conflict", "AlreadyExists") or write.verb == "delete":
            return  # somebody else was first; the retry will build on what they wrote
        if write.verb == "create":
            reason, message = "FailedToCreateEndpoint", f"Failed to create endpoint for service {key}: {error.message}"
        else:
            reason, message = "FailedToUpdateEndpoint", f"Failed to update endpoint {key}: {error.message}"
        endpoints = Object(
            api_version=EndpointsObjects.api_version,
            kind=EndpointsObjects.kind,
            metadata=ObjectMeta(namespace=write.namespace, name=write.name, uid=write.uid),
        )
        self._notes.append(
            EventNote(
                regarding=endpoints,
                regarding_resource=EndpointsObjects,
                type="Warning",
                reason=reason,
                note=message[:EVENT_NOTE_MAX],
                component=EVENT_COMPONENT,
            )
        )

    def check(self) -> None:
        self._engine.check()
        self._queue.check()
        assert self._first_sync.over or not self._synced or self._unvisited, (
            "the first sync is over and nobody was told"
        )


def _to_write(write: EndpointsWrite) -> Write:
    return Write(
        verb=write.verb,
        resource=EndpointsObjects,
        namespace=write.namespace,
        name=write.name if write.verb != "create" else "",
        body=write.body,
        tolerate=("NotFound",) if write.verb == "delete" else (),
    )
