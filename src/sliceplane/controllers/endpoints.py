"""The Endpoints controller: Services and Pods in, Endpoints out (KEP-0752, "Endpoints Controller").

Policy and state belong to ``slices.endpoints.engine.EndpointsEngine``; this module decides *when* a
Service is synced. A change of the Service, or one after which an address must stop receiving
traffic, is synced at once. Other changes of its Pods wait for the batch period, a foreign edit of
its Endpoints for a second. A failure is retried with exponential back-off.

This controller also deletes the objects, since Endpoints have no ownerReference: together with
their Service, and, shortly after the start, those without a Service. The delay protects Endpoints
whose Service is just being created.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.core import Endpoints, Pod, Service
from sliceplane.api.errors import StatusError
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointsObjects, Pods, Services
from sliceplane.controllers.service_syncs import (
    FirstSync,
    SyncController,
    actionable_error,
    note_about,
    to_write,
)
from sliceplane.kit.delays import Backoff
from sliceplane.slices.endpoints.engine import EndpointsEngine
from sliceplane.slices.endpoints.members import EndpointsPlan, EndpointsWrite
from sliceplane.slices.endpoints.subsets import capacity_at
from sliceplane.slices.succession import SelectorChanges
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Job, Selection

RETRY_BACKOFF: Final = Backoff(base_s=0.005, cap_s=1000.0)
#: seconds between a foreign edit of an object, or the event of our own write, and its sync
EDIT_DELAY_S: Final = 1.0
#: seconds between the detection of an object without a Service and its deletion
STRAY_DELAY_S: Final = 3.0
EVENT_COMPONENT: Final = "endpoint-controller"


class EndpointsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of kube-controller-manager of the same names, the feature gates, and the treatment
    of objects whose Service loses its selector. The release of the gates decides the treatment of
    more than 1,000 addresses.

    Raises ``ValueError`` for invalid values.
    """

    concurrent_endpoint_syncs: int = 5
    endpoint_updates_batch_period_s: float = 0.0
    selector_changes: SelectorChanges = SelectorChanges.HAND_OVER
    gates: Gates = msgspec.field(default_factory=Gates)

    def __post_init__(self) -> None:
        if self.concurrent_endpoint_syncs < 1:
            raise ValueError(
                f"concurrent-endpoint-syncs must be positive, not {self.concurrent_endpoint_syncs}"
            )


class EndpointsController(SyncController):
    """The controller. Jobs are keyed ``namespace/name`` of the Service, and of its Endpoints."""

    def __init__(
        self, config: EndpointsConfig | None = None, first_sync: FirstSync | None = None
    ) -> None:
        self._config = config or EndpointsConfig()
        super().__init__(
            ControllerInfo(
                name="endpoints-controller",
                aliases=("endpoint", "endpoints"),
                watches=(Selection(Services), Selection(Pods), Selection(EndpointsObjects)),
                queue="endpoint",
            ),
            max_in_progress=self._config.concurrent_endpoint_syncs,
            backoff=RETRY_BACKOFF,
        )
        self._engine = EndpointsEngine(
            capacity_at(self._config.gates.release), self._config.selector_changes
        )
        self._first_sync = first_sync or FirstSync()
        self._first_sync.begin()
        #: keys whose first sync has not ended
        self._unvisited: set[str] = set()

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Service() as service:
                self._on_service(service, gone=change.new is None, now=now)
            case Pod():
                touched = self._engine.on_pod(*change.typed(Pod))
                self.add_touched(touched, self._config.endpoint_updates_batch_period_s, now)
            case Endpoints():
                for key in self._engine.on_endpoints(*change.typed(Endpoints)):
                    self.add(
                        (key,),
                        STRAY_DELAY_S if self._engine.shape(key) is None else EDIT_DELAY_S,
                        now,
                    )
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_service(self, service: Service, *, gone: bool, now: float) -> None:
        if gone:
            self._engine.on_service_gone(service.metadata.namespace, service.metadata.name)
            self.add((service.metadata.key,), 0.0, now)
        else:
            self.add((self._engine.on_service(service),), 0.0, now)

    def add(self, keys: Iterable[str], delay_s: float, now: float) -> None:
        if not self._synced:
            keys = tuple(keys)
            self._unvisited.update(keys)
        super().add(keys, delay_s, now)

    def on_synced(self, now: float) -> None:
        super().on_synced(now)
        for key in self._engine.mark_strays_for_deletion():
            self._queue.drop(key)
            self._unvisited.discard(key)
            self.add((key,), STRAY_DELAY_S, now)
        self._note_first_sync()

    # -- work

    def job(self, key: str, now: float) -> Job | None:
        plan = self._engine.plan(key, now)
        if plan.write is not None:
            return Job(key=key, writes=(to_write(EndpointsObjects, plan.write),), token=plan)
        self._end(key, failed=plan.stale, now=now)
        return None

    def on_done(self, done: Done, now: float) -> None:
        plan = done.job.token
        assert isinstance(plan, EndpointsPlan), f"job {done.job.key} has a foreign token {plan!r}"
        assert plan.write is not None, f"job {done.job.key} has no write"
        self._engine.finish(
            done.job.key, plan, done.results[0] if done.results else b"", done.error, now
        )
        error = actionable_error(done)
        if error is not None:
            self._report(done.job.key, plan.write, error)
        self._end(done.job.key, failed=error is not None, now=now)

    def _end(self, key: str, *, failed: bool, now: float) -> None:
        failed = failed and self._engine.needs_retry(key)
        self.end(key, failed=failed, deadline=self._engine.deadline(key), now=now)
        if self._unvisited:
            self._unvisited.discard(key)
            self._note_first_sync()

    def _note_first_sync(self) -> None:
        """Ends the first sync if all keys were visited. A Service that cannot be written counts as
        visited: it must not block others.
        """
        if not self._unvisited:
            self._first_sync.end()

    # -- Events

    def _report(self, key: str, write: EndpointsWrite, error: StatusError) -> None:
        if error.reason in ("Conflict", "AlreadyExists") or write.verb == "delete":
            return  # another writer was first; the retry builds on its version
        if write.verb == "create":
            reason = "FailedToCreateEndpoint"
            message = f"Failed to create endpoint for service {key}: {error.message}"
        else:
            reason = "FailedToUpdateEndpoint"
            message = f"Failed to update endpoint {key}: {error.message}"
        meta = ObjectMeta(namespace=write.namespace, name=write.name, uid=write.uid)
        self._notes.append(
            note_about(
                EndpointsObjects, meta, component=EVENT_COMPONENT, reason=reason, message=message
            )
        )

    def check(self) -> None:
        super().check()
        self._engine.check()
        assert self._first_sync.over or not self._synced or self._unvisited, (
            "the first sync is over and was not reported"
        )
