"""Zones and their shares: why topology mode Auto sets no hints, and which zone has too few
endpoints for its clients.

The arithmetic of ``Auto`` is the controller's own (``slices.hinting.topology``). For the load of a
zone, clients are assumed to be spread like the Nodes that take Pods; the best possible spread of a
number of Pods is no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

from sliceplane.api.core import Node
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.findings.finding import Evidence, Finding
from sliceplane.api.findings.wording import count, part, some, verb
from sliceplane.api.requests import Selection
from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.consume.balancing.shares import OVERLOAD, ClientLocation, EndpointKind, shares
from sliceplane.consume.usable import Locality
from sliceplane.diagnose.explain.case import (
    ServiceCase,
    ZoneCase,
    evidence_of,
    list_names,
    name_of,
    zone_of,
)
from sliceplane.diagnose.explain.checks.zones import (
    all_by_zone,
    followed,
    hint_request,
    hinted_zones,
    is_auto,
    open_by_zone,
    takes_pods,
    zone_without_endpoint,
)
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import NODES, SERVICES, SLICES
from sliceplane.slices.facts import NodeFacts
from sliceplane.slices.hinting.topology import ZoneShares, zone_shares


def auto_without_hints(case: ServiceCase) -> Iterable[Finding]:
    """Z6, Z7, Z8: why topology mode Auto sets no hints."""
    request = hint_request(case)
    if (
        request is None
        or not is_auto(case)
        or not case.ready
        or any(hinted_zones(endpoint) for _, endpoint in case.ready)
    ):
        return
    if not case.was_read(NODES.everywhere()):
        return
    shares = case.facts.derived(_shares)
    total = len(case.ready)
    zones = len(shares.shares)
    if not shares.shares:
        yield _unclear(case, request)
    elif total < zones:
        yield case.finding(
            "Z6",
            f"{count(total, 'endpoint')}, {zones} zones: Auto gives hints from one endpoint a "
            "zone on",
            request,
            effect="connections go to every zone",
            remedy=f"scale to {zones} replicas at least, or use trafficDistribution PreferSameZone",
        )
    elif shares.allocation(total).problem:
        needs = next(
            number for number in range(total, 100 * total) if not shares.allocation(number).problem
        )
        yield case.finding(
            "Z7",
            f"{zones} zones by their CPU need more than the {total} endpoints that are there: "
            f"{needs} would do",
            request,
            effect="connections go to every zone",
            remedy=f"scale to {needs} replicas, or use trafficDistribution PreferSameZone",
        )


def _shares(facts: Facts) -> ZoneShares:
    return zone_shares(facts.of(NODES))


def _lacking(facts: Facts) -> list[Node]:
    """Returns the Nodes that count, and lack their zone or their CPU."""
    pairs = [(node, NodeFacts(node)) for node in facts.of(NODES)]
    return [
        node
        for node, node_facts in pairs
        if node_facts.counted and (not node_facts.zone or not node_facts.cpu_milli)
    ]


def _closed_by_zone(facts: Facts) -> dict[str, list[str]]:
    """Returns the Nodes that count in their zone's share and take no Pods, of zones where they are
    the majority.
    """
    zones = facts.derived(all_by_zone).items()
    closed = {
        zone: [
            node.metadata.name for node in nodes if not takes_pods(node) and NodeFacts(node).counted
        ]
        for zone, nodes in zones
    }
    return {zone: closed[zone] for zone, nodes in zones if len(closed[zone]) * 2 > len(nodes)}


def _unclear(case: ServiceCase, request: Evidence) -> Finding:
    lacking = case.facts.derived(_lacking)
    if not lacking:
        return case.finding(
            "Z8",
            "only one zone has Nodes that are ready: there is nothing to prefer",
            request,
            effect="Auto gives no hints",
            remedy="nothing, while there is one zone",
        )
    node = lacking[0]
    what = "allocatable CPU" if zone_of(node) else "zone label"
    field = "status.allocatable" if zone_of(node) else f"metadata.labels[{LABEL_ZONE}]"
    name = node.metadata.name
    return case.finding(
        "Z8",
        f"{some(list_names(lacking), verb_of_one='has')} no {what}: Auto gives no hints to any "
        "Service",
        evidence_of(NODES, node, field, "(not set)"),
        request,
        subject=name_of(NODES, node),
        effect="connections go to every zone",
        remedy=f"kubectl label node {name} {LABEL_ZONE}=ZONE"
        if not zone_of(node)
        else f"see why the kubelet of {name} reports no CPU",
    )


def auto_counts_nodes_without_pods(case: ServiceCase) -> Iterable[Finding]:
    """Z9"""
    request = hint_request(case)
    if (
        request is None
        or not is_auto(case)
        or not any(hinted_zones(endpoint) for _, endpoint in case.ready)
    ):
        return
    for zone, closed in case.facts.derived(_closed_by_zone).items():
        total = len(case.facts.derived(all_by_zone)[zone])
        yield case.finding(
            "Z9",
            f"{zone}'s share counts {part(len(closed), total, 'node')} that "
            f"{verb(len(closed), 'takes')} no Pods: {some(closed)}",
            request,
            effect=f"{zone} is given more endpoints than its clients need",
            remedy=case.patch(
                {
                    "metadata": {"annotations": {ANNOTATION_TOPOLOGY_MODE: None}},
                    "spec": {"trafficDistribution": "PreferSameZone"},
                },
            ),
        )
        return


def overloaded_zone(case: ServiceCase) -> Iterable[Finding]:
    """Z11: clients are assumed to be spread like the Nodes that take Pods."""
    request = hint_request(case)
    if request is None or is_auto(case) or not followed(case):
        return
    nodes = case.facts.derived(open_by_zone)
    endpoints = Counter(name for _, endpoint in case.ready for name in hinted_zones(endpoint)[:1])
    if len(nodes) < 2 or not case.was_read(NODES.everywhere()):
        return
    clients = {
        zone: Fraction(len(members), sum(map(len, nodes.values())))
        for zone, members in nodes.items()
    }
    loads = _loads(clients, endpoints)
    zone, worst = max(loads.items(), key=lambda item: (item[1], item[0]), default=("", Fraction(0)))
    if worst <= OVERLOAD or worst <= OVERLOAD * _best(clients, endpoints.total()):
        return
    more = _missing(clients, endpoints, zone)
    yield case.finding(
        "Z11",
        f"{zone}: {float(clients.get(zone, 0)):.0%} of the clients (by Nodes), {endpoints[zone]} "
        f"of {endpoints.total()} endpoints: {float(worst):.1f} times an even share each",
        request,
        certainty="likely",
        effect=f"the Pods of {zone} are the first to be overloaded",
        remedy=f"{count(more, 'Pod')} more in {zone}: topologySpreadConstraints with topologyKey "
        f"{LABEL_ZONE}",
    )


def _loads(clients: dict[str, Fraction], endpoints: Counter[str]) -> dict[str, Fraction]:
    """Returns, for each zone with endpoints, the load of one of them relative to an even spread, if
    all follow hints.
    """
    kinds = {
        EndpointKind(zone=zone, zone_hints=(zone,)): number
        for zone, number in endpoints.items()
        if number
    }
    result = shares(
        kinds, [ClientLocation(Locality(zone=zone), share) for zone, share in clients.items()]
    )
    return {
        kind.zone: result.factor(kind) if kind in result.each else Fraction(0) for kind in kinds
    }


def _best(clients: dict[str, Fraction], total: int) -> Fraction:
    """Returns the greatest load under the best spread of *total* endpoints: each is added where the
    load is greatest.
    """
    spread: Counter[str] = Counter()
    for _ in range(total):
        zone = max(
            clients, key=lambda name: (clients[name] / (spread[name] or Fraction(1, 1000)), name)
        )
        spread[zone] += 1
    return max(_loads(clients, spread).values())


def _missing(clients: dict[str, Fraction], endpoints: Counter[str], zone: str) -> int:
    """Returns the number of Pods to add in *zone* until it is not overloaded."""
    more = 1
    while _loads(clients, endpoints + Counter({zone: more}))[zone] > OVERLOAD:
        more += 1
    return more


def zone_reads(_: ZoneCase) -> Iterator[Selection]:
    yield NODES.everywhere()
    yield SERVICES.everywhere()
    yield SLICES.everywhere()


def of_zone(case: ZoneCase) -> Iterable[Finding]:
    """Z5 and Z11 of every Service that concern this zone; Z12 for a zone without Nodes."""
    if not case.facts.was_read(NODES.everywhere()):
        return
    if not case.nodes:
        zones = sorted({zone_of(node) for node in case.facts.of(NODES)} - {""})
        yield case.finding(
            "Z12",
            f"no Node is in zone {case.name}; there are {some(zones) or 'none'}",
            effect="nothing runs there, and no hint for it counts",
            remedy=f"kubectl get nodes -L {LABEL_ZONE}",
        )
        return
    for service in case.facts.of(SERVICES):
        of_service = ServiceCase(
            case.facts, case.question, service.metadata.namespace, service.metadata.name
        )
        for check in (zone_without_endpoint, overloaded_zone):
            yield from (
                finding
                for finding in check(of_service)
                if case.name in finding.sentence.partition(":")[0]
            )


CHECKS = (auto_without_hints, auto_counts_nodes_without_pods, overloaded_zone)
