"""Shares beside packets: the node proxy's rules are built for every Node, and packets are sent
through them.

The rules are exact, so their shares are compared exactly; then packets are drawn one by one, each
from a Node and through the numbers that its rules draw, and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from math import sqrt

import pytest
from tests.diagnose.trace import traced
from tests.lab.whatif.asked import ask, cart, traffic

from sliceplane.api.core import Service
from sliceplane.api.scheme import Services
from sliceplane.kit.rng import Rng
from sliceplane.lab.whatif.prediction import Prediction

CASES = {
    "4/4/3 over three zones": (
        (11, {"a": 2, "b": 2, "c": 2}, {}),
        ("traffic-distribution=PreferSameZone",),
    ),
    "PreferSameZone at skew": (
        (9, {"a": 4, "b": 1, "c": 1}, {}),
        ("traffic-distribution=PreferSameZone",),
    ),
    "a zone without endpoints": (
        (4, {"a": 1, "b": 1}, {}),
        ("traffic-distribution=PreferSameZone", "zone-added=zone-d:2"),
    ),
    "the zone lost": (
        (8, {"a": 2, "b": 2}, {"trafficDistribution": "PreferSameZone"}),
        ("zone-lost=zone-b",),
    ),
    "PreferSameNode": ((3, {"a": 2, "b": 2}, {}), ("traffic-distribution=PreferSameNode",)),
    "Auto": ((10, {"a": 1, "b": 2}, {}), ("topology-mode=Auto",)),
    "no hints": ((7, {"a": 2, "b": 1}, {}), ("replicas=9",)),
}


def asked(name: str) -> Prediction:
    (pods, zones, spec), changes = CASES[name]
    return ask(cart(pods, of=spec, **zones), *changes)


def traced_shares(found: Prediction, node: str) -> dict[str, Fraction]:
    """Pod address -> share of what clients on *node* send to the Service."""
    (service,) = (
        item for item in found.state.objects(Services, Service) if item.metadata.name == "cart"
    )
    slices = [item for _, item in found.state.slices("default", "cart")]
    answer = traced.ask(
        service,
        *slices,
        *found.state.nodes,
        *found.state.pods(),
        to=f"{service.spec.cluster_ip}:80",
        at=node,
    )
    return {
        target.address: Fraction(target.share)
        for target in answer.targets
        if Fraction(target.share)
    }


def zones_of_endpoints(found: Prediction) -> dict[str, str]:
    return {
        endpoint.addresses[0]: endpoint.zone or ""
        for _, item in found.state.slices("default", "cart")
        for endpoint in item.endpoints or ()
    }


def sent(found: Prediction) -> dict[tuple[str, str], Fraction]:
    """Zone of the client, zone of the endpoint -> share, by the rules of every Node that has
    clients.
    """
    zones = zones_of_endpoints(found)
    flows: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for place in found.after.client_locations:
        for address, share in traced_shares(found, place.at.node).items():
            flows[place.at.zone, zones[address.rpartition(":")[0] or address]] += (
                share * place.share
            )
    return dict(flows)


@pytest.mark.parametrize("name", CASES)
def test_shares_are_those_of_the_rules_of_every_node(name: str) -> None:
    found = asked(name)
    assert sent(found) == found.after.shares.flows


def drawn(found: Prediction, packets: int) -> Counter[tuple[str, str]]:
    """*packets*, one by one: a Node by its share of the clients, then what its rules draw."""
    rng = Rng(20_261_122)
    zones = zones_of_endpoints(found)
    nodes: list[tuple[str, Sequence[str]]] = []
    for place in found.after.client_locations:
        shares = traced_shares(found, place.at.node)
        parts = 1 / min(shares.values())
        assert parts.denominator == 1, "numgen draws one of so many, each as likely"
        targets = [zones[address.rpartition(":")[0] or address] for address in sorted(shares)]
        assert len(targets) == parts
        nodes.append((place.at.zone, targets))
    counted: Counter[tuple[str, str]] = Counter()
    for _ in range(packets):
        zone, targets = nodes[rng.below(len(nodes))]
        counted[zone, targets[rng.below(len(targets))]] += 1
    return counted


def check_within_chance(found: Prediction, packets: int) -> None:
    counted = drawn(found, packets)
    assert counted.keys() == found.after.shares.flows.keys()
    for flow, share in found.after.shares.flows.items():
        sigma = sqrt(packets * float(share) * (1 - float(share)))
        assert abs(counted[flow] - packets * float(share)) <= 5 * sigma, (
            f"{flow}: {counted[flow]} of {packets}"
        )


@pytest.mark.parametrize("name", ["4/4/3 over three zones", "a zone without endpoints"])
def test_shares_are_those_of_packets_within_chance(name: str) -> None:
    check_within_chance(asked(name), 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_shares_are_those_of_a_million_packets_within_chance(name: str) -> None:
    check_within_chance(asked(name), 1_000_000)


def test_traffic_that_was_measured_counts_in_its_proportion() -> None:
    (pods, zones, _), changes = CASES["PreferSameZone at skew"]
    found = ask(cart(pods, **zones), *changes, clients=traffic(a=0.1, b=0.1, c=0.8))
    assert sent(found) == found.after.shares.flows
