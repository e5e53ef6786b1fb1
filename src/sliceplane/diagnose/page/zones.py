"""The zones of clients and the zones of the endpoints that they reach: the sum of
``consume.balancing.shares`` over all Services.

Every Service has the same weight, and so has every client of a zone. Clients are assumed to be
distributed like the schedulable Nodes, as in ``what-if``; they connect to the cluster IP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from sliceplane.api.discovery import LABEL_ZONE, EndpointSlice
from sliceplane.consume.balancing.shares import (
    EndpointKind,
    Place,
    TrafficShares,
    at_nodes,
    merge_of_pods,
    merged_kinds,
    shares,
)
from sliceplane.consume.usable import Locality
from sliceplane.diagnose.explain.checks.zones import is_working, takes_pods
from sliceplane.diagnose.page.model import ClusterModel

#: kinds of endpoints whose traffic is remembered
_WORKED_OUT_MAX: Final = 4096

#: client zone -> endpoint zone -> share of the zone's connections; empty where no endpoint may be
#: used
Rows = Mapping[str, Mapping[str, float]]


class ServiceTraffic(NamedTuple):
    """``loads``: of one endpoint of a zone over an even share, the greatest. ``leaving`` and
    ``dropped`` are parts of all connections: answered in another zone, and not at all.
    """

    rows: Rows
    loads: Mapping[str, float]
    leaving: float
    dropped: float


class Matrix(NamedTuple):
    """Means over the Services that have endpoints, of which there are ``services``. ``nodes``:
    where clients are; ``leaving``: Services of which a part leaves its zone, the most first.
    """

    nodes: Mapping[str, int]
    shares: Rows
    load: Mapping[str, float]
    services: int
    cross: float
    dropped: float
    leaving: tuple[tuple[str, float], ...]


class _ServicePods:
    """Follows the slices of one Service: what did not change is not read again."""

    def __init__(self) -> None:
        self._merge = merge_of_pods(None)
        self._slices: dict[str, EndpointSlice] = {}

    def kinds(self, slices: Iterable[EndpointSlice], *, by_node: bool) -> Counter[EndpointKind]:
        now = {item.metadata.key: item for item in slices}
        for key in [key for key in self._slices if key not in now]:
            self._merge.on_slice(key, None)
        for key, item in now.items():
            if self._slices.get(key) is not item:
                self._merge.on_slice(key, item)
        self._slices = now
        self._merge.take_touched()
        return merged_kinds({"": self._merge}, by_node=by_node)


class ZoneBook:
    """Traffic of each Service, looked up anew when its slices, its policy or the places of clients
    have changed. That of Services with the same kinds of endpoints, as many of each, is worked out
    once.
    """

    def __init__(self) -> None:
        self._at: tuple[Locality, ...] = ()
        self._places: tuple[Place, ...] = ()
        #: the same by zone, for Services that ask for no node
        self._zones: tuple[Place, ...] = ()
        self._nodes: Counter[str] = Counter()
        self._known: dict[str, tuple[tuple[int, bool], ServiceTraffic | None]] = {}
        self._pods: dict[str, _ServicePods] = {}
        self._worked_out: dict[
            tuple[frozenset[tuple[EndpointKind, int]], bool], ServiceTraffic | None
        ] = {}

    def matrix(self, model: ClusterModel, services: Iterable[str]) -> Matrix:
        self._look_at_nodes(model)
        for gone in [service for service in self._known if service not in model.services]:
            self._known.pop(gone)
            self._pods.pop(gone, None)
        totals: dict[str, dict[str, float]] = {zone: {} for zone in sorted(self._nodes)}
        loads: dict[str, list[float]] = {}
        found = {
            service: traffic
            for service in services
            if (traffic := self._traffic(model, service)) is not None
        }
        for traffic in found.values():
            for client, row in traffic.rows.items():
                for zone, share in row.items():
                    totals[client][zone] = totals[client].get(zone, 0.0) + share
            for zone, load in traffic.loads.items():
                loads.setdefault(zone, []).append(load)
        number = len(found) or 1
        leaving = [
            (service, traffic.leaving) for service, traffic in found.items() if traffic.leaving
        ]
        return Matrix(
            dict(sorted(self._nodes.items())),
            {
                client: {zone: row[zone] / number for zone in sorted(row)}
                for client, row in totals.items()
            },
            {zone: sum(values) / len(values) for zone, values in sorted(loads.items())},
            len(found),
            sum(traffic.leaving for traffic in found.values()) / number,
            sum(traffic.dropped for traffic in found.values()) / number,
            tuple(sorted(leaving, key=lambda pair: (-pair[1], pair[0]))),
        )

    def _look_at_nodes(self, model: ClusterModel) -> None:
        at = tuple(
            Locality(name, (node.metadata.labels or {}).get(LABEL_ZONE, ""))
            for name, node in sorted(model.nodes.items())
            if takes_pods(node) and is_working(node)
        )
        if at == self._at:
            return
        self._known.clear()
        self._worked_out.clear()
        self._at = at
        self._nodes = Counter(place.zone for place in at)
        self._places = at_nodes(at)
        self._zones = tuple(
            Place(Locality(zone=zone), Fraction(number, len(at)))
            for zone, number in sorted(self._nodes.items())
        )

    def _traffic(self, model: ClusterModel, service: str) -> ServiceTraffic | None:
        """``None``: it has no endpoint."""
        known = self._known.get(service)
        policy = (
            model.services[service].spec.internal_traffic_policy
            if service in model.services
            else ""
        )
        version = (model.touched(service), policy == "Local")
        if known is None or known[0] != version:
            known = self._known[service] = (
                version,
                self._made(model, service, local=policy == "Local"),
            )
        return known[1]

    def _made(self, model: ClusterModel, service: str, *, local: bool) -> ServiceTraffic | None:
        kinds = self._pods.setdefault(service, _ServicePods()).kinds(
            model.slices(service), by_node=local
        )
        same = (frozenset(kinds.items()), local)
        if same not in self._worked_out:
            if len(self._worked_out) >= _WORKED_OUT_MAX:
                self._worked_out.clear()
            asks_nodes = local or any(kind.node_hints for kind in kinds)
            found = shares(kinds, self._places if asks_nodes else self._zones, local=local)
            self._worked_out[same] = (
                _told(found, kinds, self._zones) if found.candidates and self._zones else None
            )
        return self._worked_out[same]


def _told(
    found: TrafficShares, kinds: Iterable[EndpointKind], clients: Iterable[Place]
) -> ServiceTraffic:
    part = {place.at.zone: place.share for place in clients}
    rows: dict[str, dict[str, float]] = {zone: {} for zone in part}
    for (came, to), share in found.flows.items():
        rows[came][to] = float(share / part[came])
    zones = {kind.zone for kind in kinds if kind.ready} | {kind.zone for kind in found.each}
    loads = {zone: float(found.load(zone)) for zone in sorted(zones)}
    return ServiceTraffic(rows, loads, float(found.leaving), float(found.dropped))
