"""The sentences of the answer. Each describes a decision of the model; none decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sliceplane.api.discovery import EndpointPort
from sliceplane.api.findings.wording import CHOICES_MAX, part, some
from sliceplane.consume.claims import ClaimRefusal
from sliceplane.consume.model import NodeEndpoint, ServedPort, ServiceKey, ServicePortName
from sliceplane.consume.usable import Choice, HintUse, Policy, Why, why
from sliceplane.node.nft.trace import Packet

PolicyField = Literal["internalTrafficPolicy", "externalTrafficPolicy"]


# The packet


def translated(port: ServicePortName, used: Policy, count: int) -> str:
    where = " of this node" if used == "Local" else ""
    endpoints = "1 endpoint" if count == 1 else f"one of {count} endpoints, evenly"
    return f"Service {port_of(port)} leads to {endpoints}{where}"


def unusable(
    port: ServicePortName, used: Policy, field: PolicyField, listed: int, *, has_any: bool
) -> str:
    """Describes why the list *used* is empty; *listed*: the number of endpoints in the Service's
    slices, for any port; *has_any*: other locations may use some.
    """
    name = port_of(port)
    if has_any:
        assert used == "Local", f"{name} has usable endpoints and a Cluster list without any"
        return (
            f"{field} of Service {name} is Local, and no endpoint of this node is usable; others "
            "are elsewhere"
        )
    if not listed:
        return f"Service {name} has no endpoints"
    return f"none of the {listed} endpoints of Service {name} is usable for this port"


def out_of_ranges(packet: Packet, port: ServedPort) -> str:
    ranges = some(port.source_ranges)
    return (
        f"{packet.saddr} is in no loadBalancerSourceRanges of Service {port.name.service}: {ranges}"
    )


def no_such_port(packet: Packet, served: Sequence[ServedPort], inside: str) -> str:
    """Describes a destination that is a cluster IP without such a port, or no Service's."""
    if not served:
        return f"{packet.daddr} is in the range {inside} of cluster IPs, and no Service has it"
    ports = some([f"{port.port}/{port.name.protocol}" for port in served], CHOICES_MAX)
    requested = f"{packet.dport}/{packet.proto.upper()}"
    return f"Service {served[0].name.service} has no port {requested}; it has {ports}"


def untouched(packet: Packet, roles: Sequence[str]) -> str:
    if any(role.startswith(("external IP", "load balancer address")) for role in roles):
        return (
            f"no Service has the port {packet.dport}/{packet.proto.upper()} there: the packet "
            "goes on as it is"
        )
    return f"no Service translates it ({packet.daddr}: {', '.join(roles)})"


def refused(key: ServiceKey, refusal: ClaimRefusal) -> str:
    """Describes a Service that claims the destination and does not get it."""
    return f"Service {key} claims this destination and does not get it: {refusal}"


# Endpoints


def of_endpoint(endpoint: NodeEndpoint, choice: Choice[NodeEndpoint], field: PolicyField) -> str:
    """Describes why *endpoint* is used, or is not."""
    match why(endpoint, choice):
        case Why.READY if choice.policy == "Local":
            return "ready, on this node"
        case Why.NODE_NAMED:
            return f"ready, its hint names node {choice.location.node}"
        case Why.ZONE_NAMED:
            return f"ready, its hint names zone {choice.location.zone}"
        case Why.STILL_SERVING:
            where = " on this node" if choice.policy == "Local" else ""
            return f"still serving while it terminates, and no other is ready{where}"
        case Why.NOT_LOCAL:
            return f"not on this node, and {field} is Local"
        case Why.STOPPED:
            return "terminating, and it serves no more"
        case Why.OTHERS_READY:
            return "terminating, and others are ready"
        case Why.OTHER_NODE_NAMED:
            return f"its hint names node {some(endpoint.node_hints)}"
        case Why.OTHER_ZONE_NAMED:
            return f"its hint names zone {some(endpoint.zone_hints)}"
        case Why.READY:
            return "ready"
        case Why.NOT_READY:
            return "not ready"


def hints(use: HintUse, endpoints: Sequence[NodeEndpoint], choice: Choice[NodeEndpoint]) -> str:
    """Describes the use of the hints of *endpoints* in one sentence."""
    location = choice.location
    mine = len(choice.endpoints)
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    if use.node == "honoured":
        return (
            f"honoured: every ready endpoint names nodes, {mine} of {len(ready)} node "
            f"{location.node}"
        )
    if use.zone == "honoured":
        return (
            f"honoured: every ready endpoint names zones, {mine} of {len(ready)} zone "
            f"{location.zone}"
        )
    if use.zone == "nobody ready":
        return "not looked at: no endpoint is ready"
    if not any(endpoint.zone_hints or endpoint.node_hints for endpoint in ready):
        return "none"
    parts = []
    if use.node == "for others":
        parts.append(f"every ready endpoint names nodes, none of them {location.node}")
    match use.zone:
        case "place unknown":
            parts.append("this node has no zone")
        case "for others":
            parts.append(f"every ready endpoint names zones, none of them {location.zone}")
        case _:
            lacking = [endpoint.ip for endpoint in ready if not endpoint.zone_hints]
            parts.append(
                f"{part(len(lacking), len(ready), 'ready endpoint')} without a zone: "
                f"{some(lacking)}"
            )
    return f"passed over: {'; '.join(parts)}"


def lacks_port(name: ServicePortName, ports: Sequence[EndpointPort]) -> str:
    names = [f"{port.name or '(no name)'}/{port.protocol or 'TCP'}" for port in ports]
    return (
        f"has no port {name.port or '(no name)'}/{name.protocol}; it has "
        f"{some(names, CHOICES_MAX) or 'none'}"
    )


# Names


def port_of(name: ServicePortName) -> str:
    return f"{name.service} port {name.port}" if name.port else str(name.service)


def name_of(slice_key: str) -> str:
    return slice_key.partition("/")[2]
