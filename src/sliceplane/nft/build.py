"""A service's state to the objects that it needs in the table (reference A6, "Objects per service port").

For each service port, with C and L the endpoints of the Cluster and the Local policy:

| object | when | what |
|---|---|---|
| element of cluster-ips | always | the cluster IP |
| chain service-X or local-X | its endpoints exist | DNAT to one of C, or of L with internalTrafficPolicy Local |
| element of service-ips | that chain exists | goto the chain |
| element of no-endpoint-services | it does not | drop if there are endpoints elsewhere, else reject |
| element of hairpin-connections | per local endpoint | an endpoint that calls itself through the service is
masqueraded |

Node ports, external addresses, source ranges and affinity are further rows: they read the same ``PortState``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.nft.layout import CLUSTER_IPS, HAIRPIN, NO_ENDPOINTS, REJECT_CHAIN, SERVICE_IPS
from sliceplane.nft.names import chain_name
from sliceplane.nft.objects import DROP, Key, Target, Value, goto
from sliceplane.nft.slots import TARGETS_PER_CHAIN_MAX
from sliceplane.proxy.model import PortState


@dataclass(frozen=True, slots=True)
class BalancedChain:
    """A chain that sends a connection to one of *targets* (at least one), all equally likely."""

    name: str
    protocol: str
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class ServiceObjects:
    """What one Service wants in the table.  Chains are its own; elements may be wanted by other Services too."""

    chains: tuple[BalancedChain, ...] = ()
    elements: tuple[tuple[str, Key, Value], ...] = ()


def build_service(states: tuple[PortState, ...]) -> ServiceObjects:
    """The objects of all ports of one Service.  Of two values for one element (a Service that no API server lets
    through)
    the first counts."""
    chains: list[BalancedChain] = []
    elements: dict[tuple[str, Key], Value] = {}
    for state in states:
        port, categories = state.port, state.categories
        protocol = port.name.protocol.lower()
        elements.setdefault((CLUSTER_IPS.name, (port.cluster_ip,)), None)
        endpoints = categories.local if port.internal_local else categories.cluster
        destination: Key = (port.cluster_ip, protocol, port.port)
        if endpoints:
            name = chain_name("local" if port.internal_local else "service", port.name)
            targets = tuple([Target(endpoint.ip, endpoint.port) for endpoint in endpoints[:TARGETS_PER_CHAIN_MAX]])
            chains.append(BalancedChain(name, protocol, targets))
            elements.setdefault((SERVICE_IPS.name, destination), goto(name))
        else:
            verdict = DROP if categories.has_any else goto(REJECT_CHAIN)
            elements.setdefault((NO_ENDPOINTS.name, destination), verdict)
        for endpoint in categories.reachable:
            if endpoint.is_local:
                elements.setdefault((HAIRPIN.name, (endpoint.ip, endpoint.ip, protocol, endpoint.port)), None)
    return ServiceObjects(tuple(chains), tuple((*found, value) for found, value in elements.items()))
