"""Bounds how long slices may show a Pod that takes no traffic.

What a Pod says itself (it is deleted, over, its containers or gates are not ready) is *reported*, and
never held. What the silence of its Node alone says is *inferred*: a guard may hold it, within a
bound. A Service that publishes Pods which are not ready shows them rightly, so its slices have as
long from the moment when it no longer does, or is made anew. Who knows better than the API server
which Pods are alive names them: a slice must not lose those.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.codec import decode
from sliceplane.api.core import Pod, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Pods, Services
from sliceplane.consume.removal_hold import HOLD_S, STEP_S, STEP_SHARE
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.checks.view import service_of
from sliceplane.lab.sim.scheduler import Scheduler
from sliceplane.lab.sim.server import Server
from sliceplane.server.store.types import EventType, StoreEvent
from sliceplane.slices import oracle
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.removing.guard import GATHER_S
from sliceplane.slices.removing.losses import CONFIRM_BOUND_S

#: from the loss of an endpoint until the last one that is held goes
RETAINED_MAX_S: Final = CONFIRM_BOUND_S + GATHER_S + HOLD_S + STEP_S / STEP_SHARE


class Removals:
    """Owned by one simulation; a listener of its server.  ``reported_s`` and ``inferred_s``: see
    ``check``.
    """

    def __init__(
        self, server: Server, scheduler: Scheduler, *, reported_s: float, inferred_s: float
    ) -> None:
        self._server = server
        self._scheduler = scheduler
        self.reported_s = reported_s
        self.inferred_s = inferred_s
        #: uid of a Pod that is not ready -> since when, and whether that was told
        self._not_ready: dict[str, tuple[float, bool]] = {}
        #: Service -> since when it shows Pods only while they are ready; where that was always so,
        #: it need not be here
        self._strict_since: dict[str, float] = {}
        #: names of Pods that are alive, whatever the API server says
        self.alive: set[str] = set()

    def on_commit(self, event: StoreEvent) -> None:
        """Raises ``Broken``."""
        if event.record.key.resource == Pods.storage_key:
            self._on_pod(event)
        elif event.record.key.resource == Services.storage_key:
            self._on_service(event)
        elif event.record.key.resource == EndpointSlices.storage_key and self.alive:
            self.check_alive()

    def _on_pod(self, event: StoreEvent) -> None:
        pod = decode(event.record.body, Pod)
        facts = PodFacts(pod)
        uid = pod.metadata.uid
        if (
            event.type is not EventType.DELETED
            and facts.serving
            and not facts.terminating
            and not facts.excluded
        ):
            self._not_ready.pop(uid, None)
            return
        reported = (
            event.type is EventType.DELETED
            or facts.terminating
            or facts.excluded
            or not _containers_are_ready(pod)
        )
        previous = self._not_ready.get(uid)
        if previous is None or (reported and not previous[1]):
            self._not_ready[uid] = (self._scheduler.now, reported)

    def _on_service(self, event: StoreEvent) -> None:
        service = decode(event.record.body, Service)
        if event.type is not EventType.DELETED and _is_strict(service):
            self._strict_since.setdefault(service.metadata.key, self._scheduler.now)
        else:
            self._strict_since.pop(service.metadata.key, None)

    def check_alive(self) -> None:
        names = {name for name, _, _ in self.published()}
        lost = sorted(set(self.alive) - names)
        if lost:
            raise Broken(
                "no-lost-endpoint",
                lost[0],
                f"{len(lost)} endpoints are missing that are alive: {lost[:4]}",
            )

    def check(self) -> None:
        """Raises ``Broken`` if a Pod is ready in a slice that reported its end ``reported_s`` ago, or
        whose end was inferred ``inferred_s`` ago. Raises ``Broken``.
        """
        now = self._scheduler.now
        for name, uid, strict_since in self.published():
            not_ready_since, reported = self._not_ready.get(uid, (now, False))
            since = max(not_ready_since, strict_since)
            bound = self.reported_s if reported else self.inferred_s
            if now > since + bound:
                invariant = "told-is-never-held" if reported else "held-within-bound"
                raise Broken(
                    invariant,
                    name,
                    f"{name} is an endpoint {now - since:.1f} s after it left, not {bound:g}",
                )

    def published(self) -> set[tuple[str, str, float]]:
        """Name and uid of every Pod that is ready in a slice, but for Services that publish those
        that are not; and since when its Service is none of those.
        """
        strict = {
            service.metadata.key: self._strict_since.get(service.metadata.key, 0.0)
            for service in (
                decode(record.body, Service) for record in self._server.records(Services)
            )
            if _is_strict(service)
        }
        return {
            (endpoint.target_ref.name, endpoint.target_ref.uid, strict[key])
            for observed in (
                decode(record.body, EndpointSlice)
                for record in self._server.records(EndpointSlices)
            )
            if (key := service_of(observed)) in strict
            for endpoint in observed.endpoints or ()
            if endpoint.conditions.ready and endpoint.target_ref is not None
        }


def _is_strict(service: Service) -> bool:
    return (
        oracle.is_active(service)
        and service.metadata.deletion_timestamp is None
        and not service.spec.publish_not_ready_addresses
    )


def _containers_are_ready(pod: Pod) -> bool:
    """And what else has a say in whether it is ready."""
    required = {
        "ContainersReady",
        *(gate.condition_type for gate in pod.spec.readiness_gates or ()),
    }
    return required <= {
        condition.type for condition in pod.status.conditions or () if condition.status == "True"
    }
