"""Endpoints and the slices that mirror them, at a quiet point: what a fresh start would write is
what is there.
"""

from __future__ import annotations

from sliceplane.api.core import Endpoints, Pod, Service
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
)
from sliceplane.api.selectors import from_map
from sliceplane.lab.sim.steady import Broken
from sliceplane.lab.sim.view import View
from sliceplane.slices.endpoints.members import EndpointsMembers
from sliceplane.slices.endpoints.mirroring.desired import ADDRESSES_PER_SUBSET_MAX, mirror_of
from sliceplane.slices.endpoints.mirroring.engine import is_mirrorable
from sliceplane.slices.endpoints.shape import endpoints_shape
from sliceplane.slices.endpoints.subsets import Capacity, text_of
from sliceplane.slices.facts import PodFacts


def check_endpoints(view: View, service: Service, held: Endpoints | None) -> None:
    """Of a Service with a selector."""
    shape = endpoints_shape(service, skip_mirror=True)
    if not shape.active:
        return
    wanted = (
        EndpointsMembers(shape, map(PodFacts, _selected(view, service)), None)
        .content(Capacity.TRUNCATE)
        .text
    )
    shown = None if held is None else text_of(held.subsets or ())
    if shown != wanted:
        raise Broken(
            "endpoints-true",
            service.metadata.key,
            f"{service.metadata.key}: {shown!r} and not {wanted!r}",
        )


def check_mirror(view: View, service: Service, held: Endpoints | None) -> None:
    """Of a Service without a selector."""
    if service.spec.selector:
        return
    key = service.metadata.key
    mirrored = [
        endpoint_slice
        for endpoint_slice in view.slices.get(service.metadata.namespace, ())
        if _mirrors(endpoint_slice, service)
    ]
    shown = sorted(
        endpoint.addresses[0]
        for endpoint_slice in mirrored
        for endpoint in endpoint_slice.endpoints or ()
    )
    wanted: list[str] = []
    if held is not None and is_mirrorable(held):
        groups = mirror_of(held, ADDRESSES_PER_SUBSET_MAX).groups
        wanted = sorted(identity[0] for group in groups for identity in group.content)
    if shown != wanted:
        raise Broken("mirror-true", key, f"{key}: mirrored are {shown} and not {wanted}")


def _selected(view: View, service: Service) -> list[Pod]:
    matches = from_map(service.spec.selector or {}).matches
    return [
        pod
        for pod in view.pods.get(service.metadata.namespace, ())
        if matches(pod.metadata.labels or {})
    ]


def _mirrors(observed: EndpointSlice, service: Service) -> bool:
    labels = observed.metadata.labels or {}
    return (
        labels.get(LABEL_SERVICE_NAME) == service.metadata.name
        and labels.get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING
    )
