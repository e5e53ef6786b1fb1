"""The engine of mirrored Endpoints: routes every change to the object that it concerns.

``on_*`` methods take informer events and return the keys (``namespace/name``) whose slices may have
to change. State is kept only for objects that may be mirrored and for existing slices, not for the
Endpoints of every Service. The only state of a Service is a flag: it has a selector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
)
from sliceplane.api.errors import StatusError
from sliceplane.slices.endpoints.mirroring.desired import ADDRESSES_PER_SUBSET_MAX
from sliceplane.slices.endpoints.mirroring.service import MirrorLimits, MirrorState
from sliceplane.slices.endpoints.mirroring.writes import MirrorPlan
from sliceplane.watch.controller.own_writes import PendingWrites

Keys = tuple[str, ...]


class MirrorTotals(NamedTuple):
    """Sums over all objects: desired endpoints, desired slices, existing slices."""

    endpoints: int = 0
    desired_slices: int = 0
    slices: int = 0


class MirrorEngine:
    """Owns all state of the mirroring policy. One caller at a time; no method waits."""

    def __init__(self, limits: MirrorLimits | None = None, *, hand_over: bool = True) -> None:
        self._limits = limits or MirrorLimits()
        assert 1 <= self._limits.per_subset <= ADDRESSES_PER_SUBSET_MAX, f"{self._limits}"
        self._hand_over = hand_over
        self._states: dict[str, MirrorState] = {}
        self._pending = PendingWrites()
        #: by key of the Service: it has a selector
        self._selecting: dict[str, bool] = {}
        self._totals = MirrorTotals()
        self._counted: dict[str, MirrorTotals] = {}

    # -- events

    def on_service(self, old: Service | None, new: Service | None) -> Keys:
        service = new or old
        assert service is not None, "a change has an old or a new object"
        key = service.metadata.key
        before = self._selecting.get(key)
        after = None if new is None else bool(new.spec.selector)
        if after is None:
            self._selecting.pop(key, None)
        else:
            self._selecting[key] = after
        state = self._states.get(key)
        if state is None or before is after:
            return ()
        state.set_selecting(after)
        return (key,)

    def on_endpoints(self, new: Endpoints | None, key: str) -> Keys:
        """Handles an Endpoints event. *new* None: the object is gone."""
        mirrorable = new if new is not None and is_mirrorable(new) else None
        state = self._states.get(key)
        if state is None:
            if mirrorable is None:
                return ()
            state = self._state(key)
        elif mirrorable is None and state.endpoints is None:
            return ()
        state.endpoints = mirrorable
        self._drop_if_empty(state)
        return (key,)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Keys:
        """Handles a slice event. A change of labels can make a slice ours or another controller's;
        slices of other controllers matter only as successors of ours.
        """
        before = _owner_of(old)
        after = _owner_of(new)
        touched: dict[str, None] = {}
        state = self._states.get(before.key)
        if old is not None and before != after and state is not None:
            if not before.ours:
                state.on_successor(old.address_type, exists=False)
            elif state.on_slice_gone(old.metadata.name, old.metadata.uid):
                touched[before.key] = None
            self._drop_if_empty(state)
        if new is not None and after.ours:
            state = self._state(after.key)
            if state.on_slice(new):
                touched[after.key] = None
            self._drop_if_empty(state)  # a terminating slice does not count
        elif new is not None and after.key in self._states:
            terminating = new.metadata.deletion_timestamp is not None
            if self._states[after.key].on_successor(new.address_type, exists=not terminating):
                touched[after.key] = None
        return tuple(touched)

    # -- plan and result

    def endpoints(self, key: str) -> Endpoints | None:
        """Returns the object if it may be mirrored."""
        state = self._states.get(key)
        return None if state is None else state.endpoints

    def is_writing(self, key: str) -> bool:
        """Returns True if a plan of *key* is under way, so that events may be of its writes."""
        state = self._states.get(key)
        return state is not None and state.is_writing

    def has_state(self, key: str) -> bool:
        return key in self._states

    def plan(self, key: str, now: float) -> MirrorPlan:
        state = self._states.get(key)
        if state is None:
            return MirrorPlan()
        plan = state.plan(now, self._limits, hand_over=self._hand_over)
        self._count(state)
        self._drop_if_empty(state)
        return plan

    def finish(
        self,
        key: str,
        plan: MirrorPlan,
        answers: Sequence[bytes],
        error: StatusError | None,
        now: float,
    ) -> None:
        """Takes the result of *plan*. *answers* are the responses to its first writes; *error* is
        that of the next write, if one failed.
        """
        state = self._states[key]
        state.finish(plan, answers, error, now)
        self._count(state)
        self._drop_if_empty(state)

    def deadline(self, key: str) -> float | None:
        """Returns the time at which *key* needs a plan even without an event."""
        state = self._states.get(key)
        return None if state is None else state.deadline()

    @property
    def totals(self) -> MirrorTotals:
        return self._totals

    # -- helpers

    def _state(self, key: str) -> MirrorState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = MirrorState(key, self._selecting.get(key), self._pending)
        return state

    def _count(self, state: MirrorState) -> None:
        after = MirrorTotals(*state.counts, state.slices)
        before = self._counted.pop(state.key, MirrorTotals())
        if after != MirrorTotals():
            self._counted[state.key] = after
        self._totals = MirrorTotals(
            *(t + a - b for t, b, a in zip(self._totals, before, after, strict=True))
        )

    def _drop_if_empty(self, state: MirrorState) -> None:
        if state.empty and self._states.get(state.key) is state:
            del self._states[state.key]
            state.counts = (0, 0)
            self._count(state)

    def check(self) -> None:
        self._pending.check()
        for key, state in self._states.items():
            assert state.key == key, f"{state.key} is filed under {key}"
            assert not state.empty, f"{key} is empty and was not dropped"
            assert state.selecting is self._selecting.get(key), f"{key}: selector {state.selecting}"
            state.check()
        assert self._counted.keys() <= self._states.keys(), "counted although gone"
        totals = MirrorTotals(*(sum(part[i] for part in self._counted.values()) for i in range(3)))
        assert self._totals == totals, f"totals {self._totals} should be {totals}"


def is_mirrorable(endpoints: Endpoints) -> bool:
    """Returns True if no metadata of the object forbids mirroring."""
    meta = endpoints.metadata
    skips = (meta.labels or {}).get(LABEL_SKIP_MIRROR) == "true"
    return not skips and ANNOTATION_LEADER not in (meta.annotations or {})


class _Owner(NamedTuple):
    """The Service that a slice belongs to. ``key`` is "" for slices of other managers; ``ours`` is
    False for those of the EndpointSlice controller.
    """

    key: str = ""
    ours: bool = False


def _owner_of(observed: EndpointSlice | None) -> _Owner:
    labels = {} if observed is None else observed.metadata.labels or {}
    name = labels.get(LABEL_SERVICE_NAME)
    manager = labels.get(LABEL_MANAGED_BY)
    if observed is None or not name or manager not in (MANAGED_BY_MIRRORING, MANAGED_BY_CONTROLLER):
        return _Owner()
    return _Owner(f"{observed.metadata.namespace}/{name}", manager == MANAGED_BY_MIRRORING)
