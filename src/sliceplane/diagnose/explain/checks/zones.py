"""Traffic that should stay in its zone: was it asked for, are there hints, do they count.

Hints are all or nothing (KEP-2433, KEP-4444): one ready endpoint without them, and every node
passes over those of the others. So the question is always which one spoils it. The arithmetic of
``Auto`` is the controller's own (``slices.hinting.topology``); who may use what is
``consume.usable``'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import Node
from sliceplane.api.discovery import (
    LABEL_FOR_REGION,
    LABEL_FOR_ZONE,
    LABEL_REGION,
    LABEL_ZONE,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.api.findings.wording import clipped, count, part, patch, some, verb
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import NodeCase, ServiceCase, name_of, seen, zone_of
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import CONFIG_MAPS, NODES, SLICES
from sliceplane.slices.shape import (
    ANNOTATION_TOPOLOGY_AWARE_HINTS,
    ANNOTATION_TOPOLOGY_MODE,
    requests_annotation_hints,
    traffic_distribution,
)

SYSTEM: Final = "kube-system"
CILIUM_CONFIG: Final = "cilium-config"
_REPLACEMENT: Final = "kube-proxy-replacement"
_TOPOLOGY: Final = "enable-service-topology"
_NOT_FOR_PODS: Final = ("NoSchedule", "NoExecute")


def wants(case: ServiceCase) -> Iterator[Selection]:
    subsets = [item for item in case.slices if _subset(item) is not None]
    if asks(case) or subsets or case.question.client is not None:
        yield NODES.everywhere()
    if asks(case) and case.facts.derived(_runs_cilium):
        yield CONFIG_MAPS.named(SYSTEM, CILIUM_CONFIG)


def _runs_cilium(facts: Facts) -> bool:
    """Its agent says so in a condition of each Node."""
    return any(
        entry.reason == "CiliumIsUp"
        for node in facts.of(NODES)
        for entry in node.status.conditions or ()
    )


def node_wants(case: NodeCase) -> Iterator[Selection]:
    yield NODES.named("", case.name)
    if case.node is not None and not case.zone:
        yield NODES.everywhere()


def asks(case: ServiceCase) -> Evidence | None:
    """The field or the annotation that asks for hints by zone.  Heuristics of others have rules of
    their own.
    """
    service = case.service
    if service.spec.type == "ExternalName":
        return None
    if is_auto(case):
        annotations = service.metadata.annotations or {}
        older = ANNOTATION_TOPOLOGY_AWARE_HINTS in annotations
        name = ANNOTATION_TOPOLOGY_AWARE_HINTS if older else ANNOTATION_TOPOLOGY_MODE
        return case.field(f"metadata.annotations[{name}]", annotations[name])
    distribution = traffic_distribution(service)
    return (
        case.field("spec.trafficDistribution", distribution)
        if distribution and "/" not in distribution
        else None
    )


def is_auto(case: ServiceCase) -> bool:
    return requests_annotation_hints(case.service.metadata.annotations or {})


def no_hints_asked_for(case: ServiceCase) -> Iterable[Finding]:
    """Z1: told to a client who asks from a zone, where its connections leave it."""
    client = case.client
    if client is None or not client.place.zone or asks(case):
        return
    zones = Counter(endpoint.zone or "" for _, endpoint in case.ready)
    mine, elsewhere = zones[client.place.zone], zones.total() - zones[client.place.zone]
    if mine and elsewhere:
        yield case.finding(
            "Z1",
            f"{case.name} asks for no hints: "
            f"{part(elsewhere, zones.total(), 'ready endpoint', 'is')} "
            f"outside of {client.place.zone}, and {verb(elsewhere, 'gets')} as much from it as "
            f"the {mine} within",
            case.field("spec.trafficDistribution", "(not set)"),
            remedy=case.patch(
                {"spec": {"trafficDistribution": "PreferSameZone"}},
            ),
        )


def client_without_zone(case: ServiceCase) -> Iterable[Finding]:
    """Z3, of the client's Node."""
    client = case.client
    if client is None or not asks(case) or not client.place.node or client.place.zone:
        return
    if case.was_read(NODES.named("", client.place.node)):
        yield _no_zone(client.place.node, client.node, f"hints of {case.name} do not count there")


def node_without_zone(case: NodeCase) -> Iterable[Finding]:
    """Z3.  Where no Node has a zone none is missing: a single machine, for example."""
    if (
        case.node is not None
        and not case.zone
        and any(zone_of(node) for node in case.facts.of(NODES))
    ):
        yield _no_zone(
            case.name,
            case.node,
            "hints for zones do not count there, and void those of its Pods' Services",
        )


def _no_zone(name: str, node: Node | None, effect: str) -> Finding:
    subject = ObjectName(NODES.resource.key, "Node", "", name)
    if node is None:
        return Finding(
            code="Z3",
            subject=subject,
            sentence=f"{name} is no Node, so its zone is not known",
            effect=effect,
            remedy="start its proxy with --hostname-override and the Node's name",
        )
    return Finding(
        code="Z3",
        subject=subject,
        sentence=f"{name} has no zone",
        evidence=(
            Evidence(subject=subject, field=f"metadata.labels[{LABEL_ZONE}]", value="(not set)"),
        ),
        effect=effect,
        remedy=f"kubectl label node {name} {LABEL_ZONE}=ZONE",
    )


def voided(case: ServiceCase) -> Iterable[Finding]:
    """Z2, Z4: some endpoints have hints and others have none."""
    asked = asks(case)
    if asked is None or not case.ready or is_auto(case):
        return
    bare = [(item, endpoint) for item, endpoint in case.ready if not hinted_zones(endpoint)]
    hinted = len(case.ready) - len(bare)
    if not bare:
        return
    places = {endpoint.node_name or "" for _, endpoint in bare}
    nodes = {name: case.facts.get(NODES, "", name) for name in sorted(places)}
    zoneless = [name for name, node in nodes.items() if node is not None and not zone_of(node)]
    if zoneless:
        node = nodes[zoneless[0]]
        assert node is not None, "zoneless are those that are there"
        yield case.finding(
            "Z2",
            f"{some(zoneless, verb_of_one='has')} no zone label, so no node follows the other "
            f"{count(hinted, 'hint')} of {case.name}",
            seen(NODES, node, f"metadata.labels[{LABEL_ZONE}]", "(not set)"),
            asked,
            subject=name_of(NODES, node),
            effect=f"connections go to all {len(case.ready)} endpoints, whatever their zone",
            remedy=f"kubectl label node {zoneless[0]} {LABEL_ZONE}=ZONE",
        )
    elif all(nodes.values()):
        item, _ = bare[0]
        yield case.finding(
            "Z4",
            f"{part(len(bare), len(case.ready), 'ready endpoint', 'has')} no hints (slice "
            f"{item.metadata.name})",
            seen(SLICES, item, "endpoints", "no hints"),
            asked,
            certainty="certain" if hinted else "likely",
            effect=f"no node follows the hints of the others: connections go to all "
            f"{len(case.ready)}",
            remedy="let one manager write the slices"
            if hinted
            else "bring the controllers up to date, or wait for their next sync",
        )


def zone_without_endpoint(case: ServiceCase) -> Iterable[Finding]:
    """Z5"""
    asked = asks(case)
    if asked is None or not followed(case):
        return
    served = {name for _, endpoint in case.ready for name in hinted_zones(endpoint)}
    nodes = case.facts.derived(open_by_zone)
    bare = [zone for zone in nodes if zone not in served]
    if bare and (case.client is None or case.client.place.zone in bare):
        zone = bare[0]
        yield case.finding(
            "Z5",
            f"{some(bare)}: {count(len(nodes[zone]), 'node')}, no endpoint of {case.name}: its "
            "clients use all zones",
            asked,
            effect=f"all connections from {zone} leave it",
            remedy=f"spread the Pods: topologySpreadConstraints with topologyKey {LABEL_ZONE}, or "
            "add replicas",
        )


def slice_for_no_node(case: ServiceCase) -> Iterable[Finding]:
    """Z12"""
    parts = [item for item in case.slices if _subset(item) is not None]
    if not parts or not case.was_read(NODES.everywhere()):
        return
    known = case.facts.derived(_zones_and_regions)
    for item in parts:
        subset = _subset(item)
        if subset is None or not item.endpoints:
            continue
        label, of_nodes, name = subset
        if name not in known[of_nodes]:
            yield case.finding(
                "Z12",
                f"slice {item.metadata.name} is for {name}, and no Node has that "
                f"{of_nodes.rpartition('/')[2]}",
                seen(SLICES, item, f"metadata.labels[{label}]", name),
                effect=f"no node reads its {count(len(item.endpoints), 'endpoint')}",
                remedy=f"correct the name: Nodes have {some(known[of_nodes]) or 'none'}",
            )


def hinted_zones(endpoint: SliceEndpoint) -> tuple[str, ...]:
    hints = endpoint.hints.for_zones if endpoint.hints is not None else None
    return tuple(hint.name for hint in hints or ())


def followed(case: ServiceCase) -> bool:
    """Every ready endpoint has hints."""
    return bool(case.ready) and all(hinted_zones(endpoint) for _, endpoint in case.ready)


def takes_pods(node: Node) -> bool:
    return not node.spec.unschedulable and not any(
        taint.effect in _NOT_FOR_PODS for taint in node.spec.taints or ()
    )


def is_working(node: Node) -> bool:
    """Not one that its kubelet has left: what says nothing works."""
    return node.ready_condition is None or node.is_ready


def all_by_zone(facts: Facts) -> dict[str, list[Node]]:
    """The Nodes of each zone, sorted.  For ``Facts.derived``, as what follows: once for all
    Services.
    """
    zones: dict[str, list[Node]] = {}
    for node in facts.of(NODES):
        if zone_of(node):
            zones.setdefault(zone_of(node), []).append(node)
    return dict(sorted(zones.items()))


def open_by_zone(facts: Facts) -> dict[str, list[Node]]:
    """The Nodes that take Pods, by zone."""
    zones = {
        zone: [node for node in nodes if takes_pods(node)]
        for zone, nodes in facts.derived(all_by_zone).items()
    }
    return {zone: nodes for zone, nodes in zones.items() if nodes}


def _zones_and_regions(facts: Facts) -> dict[str, list[str]]:
    """The values that Nodes have, sorted, by label."""
    labels = [node.metadata.labels or {} for node in facts.of(NODES)]
    return {
        key: sorted({of[key] for of in labels if key in of}) for key in (LABEL_ZONE, LABEL_REGION)
    }


def _subset(item: EndpointSlice) -> tuple[str, str, str] | None:
    """Label of the slice, label of the Nodes that read it, and the name that both must have."""
    labels = item.metadata.labels or {}
    for label, of_nodes in ((LABEL_FOR_ZONE, LABEL_ZONE), (LABEL_FOR_REGION, LABEL_REGION)):
        if label in labels:
            return label, of_nodes, labels[label]
    return None


def nothing_gives_hints(case: ServiceCase) -> Iterable[Finding]:
    """Z13, as the controller of conditions says it of the Service as it is now."""
    service = case.service
    for condition in service.status.conditions or ():
        told, _, why = condition.message.partition(": ")
        if told != "Z13" or condition.status != "False":
            continue
        if (
            condition.observed_generation or service.metadata.generation
        ) != service.metadata.generation:
            continue  # of a value that it had before
        yield case.finding(
            "Z13",
            f"{case.name} gets no hints: {clipped(why)}",
            case.field(
                f"status.conditions[{condition.type}]",
                f"{condition.status}, {condition.reason}",
            ),
            case.field(
                "spec.trafficDistribution", service.spec.traffic_distribution or "(not set)"
            ),
            effect="connections go to every zone",
            remedy=case.patch(
                {"spec": {"trafficDistribution": "PreferSameZone"}},
            ),
        )
        return


def data_plane_passes_over(case: ServiceCase) -> Iterable[Finding]:
    """Z10, of Cilium in the place of kube-proxy."""
    asked = asks(case)
    config = case.facts.get(CONFIG_MAPS, SYSTEM, CILIUM_CONFIG)
    data = (config.data or {}) if config is not None else {}
    if (
        asked is None
        or config is None
        or not followed(case)
        or data.get(_REPLACEMENT) not in ("true", "strict")
    ):
        return
    if data.get(_TOPOLOGY, "false") != "true":
        yield case.finding(
            "Z10",
            f"nodes run Cilium in the place of kube-proxy without {_TOPOLOGY}: it passes over the "
            f"hints of {case.name}",
            seen(CONFIG_MAPS, config, f"data[{_TOPOLOGY}]", data.get(_TOPOLOGY, "(not set)")),
            asked,
            subject=name_of(CONFIG_MAPS, config),
            effect="connections go to every zone",
            remedy="switch it on and restart Cilium: "
            + patch(SYSTEM, "configmap", CILIUM_CONFIG, {"data": {_TOPOLOGY: "true"}})
            + " && kubectl -n kube-system rollout restart daemonset cilium",
        )


CHECKS = (
    no_hints_asked_for,
    data_plane_passes_over,
    nothing_gives_hints,
    voided,
    client_without_zone,
    zone_without_endpoint,
    slice_for_no_node,
)
