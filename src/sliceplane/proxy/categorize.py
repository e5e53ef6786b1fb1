"""Which endpoints of a service port may this node use (reference A4; KEP-4444, "Consumers").

The proxy reads hints and conditions alone: neither the Service's trafficDistribution nor any annotation.
Two lists come out, one for each traffic policy, and they fall back to terminating endpoints independently
of each other: Local may use terminating pods while Cluster uses ready ones elsewhere.

**Hints** are honoured all or nothing, and only where they leave somebody to talk to.  Looking at *ready*
endpoints only: if every one names nodes and one names this node, the node's endpoints are used; else if
every one names zones and one names this zone, the zone's; else all.  So a slice that is half-way through
an update, or a node without a zone label, never empties a service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sliceplane.proxy.model import Categories, Endpoint, HintOutcome, HintUse, ServicePort, Topology

_NOTHING = Categories()
_NOBODY_READY = HintUse("nobody ready", "nobody ready")


class Hinted(Protocol):
    """What hints are read from: the endpoints of proxies and those of ``balancing``."""

    @property
    def zone_hints(self) -> tuple[str, ...]: ...

    @property
    def node_hints(self) -> tuple[str, ...]: ...


E = TypeVar("E", bound=Hinted)


def categorize(endpoints: Sequence[Endpoint], port: ServicePort, topology: Topology) -> Categories:
    """The endpoints that each policy of *port* may use on the node at *topology*."""
    if not endpoints:
        return _NOTHING
    has_any = False
    filtered = False
    cluster: tuple[Endpoint, ...] = ()
    hints: HintUse | None = None
    if port.uses_cluster_endpoints:
        ready = tuple([endpoint for endpoint in endpoints if endpoint.ready])
        cluster, hints = closest(ready, topology.node, topology.zone)
        filtered = len(cluster) != len(ready)
        if not cluster:
            cluster = tuple([endpoint for endpoint in endpoints if endpoint.serving and endpoint.terminating])
        has_any = bool(cluster)
    if not port.uses_local_endpoints:
        return Categories(cluster=cluster, reachable=cluster, has_any=has_any, hints=hints)

    has_any = has_any or any(endpoint.ready or (endpoint.serving and endpoint.terminating) for endpoint in endpoints)
    here = [endpoint for endpoint in endpoints if endpoint.is_local]
    local = tuple([endpoint for endpoint in here if endpoint.ready])
    fell_back = not local
    if fell_back:
        local = tuple([endpoint for endpoint in here if endpoint.serving and endpoint.terminating])
    if not port.uses_cluster_endpoints:
        reachable = local
    elif not filtered and not fell_back:
        reachable = cluster  # which then holds every ready endpoint, the local ones among them
    else:
        used = {id(endpoint) for endpoint in cluster} | {id(endpoint) for endpoint in local}
        reachable = tuple([endpoint for endpoint in endpoints if id(endpoint) in used])
    return Categories(cluster=cluster, local=local, reachable=reachable, has_any=has_any, hints=hints)


def closest(ready: tuple[E, ...], node: str, zone: str) -> tuple[tuple[E, ...], HintUse]:
    """*ready*, narrowed by node hints, else by zone hints, if they can be honoured at *node* in *zone*; and what
    became of the hints."""
    if not ready:
        return ready, _NOBODY_READY
    for_node: HintOutcome = "place unknown"
    if node:
        for_node = "incomplete"
        if all(endpoint.node_hints for endpoint in ready):
            same_node = tuple([endpoint for endpoint in ready if node in endpoint.node_hints])
            if same_node:
                return same_node, HintUse("honoured", "not needed")
            for_node = "for others"
    for_zone: HintOutcome = "place unknown"
    if zone:
        for_zone = "incomplete"
        if all(endpoint.zone_hints for endpoint in ready):
            same_zone = tuple([endpoint for endpoint in ready if zone in endpoint.zone_hints])
            if same_zone:
                return same_zone, HintUse(for_node, "honoured")
            for_zone = "for others"
    return ready, HintUse(for_node, for_zone)
