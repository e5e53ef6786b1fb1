"""Random Services, EndpointSlices and Nodes, and what a shell does with two planes that are told of
them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from sliceplane.api import codec
from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.node.context import RulesConfig
from sliceplane.node.plane import AnyNodePlane

FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6")
NODE, ZONES = "node-1", ("a", "b", "c")
RULES = RulesConfig(cluster_cidrs=("10.0.0.0/8", "fd00::/16"))
CONDITIONS = (
    {},
    {"ready": True, "serving": True, "terminating": False},
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False, "serving": False, "terminating": True},
    {"ready": False},
)


class World:
    """Draws the next event; knows what is there."""

    def __init__(self, rng: Rng, services: int) -> None:
        self._rng = rng
        self._services = services
        self.known: dict[tuple[type[Object], str], Object] = {}
        self._version = 0

    def event(self) -> tuple[Object | None, Object | None]:
        """Before and after; slices change ten times as often as everything else together."""
        while True:
            old, new = self._draw()
            if old is not None or new is not None:
                return old, new

    def _draw(self) -> tuple[Object | None, Object | None]:
        what = self._rng.below(100)
        number = 1 + self._rng.below(self._services)
        if what < 4:
            return self._replace(Service, f"ns/s{number}", self._service(number))
        if what < 6:
            return self._replace(Service, f"ns/s{number}", None)
        if what == 6:
            return self._replace(Node, NODE, self._node())
        family, part = self._one_of(FAMILIES), self._rng.below(3)
        gone = self._rng.below(8) == 0
        name = f"s{number}-{family.lower()}-{part}"
        return self._replace(
            EndpointSlice, f"ns/{name}", None if gone else self._slice(name, number, family)
        )

    def removals(self) -> Iterator[tuple[Object | None, Object | None]]:
        for (kind, _), old in list(self.known.items()):
            if kind is not Node:
                yield old, None
        self.known = {key: old for key, old in self.known.items() if key[0] is Node}

    def _replace(
        self, kind: type[Object], key: str, new: Object | None
    ) -> tuple[Object | None, Object | None]:
        old = self.known.pop((kind, key), None)
        if new is not None:
            self.known[kind, key] = new
        return old, new

    def _one_of(self, choices: Any) -> Any:
        return choices[self._rng.below(len(choices))]

    def _service(self, number: int) -> Service:
        local = ("Cluster", "Local")
        low = f"{number >> 8}.{number & 255}"
        protocols = ("TCP", "UDP", "SCTP")[: 1 + self._rng.below(3)]
        spec: dict[str, Any] = {
            "clusterIP": f"172.30.{low}",
            "clusterIPs": [f"172.30.{low}", f"fd30::{number:x}"],
            "ports": [
                {"name": p.lower(), "port": 80, "protocol": p, "nodePort": 30000 + number}
                for p in protocols
            ],
            "internalTrafficPolicy": self._one_of(local),
        }
        if self._rng.below(3) == 0:
            spec |= {"type": "LoadBalancer", "externalTrafficPolicy": self._one_of(local)}
            if self._rng.below(2):
                spec["loadBalancerSourceRanges"] = [
                    "203.0.113.0/24",
                    "198.51.100.7/32",
                    "2001:db8::/48",
                ]
        if self._rng.below(4) == 0:
            spec |= {
                "sessionAffinity": "ClientIP",
                "externalIPs": [f"192.0.2.{number & 255}", f"fd20::{number:x}"],
            }
        ingress = [{"ip": f"198.18.{low}"}, {"ip": f"fd18::{number:x}"}]
        document = {
            "metadata": {"namespace": "ns", "name": f"s{number}"},
            "spec": spec,
            "status": {"loadBalancer": {"ingress": ingress}},
        }
        return codec.decode(codec.encode(document), Service)

    def _slice(self, name: str, number: int, family: Family) -> EndpointSlice:
        self._version += 1
        prefix = "10.0.0." if family == "IPv4" else "fd00::"
        endpoints = []
        for _ in range(self._one_of((0, 1, 1, 2, 4))):
            entry: dict[str, Any] = {"addresses": [f"{prefix}{1 + self._rng.below(60)}"]}
            entry["conditions"] = self._one_of(CONDITIONS)
            entry["nodeName"] = self._one_of((NODE, "node-2", "node-3"))
            if self._rng.below(2):
                entry["hints"] = {"forZones": [{"name": self._one_of(ZONES)}]}
            endpoints.append(entry)
        document = {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "resourceVersion": str(self._version),
                "labels": {"kubernetes.io/service-name": f"s{number}"},
            },
            "addressType": family,
            "endpoints": endpoints,
            "ports": [
                {"name": p.lower(), "port": self._one_of((8080, 8080, 9090)), "protocol": p}
                for p in ("TCP", "UDP", "SCTP")
            ],
        }
        return codec.decode(codec.encode(document), EndpointSlice)

    def _node(self) -> Node:
        document = {
            "metadata": {
                "name": NODE,
                "labels": {"topology.kubernetes.io/zone": self._one_of(ZONES)},
            },
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": ip} for ip in ("192.168.0.1", "fd99::1")
                ]
            },
        }
        return codec.decode(codec.encode(document), Node)


def tell(plane: AnyNodePlane, old: Object | None, new: Object | None, now: float) -> None:
    """One event, as a proxy tells it."""
    match old, new:
        case (Service() | None, Service() | None):
            plane.on_service(old, new, now)
        case (EndpointSlice() | None, EndpointSlice() | None):
            plane.on_slice(old, new, now)
        case (Node() | None, Node() | None):
            plane.on_node(new, now)


def take_consequences(plane: AnyNodePlane) -> None:
    """What ``node.io.side_effects`` takes after a write."""
    plane.post_sync.take_latencies()
    plane.post_sync.take_udp()
    plane.post_sync.take_removed_udp()


def blocks() -> int:
    """Python's blocks of memory in use."""
    gc.collect()
    return sys.getallocatedblocks()
