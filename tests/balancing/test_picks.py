"""What each way to pick promises, on services large enough to see it."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.discovery import (
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.consume.balancing.merge import PortChoice
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.pickers import (
    LeastOutstanding,
    PickStrategy,
    Random,
    RoundRobin,
    ZoneFirst,
)
from sliceplane.consume.balancing.ring import ConsistentHash
from sliceplane.consume.balancing.view import BalancedService
from sliceplane.consume.usable import Locality
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change

KEYS = [b"user-%d" % number for number in range(4000)]


class Bench:
    """A Service whose endpoints are numbers; one slice holds them all."""

    def __init__(
        self, numbers: list[int], zones: tuple[str, ...] = (), hinted: bool = False, place: str = ""
    ) -> None:
        self.view = BalancedService(
            PortChoice(None), family=None, location=Locality(zone=place), honour_hints=True
        )
        self._zones, self._hinted = zones, hinted
        self._held: EndpointSlice | None = None
        self._revision = 0
        self.set(numbers)

    def set(self, numbers: list[int], terminating: frozenset[int] = frozenset()) -> None:
        self._revision += 1
        new = EndpointSlice(
            metadata=ObjectMeta(
                name="s", namespace="ns", uid="s", resource_version=str(self._revision)
            ),
            address_type="IPv4",
            endpoints=tuple(self._endpoint(number, number in terminating) for number in numbers),
            ports=(EndpointPort(name="http", port=8080),),
        )
        self.view.on_changes([Change("endpointslices.discovery.k8s.io", self._held, new)])
        self._held = new
        self.view.check()

    def _endpoint(self, number: int, terminating: bool) -> SliceEndpoint:
        zone = self._zones[number % len(self._zones)] if self._zones else None
        return SliceEndpoint(
            addresses=(f"10.0.{number // 256}.{number % 256}",),
            conditions=EndpointConditions(
                ready=not terminating, serving=True, terminating=terminating
            ),
            target_ref=ObjectReference(kind="Pod", name=f"web-{number}", uid=f"uid-{number}"),
            zone=zone,
            hints=EndpointHints(for_zones=(ForZone(name=zone),)) if zone and self._hinted else None,
        )


def picked(picker: PickStrategy, key: bytes = b"") -> Endpoint:
    found = picker.pick(key, frozenset())
    assert found is not None
    return found


def test_round_robin_is_fair_and_goes_on_after_a_change() -> None:
    bench = Bench(list(range(10)))
    picker = bench.view.attach(RoundRobin(Rng(3)))
    for _ in range(3):
        assert len({picked(picker).id for _ in range(10)}) == 10
    bench.set([number for number in range(10) if number != 4])
    counts = Counter(picked(picker).id for _ in range(90))
    assert set(counts.values()) == {10}
    starts = {picked(bench.view.attach(RoundRobin(Rng(seed)))).id for seed in range(50)}
    assert len(starts) > 3, "clients that start together do not begin alike"


def test_random_reaches_everybody_about_as_often() -> None:
    bench = Bench(list(range(10)))
    picker = bench.view.attach(Random(Rng(3)))
    counts = Counter(picked(picker).id for _ in range(10_000))
    assert len(counts) == 10
    assert max(counts.values()) < 1.2 * min(counts.values())


@given(st.integers(0, 2**32), st.lists(st.integers(0, 3), max_size=80))
def test_least_outstanding_is_least(seed: int, deeds: list[int]) -> None:
    bench = Bench(list(range(6)))
    picker = bench.view.attach(LeastOutstanding(Rng(seed)))
    flying: list[str] = []
    for turn, deed in enumerate(deeds):
        if deed == 0 and flying:
            bench.view.load.release(flying.pop(turn % len(flying)))
        elif deed == 1:
            bench.set([number for number in range(8) if (number + turn) % 3])
        else:
            found = picked(picker)
            usable = bench.view.usable()
            assert bench.view.load.count(found.id) == min(
                bench.view.load.count(each.id) for each in usable
            )
            bench.view.load.acquire(found.id)
            flying.append(found.id)
        bench.view.check()


def test_terminating_ones_serve_only_while_nobody_is_ready() -> None:
    bench = Bench([1, 2])
    picker = bench.view.attach(RoundRobin(Rng(1)))
    bench.set([1, 2], terminating=frozenset({1}))
    assert {picked(picker).id for _ in range(5)} == {"uid-2"}
    bench.set([1, 2], terminating=frozenset({1, 2}))
    assert {picked(picker).id for _ in range(5)} == {"uid-1", "uid-2"}
    bench.set([])
    assert picker.pick(b"", frozenset()) is None


def test_zone_first_spills_only_when_the_zone_is_busy_and_comes_back() -> None:
    bench = Bench(list(range(6)), zones=("a", "b", "c"), place="a")
    picker = bench.view.attach(ZoneFirst(Rng(1), spill_at=3))
    flying = []
    for number in range(6):
        found = picked(picker)
        assert found.zone == "a", f"pick {number} left the zone"
        bench.view.load.acquire(found.id)
        flying.append(found.id)
    beyond = picked(picker)
    assert beyond.zone != "a", "both endpoints of the zone have three requests"
    bench.view.load.release(flying.pop())
    assert picked(picker).zone == "a"
    bench.set([1, 2, 4, 5])
    assert picked(picker).zone != "a", "a zone without endpoints"


def test_zone_first_spills_past_hints() -> None:
    bench = Bench(list(range(4)), zones=("a", "b"), hinted=True, place="a")
    assert bench.view.scope == "zone"
    plain = bench.view.attach(Random(Rng(1)))
    assert {picked(plain).zone for _ in range(50)} == {"a"}
    picker = bench.view.attach(ZoneFirst(Rng(1), spill_at=1))
    zones = []
    for _ in range(3):
        found = picked(picker)
        bench.view.load.acquire(found.id)
        zones.append(found.zone)
    assert zones == ["a", "a", "b"]


def homes(bench: Bench, picker: PickStrategy) -> dict[bytes, str]:
    return {key: picked(picker, key).id for key in KEYS}


def test_a_ring_moves_only_what_it_must() -> None:
    bench = Bench(list(range(20)))
    picker = bench.view.attach(ConsistentHash(load_factor=math.inf))
    before = homes(bench, picker)
    counts = Counter(before.values())
    assert len(counts) == 20
    assert max(counts.values()) < 1.35 * len(KEYS) / 20, "multi-probing keeps shares even"
    bench.set([number for number in range(20) if number != 7])
    without = homes(bench, picker)
    assert {key for key in KEYS if without[key] != before[key]} == {
        key for key in KEYS if before[key] == "uid-7"
    }
    bench.set(list(range(21)))
    more = homes(bench, picker)
    moved = {key for key in KEYS if more[key] != before[key]}
    assert {more[key] for key in moved} == {"uid-20"}
    assert 0 < len(moved) < 2 * len(KEYS) / 21
    other = Bench(list(range(20, -1, -1)))
    assert homes(other, other.view.attach(ConsistentHash(load_factor=math.inf))) == more, (
        "every client agrees"
    )


def test_a_hot_key_spreads_no_further_than_the_bound_asks() -> None:
    bench = Bench(list(range(10)))
    picker = bench.view.attach(ConsistentHash(load_factor=1.5))
    for _ in range(200):
        found = picked(picker, b"hot")
        bench.view.load.acquire(found.id)
        most = max(bench.view.load.count(each.id) for each in bench.view.endpoints)
        assert most <= math.ceil(1.5 * bench.view.load.total / 10)


@pytest.mark.parametrize("factor", [1, 0.5, math.nan])
def test_a_bound_below_the_mean_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="load_factor"):
        ConsistentHash(load_factor=factor)


def test_ports() -> None:
    ports = (
        EndpointPort(name="http", port=8080),
        EndpointPort(name="dns", protocol="UDP", port=53),
    )
    several = (*ports, EndpointPort(name="admin", port=9000))
    assert PortChoice(None).of(ports) == (8080, "")
    assert PortChoice(None).of(()) == (0, "")
    assert PortChoice("dns", "UDP").of(ports) == (53, "")
    assert PortChoice(7).of(several) == (7, "")
    assert PortChoice(None).of(several) == (0, "say which port; ports offered: 'admin', 'http'")
    assert PortChoice("grpc").of(ports) == (0, "there is no TCP port 'grpc'; ports offered: 'http'")


def test_authorities() -> None:
    assert Endpoint(id="a", address="fd00::1", port=80).authority == "[fd00::1]:80"
    assert Endpoint(id="a", address="10.0.0.1").authority == "10.0.0.1"
