"""The specification of the EndpointSlice policy: plain, complete and slow, over whole objects.

Production never calls it. ``desired`` returns the endpoints that must exist; ``check_converged``
asserts that slices have exactly these.

Written from the reference alone. It shares no code with the engine except the kit and the
projections.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import (
    ANNOTATION_DRAIN,
    LABEL_FOR_REGION,
    LABEL_FOR_ZONE,
    LABEL_HEADLESS,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_ZONE,
    MANAGED_BY_CONTROLLER,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForNode,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectReference
from sliceplane.api.quantity import amount
from sliceplane.kit.ip import family, parse_lenient
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.heuristics.shipped import find_shipped
from sliceplane.slices.oracle_plugins import check_plugin_hints, is_plugin

PortSet = frozenset[bytes]
#: the endpoints that must have each port set, maybe none
Groups = dict[PortSet, list[SliceEndpoint]]


def is_ours(observed: EndpointSlice, service: Service) -> bool:
    """Returns True if the slice names the Service and us as its manager; the controller never
    touches others.
    """
    labels = observed.metadata.labels or {}
    return (
        observed.metadata.namespace == service.metadata.namespace
        and labels.get(LABEL_SERVICE_NAME) == service.metadata.name
        and labels.get(LABEL_MANAGED_BY) == MANAGED_BY_CONTROLLER
    )


def is_active(service: Service) -> bool:
    return service.spec.type != "ExternalName" and bool(service.spec.selector)


def is_owned(observed: EndpointSlice, service: Service) -> bool:
    owners = observed.metadata.owner_references or ()
    return any(
        (o.uid, o.kind, o.api_version) == (service.metadata.uid, "Service", "v1") for o in owners
    )


def labels_of(service: Service, subsetting: str = "") -> dict[str, str]:
    """Returns the labels of slices, without the label of a subset."""
    reserved = {LABEL_SERVICE_NAME: service.metadata.name, LABEL_MANAGED_BY: MANAGED_BY_CONTROLLER}
    if service.spec.cluster_ip in ("", "None"):
        reserved[LABEL_HEADLESS] = ""
    ours = (LABEL_HEADLESS, LABEL_FOR_ZONE, LABEL_FOR_REGION) if subsetting else (LABEL_HEADLESS,)
    own = {key: value for key, value in (service.metadata.labels or {}).items() if key not in ours}
    return {**own, **reserved}


def address_types(service: Service) -> list[str]:
    if service.spec.ip_families:
        return [kind for kind in service.spec.ip_families if kind in ("IPv4", "IPv6")]
    address = parse_lenient(service.spec.cluster_ip)
    return ["IPv4", "IPv6"] if address is None else [family(address)]


# -- desired endpoints


def desired(
    service: Service, address_type: str, pods: Iterable[Pod], nodes: Mapping[str, Node]
) -> Groups:
    """Returns the desired endpoints by ports: ``staging/src/k8s.io/endpointslice/utils.go``, and
    ``topologycache`` beside it for the hints.
    """
    groups: Groups = {}
    for pod in pods:
        if pod.metadata.namespace != service.metadata.namespace or not _selects(service, pod):
            continue
        if pod.has_ended or not (pod.status.pod_ip or pod.status.pod_ips):
            continue
        endpoints = groups.setdefault(port_set(_endpoint_ports(service, pod)), [])
        node = nodes.get(pod.spec.node_name)
        if node is None and not service.spec.publish_not_ready_addresses:
            continue
        parsed = map(parse_lenient, pod.status.ips)
        addresses = tuple(
            str(address)
            for address in parsed
            if address is not None and family(address) == address_type
        )
        if addresses:
            endpoints.append(_endpoint(service, pod, node, addresses))
    return groups


def _selects(service: Service, pod: Pod) -> bool:
    labels = pod.metadata.labels or {}
    return all(labels.get(key) == value for key, value in (service.spec.selector or {}).items())


def _endpoint_ports(service: Service, pod: Pod) -> list[EndpointPort]:
    containers = list(pod.spec.containers or ())
    containers += [
        container
        for container in pod.spec.init_containers or ()
        if container.restart_policy == "Always"
    ]
    resolved = []
    for port in service.spec.ports or ():
        number: int | None
        if isinstance(port.target_port, str):
            number = None
            for container in containers:
                for named in container.ports or ():
                    if number is None and (named.name, named.protocol) == (
                        port.target_port,
                        port.protocol,
                    ):
                        number = named.container_port
            if number is None:
                continue
        else:
            number = port.target_port or port.port
        resolved.append(
            EndpointPort(
                name=port.name, protocol=port.protocol, port=number, app_protocol=port.app_protocol
            )
        )
    return resolved


def port_set(ports: Iterable[EndpointPort]) -> PortSet:
    return frozenset(
        encode([port.name or "", port.protocol or "TCP", port.port, port.app_protocol])
        for port in ports
    )


def _endpoint(
    service: Service, pod: Pod, node: Node | None, addresses: tuple[str, ...]
) -> SliceEndpoint:
    serving = pod.is_ready and ANNOTATION_DRAIN not in (pod.metadata.annotations or {})
    terminating = pod.metadata.is_deleting
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    zone = (node.metadata.labels or {}).get(LABEL_ZONE) if node is not None else None
    named = pod.spec.hostname and pod.spec.subdomain == service.metadata.name
    return SliceEndpoint(
        addresses=addresses,
        conditions=EndpointConditions(ready=ready, serving=serving, terminating=terminating),
        hostname=pod.spec.hostname if named else None,
        target_ref=ObjectReference(
            kind="Pod",
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=pod.metadata.uid,
        ),
        node_name=pod.spec.node_name or None,
        zone=zone or None,
        hints=_hints(service, zone or "", node.metadata.name)
        if ready and node is not None
        else None,
    )


def _hints(service: Service, zone: str, node: str) -> EndpointHints | None:
    annotations = service.metadata.annotations or {}
    older = annotations.get("service.kubernetes.io/topology-aware-hints")
    mode = older if older is not None else annotations.get("service.kubernetes.io/topology-mode")
    distribution = None if mode in ("Auto", "auto") else service.spec.traffic_distribution
    for_zones = (ForZone(name=zone),) if zone else None
    if distribution in ("PreferClose", "PreferSameZone"):
        return EndpointHints(for_zones=for_zones) if for_zones else None
    if distribution == "PreferSameNode":
        return EndpointHints(for_zones=for_zones, for_nodes=(ForNode(name=node),))
    return None


# -- invariants after convergence


def check_converged(
    service: Service,
    pods: Iterable[Pod],
    nodes: Mapping[str, Node],
    slices: Iterable[EndpointSlice],
    max_endpoints: int,
    *,
    subsetting: str = "",
    find: Find = find_shipped,
) -> None:
    """Asserts that *slices* (all that exist) have exactly the endpoints and metadata that *service*
    must have.

    *subsetting* is the approach of Services without the annotation; "": the feature is disabled.
    """
    live = [
        endpoint_slice
        for endpoint_slice in slices
        if is_ours(endpoint_slice, service) and endpoint_slice.metadata.deletion_timestamp is None
    ]
    pods = list(pods)
    types = address_types(service)
    for endpoint_slice in live:
        _check_slice(service, endpoint_slice, types, max_endpoints, subsetting)
    for address_type in types:
        mine = [
            endpoint_slice for endpoint_slice in live if endpoint_slice.address_type == address_type
        ]
        what = f"{service.metadata.key} {address_type}"
        assert mine, f"{what} has no slice, not even a placeholder"
        if is_auto(service):
            check_auto_hints(service, address_type, mine, nodes)
            mine = [without_hints(endpoint_slice) for endpoint_slice in mine]
        elif is_plugin(service):
            by_name = {
                pod.metadata.name: pod
                for pod in pods
                if pod.metadata.namespace == service.metadata.namespace
            }
            check_plugin_hints(service, what, mine, by_name, nodes, find=find)
            mine = [without_hints(endpoint_slice) for endpoint_slice in mine]
        _check_endpoints(what, mine, desired(service, address_type, pods, nodes))
        check_subsets(what, approach_of(service, subsetting), mine, nodes)


def _check_slice(
    service: Service,
    endpoint_slice: EndpointSlice,
    types: list[str],
    max_endpoints: int,
    subsetting: str,
) -> None:
    key = service.metadata.key
    meta = endpoint_slice.metadata
    assert is_owned(endpoint_slice, service), f"{meta.name} is not owned by {key}"
    assert endpoint_slice.address_type in types, (
        f"{meta.name} is {endpoint_slice.address_type}, {key} has {types}"
    )
    zone = subset_of(endpoint_slice) if subsetting else ""
    labels = {**labels_of(service, subsetting), **({LABEL_FOR_ZONE: zone} if zone else {})}
    assert meta.labels == labels, f"{meta.name} has labels {meta.labels}"
    count = len(endpoint_slice.endpoints or ())
    assert count <= max_endpoints, f"{meta.name} has {count} endpoints"


def _check_endpoints(what: str, slices: list[EndpointSlice], groups: Groups) -> None:
    actual = Counter(
        (port_set(s.ports or ()), encode(e)) for s in slices for e in s.endpoints or ()
    )
    expected = Counter((ports, encode(e)) for ports, endpoints in groups.items() for e in endpoints)
    assert actual == expected, f"{what}: {actual - expected} too many, {expected - actual} missing"
    placeholders = [s for s in slices if port_set(s.ports or ()) not in groups]
    if placeholders:  # the one placeholder, and only if there is no other slice
        assert len(slices) == 1, f"{what} keeps {[s.metadata.name for s in placeholders]}"
        assert all(not s.endpoints and not s.ports for s in slices), (
            f"{slices[0].metadata.name} is no placeholder"
        )


# -- subsets


def approach_of(service: Service, default: str) -> str:
    requested = (service.metadata.annotations or {}).get("sliceplane.dev/subsetting", default)
    return (
        (requested if requested in ("PreferZone", "RequireZone") else "Original") if default else ""
    )


def subset_of(observed: EndpointSlice) -> str:
    return (observed.metadata.labels or {}).get(LABEL_FOR_ZONE, "")


def check_subsets(
    what: str, approach: str, slices: Iterable[EndpointSlice], nodes: Mapping[str, Node]
) -> None:
    """Asserts that each slice is for the zone of all its endpoints, or that all slices are for all
    nodes, as the approach requires.
    """
    slices = list(slices)
    endpoints = [
        endpoint for endpoint_slice in slices for endpoint in endpoint_slice.endpoints or ()
    ]
    split = any(subset_of(endpoint_slice) for endpoint_slice in slices)
    if approach == "PreferZone":
        zones = {(node.metadata.labels or {}).get(LABEL_ZONE) for node in nodes.values()} - {
            None,
            "",
        }
        count = Counter(endpoint.zone for endpoint in endpoints)
        must = len(endpoints) >= 3 * len(zones) + 3 and all(count[zone] >= 2 for zone in zones)
        may = len(endpoints) > 3 * len(zones) - 3 and all(count[zone] for zone in zones)
        if len(zones) < 2:
            must = False
            may = False
        assert split or not must, (
            f"{what}: one group for {len(endpoints)} endpoints in {dict(count)}"
        )
        assert may or not split, (
            f"{what}: subsets for {len(endpoints)} endpoints in {dict(count)} of {zones}"
        )
    elif approach != "RequireZone":
        assert not split, f"{what}: subsets without an approach by zone"
    for endpoint_slice in slices:
        zone = subset_of(endpoint_slice)
        assert endpoint_slice.endpoints or not zone, (
            f"{what}: {endpoint_slice.metadata.name} is for {zone} and empty"
        )
        if split or approach == "RequireZone":
            foreign = [
                e.addresses for e in endpoint_slice.endpoints or () if (e.zone or "") != zone
            ]
            assert not foreign, (
                f"{what}: {endpoint_slice.metadata.name} is for {zone!r} and has {foreign}"
            )


# -- hints of topology-mode Auto


def is_auto(service: Service) -> bool:
    annotations = service.metadata.annotations or {}
    older = annotations.get("service.kubernetes.io/topology-aware-hints")
    return (
        older if older is not None else annotations.get("service.kubernetes.io/topology-mode")
    ) in ("Auto", "auto")


def zone_shares(nodes: Mapping[str, Node]) -> dict[str, Fraction]:
    """Returns shares as ``topologycache.SetNodes`` upstream; empty if there can be no hints."""
    cpu: dict[str, Fraction] = {}
    for node in nodes.values():
        labels = node.metadata.labels or {}
        if (
            "node-role.kubernetes.io/control-plane" in labels
            or "node-role.kubernetes.io/master" in labels
        ):
            continue
        if not node.is_ready:
            continue
        zone = labels.get(LABEL_ZONE)
        allocatable = Fraction(amount((node.status.allocatable or {}).get("cpu", 0)))
        if not zone or not allocatable:
            return {}
        cpu[zone] = cpu.get(zone, Fraction(0)) + allocatable
    total = sum(cpu.values())
    return {zone: amount / total for zone, amount in cpu.items()} if len(cpu) > 1 else {}


def least_of_zones(total: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Returns how many of *total* endpoints each zone must have for at most 1.2 times the even
    load.
    """
    return {zone: math.ceil(total * share / Fraction(12, 10)) for zone, share in shares.items()}


def auto_problem(ready: list[SliceEndpoint], nodes: Mapping[str, Node]) -> str:
    """Returns the reason why *ready* endpoints get no hints; "" if they do. It is the Event's
    message without the address type.
    """
    shares = zone_shares(nodes)
    total = len(ready)
    if not shares:
        return (
            "Insufficient Node information: allocatable CPU or zone not specified on one or more "
            "nodes"
        )
    if len(shares) > total:
        return f"Insufficient number of endpoints ({total} endpoints, {len(shares)} zones)"
    if sum(least_of_zones(total, shares).values()) > total:
        message = (
            "Unable to allocate minimum required endpoints to each zone without exceeding "
            "overload threshold"
        )
        return f"{message} ({total} endpoints, {len(shares)} zones)"
    return (
        ""
        if all(endpoint.zone for endpoint in ready)
        else "One or more endpoints do not have a zone specified"
    )


def check_auto_hints(
    service: Service, address_type: str, slices: Iterable[EndpointSlice], nodes: Mapping[str, Node]
) -> None:
    """Asserts that all ready endpoints are hinted for one zone each so that every zone has enough,
    or that no endpoint has a hint.
    """
    endpoints = [
        endpoint for endpoint_slice in slices for endpoint in endpoint_slice.endpoints or ()
    ]
    ready = [endpoint for endpoint in endpoints if endpoint.conditions.ready]
    what = f"{service.metadata.key} {address_type}"
    assert all(endpoint.hints is None for endpoint in endpoints if not endpoint.conditions.ready), (
        f"{what}: unready with hints"
    )
    problem = auto_problem(ready, nodes)
    if problem:
        assert all(endpoint.hints is None for endpoint in ready), (
            f"{what}: hints although {problem}"
        )
        return
    counts: Counter[str] = Counter()
    for endpoint in ready:
        zones = () if endpoint.hints is None else endpoint.hints.for_zones or ()
        assert len(zones) == 1, f"{what}: {endpoint.addresses} is for zones {zones}"
        assert endpoint.hints is not None, f"{what}: {endpoint.addresses} has no hints"
        assert not endpoint.hints.for_nodes, (
            f"{what}: {endpoint.addresses} is for nodes {endpoint.hints.for_nodes}"
        )
        counts[zones[0].name] += 1
    least = least_of_zones(len(ready), zone_shares(nodes))
    assert counts.keys() <= least.keys(), (
        f"{what}: hinted for {sorted(counts)}, zones are {sorted(least)}"
    )
    assert all(counts[zone] >= count for zone, count in least.items()), (
        f"{what}: {dict(counts)}, not {least}"
    )


def without_hints(observed: EndpointSlice) -> EndpointSlice:
    bare = tuple(
        msgspec.structs.replace(endpoint, hints=None) for endpoint in observed.endpoints or ()
    )
    return msgspec.structs.replace(observed, endpoints=bare)
