"""The zones of clients and the zones of the endpoints that they reach: the sum of
``consume.balancing.shares`` over all Services.

Every Service has the same weight, and so has every client of a zone. Clients are assumed to be
distributed like the schedulable Nodes, as in ``what-if``, unless the Service's zones are measured
(``slices.heuristics.measured``); they connect to the cluster IP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from sliceplane.api.discovery import LABEL_ZONE, EndpointSlice
from sliceplane.consume.balancing.shares import (
    ClientLocation,
    EndpointKind,
    TrafficShares,
    at_nodes,
    at_zones,
    merge_of_pods,
    merged_kinds,
    shares,
)
from sliceplane.consume.usable import Locality
from sliceplane.diagnose.explain.checks.zones import is_working, takes_pods
from sliceplane.diagnose.page.model import ClusterModel
from sliceplane.slices.heuristics.measured import PARTS, measured_shares

#: sets of endpoint kinds whose traffic is cached
_COMPUTED_MAX: Final = 4096

#: client zone -> endpoint zone -> share of the zone's connections; empty if no endpoint may be used
Rows = Mapping[str, Mapping[str, float]]
#: measured shares in ``PARTS`` by zone; empty: not measured
_Demand = tuple[tuple[str, int], ...]
#: what the traffic of a Service depends on: its slices, policy Local, measured shares
_Version = tuple[int, bool, _Demand]


class ServiceTraffic(NamedTuple):
    """``loads``: the greatest load of an endpoint by zone, relative to an even share. ``leaving``
    and ``dropped`` are fractions of all connections: answered in another zone, and not at all.
    ``demand``: the measured parts of the connections by zone; empty: not measured.
    """

    rows: Rows
    loads: Mapping[str, float]
    leaving: float
    dropped: float
    demand: Mapping[str, float]


class Matrix(NamedTuple):
    """Means over the ``services`` Services that have endpoints. ``nodes``: the client nodes by
    zone; ``leaving``: Services whose connections leave their zone, the most first; ``demand``: of
    the one Service, as in ``ServiceTraffic``.
    """

    nodes: Mapping[str, int]
    shares: Rows
    load: Mapping[str, float]
    services: int
    cross: float
    dropped: float
    leaving: tuple[tuple[str, float], ...]
    demand: Mapping[str, float]


class _ServicePods:
    """Follows the slices of one Service: unchanged slices are not read again."""

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
    """The traffic of each Service, updated when its slices, its policy or the locations of clients
    change. For Services with the same numbers of the same kinds of endpoints it is computed once.
    """

    def __init__(self) -> None:
        self._at: tuple[Locality, ...] = ()
        self._locations: tuple[ClientLocation, ...] = ()
        #: the same by zone, for Services without node hints
        self._zones: tuple[ClientLocation, ...] = ()
        self._nodes: Counter[str] = Counter()
        self._traffic_by_service: dict[str, tuple[_Version, ServiceTraffic | None]] = {}
        self._pods: dict[str, _ServicePods] = {}
        self._computed: dict[
            tuple[frozenset[tuple[EndpointKind, int]], bool, _Demand], ServiceTraffic | None
        ] = {}

    def matrix(self, model: ClusterModel, services: Iterable[str]) -> Matrix:
        self._update_clients(model)
        for removed in [
            service for service in self._traffic_by_service if service not in model.services
        ]:
            self._traffic_by_service.pop(removed)
            self._pods.pop(removed, None)
        totals: dict[str, dict[str, float]] = {zone: {} for zone in sorted(self._nodes)}
        loads: dict[str, list[float]] = {}
        traffic_by_service = {
            service: traffic
            for service in services
            if (traffic := self._traffic(model, service)) is not None
        }
        for traffic in traffic_by_service.values():
            for client, row in traffic.rows.items():
                total = totals.setdefault(client, {})
                for zone, share in row.items():
                    total[zone] = total.get(zone, 0.0) + share
            for zone, load in traffic.loads.items():
                loads.setdefault(zone, []).append(load)
        number = len(traffic_by_service) or 1
        leaving = [
            (service, traffic.leaving)
            for service, traffic in traffic_by_service.items()
            if traffic.leaving
        ]
        return Matrix(
            dict(sorted(self._nodes.items())),
            {
                client: {zone: row[zone] / number for zone in sorted(row)}
                for client, row in totals.items()
            },
            {zone: sum(values) / len(values) for zone, values in sorted(loads.items())},
            len(traffic_by_service),
            sum(traffic.leaving for traffic in traffic_by_service.values()) / number,
            sum(traffic.dropped for traffic in traffic_by_service.values()) / number,
            tuple(sorted(leaving, key=lambda pair: (-pair[1], pair[0]))),
            next(iter(traffic_by_service.values())).demand if len(traffic_by_service) == 1 else {},
        )

    def _update_clients(self, model: ClusterModel) -> None:
        at = tuple(
            Locality(name, (node.metadata.labels or {}).get(LABEL_ZONE, ""))
            for name, node in sorted(model.nodes.items())
            if takes_pods(node) and is_working(node)
        )
        if at == self._at:
            return
        self._traffic_by_service.clear()
        self._computed.clear()
        self._at = at
        self._nodes = Counter(location.zone for location in at)
        self._locations = at_nodes(at)
        self._zones = tuple(
            ClientLocation(Locality(zone=zone), Fraction(number, len(at)))
            for zone, number in sorted(self._nodes.items())
        )

    def _traffic(self, model: ClusterModel, service: str) -> ServiceTraffic | None:
        """Returns the traffic of *service*; ``None``: it has no endpoint."""
        cached = self._traffic_by_service.get(service)
        known = model.services.get(service)
        local = known is not None and known.spec.internal_traffic_policy == "Local"
        measured = {} if known is None or local else measured_shares(known)
        demand = tuple((zone, parts) for zone, parts in measured.items() if parts)
        version = (model.touched(service), local, demand)
        if cached is None or cached[0] != version:
            traffic = self._compute(model, service, demand, local=local)
            cached = self._traffic_by_service[service] = (version, traffic)
        return cached[1]

    def _compute(
        self, model: ClusterModel, service: str, demand: _Demand, *, local: bool
    ) -> ServiceTraffic | None:
        kinds = self._pods.setdefault(service, _ServicePods()).kinds(
            model.slices(service), by_node=local
        )
        same = (frozenset(kinds.items()), local, demand)
        if same not in self._computed:
            if len(self._computed) >= _COMPUTED_MAX:
                self._computed.clear()
            needs_nodes = local or any(kind.node_hints for kind in kinds)
            locations, zones = self._locations, self._zones
            if demand:
                weights = {zone: Fraction(number) for zone, number in demand}
                locations = at_zones(weights, self._at if needs_nodes else ())
                zones = at_zones(weights, ())
            result = shares(kinds, locations if needs_nodes else zones, local=local)
            self._computed[same] = (
                _traffic_of(result, kinds, zones, demand)
                if result.candidates and self._zones
                else None
            )
        return self._computed[same]


def _traffic_of(
    result: TrafficShares,
    kinds: Iterable[EndpointKind],
    clients: Iterable[ClientLocation],
    demand: _Demand,
) -> ServiceTraffic:
    part = {location.at.zone: location.share for location in clients}
    rows: dict[str, dict[str, float]] = {zone: {} for zone in part}
    for (client, to), share in result.flows.items():
        rows[client][to] = float(share / part[client])
    zones = {kind.zone for kind in kinds if kind.ready} | {kind.zone for kind in result.each}
    loads = {zone: float(result.load(zone)) for zone in sorted(zones)}
    return ServiceTraffic(
        rows,
        loads,
        float(result.leaving),
        float(result.dropped),
        {zone: parts / PARTS for zone, parts in demand},
    )
