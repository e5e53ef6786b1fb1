"""Random Services, slices and Nodes, whole planes over the real kernel: in the end the kernel holds what the shadow
says, rule by rule and element by element; and when all is gone nothing is left, in the kernel or in memory."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.listing import expected, listed
from tests.kernel.netns import Host, Net

from sliceplane.api import codec
from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.nft.fake import FakeKernel
from sliceplane.nft.plane import FamilyPlane, PlaneConfig
from sliceplane.nft.table import RETIRE_AFTER_S
from sliceplane.proxy.surroundings import RulesConfig

pytestmark = pytest.mark.kernel

FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6")
NODE, ZONES = "node-1", ("a", "b", "c")
RULES = RulesConfig(cluster_cidrs=("10.0.0.0/8", "fd00::/16"))
#: Python's blocks of memory, out of half a million or so, that a history may leave behind, however long it is
BLOCKS_MAX = 10_000
CONDITIONS = (
    {},
    {"ready": True, "serving": True, "terminating": False},
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False, "serving": False, "terminating": True},
    {"ready": False},
)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Net("spw") as net:
        yield net.add_host("kernel", ip4="10.10.0.1/16", ip6="fd10::1/64")


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
        return self._replace(EndpointSlice, f"ns/{name}", None if gone else self._slice(name, number, family))

    def removals(self) -> Iterator[tuple[Object | None, Object | None]]:
        for (kind, _), old in list(self.known.items()):
            if kind is not Node:
                yield old, None
        self.known = {key: old for key, old in self.known.items() if key[0] is Node}

    def _replace(self, kind: type[Object], key: str, new: Object | None) -> tuple[Object | None, Object | None]:
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
            "ports": [{"name": p.lower(), "port": 80, "protocol": p, "nodePort": 30000 + number} for p in protocols],
            "internalTrafficPolicy": self._one_of(local),
        }
        if self._rng.below(3) == 0:
            spec |= {"type": "LoadBalancer", "externalTrafficPolicy": self._one_of(local)}
            if self._rng.below(2):
                spec["loadBalancerSourceRanges"] = ["203.0.113.0/24", "198.51.100.7/32", "2001:db8::/48"]
        if self._rng.below(4) == 0:
            spec |= {"sessionAffinity": "ClientIP", "externalIPs": [f"192.0.2.{number & 255}", f"fd20::{number:x}"]}
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
        for _ in range(self._rng.below(5)):
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
            "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": self._one_of(ZONES)}},
            "status": {"addresses": [{"type": "InternalIP", "address": ip} for ip in ("192.168.0.1", "fd99::1")]},
        }
        return codec.decode(codec.encode(document), Node)


class Proxy:
    """Both families' planes over the kernel of *host*; every transaction must be taken."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.now = 0.0
        self.planes = [FamilyPlane(family, PlaneConfig(node_name=NODE, rules=RULES)) for family in FAMILIES]
        self.transactions, self.nft_s = 0, 0.0
        for plane in self.planes:
            plane.on_synced(0.0)

    def tell(self, old: Object | None, new: Object | None) -> None:
        for plane in self.planes:
            match old, new:
                case (Service() | None, Service() | None):
                    plane.on_service(old, new, self.now)
                case (EndpointSlice() | None, EndpointSlice() | None):
                    plane.on_slice(old, new, self.now)
                case (Node() | None, Node() | None):
                    plane.on_node(new, self.now)

    def sync(self) -> None:
        for plane in self.planes:
            while plane.due(self.now):
                transaction = plane.take_transaction(self.now)
                if transaction is None:
                    continue
                text, began = transaction.render(), time.perf_counter()
                self._host.exec(["nft", "-f", "-"], stdin=text)
                self.nft_s += time.perf_counter() - began
                self.transactions += 1
                plane.on_success(self.now)

    def settle(self) -> None:
        for _ in range(3):
            self.sync()
            self.now += RETIRE_AFTER_S

    def compare(self) -> None:
        """The kernel against the shadow; packets have not made any elements here."""
        for plane in self.planes:
            kernel = FakeKernel()
            kernel.run(plane.shadow())
            assert listed(self._host, plane.table) == expected(kernel.tables[plane.table], plane.table.family)


@dataclass(frozen=True)
class Figures:
    events: int
    seconds: float
    nft_s: float
    transactions: int
    blocks: int  # more of Python's memory in use than before
    rss_mib: tuple[float, float]


def churn(host: Host, events: int, services: int, batch: int, compare_every: int) -> Figures:
    """*events* in batches of up to *batch*, and then everything goes."""
    proxy, world, rng = Proxy(host), World(Rng(7), services), Rng(8)
    proxy.tell(*world.event())
    for _ in range(services * 20):  # caches of whatever kind have seen all names
        proxy.tell(*world.event())
    _end(proxy, world)
    empty = [listed(host, plane.table) for plane in proxy.planes]
    before, rss, began, done, syncs = _blocks(), _rss_mib(), time.perf_counter(), 0, 0
    while done < events:
        for _ in range(min(events - done, 1 + rng.below(batch))):
            proxy.tell(*world.event())
            done += 1
        proxy.sync()
        syncs += 1
        proxy.now += rng.uniform(0.0, 1.0)
        if syncs % compare_every == 0:
            proxy.compare()
    proxy.settle()
    proxy.compare()
    for plane in proxy.planes:
        plane.check()
    seconds = time.perf_counter() - began
    _end(proxy, world)
    assert [listed(host, plane.table) for plane in proxy.planes] == empty
    return Figures(done, seconds, proxy.nft_s, proxy.transactions, _blocks() - before, (rss, _rss_mib()))


def _end(proxy: Proxy, world: World) -> None:
    for event in world.removals():
        proxy.tell(*event)
    proxy.settle()
    proxy.compare()
    for plane in proxy.planes:
        assert (plane.services, plane.next_deadline()) == (0, None)


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def test_after_a_random_history_the_kernel_holds_what_the_shadow_says(host: Host) -> None:
    figures = churn(host, events=600, services=12, batch=40, compare_every=4)
    assert figures.blocks < BLOCKS_MAX, figures


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_events_leave_nothing_behind(host: Host) -> None:
    figures = churn(host, events=1_000_000, services=200, batch=5_000, compare_every=100)
    print(figures)
    assert figures.blocks < BLOCKS_MAX, figures
