"""The specification of hints by heuristics (for ``slices.oracle``): query everything anew and
compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import LABEL_REGION, LABEL_ZONE, EndpointSlice, SliceEndpoint
from sliceplane.api.quantity import amount
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.heuristics.types import (
    EndpointLocation,
    Hints,
    LocalHeuristic,
    Portion,
    ServiceView,
    ZonalHeuristic,
    ZoneView,
)

_CONTROL_PLANE = {"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}


def is_plugin(service: Service) -> bool:
    """Returns True if the field names a heuristic; the caller checks if the annotation takes
    precedence.
    """
    return "/" in (service.spec.traffic_distribution or "")


def zone_views(nodes: Mapping[str, Node]) -> tuple[ZoneView, ...]:
    milli: Counter[str] = Counter()
    regions: dict[str, Counter[str]] = {}
    for node in nodes.values():
        labels = node.metadata.labels or {}
        zone = labels.get(LABEL_ZONE, "")
        if zone and node.is_ready and not _CONTROL_PLANE & labels.keys():
            milli[zone] += int(amount((node.status.allocatable or {}).get("cpu", 0)) * 1000)
            regions.setdefault(zone, Counter())[labels.get(LABEL_REGION, "")] += 1
    whole = sum(milli.values()) or 1
    return tuple(
        ZoneView(
            name=zone,
            region=sorted(nodes_of, key=lambda region: (-nodes_of[region], region))[0],
            share=milli[zone] / whole,
        )
        for zone, nodes_of in sorted(regions.items())
    )


def check_plugin_hints(
    service: Service,
    what: str,
    slices: Iterable[EndpointSlice],
    pods: Mapping[str, Pod],
    nodes: Mapping[str, Node],
    *,
    find: Find,
) -> None:
    """Asserts that ready endpoints of one address type have the hints of the heuristic, and all
    others none.
    """
    endpoints = [
        endpoint for endpoint_slice in slices for endpoint in endpoint_slice.endpoints or ()
    ]
    for endpoint in endpoints:
        assert endpoint.conditions.ready or endpoint.hints is None, (
            f"{what}: unready with hints {endpoint}"
        )
    ready = [endpoint for endpoint in endpoints if endpoint.conditions.ready]
    actual = [_hints_of(endpoint) for endpoint in ready]
    heuristic = find(service.spec.traffic_distribution or "")
    view = ServiceView(
        namespace=service.metadata.namespace,
        name=service.metadata.name,
        annotations=service.metadata.annotations or {},
    )
    zones = zone_views(nodes)
    if isinstance(heuristic, str):
        expected = [Hints()] * len(ready)
        assert actual == expected, f"{what}: {actual} although {heuristic}"
    elif heuristic.kind == "local":
        expected = _local(
            heuristic, view, [_view(endpoint, pods, nodes) for endpoint in ready], zones
        )
        assert actual == expected, f"{what}: {actual}, not {expected}"
    else:
        counts = Counter(_zone(endpoint, nodes) for endpoint in ready)
        portions = _zonal(heuristic, view, dict(sorted(counts.items())), zones)
        hinted = Counter(
            (_zone(endpoint, nodes), Hints(hint.zones))
            for endpoint, hint in zip(ready, actual, strict=True)
        )
        assert hinted == portions, f"{what}: {hinted}, not {portions}"
        assert not any(hint.nodes for hint in actual), f"{what}: node hints {actual}"


def _local(
    heuristic: LocalHeuristic,
    service: ServiceView,
    ready: list[EndpointLocation],
    zones: tuple[ZoneView, ...],
) -> list[Hints]:
    try:
        return [heuristic.hints(service, endpoint, zones) for endpoint in ready]
    except Exception:
        return [Hints()] * len(ready)


def _zonal(
    heuristic: ZonalHeuristic,
    service: ServiceView,
    counts: dict[str, int],
    zones: tuple[ZoneView, ...],
) -> Counter[tuple[str, Hints]]:
    allocated: Counter[tuple[str, Hints]] = Counter()
    try:
        answer: Mapping[str, tuple[Portion, ...]] = (
            heuristic.allocate(service, counts, zones) if counts else {}
        )
    except Exception:
        answer = {zone: (Portion(count, ()),) for zone, count in counts.items()}
    for zone, portions in answer.items():
        for portion in portions:
            if portion.count:
                allocated[zone, Hints(portion.zones)] += portion.count
    return allocated


def _hints_of(endpoint: SliceEndpoint) -> Hints:
    hints = endpoint.hints
    if hints is None:
        return Hints()
    return Hints(
        tuple(hint.name for hint in hints.for_zones or ()),
        tuple(hint.name for hint in hints.for_nodes or ()),
    )


def _pod_of(endpoint: SliceEndpoint, pods: Mapping[str, Pod]) -> Pod:
    assert endpoint.target_ref is not None, f"{endpoint} has no target"
    return pods[endpoint.target_ref.name]


def _zone(endpoint: SliceEndpoint, nodes: Mapping[str, Node]) -> str:
    return (endpoint.zone or "") if endpoint.node_name in nodes else ""


def _view(
    endpoint: SliceEndpoint, pods: Mapping[str, Pod], nodes: Mapping[str, Node]
) -> EndpointLocation:
    pod = _pod_of(endpoint, pods)
    node = nodes.get(pod.spec.node_name)
    labels = {} if node is None else node.metadata.labels or {}
    return EndpointLocation(
        zone=labels.get(LABEL_ZONE, ""),
        region=labels.get(LABEL_REGION, ""),
        node=pod.spec.node_name,
        topology_keys=tuple(
            constraint.topology_key for constraint in pod.spec.topology_spread_constraints or ()
        ),
    )
