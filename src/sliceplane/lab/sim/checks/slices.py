"""Invariants of slices, of Endpoints and of the conditions of their Services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from sliceplane.api.core import Pod, Service
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
)
from sliceplane.api.selectors import from_map
from sliceplane.lab.sim.checks.view import View, service_of
from sliceplane.lab.sim.checks.world import SLICES_COUNTED, Fault, World, is_full
from sliceplane.slices import oracle
from sliceplane.slices.endpoints.members import EndpointsMembers
from sliceplane.slices.endpoints.mirroring.desired import ADDRESSES_PER_SUBSET_MAX, mirror_of
from sliceplane.slices.endpoints.mirroring.engine import is_mirrorable
from sliceplane.slices.endpoints.shape import endpoints_shape
from sliceplane.slices.endpoints.subsets import Capacity, text_of
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.heuristics.shipped import find_shipped

ACCEPTED: Final = "TrafficDistributionAccepted"
PROGRAMMED: Final = "TrafficDistributionProgrammed"
HONORED: Final = "TrafficDistributionHonored"
CONDITIONS: Final = (ACCEPTED, PROGRAMMED, HONORED)


def converged(world: World) -> Iterator[Fault]:
    view = world.view
    for service in view.lasting_services():
        space = service.metadata.namespace
        if oracle.is_active(service) and not is_full(view, space, SLICES_COUNTED):
            try:
                oracle.check_converged(
                    *(
                        service,
                        view.pods.get(space, ()),
                        view.nodes,
                        view.slices.get(space, ()),
                        world.setup.max_endpoints,
                    ),
                    subsetting=world.setup.subsetting.value,
                )
            except AssertionError as error:
                yield service.metadata.key, str(error)


def merged(world: World) -> Iterator[Fault]:
    """Yields Services whose slices of one kind could be merged into fewer."""
    if not world.setup.defragment:
        return
    view = world.view
    for service in view.lasting_services():
        space = service.metadata.namespace
        if not oracle.is_active(service) or is_full(view, space, SLICES_COUNTED):
            continue
        groups: dict[tuple[str, oracle.PortSet, str], list[int]] = {}
        for endpoint_slice in view.slices.get(space, ()):
            if service_of(endpoint_slice) == service.metadata.key:
                group = (
                    endpoint_slice.address_type,
                    oracle.port_set(endpoint_slice.ports or ()),
                    oracle.subset_of(endpoint_slice),
                )
                groups.setdefault(group, []).append(len(endpoint_slice.endpoints or ()))
        for (kind, _, zone), fills in sorted(
            groups.items(), key=lambda item: (item[0][0], item[0][2], item[1])
        ):
            minimum = max(1, -(-sum(fills) // world.setup.max_endpoints))
            if len(fills) > minimum:
                text = (
                    f"{service.metadata.key} {kind} {zone} keeps {sorted(fills)} in {len(fills)} "
                    "slices"
                )
                yield (service.metadata.key, f"{text} and needs {minimum}")


def no_duplicates(world: World) -> Iterator[Fault]:
    """Exempts namespaces where a quota refuses the slice that the rest of a move waits for: moved
    endpoints are shown twice then.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    active = {
        service.metadata.key
        for service in world.view.lasting_services()
        if oracle.is_active(service)
    }
    for space, slices in world.view.slices.items():
        full = is_full(world.view, space, SLICES_COUNTED)
        for endpoint_slice in slices:
            if service_of(endpoint_slice) in active and not full:
                counts.update(
                    (
                        service_of(endpoint_slice),
                        endpoint_slice.address_type,
                        endpoint.target_ref.uid,
                        repr(sorted(endpoint.addresses)),
                    )
                    for endpoint in endpoint_slice.endpoints or ()
                    if endpoint.target_ref is not None
                )
    for (service, kind, uid, addresses), count in sorted(counts.items()):
        if count > 1:
            yield (
                service,
                f"{service} {kind} has {addresses} of {uid} {count} times",
            )


def slice_maximum(world: World) -> Iterator[Fault]:
    for slices in world.view.slices.values():
        for endpoint_slice in slices:
            count = len(endpoint_slice.endpoints or ())
            if service_of(endpoint_slice) and count > world.setup.max_endpoints:
                yield (
                    endpoint_slice.metadata.name,
                    f"{endpoint_slice.metadata.key} has {count} endpoints",
                )


def deleted_services(world: World) -> Iterator[Fault]:
    """Yields slices of deleted Services; slices that lost their owner to another writer before are
    exempt.
    """
    keys = {service.metadata.key for service in world.view.services}
    for slices in world.view.slices.values():
        for endpoint_slice in slices:
            service = service_of(endpoint_slice)
            if service and service not in keys and endpoint_slice.metadata.owner_references:
                yield (
                    endpoint_slice.metadata.name,
                    f"{endpoint_slice.metadata.key} of {service}",
                )


def conditions(world: World) -> Iterator[Fault]:
    """Derives them from the Service, its slices, and whether all node proxies are up to date or
    none exists.
    """
    view = world.view
    for service in view.lasting_services():
        slices = [
            endpoint_slice
            for endpoint_slice in view.slices.get(service.metadata.namespace, ())
            if (endpoint_slice.metadata.labels or {}).get(LABEL_SERVICE_NAME)
            == service.metadata.name
        ]
        conditions = {
            condition.type: condition
            for condition in service.status.conditions or ()
            if condition.type in CONDITIONS
        }
        statuses = {name: condition.status for name, condition in conditions.items()}
        expected = _expected_conditions(service, slices, proxies=world.proxies is not None)
        if statuses != expected:
            yield (
                service.metadata.key,
                f"{service.metadata.key}: {statuses}, must be {expected}",
            )
        for name, condition in sorted(conditions.items()):
            if (condition.observed_generation or 0) != service.metadata.generation:
                text = (
                    f"{service.metadata.key} {name} is of generation "
                    f"{condition.observed_generation}"
                )
                yield (
                    service.metadata.key,
                    f"{text}, not {service.metadata.generation}",
                )


def _expected_conditions(
    service: Service, slices: Sequence[EndpointSlice], *, proxies: bool
) -> dict[str, str]:
    distribution = service.spec.traffic_distribution
    if not distribution:
        return {}
    if oracle.is_auto(service) or (
        "/" in distribution and isinstance(find_shipped(distribution), str)
    ):
        return {ACCEPTED: "False", PROGRAMMED: "False"}
    ready = [
        endpoint
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.conditions.ready is not False
    ]
    programmed = bool(ready) and all(
        endpoint.hints is not None and bool(endpoint.hints.for_zones or endpoint.hints.for_nodes)
        for endpoint in ready
    )
    conditions = {ACCEPTED: "True", PROGRAMMED: str(programmed)}
    if programmed and service.spec.cluster_ip not in ("", "None"):
        conditions[HONORED] = "True" if proxies else "Unknown"
    return conditions


def endpoints(world: World) -> Iterator[Fault]:
    """Checks Services with a selector."""
    for service in _unlimited(world.view, "count/endpoints"):
        shape = endpoints_shape(service, skip_mirror=True)
        if not shape.active:
            continue
        members = EndpointsMembers(shape, map(PodFacts, _selected(world.view, service)), None)
        desired = members.content(Capacity.TRUNCATE).text
        key = service.metadata.key
        observed = world.view.endpoints.get(key)
        actual = None if observed is None else text_of(observed.subsets or ())
        if actual != desired:
            yield key, f"{key}: {actual!r} and not {desired!r}"


def mirrors(world: World) -> Iterator[Fault]:
    """Checks Services without a selector."""
    view = world.view
    for service in _unlimited(view, SLICES_COUNTED):
        if service.spec.selector:
            continue
        key = service.metadata.key
        actual = sorted(
            endpoint.addresses[0]
            for endpoint_slice in view.slices.get(service.metadata.namespace, ())
            if _is_mirror(endpoint_slice, service)
            for endpoint in endpoint_slice.endpoints or ()
        )
        desired: list[str] = []
        observed = view.endpoints.get(key)
        if observed is not None and is_mirrorable(observed):
            groups = mirror_of(observed, ADDRESSES_PER_SUBSET_MAX).groups
            desired = sorted(identity[0] for group in groups for identity in group.content)
        if actual != desired:
            yield key, f"{key}: mirrored are {actual} and not {desired}"


def _unlimited(view: View, counted: str) -> list[Service]:
    """Returns the Services in whose Namespace no quota keeps a controller from its work."""
    return [
        service
        for service in view.lasting_services()
        if not is_full(view, service.metadata.namespace, counted)
    ]


def _selected(view: View, service: Service) -> list[Pod]:
    matches = from_map(service.spec.selector or {}).matches
    return [
        pod
        for pod in view.pods.get(service.metadata.namespace, ())
        if matches(pod.metadata.labels or {})
    ]


def _is_mirror(observed: EndpointSlice, service: Service) -> bool:
    labels = observed.metadata.labels or {}
    return (
        labels.get(LABEL_SERVICE_NAME) == service.metadata.name
        and labels.get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING
    )
