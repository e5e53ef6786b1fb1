"""Which zone's clients reach which zone's endpoints: what ``proxy.usable`` says of each Service, added up.

Every Service counts the same, and so does every client of a zone.  Whoever asks for the load of an endpoint takes
clients to be spread as Nodes are, as finding Z11 does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from sliceplane.api.discovery import EndpointSlice, SliceEndpoint
from sliceplane.page.model import ClusterModel
from sliceplane.proxy.usable import Locality, choose

#: client zone -> endpoint zone -> share of the connections; empty where no endpoint may be used
Shares = Mapping[str, Mapping[str, float]]


class ZonedEndpoint(msgspec.Struct, frozen=True, gc=False):
    """What ``proxy.usable`` asks of an endpoint, and its zone."""

    zone: str
    ready: bool
    serving: bool
    terminating: bool
    zone_hints: tuple[str, ...]
    node_hints: tuple[str, ...]


class Matrix(NamedTuple):
    """``shares`` over all Services that have endpoints, ``load`` of one endpoint of a zone over an even share,
    ``services``: how many there are, ``cross``: the part of all connections that leaves its zone, ``leaving``: that of
    each Service, the most first."""

    shares: Shares
    load: Mapping[str, float]
    services: int
    cross: float
    leaving: tuple[tuple[str, float], ...]


class ZoneBook:
    """Shares of each Service, worked out anew when its slices or the zones have changed."""

    def __init__(self) -> None:
        self._zones: tuple[str, ...] = ()
        self._known: dict[str, tuple[int, Shares, Mapping[str, int]]] = {}

    def shares(self, model: ClusterModel, service: str, zones: tuple[str, ...]) -> tuple[Shares, Mapping[str, int]]:
        """And how many endpoints each zone has that somebody uses."""
        if zones != self._zones:
            self._known.clear()
            self._zones = zones
        known = self._known.get(service)
        if known is None or known[0] != model.touched(service):
            endpoints = [zoned(endpoint) for item in families(model.slices(service)) for endpoint in item]
            made = shares_of(endpoints, zones)
            counted = Counter(endpoint.zone for endpoint in endpoints if endpoint.ready)
            known = self._known[service] = (model.touched(service), made, counted)
        return known[1], known[2]

    def matrix(self, model: ClusterModel, services: Iterable[str]) -> Matrix:
        nodes = {zone: number for zone, number in model.zones().items() if zone}
        zones = tuple(nodes)
        totals: dict[str, dict[str, float]] = {zone: {} for zone in zones}
        loads: dict[str, list[float]] = {}
        counted = 0
        leaving: list[tuple[str, float]] = []
        for service in services:
            shares, endpoints = self.shares(model, service, zones)
            if not any(shares.values()):
                continue
            counted += 1
            leaving.append((service, _leaving(shares, nodes)))
            for client, row in shares.items():
                for zone, share in row.items():
                    totals[client][zone] = totals[client].get(zone, 0.0) + share
            for zone, load in loads_of(shares, endpoints, nodes).items():
                loads.setdefault(zone, []).append(load)
        mean = {
            client: {zone: row[zone] / counted for zone in sorted(row)} if counted else {}
            for client, row in totals.items()
        }
        return Matrix(
            mean,
            {zone: sum(values) / len(values) for zone, values in sorted(loads.items())},
            counted,
            _leaving(mean, nodes) if counted else 0.0,
            tuple(sorted(((key, share) for key, share in leaving if share), key=lambda pair: (-pair[1], pair[0]))),
        )


def _leaving(shares: Shares, nodes: Mapping[str, int]) -> float:
    """The part of all connections that leaves its zone."""
    clients = sum(nodes.values())
    return 1.0 - sum(shares[zone].get(zone, 0.0) * number for zone, number in nodes.items()) / clients


def families(slices: Iterable[EndpointSlice]) -> Iterable[tuple[SliceEndpoint, ...]]:
    """Endpoints of the slices of one address type: the other one has the same Pods again."""
    listed = list(slices)
    first = listed[0].address_type if listed else ""
    return [item.endpoints or () for item in listed if item.address_type == first]


def zoned(endpoint: SliceEndpoint) -> ZonedEndpoint:
    conditions, hints = endpoint.conditions, endpoint.hints
    return ZonedEndpoint(
        endpoint.zone or "",
        conditions.ready is not False,
        conditions.serving is not False,
        bool(conditions.terminating),
        tuple(zone.name for zone in hints.for_zones or ()) if hints is not None else (),
        tuple(node.name for node in hints.for_nodes or ()) if hints is not None else (),
    )


def shares_of(endpoints: list[ZonedEndpoint], zones: Iterable[str]) -> Shares:
    made: dict[str, dict[str, float]] = {}
    for client in zones:
        used = choose(endpoints, Locality(zone=client)).endpoints
        found = Counter(endpoint.zone for endpoint in used)
        made[client] = {zone: found[zone] / len(used) for zone in sorted(found)}
    return made


def loads_of(shares: Shares, endpoints: Mapping[str, int], nodes: Mapping[str, int]) -> dict[str, float]:
    """For each zone, what one of its endpoints gets over an even share; clients are spread as *nodes* are."""
    total, clients = sum(endpoints.values()), sum(nodes.values())
    return {
        zone: sum(row.get(zone, 0.0) * nodes[client] / clients for client, row in shares.items()) * total / number
        for zone, number in endpoints.items()
        if number and clients
    }
