"""All services at once: routes every change to just the services that it concerns.

``on_*`` methods take what informers report and return the keys (``namespace/name``) of services whose slices may now
have to change, for Pods and Nodes those apart that traffic for some endpoint must leave soon; whoever owns the engine
decides when to ask ``plan`` for each of them.  After a plan with writes, ``finish`` must be told how they went before
the next plan of the same service.

Cost of a pod's change: its labels, plus one endpoint for each service that selects it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, MANAGED_BY_CONTROLLER, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.gates import Gates
from sliceplane.slices.facts import NodeFacts, PodFacts
from sliceplane.slices.index import PodIndex, SelectorIndex
from sliceplane.slices.members import Effect, Members
from sliceplane.slices.service import ServiceState, Totals
from sliceplane.slices.shape import HintMode, ServiceShape, shape_of
from sliceplane.slices.succession import SelectorChanges
from sliceplane.slices.topology import ZoneShares
from sliceplane.slices.writes import SlicePlan

MAX_ENDPOINTS_DEFAULT: Final = 100
MAX_ENDPOINTS_LIMIT: Final = 1000

Keys = tuple[str, ...]


class Touched(NamedTuple):
    """Services with something to write: ``urgent`` where traffic goes to an endpoint that it must leave."""

    later: Keys = ()
    urgent: Keys = ()


_UNTOUCHED: Final = Touched()


def _touched(effects: dict[str, Effect]) -> Touched:
    later: list[str] = []
    urgent: list[str] = []
    for key, effect in effects.items():
        if effect is not Effect.NONE:
            (urgent if effect is Effect.REMOVAL else later).append(key)
    return Touched(tuple(later), tuple(urgent)) if later or urgent else _UNTOUCHED


class SliceEngine:
    """Owns all state of the EndpointSlice policy.  One caller at a time; nothing in here waits."""

    def __init__(
        self,
        max_endpoints_per_slice: int = MAX_ENDPOINTS_DEFAULT,
        gates: Gates | None = None,
        changes: SelectorChanges = SelectorChanges.HAND_OVER,
    ) -> None:
        assert 1 <= max_endpoints_per_slice <= MAX_ENDPOINTS_LIMIT, f"max endpoints {max_endpoints_per_slice}"
        self._max = max_endpoints_per_slice
        self._gates = gates or Gates()
        self._changes = changes
        self._services: dict[str, ServiceState] = {}
        self._selectors: SelectorIndex[ServiceState] = SelectorIndex()
        self._selecting: dict[str, int] = {}
        self._pods = PodIndex()
        self._nodes: dict[str, NodeFacts] = {}
        self._zones = ZoneShares()
        self._zones_changed = False
        #: services with topology-mode Auto; in the order in which they were seen
        self._auto: dict[str, ServiceState] = {}
        self._totals = Totals()
        #: what each service has in ``_totals``, and the services whose part has to be counted anew
        self._counted: dict[str, Totals] = {}
        self._uncounted: dict[str, None] = {}
        self._distributions: dict[str, int] = {}

    # -- events -----------------------------------------------------------------------------------------

    def on_pod(self, old: Pod | None, new: Pod | None) -> Touched:
        if new is None:
            assert old is not None, "a change has an old or a new object"
            return self._drop_pod(old.metadata.namespace, old.metadata.name)
        meta = new.metadata
        if old is not None and old.metadata.resource_version == meta.resource_version:
            return _UNTOUCHED
        known = self._pods.get(meta.namespace, meta.name)
        facts = PodFacts(new)
        self._pods.put(facts)
        services = self._selectors.matching(facts.namespace, facts.labels)
        effects = {service.key: _members(service).set(facts) for service in services.values()}
        if known is not None and known.labels != facts.labels:
            earlier = self._selectors.matching(facts.namespace, known.labels)
            left = [service for name, service in earlier.items() if name not in services]
            effects.update((service.key, _members(service).drop(facts.name)) for service in left)
        return _touched(effects)

    def _drop_pod(self, namespace: str, name: str) -> Touched:
        known = self._pods.get(namespace, name)
        if known is None:
            return _UNTOUCHED
        self._pods.remove(namespace, name)
        services = self._selectors.matching(namespace, known.labels)
        return _touched({service.key: _members(service).drop(name) for service in services.values()})

    def on_node(self, old: Node | None, new: Node | None) -> Touched:
        """Pods of a node whose zone changed get it at once; so do pods whose node comes after them."""
        name = (new or old or Node()).metadata.name
        known = self._nodes.get(name)
        facts = None if new is None else NodeFacts(new)
        if facts is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = facts
        self._zones_changed |= self._zones.replace(known, facts)
        if known is not None and facts is not None and known.zone == facts.zone:
            return _UNTOUCHED
        effects: dict[str, Effect] = {}
        for pod in self._pods.on_node(name):
            for service in self._selectors.matching(pod.namespace, pod.labels).values():
                effect = _members(service).refresh(pod.name)
                effects[service.key] = max(effect, effects.get(service.key, Effect.NONE))
        return _touched(effects)

    def take_unsettled(self) -> Keys:
        """Services whose hints no longer fit the zones' shares of CPU.  O(services with hints), after a change of
        these shares; else O(1)."""
        if not self._zones_changed:
            return ()
        self._zones_changed = False
        return tuple(key for key, service in self._auto.items() if not _members(service).hints_settled)

    def on_service(self, new: Service) -> Keys:
        shape = shape_of(new, self._gates)
        service = self._service(shape.key)
        before = service.shape
        if before == shape:
            return (shape.key,)
        self._count_distribution(before, shape)
        if before is not None and before.same_endpoints(shape):
            service.set_labels(shape)
        else:
            self._reshape(service, shape)
        return (shape.key,)

    def on_service_gone(self, namespace: str, name: str) -> None:
        """Its slices are left to the garbage collector."""
        service = self._services.get(f"{namespace}/{name}")
        if service is not None and service.shape is not None:
            self._unfile(namespace, name)
            self._count_distribution(service.shape, None)
            service.set_shape(None, ())
            self._uncounted[service.key] = None
            self._drop_if_empty(service)

    def _reshape(self, service: ServiceState, shape: ServiceShape) -> None:
        self._unfile(shape.namespace, shape.name)
        if not shape.active:
            service.set_shape(shape, ())
            self._uncounted[service.key] = None
            return
        pair = self._selectors.add(shape.namespace, shape.name, shape.selector, service)
        self._selecting[shape.namespace] = self._selecting.get(shape.namespace, 0) + 1
        service.set_shape(shape, self._pods.selected(shape.namespace, pair, shape.selector))
        if shape.hints is HintMode.AUTO:
            self._auto[shape.key] = service

    def _count_distribution(self, before: ServiceShape | None, after: ServiceShape | None) -> None:
        """A value that nobody has any more stays, at 0."""
        for shape, step in ((before, -1), (after, 1)):
            if shape is not None and shape.active and shape.distribution:
                self._distributions[shape.distribution] = self._distributions.get(shape.distribution, 0) + step

    def _unfile(self, namespace: str, name: str) -> None:
        service = self._services.get(f"{namespace}/{name}")
        if service is None or service.members is None:
            return
        self._auto.pop(service.key, None)
        self._selectors.remove(namespace, name)
        self._selecting[namespace] -= 1
        if not self._selecting[namespace]:
            del self._selecting[namespace]
            self._pods.drop_labels(namespace)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Keys:
        """A slice can come to us and leave us by its labels; slices of others tell at most that ours are not needed."""
        before, after = _service_of(old), _service_of(new)
        touched: dict[str, None] = {}
        if old is not None and before and before != after:
            service = self._services.get(before)
            if service is not None:
                if service.on_slice_gone(old.metadata.name, old.metadata.uid):
                    touched[before] = None
                self._drop_if_empty(service)
        if new is not None and after:
            service = self._service(after)
            if service.on_slice(new):
                touched[after] = None
            self._drop_if_empty(service)  # a slice that is on its way out is none
        elif new is not None:
            successor = self._services.get(f"{new.metadata.namespace}/{_named_service(new)}")
            if successor is not None and successor.on_successor(new):
                touched[successor.key] = None
        return tuple(touched)

    # -- plan and result --------------------------------------------------------------------------------

    def shape(self, key: str) -> ServiceShape | None:
        service = self._services.get(key)
        return None if service is None else service.shape

    def plan(self, key: str, now: float) -> SlicePlan:
        service = self._services.get(key)
        if service is None:
            return SlicePlan()
        plan = service.plan(now)
        self._uncounted[key] = None
        self._drop_if_empty(service)
        return plan

    def finish(
        self, key: str, plan: SlicePlan, answers: Sequence[bytes], error: StatusError | None, now: float
    ) -> None:
        """*answers* are those to the first writes of *plan*; *error* is the next one's, if one failed."""
        service = self._services[key]
        for write, answer in zip(plan.writes, answers, strict=False):
            service.succeeded(write, answer, now)
        if error is not None:
            service.failed(plan.writes[len(answers)], error)
        service.ended(well=error is None)
        self._drop_if_empty(service)

    def deadline(self, key: str) -> float | None:
        """When *key* has to be planned again although nothing happens."""
        service = self._services.get(key)
        return None if service is None else service.deadline()

    # -- for metrics ------------------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """Of all services.  Costs O(services with a plan since the last call)."""
        for key in self._uncounted:
            before = self._counted.pop(key, Totals())
            service = self._services.get(key)
            after = Totals() if service is None else service.totals
            if after != Totals():
                self._counted[key] = after
            self._totals = Totals(*(t + a - b for t, b, a in zip(self._totals, before, after, strict=True)))
        self._uncounted.clear()
        return self._totals

    @property
    def distributions(self) -> Mapping[str, int]:
        """How many services each value of ``spec.trafficDistribution`` is in effect for."""
        return self._distributions

    # -- helpers ----------------------------------------------------------------------------------------

    def _service(self, key: str) -> ServiceState:
        service = self._services.get(key)
        if service is None:
            service = ServiceState(key, self._nodes, self._zones, self._max, changes=self._changes)
            self._services[key] = service
        return service

    def _drop_if_empty(self, service: ServiceState) -> None:
        if service.empty and self._services.get(service.key) is service:
            del self._services[service.key]

    def check(self) -> None:
        self._pods.check()
        self._selectors.check()
        auto = {
            k
            for k, s in self._services.items()
            if s.members is not None and s.shape is not None and s.shape.hints is HintMode.AUTO
        }
        assert self._auto.keys() == auto, f"{self._auto.keys() ^ auto} are filed wrongly as having hints"
        parts = list(self._counted.values())
        totals = Totals(*(sum(part[i] for part in parts) for i in range(3)))
        assert self._totals == totals, f"totals {self._totals} should be {totals}"
        fresh = ZoneShares()
        for facts in self._nodes.values():
            fresh.replace(None, facts)
        assert self._zones.shares == fresh.shares, f"shares {self._zones.shares} should be {fresh.shares}"
        for key, service in self._services.items():
            assert service.key == key, f"{service.key} is filed under {key}"
            assert not service.empty, f"{key} is empty and was not dropped"
            service.check()


def _members(service: ServiceState) -> Members:
    assert service.members is not None, f"{service.key} is filed under a selector and has no members"
    return service.members


def _service_of(observed: EndpointSlice | None) -> str:
    """The key of the service that a slice of ours belongs to; "" for a slice that is not ours."""
    name = "" if observed is None else _named_service(observed)
    if observed is None or not name or (observed.metadata.labels or {}).get(LABEL_MANAGED_BY) != MANAGED_BY_CONTROLLER:
        return ""
    return f"{observed.metadata.namespace}/{name}"


def _named_service(observed: EndpointSlice) -> str:
    return (observed.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
