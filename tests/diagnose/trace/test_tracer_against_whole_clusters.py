"""Random clusters: the answer is what the rules of *all* Services do, and each reason given is a
true one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.diagnose.trace.traced import (
    CLIENT,
    NODES,
    OUTSIDE,
    PODS,
    RANGE,
    ask,
    ep,
    pod,
    service,
    slice_of,
)
from tests.nft.fake import FakeKernel

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.gates import Gates
from sliceplane.api.selectors import parse_labels
from sliceplane.consume.selections import common_selector, own_selectors
from sliceplane.diagnose.trace.answer import TraceAnswer, TracedEndpoint
from sliceplane.node.context import RulesConfig
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.nft.trace import Packet, PacketOutcome, trace
from sliceplane.node.plane import NodePlaneConfig

SUBSETTING = "EndpointSliceSubsetting=true"
SERVICES = {"api": "10.96.0.10", "web": "10.96.0.11", "dns": "10.96.0.12"}
#: some are what they should not be: a cluster IP, an external IP, the node's own address
ADDRESSES = ["10.1.1.1", "10.1.1.2", "10.1.2.1", CLIENT, "10.96.0.11", "198.51.100.99", "192.0.2.1"]
DESTINATIONS = [*SERVICES.values(), "198.51.100.99", "203.0.113.5", "192.0.2.1", "10.96.7.7"]
#: so that every destination is something
ELSEWHERE = pod("elsewhere", "node-b", "198.51.100.99", "203.0.113.5")
FOR_ZONE = "endpointslice.kubernetes.io/for-zone"

endpoints = st.builds(
    lambda address, on, flags, hint, for_node: ep(
        address, address, on, flags=flags, hint=hint, for_node=for_node
    ),
    st.sampled_from(ADDRESSES),
    st.sampled_from(["node-a", "node-b", ""]),
    st.sampled_from(["rs", "rs", "rs", "", "st", "t"]),
    st.sampled_from(["zone-a", "zone-b", "zone-a", ""]),
    st.sampled_from(["", "", "node-a", "node-b"]),
)


def port(number: int, node_port: int, protocol: str) -> dict[str, Any]:
    return {"name": "http", "port": number, "protocol": protocol, "nodePort": node_port}


specs = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]),
        "ports": st.builds(
            port, st.sampled_from([80, 81]), st.sampled_from([0, 80, 30080]), st.just("TCP")
        ).map(lambda each: [each]),
        "internalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
        "externalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
        "externalIPs": st.sampled_from([[], ["198.51.100.99"]]),
        "ingress": st.sampled_from([[], [{"ip": "203.0.113.5"}]]),
        "loadBalancerSourceRanges": st.sampled_from([[], ["198.51.100.0/24"], ["10.1.0.0/16"]]),
        "sessionAffinity": st.sampled_from(["None", "None", "ClientIP"]),
    }
)


@dataclass(frozen=True)
class World:
    services: tuple[Service, ...]
    slices: tuple[EndpointSlice, ...]
    rules: RulesConfig
    gates: str


@st.composite
def worlds(draw: st.DrawFn) -> World:
    services, slices = [], []
    for name, ip in SERVICES.items():
        if draw(st.booleans()) or name == "api":
            services.append(service(name, ip, **draw(specs)))
        for number in range(draw(st.integers(0, 2))):
            labels = draw(st.sampled_from([{}, {}, {FOR_ZONE: "zone-a"}, {FOR_ZONE: "zone-b"}]))
            rows = draw(st.lists(endpoints, max_size=4))
            version = draw(st.integers(1, 9))
            ports = [{"name": "http", "port": draw(st.sampled_from([80, 8080])), "protocol": "TCP"}]
            slices.append(
                slice_of(
                    f"{name}-{number}", rows, of=name, version=version, labels=labels, ports=ports
                )
            )
    rules = draw(st.sampled_from([PODS, RulesConfig(), replace(PODS, masquerade_all=True)]))
    return World(tuple(services), tuple(slices), rules, draw(st.sampled_from(["", SUBSETTING])))


@dataclass(frozen=True)
class Sent:
    source: str
    destination: str
    port: int


packets = st.builds(
    Sent,
    st.sampled_from([CLIENT, OUTSIDE, "192.0.2.1"]),
    st.sampled_from(DESTINATIONS),
    st.sampled_from([80, 80, 81, 30080]),
)


def by_the_whole_cluster(world: World, sent: Sent) -> dict[PacketOutcome, Fraction]:
    """Every Service in one table, as a node's proxy has them."""
    plane = nft_plane("IPv4", NodePlaneConfig(node_name="node-a", rules=world.rules))
    plane.on_node(NODES[0], 0.0)
    plane.on_service_cidr("kubernetes", RANGE, 0.0)
    for each in world.services:
        plane.on_service(None, each, 0.0)
    gates = Gates.parse(world.gates)
    selectors = [
        parse_labels(text) for text in (common_selector(gates), *own_selectors(gates, NODES[0]))
    ]
    for found in world.slices:
        if any(selector.matches(found.metadata.labels) for selector in selectors):
            plane.on_slice(None, found, 0.0)
    plane.on_synced(0.0)
    kernel = FakeKernel()
    transaction = plane.take_transaction(0.0)
    assert transaction is not None
    kernel.run(transaction)
    packet = Packet(sent.source, sent.destination, "tcp", sent.port)
    path = "local" if sent.source == "192.0.2.1" else "forwarded"
    return trace(kernel.tables[plane.rules.table], packet, path, frozenset({"192.0.2.1"}))  # type: ignore[arg-type]


def by_the_answer(answer: TraceAnswer) -> dict[PacketOutcome, Fraction]:
    if not answer.targets:
        assert answer.verdict != "dnat"
        to = answer.destination
        arrived = f"{to.address} {to.port}" if answer.verdict == "accept" else ""
        # No Service: whatever is masqueraded then is no business of the proxy's.
        return {PacketOutcome(answer.verdict, arrived): Fraction(1)}  # type: ignore[arg-type]
    found: dict[PacketOutcome, Fraction] = {}
    for each in answer.targets:
        outcome = (
            PacketOutcome("accept", f"{each.address} {each.port}", each.masquerade)
            if each.verdict == "dnat"
            else PacketOutcome(each.verdict)  # type: ignore[arg-type]
        )
        found[outcome] = found.get(outcome, Fraction(0)) + Fraction(each.share)
    return found


def asked(world: World, sent: Sent) -> TraceAnswer:
    to = f"{sent.destination}:{sent.port}"
    objects = (*world.services, *world.slices, ELSEWHERE)
    return ask(
        *objects, to=to, source=sent.source, at="node-a", rules=world.rules, gates=world.gates
    )


@given(worlds(), packets)
def test_the_answer_is_what_the_rules_of_all_services_do(world: World, sent: Sent) -> None:
    answer = asked(world, sent)
    assert by_the_answer(answer) == by_the_whole_cluster(world, sent)
    assert answer.arrives == all(outcome.verdict == "accept" for outcome in by_the_answer(answer))


@given(worlds(), packets)
def test_every_endpoint_of_the_service_is_told_once_with_a_reason(world: World, sent: Sent) -> None:
    answer = asked(world, sent)
    if answer.service is None:
        assert not answer.targets
        assert not answer.others
        return
    counted = {each.name for each in answer.slices if not each.why}
    listed = {
        (endpoint.addresses[0], port.port)
        for each in world.slices
        if each.metadata.name in counted
        for port in each.ports or ()
        for endpoint in each.endpoints or ()
    }
    told = [
        (each.address, each.port)
        for each in (*answer.targets, *answer.others)
        if not each.why.startswith("the same address")
    ]
    assert sorted(told) == sorted(listed)
    assert all(each.why for each in (*answer.targets, *answer.others))


@given(worlds(), packets)
def test_each_reason_goes_away_with_what_it_names(world: World, sent: Sent) -> None:
    """Whoever was not chosen is, or is not for another reason, once what was held against it is
    different.
    """
    for each in asked(world, sent).others:
        if "counts" in each.why or "refused before" in each.why:
            continue
        again = asked(repaired(world, each), sent)
        key = (each.address, each.port)
        found = next(
            other
            for other in (*again.targets, *again.others)
            if (other.address, other.port) == key and other.slice == each.slice
        )
        assert found.why != each.why, f"{each} became {found}"


def repaired(world: World, view: TracedEndpoint) -> World:
    """*world*, in which the endpoint lacks what its reason names."""
    flags = {"ready": view.ready, "serving": view.serving, "terminating": view.terminating}
    zone, node_hint, on = view.zone_hints, view.node_hints, view.node
    if "not on this node" in view.why:
        on = "node-a"
    elif "names node" in view.why:
        node_hint = ("node-a",)
    elif "names zone" in view.why:
        zone = ("zone-a",)
    else:
        flags = {"ready": True, "serving": True, "terminating": False}
    mended = ep(view.address, view.address, on, hint="".join(zone), for_node="".join(node_hint))
    mended["conditions"] = flags

    def one(each: EndpointSlice) -> EndpointSlice:
        if each.metadata.name != view.slice:
            return each
        rows = [ep_of(endpoint) for endpoint in each.endpoints or ()]
        labels = dict(each.metadata.labels or {})
        owner = labels.pop("kubernetes.io/service-name")
        ports = [
            {"name": port.name, "port": port.port, "protocol": port.protocol}
            for port in each.ports or ()
        ]
        kept = [row for row in rows if row["addresses"] != [view.address]]
        version = int(each.metadata.resource_version)
        return slice_of(
            each.metadata.name,
            [*kept, mended],
            of=owner,
            version=version,
            labels=labels,
            ports=ports,
        )

    return dataclasses.replace(world, slices=tuple(map(one, world.slices)))


def ep_of(endpoint: Any) -> dict[str, Any]:
    conditions = endpoint.conditions
    hints = endpoint.hints
    row = ep(
        endpoint.addresses[0],
        endpoint.addresses[0],
        endpoint.node_name or "",
        hint="".join(zone.name for zone in hints.for_zones or ()) if hints else "",
        for_node="".join(node.name for node in hints.for_nodes or ()) if hints else "",
    )
    row["conditions"] = {
        "ready": conditions.ready,
        "serving": conditions.serving,
        "terminating": conditions.terminating,
    }
    return row
