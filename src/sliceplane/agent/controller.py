"""The agent: keeps its Lease and the slices of its registrations in the desired state while it
runs.

It is a controller like the others. Its inputs are objects of the cluster (each watched by name,
because its rights cover only those names) and the results of checks (``Health``). All objects of
one namespace are one key, and are written in order: **the Lease first, the slices second**, because
the judge (``agent.endpoints_controller``) withdraws the slices of a Lease that it considers silent.

It is level-triggered: every renewal compares the stored with the desired objects and applies the
differences with force, because the judge is the only other writer of these fields. Objects that
were lost, edited by hand, or deleted with their namespace are restored by the next renewal.

A restart does not make endpoints flap: until its checks have a result, an agent keeps the state
that an earlier start on the same host stored, if address and ports are the same.

**Shutdown**: ``on_drain`` makes every endpoint terminating and serving. When the shell has seen
consumers apply that, ``on_stop`` deletes the slices, then the Lease.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from sliceplane.agent.tenure import SPREAD, AgentConfig, Tenure, decode_answer
from sliceplane.api.codec import encode
from sliceplane.api.core import Lease, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Document, Object, ObjectMeta, is_newer
from sliceplane.api.scheme import EndpointSlices, Leases, Services
from sliceplane.consume.agents.checks import CheckProbe, CheckView, Health, Kind
from sliceplane.consume.agents.registration import (
    ANNOTATION_REFUSED,
    ANNOTATION_STATE,
    Registration,
    State,
    lease_name,
    why_unreached,
)
from sliceplane.kit.delays import Backoff
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write, deletion
from sliceplane.watch.controller.keyed import KeyedController

#: an unreachable API server is retried at least this often, so that the agent renews soon after it
#: returns
BACKOFF: Final = Backoff(base_s=0.2, cap_s=5.0, jitter=0.2)
#: seconds until an endpoint that the grant does not allow is applied again: the grant may have
#: changed
REFUSED_RETRY_S: Final = 60.0
#: maximum deletions of one plan; a hostile API server may list slices without end
DELETIONS_MAX: Final = 32
Phase = Literal["serving", "draining", "stopping"]


class RegistrationView(NamedTuple):
    """The state of one registration for users. ``problem``: a sentence, "" if nothing is wrong."""

    registration: Registration
    state: State
    stored: bool
    problem: str
    checks: tuple[CheckView, ...]


class AgentView(NamedTuple):
    """``renewed_at``: when the last confirmed renewal was sent, by namespace. ``refusal``: a
    sentence, if another host owns the name.
    """

    phase: Phase
    refusal: str
    renewed_at: dict[str, float]
    registrations: tuple[RegistrationView, ...]


class AgentController(KeyedController):
    """Keys are namespaces. Owned by one shell, which also feeds check results and requests views."""

    def __init__(
        self,
        config: AgentConfig,
        registrations: tuple[Registration, ...],
        rng: Rng,
        now: float,
        *,
        earlier: AgentController | None = None,
    ) -> None:
        """*earlier*: the agent with the previous registrations. Equal registrations keep their
        state; slices of removed ones are deleted.
        """
        self._config = config
        self._rng = rng
        self.registrations = registrations
        previous = earlier.registrations if earlier is not None else ()
        namespaces = dict.fromkeys(
            registration.namespace for registration in (*registrations, *previous)
        )
        self._spaces = {namespace: Tenure(config, namespace) for namespace in namespaces}
        self._services: dict[str, Service] = {}
        self._slices: dict[str, EndpointSlice] = {}
        #: the body last applied to a slice, and the resulting version. If the stored slice differs
        #: even so (another writer owns a field), it is not applied again before its next change
        self._applied: dict[str, tuple[bytes, str]] = {}
        #: when to retry slices that were emptied because they do not fit the grant
        self._retry_at: dict[str, float] = {}
        self._phase: Phase = "serving"
        self._health: dict[str, Health] = {}
        for registration in registrations:
            key = registration.key
            if earlier is not None and registration in previous:
                self._health[key] = earlier._health[key]
                self._health[key].take_over()
            else:
                self._health[key] = Health(key, registration.checks, now)
        #: the last verdict of each registration's checks
        self._verdicts: dict[str, bool | None] = {}
        assert len(self._health) == len(registrations), "two registrations of one Service"
        super().__init__(
            ControllerInfo(
                name="external-agent", watches=_watches(config.name, (*registrations, *previous))
            ),
            backoff=BACKOFF,
        )

    # -- inputs of the shell

    def take_probes(self, now: float) -> tuple[CheckProbe, ...]:
        """See ``Health.take_probes``; call it at ``next_check``."""
        for key in self._health:
            self._update_verdict(key, now)  # a verdict may also change by time alone
        return tuple(probe for health in self._health.values() for probe in health.take_probes(now))

    def on_result(self, probe: CheckProbe, passed: bool, text: str, now: float) -> None:
        self._health[probe.key].on_result(probe, passed, text, now)
        self._update_verdict(probe.key, now)

    def on_report(self, key: str, kind: Kind, passed: bool, text: str, now: float) -> bool:
        """See ``Health.on_status``; *key* is ``namespace/name`` of the Service."""
        has_check = self._health[key].on_status(kind, passed, text, now)
        self._update_verdict(key, now)
        return has_check

    def _update_verdict(self, key: str, now: float) -> None:
        well = self._health[key].is_healthy(now)
        if self._verdicts.get(key) is not well:
            self._verdicts[key] = well
            self.enqueue(key.partition("/")[0], now)

    def next_check(self) -> float | None:
        """Returns when ``take_probes`` or a verdict may change although no event arrives."""
        dues = [
            due for health in self._health.values() if (due := health.next_deadline()) is not None
        ]
        return min(dues, default=None)

    def on_resume(self, now: float) -> None:
        """Invalidates all results after a sleep of the machine."""
        for health in self._health.values():
            health.renew(now)
        for namespace, tenure in self._spaces.items():
            tenure.renew_at = now
            self.enqueue(namespace, now)

    def on_addresses(self, addresses: tuple[str, ...], now: float) -> None:
        """Changes the machine's addresses; their families stay the same. Results for the old
        addresses are dropped.
        """
        self.registrations = tuple(
            replace(registration, addresses=addresses) for registration in self.registrations
        )
        self._retry_at = dict.fromkeys(self._retry_at, now)
        self.on_resume(now)

    def on_drain(self, now: float, *, drain: bool = True) -> None:
        assert self._phase != "stopping", "an agent that stops serves no more"
        self._phase = "draining" if drain else "serving"
        self._enqueue_all(now)

    def on_stop(self, now: float) -> None:
        self._phase = "stopping"
        self._enqueue_all(now)

    @property
    def is_deregistered(self) -> bool:
        """Returns True if, after ``on_stop``, the cache has no object of this agent any more."""
        ours = {namespace for namespace, space in self._spaces.items() if not space.refused_by}
        return (
            self._phase == "stopping"
            and all(self._spaces[namespace].lease is None for namespace in ours)
            and all(stored.metadata.namespace not in ours for stored in self._slices.values())
        )

    def drained_revisions(self) -> dict[str, int]:
        """Returns the slices that are stored as draining, or refused: ``namespace/name`` to
        resource version.
        """
        return {
            key: stored.metadata.revision
            for key, stored in self._slices.items()
            if _state_of(stored) == "draining" or _is_refused(stored)
        }

    def _enqueue_all(self, now: float) -> None:
        for namespace in self._spaces:
            self.enqueue(namespace, now)

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        meta = change.object.metadata
        if meta.namespace not in self._spaces:
            return  # a server that honours selectors never sends it
        match change.object:
            case Lease():
                self._spaces[meta.namespace].on_lease_change(*change.typed(Lease), now)
            case EndpointSlice():
                self._on_slice(meta, change.typed(EndpointSlice)[1])
            case Service():
                new = change.typed(Service)[1]
                self._services.pop(meta.key, None)
                if new is not None:
                    self._services[meta.key] = new
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")
        self.enqueue(meta.namespace, now)

    def _on_slice(self, meta: ObjectMeta, new: EndpointSlice | None) -> None:
        if new is None:
            self._slices.pop(meta.key, None)
            return
        cached = self._slices.get(meta.key)
        if cached is None or cached.metadata.uid != meta.uid or is_newer(meta, cached.metadata):
            self._slices[meta.key] = new

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        tenure = self._spaces[key]
        if now < tenure.paused_until:
            self.enqueue_after(key, tenure.paused_until - now, now)
            return ()
        if tenure.read_first:
            return (tenure.read(),)
        ownership = tenure.ownership(now)
        if ownership in ("watched", "refused"):
            self.enqueue_after(key, max(0.0, tenure.silent_at - now), now)
            return ()
        slices = self._slice_writes(key, tenure, now) if ownership == "ours" else ()
        if self._phase == "stopping" or all(
            registration.namespace != key for registration in self.registrations
        ):
            is_last = ownership == "ours" and len(slices) < DELETIONS_MAX
            ours = tenure.lease if is_last else None
            return (*slices, deletion(Leases, ours.metadata)) if ours is not None else slices
        # A slice write implies that the agent is alive, so the Lease must be fresh as well: the
        # judge may already be counting.
        if ownership == "free" or tenure.is_due(now) or (slices and tenure.is_half_over(now)):
            return (tenure.renewal(ownership, now), *slices)
        self.enqueue_after(key, tenure.renew_at - now, now)
        return slices

    def _slice_writes(self, namespace: str, tenure: Tenure, now: float) -> tuple[Write, ...]:
        assert tenure.lease is not None, "slices belong to a Lease"
        writes = []
        desired_names = set()
        for registration in self.registrations:
            service = self._services.get(registration.key)
            if registration.namespace != namespace or service is None or self._phase == "stopping":
                continue
            for name, family, _ in registration.slices:
                stored = self._slices.get(f"{namespace}/{name}")
                desired_names.add(name)
                if stored is not None and self._is_backing_off(namespace, stored, now):
                    continue
                document = registration.document(
                    family,
                    self._state(registration, stored, now),
                    lease_uid=tenure.lease.metadata.uid,
                    hint=service.spec.traffic_distribution is not None,
                    publish_not_ready=service.spec.publish_not_ready_addresses,
                )
                body = encode(document)
                if stored is None or (
                    not _is_stored(document, stored)
                    and self._applied.get(stored.metadata.key)
                    != (body, stored.metadata.resource_version)
                ):
                    writes.append(
                        Write(
                            verb="patch",
                            resource=EndpointSlices,
                            namespace=namespace,
                            name=name,
                            body=body,
                            patch_type="apply",
                            force=True,
                        )
                    )
        obsolete = (
            deletion(EndpointSlices, stored.metadata)
            for stored in self._slices.values()
            if stored.metadata.namespace == namespace and stored.metadata.name not in desired_names
        )
        # The events of these deletions lead to the next plan, which deletes the next ones.
        return (*writes, *islice(obsolete, DELETIONS_MAX))

    def _is_backing_off(self, namespace: str, stored: EndpointSlice, now: float) -> bool:
        """Returns True while a slice that the controller emptied waits for its retry."""
        key = stored.metadata.key
        if not _is_refused(stored) or stored.endpoints:
            if not _is_refused(stored):
                self._retry_at.pop(key, None)
            return False
        is_own = key in self._applied
        retry_at = self._retry_at.setdefault(key, now + REFUSED_RETRY_S if is_own else now)
        if now < retry_at:
            self.enqueue_after(namespace, retry_at - now, now)
            return True
        self._retry_at[key] = now + REFUSED_RETRY_S
        return False

    def _state(self, registration: Registration, stored: EndpointSlice | None, now: float) -> State:
        if stored is not None and _is_refused(stored):
            return "failing"  # even while draining, it has no endpoint to serve
        if self._phase == "draining":
            return "draining"
        well = self._health[registration.key].is_healthy(now)
        if well is None:
            return self._previous_state(registration, stored)
        return "passing" if well else "failing"

    def _previous_state(self, registration: Registration, stored: EndpointSlice | None) -> State:
        """Returns the state that an earlier start of this host stored; it counts until the first
        check has a result.
        """
        owns_process = any(check.kind in ("process", "notify") for check in registration.checks)
        if stored is None or owns_process or self._spaces[registration.namespace].is_new:
            return "unknown"
        state = _state_of(stored)
        ports = tuple((port.name or "", port.port) for port in stored.ports or ())
        addresses = tuple(
            address for endpoint in stored.endpoints or () for address in endpoint.addresses
        )
        same = ports == tuple((port.name, port.port) for port in registration.ports)
        if not same or not set(addresses) <= set(registration.addresses):
            return "unknown"
        return "passing" if state == "passing" else "failing" if state == "failing" else "unknown"

    # -- results

    def finished(self, done: Done, now: float) -> None:
        tenure = self._spaces[done.job.key]
        tenure.error = ""
        for write, answer in zip(done.job.writes, done.results, strict=False):
            if write.resource is Leases:
                tenure.on_answer(write, answer, self._rng.uniform(1 - SPREAD, 1 + SPREAD), now)
            elif write.verb == "delete":
                self._slices.pop(f"{write.namespace}/{write.name}", None)
            elif (stored := decode_answer(write, answer, EndpointSlice)) is not None:
                assert write.body is not None, "an apply without a document"
                self._applied[stored.metadata.key] = (write.body, stored.metadata.resource_version)
                self._on_slice(stored.metadata, stored)
            else:
                tenure.on_wrong_answer(write, now)
        if done.error is not None:
            failed = done.job.writes[len(done.results)]
            tenure.error = (
                f"{failed.verb} of {failed.resource.singular} {failed.name}: {done.error.message}"
            )
            tenure.read_first |= failed.resource is Leases and done.error.reason in (
                "Conflict",
                "NotFound",
            )
            # the queue retries with back-off, which spares an unreachable server
            return
        self.enqueue(done.job.key, now)

    def view(self, now: float) -> AgentView:
        return AgentView(
            self._phase,
            next((text for space in self._spaces.values() if (text := self._refusal(space))), ""),
            {
                namespace: space.renewed_at
                for namespace, space in self._spaces.items()
                if space.renewed_at is not None
            },
            tuple(
                self._registration_view(registration, now) for registration in self.registrations
            ),
        )

    def _refusal(self, space: Tenure) -> str:
        holder = space.refused_by
        return (
            f"another host has the name {self._config.name!r} and lives: {holder}" if holder else ""
        )

    def _registration_view(self, registration: Registration, now: float) -> RegistrationView:
        stored = [
            stored_slice
            for name, _, _ in registration.slices
            if (stored_slice := self._slices.get(f"{registration.namespace}/{name}")) is not None
        ]
        state = self._state(registration, stored[0] if stored else None, now)
        is_stored = len(stored) == len(registration.slices) and all(
            _state_of(each) == state for each in stored
        )
        checks = self._health[registration.key].views()
        return RegistrationView(
            registration, state, is_stored, self._problem(registration, stored, now), checks
        )

    def _problem(self, registration: Registration, stored: list[EndpointSlice], now: float) -> str:
        space = self._spaces[registration.namespace]
        if space.refused_by:
            return self._refusal(space)
        refused = [
            text
            for stored_slice in stored
            if (text := (stored_slice.metadata.annotations or {}).get(ANNOTATION_REFUSED))
        ]
        if refused:
            return refused[0]
        if space.error or not self._synced:
            return space.error
        key = registration.key
        unreached = why_unreached(
            key, (port.name for port in registration.ports), self._services.get(key)
        )
        if unreached:
            return unreached
        suspended_s = self._health[registration.key].get_backoff_s(now)
        return (
            f"it failed so often that it is believed again in {suspended_s:.0f} s"
            if suspended_s
            else ""
        )

    def check(self) -> None:
        super().check()
        for health in self._health.values():
            health.check()


def _watches(agent: str, registrations: tuple[Registration, ...]) -> tuple[Selection, ...]:
    """Watches each object by its name, because the agent's rights are bound to names."""
    selections: dict[Selection, None] = {}
    for registration in registrations:
        space = registration.namespace
        selections[
            Selection(Leases, space, field_selector=f"metadata.name={lease_name(agent)}")
        ] = None
        selections[
            Selection(Services, space, field_selector=f"metadata.name={registration.service}")
        ] = None
        for name, _, _ in registration.slices:
            selections[Selection(EndpointSlices, space, field_selector=f"metadata.name={name}")] = (
                None
            )
    return tuple(selections)


def _state_of(stored: EndpointSlice) -> str:
    return (stored.metadata.annotations or {}).get(ANNOTATION_STATE, "")


def _is_refused(stored: EndpointSlice) -> bool:
    return ANNOTATION_REFUSED in (stored.metadata.annotations or {})


def _is_stored(document: Document, stored: EndpointSlice) -> bool:
    """Returns True if the stored object has every field that would be applied."""
    desired = msgspec.convert(document, EndpointSlice)
    meta = stored.metadata
    for ours, theirs in (
        (desired.metadata.labels, meta.labels),
        (desired.metadata.annotations, meta.annotations),
    ):
        if not (ours or {}).items() <= (theirs or {}).items():
            return False
    owners = [owner.uid for owner in meta.owner_references or ()]
    return (
        [owner.uid for owner in desired.metadata.owner_references or ()] == owners
        and desired.endpoints == stored.endpoints
        and desired.ports == stored.ports
    )
