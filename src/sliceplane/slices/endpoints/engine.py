"""The engine of all Services: routes every change to the Endpoints objects that it concerns.

``on_*`` methods take informer events and return the keys (``namespace/name``) whose object may have
to change; the owner of the engine decides when to call ``plan`` for each key. After a plan with a
write, ``finish`` takes its result before the next plan of the same key. A Pod's change costs O(its
labels), plus one address for each Service that selects the Pod.

``EndpointsState`` is the object of one Service: its desired content, its newest version, and the
write between the two. The engine plans on the newer of two versions: the informer's, and the
server's answer to our own write (``watch.controller.own_writes``). So no plan is made from a cache that lacks
them; the event of our own write brings nothing new, so its addresses are not read. The content of
an object is represented by the digest of its canonical subsets, computed at most once for each
version. It is compared with the desired content, truncated with truncated, so an object that cannot
hold every address is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from sliceplane.api.codec import decode
from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import ANNOTATION_LEADER
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.slices.endpoints.members import (
    EndpointsMembers,
    EndpointsPlan,
    EndpointsWrite,
    create_endpoints,
    digest_of_subsets,
    hand_over,
    is_ours,
    update_endpoints,
)
from sliceplane.slices.endpoints.shape import EndpointsShape, Role, endpoints_shape
from sliceplane.slices.endpoints.subsets import Capacity
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.pod_routes import PodRoutes
from sliceplane.slices.succession import SelectorChanges
from sliceplane.slices.writes import TriggerTime
from sliceplane.watch.controller.own_writes import (
    Observation,
    OwnWrites,
    PendingWrites,
)


@dataclass(slots=True)
class _Version:
    """The newest version of an object.

    ``digest`` is that of its subsets, ``None`` until it is computed. ``observed`` is the cached
    object, ``None`` until the cache shows the version.
    """

    meta: ObjectMeta
    digest: bytes | None
    observed: Endpoints | None


class EndpointsState:
    """The state of one Service. Owned by ``EndpointsEngine``, its only caller."""

    def __init__(
        self,
        key: str,
        capacity: Capacity,
        selector_changes: SelectorChanges,
        pending: PendingWrites,
    ) -> None:
        self.key: Final = key
        self.own: Final[OwnWrites[_Version]] = OwnWrites(key, pending, attrgetter("meta"))
        self._capacity = capacity
        self._selector_changes = selector_changes
        self.shape: EndpointsShape | None = None
        self.members: EndpointsMembers | None = None
        #: the Service is gone, and the object must be deleted
        self.to_delete = False
        self._trigger = TriggerTime()

    @property
    def empty(self) -> bool:
        """True if the state can be dropped: no Service, no object, no write in flight."""
        return self.shape is None and not self.own

    @property
    def _version(self) -> _Version | None:
        return self.own.objects.get(self.key.partition("/")[2])

    @property
    def _meta(self) -> ObjectMeta | None:
        version = self._version
        return None if version is None else version.meta

    # -- the Service and its Pods

    def set_shape(self, shape: EndpointsShape | None, pods: Iterable[PodFacts]) -> None:
        """Replaces the shape after a change that requires all addresses to be built anew. *pods*:
        the Pods that the Service selects now.
        """
        if self.shape is None or shape is None or self.shape.uid != shape.uid:
            self._trigger.restart()
        self.shape = shape
        self.to_delete = shape is None and (self._meta is not None or self.own.in_flight)
        active = shape is not None and shape.active
        self.members = (
            EndpointsMembers(shape, pods, self.members) if shape is not None and active else None
        )

    def set_labels(self, shape: EndpointsShape) -> None:
        """Replaces the shape after a change of labels only."""
        self.shape = shape

    # -- the cached object

    @property
    def is_stray(self) -> bool:
        """True for an object without a Service. An object that names a leader needs no Service."""
        meta = self._meta
        return (
            self.shape is None
            and meta is not None
            and ANNOTATION_LEADER not in (meta.annotations or {})
        )

    @property
    def is_ours(self) -> bool:
        return self._meta is not None and is_ours(self._meta)

    def on_endpoints(self, observed: Endpoints) -> bool:
        """Handles an object in the cache. Returns False if it contains nothing new."""
        meta = observed.metadata
        observation = self.own.on_observed(meta, partial(_Version, meta, None, observed))
        version = self._version
        if observation is Observation.ECHO and version is not None:
            version.observed = observed
            return self.shape is not None and not self.shape.active
        return observation is Observation.NEW

    def on_endpoints_gone(self, uid: str) -> bool:
        """Handles an object that left the cache. Returns False if that was known."""
        if not self.own.on_gone(self.key.partition("/")[2], uid):
            return False
        self.to_delete = self.to_delete and self.own.in_flight
        return True

    # -- plan and result

    def plan(self, now: float) -> EndpointsPlan:
        """Returns the write that is due. If there is one, it is in flight until ``finish``."""
        assert not self.own.in_flight, f"{self.key} has a write under way"
        self.own.drop_expired(now)
        if self.own.defer_plan():
            return EndpointsPlan(stale=True)
        write = self._write()
        self.own.in_flight = write is not None
        if write is None:
            self._trigger.written()
        return EndpointsPlan(write)

    def _write(self) -> EndpointsWrite | None:
        version = self._version
        meta = self._meta
        if self.shape is None:
            return EndpointsWrite.delete(meta) if self.to_delete and meta is not None else None
        if self.members is not None:
            return self._desired(self.shape, self.members)
        if (
            version is None
            or meta is None
            or not is_ours(meta)
            or self._selector_changes is SelectorChanges.UPSTREAM
        ):
            return None
        if self.shape.role is Role.EXTERNAL_NAME:
            return EndpointsWrite.delete(meta)
        if version.observed is None:
            return None  # the cache will show it soon
        return hand_over(meta, version.observed.subsets, self._digest(version))

    def _desired(self, shape: EndpointsShape, members: EndpointsMembers) -> EndpointsWrite | None:
        self._trigger.note(members.take_trigger_time(), shape.created)
        content = members.content(self._capacity)
        version = self._version
        if version is None:
            return create_endpoints(shape, content, self._trigger.since)
        if content.matches(version.meta, self._digest(version), shape.labels):
            return None
        return update_endpoints(shape, version.meta, content, self._trigger.since)

    def _digest(self, version: _Version) -> bytes:
        if version.digest is None:
            assert version.observed is not None, (
                f"{self.key}: the content of version {version.meta} is unknown"
            )
            version.digest = digest_of_subsets(version.observed.subsets)
        return version.digest

    def finish(
        self, write: EndpointsWrite, answer: bytes, error: StatusError | None, now: float
    ) -> None:
        """Takes the result of *write*: the response with the object (anything for a delete), or the
        *error* if it was refused or its outcome is unknown.
        """

        def read(body: bytes) -> _Version:
            meta = decode(body, Object).metadata
            version = self._version
            if version is not None and version.meta.resource_version == meta.resource_version:
                version.digest = write.digest  # the cache was faster
            return _Version(meta, write.digest, None)

        if error is not None:
            self.own.failed(write, error)
        elif self.own.succeeded(write, answer, read, now) and write.verb == "delete":
            self.to_delete = False
        self.own.on_plan_ended()
        if error is None:
            self._trigger.written()

    def check(self) -> None:
        if self.members is not None:
            self.members.check()
        active = self.shape is not None and self.shape.active
        assert (self.members is not None) == active, (
            f"{self.key}: members of a Service that is {self.shape}"
        )
        assert not (self.to_delete and self.shape is not None), (
            f"{self.key} is condemned although it has a Service"
        )
        self.own.check()
        for version in self.own.objects.values():
            if version.digest is not None and version.observed is not None:
                digest = digest_of_subsets(version.observed.subsets)
                assert digest == version.digest, (
                    f"{self.key}: {version.meta.resource_version} has other content"
                )


class EndpointsEngine:
    """Owns all state of the Endpoints policy. One caller at a time; no method waits."""

    def __init__(
        self,
        capacity: Capacity = Capacity.TRUNCATE,
        selector_changes: SelectorChanges = SelectorChanges.HAND_OVER,
    ) -> None:
        self._capacity = capacity
        self._selector_changes = selector_changes
        self._states: dict[str, EndpointsState] = {}
        self._pending = PendingWrites()
        self._routes: PodRoutes[EndpointsState] = PodRoutes()
        self.on_pod: Final = self._routes.on_pod

    # -- events

    def on_service(self, new: Service) -> str:
        # KEP-0752 requires the label. Upstream omits it, since it has no code that removes it with
        # the selector.
        shape = endpoints_shape(
            new, skip_mirror=self._selector_changes is SelectorChanges.HAND_OVER
        )
        state = self._state(shape.key)
        before = state.shape
        if before is not None and before.same_addresses(shape):
            state.set_labels(shape)
        else:
            self._reshape(state, shape)
        return shape.key

    def on_service_gone(self, namespace: str, name: str) -> None:
        """Marks the Service's Endpoints for deletion: no other controller deletes them."""
        state = self._states.get(f"{namespace}/{name}")
        if state is not None and state.shape is not None:
            self._unfile(state)
            state.set_shape(None, ())
            self._drop_if_empty(state)

    def _reshape(self, state: EndpointsState, shape: EndpointsShape) -> None:
        self._unfile(state)
        if not shape.active:
            state.set_shape(shape, ())
            return
        state.set_shape(
            shape, self._routes.select(shape.namespace, shape.name, shape.selector, state)
        )

    def _unfile(self, state: EndpointsState) -> None:
        if state.shape is not None and state.members is not None:
            self._routes.unselect(state.shape.namespace, state.shape.name)

    def on_endpoints(self, old: Endpoints | None, new: Endpoints | None) -> tuple[str, ...]:
        observed = new or old
        assert observed is not None, "a change has an old or a new object"
        state = self._state(observed.metadata.key)
        changed = (
            state.on_endpoints_gone(observed.metadata.uid)
            if new is None
            else state.on_endpoints(new)
        )
        if state.is_stray and state.is_ours:
            state.to_delete = True
        self._drop_if_empty(state)
        return (state.key,) if changed and (state.shape is not None or state.to_delete) else ()

    def mark_strays_for_deletion(self) -> tuple[str, ...]:
        """Marks objects without a Service for deletion, ours or not. Called at the start, when all
        Services are cached.
        """
        strays = [state for state in self._states.values() if state.is_stray]
        for state in strays:
            state.to_delete = True
        return tuple(state.key for state in strays)

    # -- plan and result

    def shape(self, key: str) -> EndpointsShape | None:
        state = self._states.get(key)
        return None if state is None else state.shape

    def needs_retry(self, key: str) -> bool:
        """Returns True if a failed sync of *key* must be retried."""
        state = self._states.get(key)
        return state is not None and (state.shape is not None or state.to_delete)

    def plan(self, key: str, now: float) -> EndpointsPlan:
        state = self._states.get(key)
        if state is None:
            return EndpointsPlan()
        plan = state.plan(now)
        self._drop_if_empty(state)
        return plan

    def finish(
        self, key: str, plan: EndpointsPlan, answer: bytes, error: StatusError | None, now: float
    ) -> None:
        state = self._states[key]
        assert plan.write is not None, f"{key}: a plan without a write was executed"
        state.finish(plan.write, answer, error, now)
        self._drop_if_empty(state)

    def deadline(self, key: str) -> float | None:
        """Returns the time at which *key* needs a plan even without an event: an unobserved own
        write is given up.
        """
        state = self._states.get(key)
        return None if state is None else state.own.deadline()

    # -- helpers

    def _state(self, key: str) -> EndpointsState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = EndpointsState(
                key, self._capacity, self._selector_changes, self._pending
            )
        return state

    def _drop_if_empty(self, state: EndpointsState) -> None:
        if state.empty and self._states.get(state.key) is state:
            del self._states[state.key]

    def check(self) -> None:
        self._routes.check()
        self._pending.check()
        for key, state in self._states.items():
            assert state.key == key, f"{state.key} is filed under {key}"
            assert not state.empty, f"{key} is empty and was not dropped"
            state.check()
