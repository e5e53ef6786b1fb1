"""HCN documents (schema 2.0) of one IP family: endpoints that HCN must have, and a load balancer
policy for each address and port.

HCN identifies endpoints by an id that it returns at their creation, or, for a local one, to the
network plug-in. A render cannot know the ids: its policies name endpoints by their address, and the
program that applies them replaces these with ids.

A policy has one target port. If the endpoints of a service port have several (a named port that
differs between Pods), those with the most common port are used, and the document lists the others as
``LeftOut``. Affinity has no timeout. Source ranges and the choice between reject and drop do not
exist. A service port without endpoints has no policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from sliceplane.consume.model import NodeEndpoint, PortState
from sliceplane.node.snapshot import NodeSnapshot

SCHEMA: Final = {"Major": 2, "Minor": 0}
#: IANA protocol numbers
_PROTOCOLS: Final = {"TCP": 6, "UDP": 17, "SCTP": 132}
#: flag of an endpoint: it is on another node
_REMOTE_ENDPOINT: Final = 1
#: flag of a policy
_IPV6: Final = 2
#: flags of a port mapping: for the node's own traffic; for node ports, on any address of the node
_ILB, _LOCAL_ROUTED_VIP, _PRESERVE_DIP = 1, 2, 8
#: distribution of clients: by all five parts of a connection, or by the client's address
_BY_CONNECTION, _BY_CLIENT = 0, 2

Document = dict[str, Any]


def render(snapshot: NodeSnapshot) -> Document:
    """Returns ``Endpoints`` sorted by address, and ``LoadBalancers`` in the order of Services, each a
    ``Policy`` with its ``ServicePort``.

    If two Services claim the same address and port, the first by namespace and name wins.
    """
    policies: dict[tuple[str, str, int], Document] = {}
    used: dict[str, NodeEndpoint] = {}

    def add(
        state: PortState, ip: str, port: int, endpoints: tuple[NodeEndpoint, ...], flags: int
    ) -> None:
        if endpoints:
            document = _policy(state, ip, port, endpoints, flags)
            policies.setdefault((ip, state.port.name.protocol, port), document)
            used.update({endpoint.ip: endpoint for endpoint in endpoints})

    for state in snapshot.states:
        port = state.port
        add(state, port.cluster_ip, port.port, state.inside, _ILB)
        outside = _PRESERVE_DIP if port.external_local else 0
        for ip in (*port.external_ips, *port.vips):
            add(state, ip, port.port, state.outside, outside)
        if port.node_port:
            add(state, "", port.node_port, state.outside, outside | _LOCAL_ROUTED_VIP)
    return {
        "Endpoints": [_endpoint(used[ip]) for ip in sorted(used)],
        "LoadBalancers": list(policies.values()),
    }


def _policy(
    state: PortState, ip: str, port: int, endpoints: tuple[NodeEndpoint, ...], flags: int
) -> Document:
    target = _common_port(endpoint.port for endpoint in endpoints)
    policy: Document = {
        "HostComputeEndpoints": [endpoint.ip for endpoint in endpoints if endpoint.port == target],
        "FrontendVIPs": [ip] if ip else [],
        "PortMappings": [
            {
                "Protocol": _PROTOCOLS[state.port.name.protocol],
                "InternalPort": target,
                "ExternalPort": port,
                "DistributionType": _BY_CLIENT if state.port.affinity_timeout_s else _BY_CONNECTION,
                "Flags": flags,
            }
        ],
        "SchemaVersion": SCHEMA,
        "Flags": _IPV6 if ":" in state.port.cluster_ip else 0,
    }
    document: Document = {"ServicePort": str(state.port.name), "Policy": policy}
    skipped = [
        f"{endpoint.ip} {endpoint.port}" for endpoint in endpoints if endpoint.port != target
    ]
    if skipped:
        document["LeftOut"] = skipped
    return document


def _common_port(ports: Iterable[int]) -> int:
    """Returns the most common port; the lowest of several."""
    counts = Counter(ports)
    return min(counts, key=lambda port: (-counts[port], port))


def _endpoint(endpoint: NodeEndpoint) -> Document:
    return {
        "IpConfigurations": [{"IpAddress": endpoint.ip}],
        "Flags": 0 if endpoint.is_local else _REMOTE_ENDPOINT,
        "SchemaVersion": SCHEMA,
    }
