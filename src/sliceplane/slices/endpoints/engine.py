"""All Services at once: routes every change to just the Endpoints objects that it concerns.

``on_*`` methods take what informers report and return the keys (``namespace/name``) whose object
may now have to change; the owner of the engine decides when to ask ``plan`` for each of them. After
a plan with a write, ``finish`` must be told how it went before the next plan of the same key. Cost
of a Pod's change: its labels, plus one address for each Service that selects it.

``EndpointsState`` is one Service's object: what it must say, what the server is known to hold, and
the write between the two. What the server holds is the newer of what the cache shows and what it
answered to our own writes (``watch.controller.own_writes``), so no plan is made on a cache that has not seen
them; the event of our own write tells nothing new, so its addresses are not looked at. What an
object says is known by the digest of its canonical subsets, worked out at most once a version, and
compared with what would be written: truncated with truncated, so that an object that cannot hold
every address is still left alone.
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
from sliceplane.watch.controller.own_writes import OwnWrites, Shown, Unseen


@dataclass(slots=True)
class _Version:
    """The newest version that is known.

    ``digest`` is that of its subsets, ``None`` until it is worked out; ``observed`` is what the
    cache shows of it, ``None`` while only the server's answer told of it.
    """

    meta: ObjectMeta
    digest: bytes | None
    observed: Endpoints | None


class EndpointsState:
    """Owned by ``EndpointsEngine``, which alone calls it."""

    def __init__(
        self, key: str, capacity: Capacity, changes: SelectorChanges, unseen: Unseen
    ) -> None:
        self.key: Final = key
        self.own: Final[OwnWrites[_Version]] = OwnWrites(key, unseen, attrgetter("meta"))
        self._capacity = capacity
        self._changes = changes
        self.shape: EndpointsShape | None = None
        self.members: EndpointsMembers | None = None
        #: the Service is gone, and the object has to follow
        self.condemned = False
        self._trigger = TriggerTime()

    @property
    def empty(self) -> bool:
        """Nothing is left to know: no Service, no object, no write under way."""
        return self.shape is None and not self.own

    @property
    def _version(self) -> _Version | None:
        return self.own.objects.get(self.key.partition("/")[2])

    @property
    def _known(self) -> ObjectMeta | None:
        version = self._version
        return None if version is None else version.meta

    # -- the Service and its Pods

    def set_shape(self, shape: EndpointsShape | None, pods: Iterable[PodFacts]) -> None:
        """The Service changed so that all addresses are made anew.  *pods*: those that it selects
        now.
        """
        if self.shape is None or shape is None or self.shape.uid != shape.uid:
            self._trigger.restart()
        self.shape = shape
        self.condemned = shape is None and (self._known is not None or self.own.in_flight)
        active = shape is not None and shape.active
        self.members = (
            EndpointsMembers(shape, pods, self.members) if shape is not None and active else None
        )

    def set_labels(self, shape: EndpointsShape) -> None:
        """The Service changed in labels only."""
        self.shape = shape

    # -- what the cache shows

    @property
    def is_stray(self) -> bool:
        """An object without a Service.  Those that name a leader are not meant for one."""
        known = self._known
        return (
            self.shape is None
            and known is not None
            and ANNOTATION_LEADER not in (known.annotations or {})
        )

    @property
    def is_ours(self) -> bool:
        return self._known is not None and is_ours(self._known)

    def on_endpoints(self, observed: Endpoints) -> bool:
        """The object is there.  False: that tells nothing new."""
        meta = observed.metadata
        shown = self.own.on_shown(meta, partial(_Version, meta, None, observed))
        version = self._version
        if shown is Shown.ECHO and version is not None:
            version.observed = observed
            return self.shape is not None and not self.shape.active
        return shown is Shown.NEW

    def on_endpoints_gone(self, uid: str) -> bool:
        """The cache lost the object.  False: that was known."""
        if not self.own.on_gone(self.key.partition("/")[2], uid):
            return False
        self.condemned = self.condemned and self.own.in_flight
        return True

    # -- plan and result

    def plan(self, now: float) -> EndpointsPlan:
        """The write that is due; ``in_flight`` until its end is told, if there is one."""
        assert not self.own.in_flight, f"{self.key} has a write under way"
        self.own.give_up(now)
        if self.own.wait_once():
            return EndpointsPlan(stale=True)
        write = self._write()
        self.own.in_flight = write is not None
        if write is None:
            self._trigger.written()
        return EndpointsPlan(write)

    def _write(self) -> EndpointsWrite | None:
        version = self._version
        known = self._known
        if self.shape is None:
            return EndpointsWrite.delete(known) if self.condemned and known is not None else None
        if self.members is not None:
            return self._desired(self.shape, self.members)
        if (
            version is None
            or known is None
            or not is_ours(known)
            or self._changes is SelectorChanges.UPSTREAM
        ):
            return None
        if self.shape.role is Role.EXTERNAL_NAME:
            return EndpointsWrite.delete(known)
        if version.observed is None:
            return None  # the cache is about to show it
        return hand_over(known, version.observed.subsets, self._digest(version))

    def _desired(self, shape: EndpointsShape, members: EndpointsMembers) -> EndpointsWrite | None:
        self._trigger.note(members.take_trigger_time(), shape.created)
        content = members.content(self._capacity)
        version = self._version
        if version is None:
            return create_endpoints(shape, content, self._trigger.since)
        if content.is_in(version.meta, self._digest(version), shape.labels):
            return None
        return update_endpoints(shape, version.meta, content, self._trigger.since)

    def _digest(self, version: _Version) -> bytes:
        if version.digest is None:
            assert version.observed is not None, (
                f"{self.key}: nothing says what version {version.meta} holds"
            )
            version.digest = digest_of_subsets(version.observed.subsets)
        return version.digest

    def finish(
        self, write: EndpointsWrite, answer: bytes, error: StatusError | None, now: float
    ) -> None:
        """The server performed *write* and answered with the object (anything, for a delete), or
        refused it, or that is not known.
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
            self.condemned = False
        self.own.ended()
        if error is None:
            self._trigger.written()

    def check(self) -> None:
        if self.members is not None:
            self.members.check()
        active = self.shape is not None and self.shape.active
        assert (self.members is not None) == active, (
            f"{self.key}: members of a Service that is {self.shape}"
        )
        assert not (self.condemned and self.shape is not None), (
            f"{self.key} is condemned although it has a Service"
        )
        self.own.check()
        for version in self.own.objects.values():
            if version.digest is not None and version.observed is not None:
                digest = digest_of_subsets(version.observed.subsets)
                assert digest == version.digest, (
                    f"{self.key}: {version.meta.resource_version} says something else"
                )


class EndpointsEngine:
    """Owns all state of the Endpoints policy.  One caller at a time; nothing in here waits."""

    def __init__(
        self,
        capacity: Capacity = Capacity.TRUNCATE,
        changes: SelectorChanges = SelectorChanges.HAND_OVER,
    ) -> None:
        self._capacity = capacity
        self._changes = changes
        self._states: dict[str, EndpointsState] = {}
        self._unseen = Unseen()
        self._routes: PodRoutes[EndpointsState] = PodRoutes()
        self.on_pod: Final = self._routes.on_pod

    # -- events

    def on_service(self, new: Service) -> str:
        # KEP-0752 asks for the label. Upstream leaves it out, as nothing would take it away with
        # the selector.
        shape = endpoints_shape(new, skip_mirror=self._changes is SelectorChanges.HAND_OVER)
        state = self._state(shape.key)
        before = state.shape
        if before is not None and before.same_addresses(shape):
            state.set_labels(shape)
        else:
            self._reshape(state, shape)
        return shape.key

    def on_service_gone(self, namespace: str, name: str) -> None:
        """Its Endpoints go with it: nothing else would take them away."""
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
            state.condemned = True
        self._drop_if_empty(state)
        return (state.key,) if changed and (state.shape is not None or state.condemned) else ()

    def condemn_strays(self) -> tuple[str, ...]:
        """At the start, when all Services are known: objects without one, ours or not."""
        strays = [state for state in self._states.values() if state.is_stray]
        for state in strays:
            state.condemned = True
        return tuple(state.key for state in strays)

    # -- plan and result

    def shape(self, key: str) -> EndpointsShape | None:
        state = self._states.get(key)
        return None if state is None else state.shape

    def is_wanted(self, key: str) -> bool:
        """A failure is worth another try."""
        state = self._states.get(key)
        return state is not None and (state.shape is not None or state.condemned)

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
        assert plan.write is not None, f"{key}: a plan without a write was performed"
        state.finish(plan.write, answer, error, now)
        self._drop_if_empty(state)

    def deadline(self, key: str) -> float | None:
        """When *key* has to be planned again although nothing happens: an own write that the cache
        never showed is given up.
        """
        state = self._states.get(key)
        return None if state is None else state.own.deadline()

    # -- helpers

    def _state(self, key: str) -> EndpointsState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = EndpointsState(
                key, self._capacity, self._changes, self._unseen
            )
        return state

    def _drop_if_empty(self, state: EndpointsState) -> None:
        if state.empty and self._states.get(state.key) is state:
            del self._states[state.key]

    def check(self) -> None:
        self._routes.check()
        self._unseen.check()
        for key, state in self._states.items():
            assert state.key == key, f"{state.key} is filed under {key}"
            assert not state.empty, f"{key} is empty and was not dropped"
            state.check()
