"""All Services at once: routes every change to just the Endpoints objects that it concerns.

``on_*`` methods take what informers report and return the keys (``namespace/name``) whose object may now have to
change; the owner of the engine decides when to ask ``plan`` for each of them.  After a plan with a write, ``finish``
must be told how it went before the next plan of the same key.

Cost of a Pod's change: its labels, plus one address for each Service that selects it.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.core import Endpoints, Service
from sliceplane.api.errors import StatusError
from sliceplane.api.own_writes import Unseen
from sliceplane.endpoints.service import EndpointsState
from sliceplane.endpoints.shape import EndpointsShape, endpoints_shape
from sliceplane.endpoints.subsets import Capacity
from sliceplane.endpoints.writes import EndpointsPlan
from sliceplane.slices.pod_routes import PodRoutes
from sliceplane.slices.succession import SelectorChanges


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

    # -- events -----------------------------------------------------------------------------------------

    def on_service(self, new: Service) -> str:
        # KEP-0752 asks for the label.  Upstream leaves it out, as nothing would take it away with the selector.
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
        state.set_shape(shape, self._routes.select(shape.namespace, shape.name, shape.selector, state))

    def _unfile(self, state: EndpointsState) -> None:
        if state.shape is not None and state.members is not None:
            self._routes.unselect(state.shape.namespace, state.shape.name)

    def on_endpoints(self, old: Endpoints | None, new: Endpoints | None) -> tuple[str, ...]:
        observed = new or old
        assert observed is not None, "a change has an old or a new object"
        state = self._state(observed.metadata.key)
        changed = state.on_endpoints_gone(observed.metadata.uid) if new is None else state.on_endpoints(new)
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

    # -- plan and result --------------------------------------------------------------------------------

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

    def finish(self, key: str, plan: EndpointsPlan, answer: bytes, error: StatusError | None, now: float) -> None:
        state = self._states[key]
        assert plan.write is not None, f"{key}: a plan without a write was performed"
        state.finish(plan.write, answer, error, now)
        self._drop_if_empty(state)

    def deadline(self, key: str) -> float | None:
        """When *key* has to be planned again although nothing happens: an own write that the cache never showed is
        given up."""
        state = self._states.get(key)
        return None if state is None else state.own.deadline()

    # -- helpers ----------------------------------------------------------------------------------------

    def _state(self, key: str) -> EndpointsState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = EndpointsState(key, self._capacity, self._changes, self._unseen)
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
