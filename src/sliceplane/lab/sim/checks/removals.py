"""Bounds how long slices may show a Pod that takes no traffic.

A removal that the Pod itself causes (it is deleted, has ended, its containers or gates are not
ready) is *reported*, and must never be retained. A removal that follows only from the silence of
its Node is *inferred*: the guard may retain the endpoint within a bound. A Service may publish Pods
that are not ready; then the bound starts when it stops doing so, or is created again. A test that
knows which Pods are alive, whatever the API server says, names them in ``alive``: a slice must not
lose those.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.codec import decode
from sliceplane.api.core import Pod, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Pods, Services
from sliceplane.consume.removal_hold import RETAIN_S, STEP_S, STEP_SHARE
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.checks.view import service_of
from sliceplane.lab.sim.scheduler import Scheduler
from sliceplane.lab.sim.server import Server
from sliceplane.server.store.types import EventType, StoreEvent
from sliceplane.slices import oracle
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.removing.guard import GATHER_S
from sliceplane.slices.removing.losses import CONFIRM_BOUND_S

#: seconds from the loss of endpoints until the last retained one is removed
RETAINED_MAX_S: Final = CONFIRM_BOUND_S + GATHER_S + RETAIN_S + STEP_S / STEP_SHARE


class Removals:
    """Owned by one simulation; a listener of its server. ``reported_s`` and ``inferred_s``: bounds,
    see ``check``.
    """

    def __init__(
        self, server: Server, scheduler: Scheduler, *, reported_s: float, inferred_s: float
    ) -> None:
        self._server = server
        self._scheduler = scheduler
        self.reported_s = reported_s
        self.inferred_s = inferred_s
        #: since when a Pod is not ready, and whether it reported that, by uid
        self._not_ready: dict[str, tuple[float, bool]] = {}
        #: since when a Service publishes only ready Pods, by Service; absent if that was always so
        self._strict_since: dict[str, float] = {}
        #: names of Pods that are alive, whatever the API server stores
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
        """Raises ``Broken`` if a Pod is still ready in a slice more than ``reported_s`` after it
        reported its end, or ``inferred_s`` after its end was inferred.
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
        """Returns name and uid of every Pod that is ready in a slice, except in Services that
        publish not ready Pods; and since when its Service publishes only ready ones.
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
    """Returns True if the containers and all readiness gates of the Pod are ready."""
    required = {
        "ContainersReady",
        *(gate.condition_type for gate in pod.spec.readiness_gates or ()),
    }
    return required <= {
        condition.type for condition in pod.status.conditions or () if condition.status == "True"
    }
