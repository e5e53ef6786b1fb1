"""Traffic that should stay in its zone: are hints requested, do they exist, do they count.

Hints are all or nothing (KEP-2433, KEP-4444): if one ready endpoint lacks them, every node ignores
those of the others. So the checks look for that endpoint. The arithmetic of ``Auto`` is the
controller's own (``slices.hinting.topology``); ``consume.usable`` decides the use of endpoints.
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
from sliceplane.api.selectors.distribution import (
    ANNOTATION_TOPOLOGY_AWARE_HINTS,
    ANNOTATION_TOPOLOGY_MODE,
    requests_annotation_hints,
)
from sliceplane.diagnose.explain.case import NodeCase, ServiceCase, evidence_of, name_of, zone_of
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import CONFIG_MAPS, NODES, SLICES
from sliceplane.slices.shape import traffic_distribution

SYSTEM: Final = "kube-system"
CILIUM_CONFIG: Final = "cilium-config"
_REPLACEMENT: Final = "kube-proxy-replacement"
_TOPOLOGY: Final = "enable-service-topology"
_NOT_FOR_PODS: Final = ("NoSchedule", "NoExecute")


def reads(case: ServiceCase) -> Iterator[Selection]:
    subsets = [item for item in case.slices if _subset(item) is not None]
    if hint_request(case) or subsets or case.question.client is not None:
        yield NODES.everywhere()
    if hint_request(case) and case.facts.derived(_runs_cilium):
        yield CONFIG_MAPS.named(SYSTEM, CILIUM_CONFIG)


def _runs_cilium(facts: Facts) -> bool:
    """Returns True if Cilium's agent has set its condition on a Node."""
    return any(
        entry.reason == "CiliumIsUp"
        for node in facts.of(NODES)
        for entry in node.status.conditions or ()
    )


def node_reads(case: NodeCase) -> Iterator[Selection]:
    yield NODES.named("", case.name)
    if case.node is not None and not case.zone:
        yield NODES.everywhere()


def hint_request(case: ServiceCase) -> Evidence | None:
    """Returns the field or the annotation that requests hints by zone; ``None``: not requested.
    Other heuristics have rules of their own.
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


def no_hints_requested(case: ServiceCase) -> Iterable[Finding]:
    """Z1: reported if the query has a client in a zone that its connections leave."""
    client = case.client
    if client is None or not client.location.zone or hint_request(case):
        return
    zones = Counter(endpoint.zone or "" for _, endpoint in case.ready)
    mine, elsewhere = zones[client.location.zone], zones.total() - zones[client.location.zone]
    if mine and elsewhere:
        yield case.finding(
            "Z1",
            f"{case.name} asks for no hints: "
            f"{part(elsewhere, zones.total(), 'ready endpoint', 'is')} "
            f"outside of {client.location.zone}, and {verb(elsewhere, 'gets')} as much from it as "
            f"the {mine} within",
            case.field("spec.trafficDistribution", "(not set)"),
            remedy=case.patch(
                {"spec": {"trafficDistribution": "PreferSameZone"}},
            ),
        )


def client_without_zone(case: ServiceCase) -> Iterable[Finding]:
    """Z3, of the client's Node."""
    client = case.client
    if client is None or not hint_request(case) or not client.location.node or client.location.zone:
        return
    if case.was_read(NODES.named("", client.location.node)):
        yield _no_zone(
            client.location.node, client.node, f"hints of {case.name} do not count there"
        )


def node_without_zone(case: NodeCase) -> Iterable[Finding]:
    """Z3. If no Node has a zone, none is missing: a single machine, for example."""
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
    request = hint_request(case)
    if request is None or not case.ready or is_auto(case):
        return
    bare = [(item, endpoint) for item, endpoint in case.ready if not hinted_zones(endpoint)]
    hinted = len(case.ready) - len(bare)
    if not bare:
        return
    node_names = {endpoint.node_name or "" for _, endpoint in bare}
    nodes = {name: case.facts.get(NODES, "", name) for name in sorted(node_names)}
    zoneless = [name for name, node in nodes.items() if node is not None and not zone_of(node)]
    if zoneless:
        node = nodes[zoneless[0]]
        assert node is not None, "zoneless are those that are there"
        yield case.finding(
            "Z2",
            f"{some(zoneless, verb_of_one='has')} no zone label, so no node follows the other "
            f"{count(hinted, 'hint')} of {case.name}",
            evidence_of(NODES, node, f"metadata.labels[{LABEL_ZONE}]", "(not set)"),
            request,
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
            evidence_of(SLICES, item, "endpoints", "no hints"),
            request,
            certainty="certain" if hinted else "likely",
            effect=f"no node follows the hints of the others: connections go to all "
            f"{len(case.ready)}",
            remedy="let one manager write the slices"
            if hinted
            else "bring the controllers up to date, or wait for their next sync",
        )


def zone_without_endpoint(case: ServiceCase) -> Iterable[Finding]:
    """Z5"""
    request = hint_request(case)
    if request is None or not followed(case):
        return
    served = {name for _, endpoint in case.ready for name in hinted_zones(endpoint)}
    nodes = case.facts.derived(open_by_zone)
    bare = [zone for zone in nodes if zone not in served]
    if bare and (case.client is None or case.client.location.zone in bare):
        zone = bare[0]
        yield case.finding(
            "Z5",
            f"{some(bare)}: {count(len(nodes[zone]), 'node')}, no endpoint of {case.name}: its "
            "clients use all zones",
            request,
            effect=f"all connections from {zone} leave it",
            remedy=f"spread the Pods: topologySpreadConstraints with topologyKey {LABEL_ZONE}, or "
            "add replicas",
        )


def slice_for_no_node(case: ServiceCase) -> Iterable[Finding]:
    """Z12"""
    parts = [item for item in case.slices if _subset(item) is not None]
    if not parts or not case.was_read(NODES.everywhere()):
        return
    names = case.facts.derived(_zones_and_regions)
    for item in parts:
        subset = _subset(item)
        if subset is None or not item.endpoints:
            continue
        label, of_nodes, name = subset
        if name not in names[of_nodes]:
            yield case.finding(
                "Z12",
                f"slice {item.metadata.name} is for {name}, and no Node has that "
                f"{of_nodes.rpartition('/')[2]}",
                evidence_of(SLICES, item, f"metadata.labels[{label}]", name),
                effect=f"no node reads its {count(len(item.endpoints), 'endpoint')}",
                remedy=f"correct the name: Nodes have {some(names[of_nodes]) or 'none'}",
            )


def hinted_zones(endpoint: SliceEndpoint) -> tuple[str, ...]:
    hints = endpoint.hints.for_zones if endpoint.hints is not None else None
    return tuple(hint.name for hint in hints or ())


def followed(case: ServiceCase) -> bool:
    """Returns True if every ready endpoint has hints."""
    return bool(case.ready) and all(hinted_zones(endpoint) for _, endpoint in case.ready)


def takes_pods(node: Node) -> bool:
    return not node.spec.unschedulable and not any(
        taint.effect in _NOT_FOR_PODS for taint in node.spec.taints or ()
    )


def is_working(node: Node) -> bool:
    """Returns False for a Node that is not ready; a Node without the condition works."""
    return node.ready_condition is None or node.is_ready


def all_by_zone(facts: Facts) -> dict[str, list[Node]]:
    """Returns the Nodes of each zone, sorted. For ``Facts.derived``, like the next two: computed
    once for all Services.
    """
    zones: dict[str, list[Node]] = {}
    for node in facts.of(NODES):
        if zone_of(node):
            zones.setdefault(zone_of(node), []).append(node)
    return dict(sorted(zones.items()))


def open_by_zone(facts: Facts) -> dict[str, list[Node]]:
    """Returns the Nodes that take Pods, by zone."""
    zones = {
        zone: [node for node in nodes if takes_pods(node)]
        for zone, nodes in facts.derived(all_by_zone).items()
    }
    return {zone: nodes for zone, nodes in zones.items() if nodes}


def _zones_and_regions(facts: Facts) -> dict[str, list[str]]:
    """Returns the values that Nodes have, sorted, by label."""
    labels = [node.metadata.labels or {} for node in facts.of(NODES)]
    return {
        key: sorted({of[key] for of in labels if key in of}) for key in (LABEL_ZONE, LABEL_REGION)
    }


def _subset(item: EndpointSlice) -> tuple[str, str, str] | None:
    """Returns the label of the slice, the label of the Nodes that read it, and the value that both
    must have.
    """
    labels = item.metadata.labels or {}
    for label, of_nodes in ((LABEL_FOR_ZONE, LABEL_ZONE), (LABEL_FOR_REGION, LABEL_REGION)):
        if label in labels:
            return label, of_nodes, labels[label]
    return None


def hints_unavailable(case: ServiceCase) -> Iterable[Finding]:
    """Z13, from the condition of the Service, if it is about the current generation."""
    service = case.service
    for condition in service.status.conditions or ():
        code, _, why = condition.message.partition(": ")
        if code != "Z13" or condition.status != "False":
            continue
        if (
            condition.observed_generation or service.metadata.generation
        ) != service.metadata.generation:
            continue  # about a former value
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
    """Z10, about Cilium as the replacement of kube-proxy."""
    request = hint_request(case)
    config = case.facts.get(CONFIG_MAPS, SYSTEM, CILIUM_CONFIG)
    data = (config.data or {}) if config is not None else {}
    if (
        request is None
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
            evidence_of(
                CONFIG_MAPS, config, f"data[{_TOPOLOGY}]", data.get(_TOPOLOGY, "(not set)")
            ),
            request,
            subject=name_of(CONFIG_MAPS, config),
            effect="connections go to every zone",
            remedy="switch it on and restart Cilium: "
            + patch(SYSTEM, "configmap", CILIUM_CONFIG, {"data": {_TOPOLOGY: "true"}})
            + " && kubectl -n kube-system rollout restart daemonset cilium",
        )


CHECKS = (
    no_hints_requested,
    data_plane_passes_over,
    hints_unavailable,
    voided,
    client_without_zone,
    zone_without_endpoint,
    slice_for_no_node,
)
