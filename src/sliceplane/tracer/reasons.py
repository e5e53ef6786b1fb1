"""The sentences.  Each words a decision that was made elsewhere; none makes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sliceplane.api.discovery import EndpointPort
from sliceplane.nft.trace import Packet
from sliceplane.proxy.claims import Refusal
from sliceplane.proxy.model import (
    Categories,
    Endpoint,
    PortState,
    ServiceKey,
    ServicePort,
    ServicePortName,
    Topology,
)
from sliceplane.tracer.answer import Policy
from sliceplane.tracer.question import some

PolicyField = Literal["internalTrafficPolicy", "externalTrafficPolicy"]


# What became of the packet


def translated(state: PortState, used: Policy, count: int) -> str:
    where = " of this node" if used == "Local" else ""
    endpoints = "1 endpoint" if count == 1 else f"one of {count} endpoints, evenly"
    return f"Service {port_of(state.port.name)} leads to {endpoints}{where}"


def nobody(state: PortState, used: Policy, field: PolicyField, listed: int) -> str:
    """Why the list *used* is empty; *listed*: how many endpoints the Service's slices have, for whatever port."""
    name = port_of(state.port.name)
    if state.categories.has_any:
        assert used == "Local", f"{name} has usable endpoints and a Cluster list without any"
        return f"{field} of Service {name} is Local, and no endpoint of this node is usable; others are elsewhere"
    if not listed:
        return f"Service {name} has no endpoints"
    return f"none of the {listed} endpoints of Service {name} is usable for this port"


def out_of_ranges(packet: Packet, port: ServicePort) -> str:
    ranges = some([*port.source_ranges])
    return f"{packet.saddr} is in no loadBalancerSourceRanges of Service {port.name.service}: {ranges}"


def no_such_port(packet: Packet, there: Sequence[ServicePort], inside: str) -> str:
    """The destination is a cluster IP without such a port, or none of any Service."""
    if not there:
        return f"{packet.daddr} is in the range {inside} of cluster IPs, and no Service has it"
    ports = some([f"{port.port}/{port.name.protocol}" for port in there])
    wanted = f"{packet.dport}/{packet.proto.upper()}"
    return f"Service {there[0].name.service} has no port {wanted}; it has {ports}"


def untouched(packet: Packet, roles: Sequence[str]) -> str:
    if any(role.startswith(("external IP", "load balancer address")) for role in roles):
        return f"no Service has the port {packet.dport}/{packet.proto.upper()} there: the packet goes on as it is"
    return f"no Service translates it ({packet.daddr}: {', '.join(roles)})"


def refused(key: ServiceKey, refusal: Refusal) -> str:
    """A Service asks for the destination, and another has it, or nobody may."""
    return f"Service {key} asks for this destination and does not get it: {refusal}"


# Endpoints


def chosen(endpoint: Endpoint, categories: Categories, used: Policy, topology: Topology) -> str:
    if not endpoint.ready:
        return "still serving while it terminates, and no other is ready" + (" on this node" if used == "Local" else "")
    if used == "Local":
        return "ready, on this node"
    assert categories.hints is not None, f"{endpoint} was chosen and nobody looked at hints"
    if categories.hints.node == "honoured":
        return f"ready, its hint names node {topology.node}"
    if categories.hints.zone == "honoured":
        return f"ready, its hint names zone {topology.zone}"
    return "ready"


def not_chosen(endpoint: Endpoint, categories: Categories, used: Policy, field: PolicyField) -> str:
    if used == "Local" and not endpoint.is_local:
        return f"not on this node, and {field} is Local"
    if not endpoint.ready:
        if endpoint.terminating:
            return "terminating, and others are ready" if endpoint.serving else "terminating, and it serves no more"
        return "not ready"
    assert used == "Cluster", f"{endpoint} is ready and of this node, and was not chosen"
    assert categories.hints is not None, f"{endpoint} is ready, nobody looked at hints, and it was not chosen"
    if categories.hints.node == "honoured":
        return f"its hint names node {some([*endpoint.node_hints])}"
    assert categories.hints.zone == "honoured", f"{endpoint} is ready and was not chosen: {categories.hints}"
    return f"its hint names zone {some([*endpoint.zone_hints])}"


def hints(categories: Categories, endpoints: Sequence[Endpoint], topology: Topology) -> str:
    """What became of them, in one sentence; the endpoint that is to blame is the first."""
    use = categories.hints
    assert use is not None, "nobody looked at hints"
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    if use.node == "honoured":
        mine = len(categories.cluster)
        return f"honoured: every ready endpoint names nodes, {mine} of {len(ready)} node {topology.node}"
    if use.zone == "honoured":
        mine = len(categories.cluster)
        return f"honoured: every ready endpoint names zones, {mine} of {len(ready)} zone {topology.zone}"
    if use.zone == "nobody ready":
        return "not looked at: no endpoint is ready"
    if not any(endpoint.zone_hints or endpoint.node_hints for endpoint in ready):
        return "none"
    told = []
    if use.node == "for others":
        told.append(f"every ready endpoint names nodes, none of them {topology.node}")
    match use.zone:
        case "place unknown":
            told.append("this node has no zone")
        case "for others":
            told.append(f"every ready endpoint names zones, none of them {topology.zone}")
        case _:
            lacking = [endpoint.ip for endpoint in ready if not endpoint.zone_hints]
            told.append(f"{len(lacking)} of {len(ready)} ready endpoints without a zone: {some(lacking, 3)}")
    return f"passed over: {'; '.join(told)}"


def lacks_port(name: ServicePortName, ports: Sequence[EndpointPort]) -> str:
    there = [f"{port.name or '(no name)'}/{port.protocol or 'TCP'}" for port in ports]
    return f"has no port {name.port or '(no name)'}/{name.protocol}; it has {some(there)}"


# Names


def port_of(name: ServicePortName) -> str:
    return f"{name.service} port {name.port}" if name.port else str(name.service)


def name_of(slice_key: str) -> str:
    return slice_key.partition("/")[2]
