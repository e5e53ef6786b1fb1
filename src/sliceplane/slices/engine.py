"""The engine of all Services: routes every change to the Services that it concerns.

``on_*`` methods take informer events and return the keys (``namespace/name``) of Services whose
slices may have to change. For Pods and Nodes, keys of Services from whose endpoints traffic must be
removed soon are returned separately. The owner of the engine decides when to call ``plan`` for each
key. After a plan with writes, ``finish`` takes their result before the next plan of the same
Service.

A Pod's change costs O(its labels), plus one endpoint for each Service that selects the Pod.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_CONTROLLER,
    EndpointSlice,
)
from sliceplane.api.errors import StatusError
from sliceplane.api.gates import Gates
from sliceplane.api.requests import PortProbe
from sliceplane.consume.removal_hold import RemovalRetention
from sliceplane.slices.cluster import ClusterFacts, SliceSettings
from sliceplane.slices.facts import NodeFacts, PodFacts
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.heuristics.shipped import find_shipped
from sliceplane.slices.members import SliceMembers
from sliceplane.slices.packing.placement import ServiceSnapshot
from sliceplane.slices.pod_routes import UNTOUCHED, Effect, PodRoutes, Touched, touched
from sliceplane.slices.removing.guard import requests_retention
from sliceplane.slices.removing.losses import ConfirmationQuery, RemovalVerdict
from sliceplane.slices.service import ServiceState
from sliceplane.slices.shape import HintMode, ServiceShape, shape_of
from sliceplane.slices.subsets import Subsetting
from sliceplane.slices.succession import SelectorChanges
from sliceplane.slices.writes import SlicePlan, SliceTotals

MAX_ENDPOINTS_DEFAULT: Final = 100
MAX_ENDPOINTS_LIMIT: Final = 1000

Keys = tuple[str, ...]


_ZONAL: Final = (HintMode.AUTO, HintMode.PLUGIN)


class SliceEngine:
    """Owns all state of the EndpointSlice policy. One caller at a time; no method waits."""

    def __init__(
        self,
        max_endpoints_per_slice: int = MAX_ENDPOINTS_DEFAULT,
        gates: Gates | None = None,
        find: Find = find_shipped,
        *,
        subsetting: Subsetting = Subsetting.OFF,
        claim_unlabelled: bool = False,
        selector_changes: SelectorChanges = SelectorChanges.HAND_OVER,
        retain_by_default: bool = False,
    ) -> None:
        """*subsetting* is the approach of Services without the annotation; ``OFF`` disables the
        feature for all Services. *retain_by_default*: mass removals are retained for Services
        without the annotation. *claim_unlabelled*: slices without the managed-by label are ours if
        a Service controls them (KEP-0752 as of 2019, upgrade from 1.16).
        """
        assert 1 <= max_endpoints_per_slice <= MAX_ENDPOINTS_LIMIT, (
            f"max endpoints {max_endpoints_per_slice}"
        )
        self._settings = SliceSettings(
            max_endpoints=max_endpoints_per_slice,
            find=find,
            selector_changes=selector_changes,
            retain_by_default=retain_by_default,
        )
        self._gates = gates or Gates()
        self._subsetting = subsetting
        self._claim_unlabelled = claim_unlabelled
        self._cluster = ClusterFacts()
        self._zones_changed = False
        self._node_zones_changed = False
        self._services: dict[str, ServiceState] = {}
        self._routes: PodRoutes[ServiceState] = PodRoutes()
        #: Services with retained endpoints
        self._retaining: dict[str, ServiceState] = {}
        #: Services that prefer subsets, in the order of their first event
        self._preferring: dict[str, ServiceState] = {}
        #: Services whose hints depend on zones (topology-mode Auto, heuristics), in the order of
        #: their first event
        self._zonal: dict[str, ServiceState] = {}
        self._totals = SliceTotals()
        #: the part of each Service in ``_totals``, and the Services to count anew
        self._counted: dict[str, SliceTotals] = {}
        self._uncounted: dict[str, None] = {}
        self._distributions: dict[str, int] = {}

    # -- events

    def on_pod(self, old: Pod | None, new: Pod | None, *, missing: bool = False) -> Touched:
        """Handles a Pod event. *missing*: a list lacks the Pod; no event reported its deletion."""
        if new is None and old is not None:
            cached = self._routes.pod(old.metadata.namespace, old.metadata.name) or old
            if (
                cached.metadata.deletion_timestamp is None
                and old.metadata.deletion_timestamp is None
            ):
                labels = cached.metadata.labels or {}
                for service in self._routes.matching(cached.metadata.namespace, labels).values():
                    _members(service).expect_drop(cached.metadata.name, by_event=not missing)
        result = self._routes.on_pod(old, new)
        if new is None or not self._retaining:
            return result
        return Touched(
            result.later, tuple(dict.fromkeys((*result.urgent, *self._release_addresses(new))))
        )

    def _release_addresses(self, pod: Pod) -> Keys:
        """Removes retained endpoints whose address now belongs to *pod*. Costs O(Services with
        retained endpoints).
        """
        if pod.spec.host_network or PodFacts(pod).excluded:
            return ()
        addresses = pod.status.ips
        keys: list[str] = []
        for key, service in self._retaining.items():
            members = _members(service)
            own = (
                pod.metadata.name
                if service.shape and service.shape.namespace == pod.metadata.namespace
                else ""
            )
            for name in members.losses.retained_at(addresses):
                if name != own:
                    members.remove_lost(name)
                    keys.append(key)
        return tuple(keys)

    def on_node(self, old: Node | None, new: Node | None, *, missing: bool = False) -> Touched:
        """Handles a Node event: a Pod whose Node is new, or changed its zone, gets the zone in the
        same call.
        """
        name = (new or old or Node()).metadata.name
        cached = self._cluster.nodes.get(name)
        facts = None if new is None else NodeFacts(new)
        zones_changed, node_zones_changed = self._cluster.set_node(name, facts)
        self._zones_changed |= zones_changed
        self._node_zones_changed |= node_zones_changed
        if cached is not None and facts is not None and cached.view == facts.view:
            return UNTOUCHED
        effects: dict[str, Effect] = {}
        for pod, service in self._routes.on_node(name):
            effect = _members(service).refresh(pod.name, gone=new is None, by_event=not missing)
            effects[service.key] = max(effect, effects.get(service.key, Effect.NONE))
        return touched(effects)

    def take_unconverged(self) -> Keys:
        """Returns the keys of Services whose hints no longer fit the zones' shares of CPU, or whose
        subsets no longer fit the zones.

        Costs O(Services with hints) after a change of these shares, O(Services that prefer subsets)
        after a change of the set of zones, and O(1) otherwise.
        """
        keys: Keys = ()
        if self._zones_changed:
            self._zones_changed = False
            keys = tuple(
                key for key, service in self._zonal.items() if not _members(service).hints_converged
            )
        if self._node_zones_changed:
            self._node_zones_changed = False
            services = self._preferring.items()
            keys += tuple(
                key for key, service in services if not _members(service).subsets_converged
            )
        return keys

    def on_service(self, new: Service) -> Keys:
        shape = shape_of(new, self._gates, self._subsetting)
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
        """Forgets a Service; the garbage collector deletes its slices."""
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
        service.set_shape(
            shape, self._routes.select(shape.namespace, shape.name, shape.selector, service)
        )
        if shape.hints in _ZONAL:
            self._zonal[shape.key] = service
        if shape.subsetting is Subsetting.PREFER_ZONE:
            self._preferring[shape.key] = service

    def _count_distribution(self, before: ServiceShape | None, after: ServiceShape | None) -> None:
        """Updates the counts. A value that no Service has any more keeps its entry, at 0."""
        for shape, step in ((before, -1), (after, 1)):
            if shape is not None and shape.active and shape.distribution:
                group = shape.distribution_group
                self._distributions[group] = self._distributions.get(group, 0) + step

    def _unfile(self, namespace: str, name: str) -> None:
        service = self._services.get(f"{namespace}/{name}")
        if service is None or service.members is None:
            return
        self._zonal.pop(service.key, None)
        self._retaining.pop(service.key, None)
        self._preferring.pop(service.key, None)
        self._routes.unselect(namespace, name)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Keys:
        """Handles a slice event. A change of labels can make a slice ours or another controller's;
        slices of other controllers matter only as successors of ours.
        """
        before = self._service_of(old)
        after = self._service_of(new)
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
            self._drop_if_empty(service)  # a terminating slice does not count
        elif new is not None:
            successor = self._services.get(f"{new.metadata.namespace}/{_service_name(new)}")
            if successor is not None and successor.on_successor(new):
                touched[successor.key] = None
        return tuple(touched)

    # -- plan and result

    def shape(self, key: str) -> ServiceShape | None:
        service = self._services.get(key)
        return None if service is None else service.shape

    def plan(self, key: str, now: float) -> SlicePlan:
        service = self._services.get(key)
        if service is None:
            return SlicePlan()
        plan = service.plan(now)
        if service.members is not None and service.members.losses.retained:
            self._retaining[key] = service
        else:
            self._retaining.pop(key, None)
        self._uncounted[key] = None
        self._drop_if_empty(service)
        return plan

    def snapshot(self, key: str, now: float) -> ServiceSnapshot | None:
        """Returns the desired and stored state of *key* for a reader that compares and
        never plans.
        """
        service = self._services.get(key)
        return None if service is None else service.snapshot(now)

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self._routes.pod(namespace, name)

    def surplus(self, key: str) -> int:
        """Returns the number of slices of *key* that merging can save now. Costs O(groups of
        ports).
        """
        service = self._services.get(key)
        return 0 if service is None else service.surplus

    def merge(self, key: str, max_writes: int, *, at_least_one: bool) -> SlicePlan:
        """Returns a plan that merges slices, for use after a ``plan`` without writes.
        *at_least_one*: the first step is planned even if it needs more than *max_writes*.
        """
        service = self._services.get(key)
        if service is None:
            return SlicePlan()
        self._uncounted[key] = None
        return service.merge(max_writes, at_least_one=at_least_one)

    def finish(
        self,
        key: str,
        plan: SlicePlan,
        answers: Sequence[bytes],
        error: StatusError | None,
        now: float,
    ) -> None:
        """Takes the result of *plan*. *answers* are the responses to its first writes; *error* is
        that of the next write, if one failed.
        """
        service = self._services[key]
        service.finish(plan, answers, error, now)
        self._drop_if_empty(service)

    def deadline(self, key: str) -> float | None:
        """Returns the time at which *key* needs a plan even without an event."""
        service = self._services.get(key)
        return None if service is None else service.deadline()

    def get_retention(self, key: str) -> RemovalRetention | None:
        """Returns the current mass-removal retention of *key*."""
        service = self._services.get(key)
        return None if service is None else service.removals.guard.retention

    @property
    def retained(self) -> int:
        """Number of retained endpoints of all Services. Costs O(Services with retained
        endpoints).
        """
        return sum(len(_members(service).losses.retained) for service in self._retaining.values())

    # -- confirmation of mass removals

    def confirmation_query(self, key: str) -> ConfirmationQuery | None:
        """Returns the reads that must come before endpoints of *key* are removed although no Pod
        reported it.
        """
        service = self._services.get(key)
        return None if service is None else service.confirmation_query()

    def on_namespace(self, name: str, annotations: Mapping[str, str] | None, now: float) -> None:
        """Stores the annotation of a Namespace that was read."""
        self._cluster.namespaces[name] = (requests_retention(annotations), now)

    def on_listed(
        self, key: str, pods: Mapping[str, Pod], nodes: Container[str], now: float
    ) -> RemovalVerdict:
        """Handles the reads of a query that succeeded. *pods*: at least the Pods that the Service
        selects in its Namespace.
        """
        service = self._services.get(key)
        return RemovalVerdict() if service is None else service.on_listed(pods, nodes, now)

    def on_read_failed(self, key: str, now: float) -> None:
        """Handles the failure of the reads of a query."""
        service = self._services.get(key)
        if service is not None:
            service.removals.guard.confirmation.on_failure(now)

    def retained_ports(self, key: str) -> tuple[tuple[str, PortProbe], ...]:
        """Returns ports at which retained Pods of *key* can be probed."""
        service = self._services.get(key)
        if service is None or service.members is None:
            return ()
        return service.members.retained_ports()

    def on_connection_refused(self, key: str, pod: str) -> None:
        """Removes the endpoint of a retained Pod that refused a connection."""
        service = self._services.get(key)
        members = None if service is None else service.members
        if members is not None and pod in members.losses.confirmed:
            members.remove_lost(pod)

    # -- for metrics

    @property
    def totals(self) -> SliceTotals:
        """Totals of all Services. Costs O(Services with a plan since the last call)."""
        for key in self._uncounted:
            before = self._counted.pop(key, SliceTotals())
            service = self._services.get(key)
            after = SliceTotals() if service is None else service.totals
            if after != SliceTotals():
                self._counted[key] = after
            self._totals = SliceTotals(
                *(t + a - b for t, b, a in zip(self._totals, before, after, strict=True))
            )
        self._uncounted.clear()
        return self._totals

    @property
    def distributions(self) -> Mapping[str, int]:
        """Number of Services by the effective value of ``spec.trafficDistribution``."""
        return self._distributions

    # -- helpers

    def _service_of(self, observed: EndpointSlice | None) -> str:
        """Returns the key of the Service that a slice of ours belongs to; "" if the slice is not
        ours.
        """
        labels = {} if observed is None else observed.metadata.labels or {}
        name = labels.get(LABEL_SERVICE_NAME)
        if observed is None or not name:
            return ""
        managed_by = labels.get(LABEL_MANAGED_BY)
        ours = managed_by == MANAGED_BY_CONTROLLER
        if managed_by is None and self._claim_unlabelled:
            owners = observed.metadata.owner_references or ()
            ours = any(
                (o.kind, o.api_version, o.name, o.controller) == ("Service", "v1", name, True)
                for o in owners
            )
        return f"{observed.metadata.namespace}/{name}" if ours else ""

    def _service(self, key: str) -> ServiceState:
        service = self._services.get(key)
        if service is None:
            service = self._services[key] = ServiceState(key, self._cluster, self._settings)
        return service

    def _drop_if_empty(self, service: ServiceState) -> None:
        if service.empty and self._services.get(service.key) is service:
            del self._services[service.key]

    def check(self) -> None:
        self._routes.check()
        self._cluster.check()
        zonal = {
            k
            for k, s in self._services.items()
            if s.members is not None and s.shape is not None and s.shape.hints in _ZONAL
        }
        assert self._zonal.keys() == zonal, (
            f"{self._zonal.keys() ^ zonal} are filed wrongly as having hints"
        )
        parts = list(self._counted.values())
        totals = SliceTotals(*(sum(part[i] for part in parts) for i in range(3)))
        assert self._totals == totals, f"totals {self._totals} should be {totals}"
        for key, service in self._services.items():
            assert service.key == key, f"{service.key} is filed under {key}"
            assert not service.empty, f"{key} is empty and was not dropped"
            service.check()


def _members(service: ServiceState) -> SliceMembers:
    assert service.members is not None, (
        f"{service.key} is filed under a selector and has no members"
    )
    return service.members


def _service_name(observed: EndpointSlice) -> str:
    return (observed.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
