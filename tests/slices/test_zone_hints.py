"""Topology-mode Auto: the arithmetic against fractions, the choice of slices, and any history
against the oracle.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.slices.fake_cluster import FakeCluster, make_node, make_pod, make_service

from sliceplane.api.core import Node, Pod
from sliceplane.api.scheme import Nodes, Pods
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.slices import oracle
from sliceplane.slices.facts import NodeFacts
from sliceplane.slices.hinting.hint_policy import REPEAT_S
from sliceplane.slices.hinting.moves import Movable, choose_moves
from sliceplane.slices.hinting.topology import ZoneShares, allocate, is_sufficient, transfers
from sliceplane.watch.controller.base import EventNote

AUTO = {"service.kubernetes.io/topology-mode": "Auto"}
NO_INFORMATION = (
    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
)
ENABLED = (
    "Normal",
    "TopologyAwareHintsEnabled",
    "Topology Aware Hints has been enabled, addressType: IPv4",
)


def disabled(message: str, family: str = "IPv4") -> tuple[str, str, str]:
    return "Warning", "TopologyAwareHintsDisabled", f"{message}, addressType: {family}"


class Plane:
    def __init__(self, zones: dict[str, str], *, max_endpoints: int = 100, **service: Any) -> None:
        self.cluster = FakeCluster()
        self.zones = zones
        for node, zone in zones.items():
            self.cluster.put(make_node(node, zone))
        self.service = self.cluster.put(make_service(**{"annotations": AUTO, **service}))
        self.config = EndpointSliceConfig(max_endpoints_per_slice=max_endpoints)
        self.now = 1000.0
        self.restart()

    def restart(self) -> None:
        self.controller = EndpointSliceController(self.config)
        self.cluster.start(self.controller, self.now)

    def pods(self, *nodes: str, first: int = 0) -> None:
        for number, node in enumerate(nodes, first):
            self.cluster.put(make_pod(f"p-{number}", node=node))

    def settle(self) -> list[tuple[str, str, str]]:
        self.now, notes = self.cluster.settle(self.controller, self.now)
        return [_told(note) for note in notes]

    def hints(self) -> dict[str, str]:
        return {
            each.target_ref.name: "".join(zone.name for zone in each.hints.for_zones or ())
            for each in self.cluster.endpoints()
            if each.target_ref is not None and each.hints is not None
        }

    def check(self) -> None:
        objects = self.cluster.objects.values()
        pods = [each for each in objects if isinstance(each, Pod)]
        nodes = {each.metadata.name: each for each in objects if isinstance(each, Node)}
        service = self.cluster.objects["services", "shop", "web"]
        slices, most = self.cluster.slices(), self.config.max_endpoints_per_slice
        oracle.check_converged(service, pods, nodes, slices, most)  # type: ignore[arg-type]  # it is a Service


def _told(note: EventNote) -> tuple[str, str, str]:
    return note.type, note.reason, note.note


# -- arithmetic

cpus = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 64_000), min_size=2)


@given(cpu=cpus, total=st.integers(0, 300))
def test_the_minimum_is_that_of_the_reference(cpu: dict[str, int], total: int) -> None:
    allocation = allocate(total, dict(sorted(cpu.items())))
    shares = {zone: Fraction(each, sum(cpu.values())) for zone, each in cpu.items()}
    least = oracle.least_of_zones(total, shares)
    if len(cpu) > total:
        assert (
            allocation.problem
            == f"Insufficient number of endpoints ({total} endpoints, {len(cpu)} zones)"
        )
    elif sum(least.values()) > total:
        assert allocation.problem == (
            "Unable to allocate minimum required endpoints to each zone without exceeding "
            "overload threshold "
            f"({total} endpoints, {len(cpu)} zones)"
        )
    else:
        assert allocation.minimum == least


@given(cpu=cpus, counts=st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 40)))
def test_transfers_leave_every_zone_with_enough_and_near_its_share(
    cpu: dict[str, int], counts: dict[str, int]
) -> None:
    shares = dict(sorted(cpu.items()))
    total = sum(counts.values())
    allocation = allocate(total, shares)
    if allocation.problem:
        return
    giving, getting = transfers(counts, allocation.minimum, shares)
    assert sum(giving.values()) == sum(getting.values())
    assert not giving.keys() & getting.keys()
    after = {z: counts.get(z, 0) - giving.get(z, 0) + getting.get(z, 0) for z in {*counts, *shares}}
    assert is_sufficient(after, allocation.minimum), (
        f"{after} is not enough for {allocation.minimum}"
    )
    # no transfer is left that would be worth it, but for what a minimum takes
    over = {
        z: after[z] - max(Fraction(total * shares[z], sum(cpu.values())), allocation.minimum[z])
        for z in shares
    }
    most, least = max(over.values()), -min(over.values())
    assert most < 1 or least < Fraction(1, 2) or (most < Fraction(1, 2)), (
        f"{over} after {giving} -> {getting}"
    )


def test_the_even_cluster_is_left_alone() -> None:
    shares = {"a": 4000, "b": 4000, "c": 4000}
    assert allocate(9, shares).minimum == {"a": 3, "b": 3, "c": 3}
    assert transfers({"a": 4, "b": 4, "c": 4}, allocate(12, shares).minimum, shares) == ({}, {})
    assert transfers({"a": 6, "b": 3, "c": 0}, allocate(9, shares).minimum, shares) == (
        {"a": 3},
        {"c": 3},
    )


@given(
    slices=st.lists(
        st.lists(st.sampled_from("ab"), min_size=1, max_size=4), min_size=1, max_size=6
    ),
    wanted=st.integers(1, 8),
    free=st.sets(st.integers(0, 5)),
)
def test_the_fewest_slices_are_written_where_one_zone_gives(
    slices: list[list[str]], wanted: int, free: set[int]
) -> None:
    movable = {
        f"s{n}": [Movable(f"p{n}-{k}", zone, zone) for k, zone in enumerate(zones)]
        for n, zones in enumerate(slices)
    }
    room = {name: sum(each.hinted == "a" for each in found) for name, found in movable.items()}
    wanted = min(wanted, sum(room.values()))
    if not wanted:
        return
    unpaid = frozenset(f"s{n}" for n in free if n < len(slices))
    moves = choose_moves(movable, {"a": wanted}, {"b": wanted}, unpaid)
    assert len(moves) == wanted
    written = {
        name for name, found in movable.items() for each in found if each.pod in moves
    } - unpaid
    left = wanted - sum(room[name] for name in unpaid)
    paid = [room[name] for name in movable if name not in unpaid]
    best = next(
        k for k in range(len(paid) + 1) if any(sum(some) >= left for some in combinations(paid, k))
    )
    assert len(written) == best, f"{sorted(written)} written, {best} would do"


def test_endpoints_come_home_before_others_leave() -> None:
    found = [Movable("p1", "a", "a"), Movable("p2", "b", "a"), Movable("p3", "c", "a")]
    assert choose_moves({"s": found}, {"a": 1}, {"b": 1}, frozenset()) == {"p2": "b"}
    assert choose_moves({"s": found}, {"a": 2}, {"b": 2}, frozenset()) == {"p2": "b", "p3": "b"}


node_facts = st.builds(
    lambda zone, cpu, ready, control: NodeFacts(
        make_node(
            "n",
            zone,
            cpu=cpu,
            ready=ready,
            **({"node-role.kubernetes.io/control-plane": ""} if control else {}),
        )
    ),
    *(
        st.sampled_from(("", "a", "b")),
        st.sampled_from(("0", "2", "1500m", "bad")),
        st.booleans(),
        st.booleans(),
    ),
)


@given(st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), node_facts)), max_size=25))
def test_shares_by_differences_are_those_of_a_count(
    history: list[tuple[int, NodeFacts | None]],
) -> None:
    kept, nodes = ZoneShares(), {}
    for which, facts in history:
        before = kept.shares
        changed = kept.replace(nodes.pop(which, None), facts)
        if facts is not None:
            nodes[which] = facts
        assert changed or kept.shares == before
        assert kept.allocation(7) == allocate(7, kept.shares)
        counted = [each for each in nodes.values() if each.counted]
        cpu: Counter[str] = Counter()
        for each in counted:
            cpu[each.zone] += each.cpu_milli
        clear = len(cpu) > 1 and all(each.zone and each.cpu_milli for each in counted)
        assert kept.shares == (dict(sorted(cpu.items())) if clear else {})


# -- what a user sees

TWO = {"n0": "a", "n1": "b"}


def test_each_zone_keeps_its_own() -> None:
    plane = Plane(TWO)
    plane.pods("n0", "n1", "n0", "n1")
    assert plane.settle() == [ENABLED]
    assert plane.hints() == {"p-0": "a", "p-1": "b", "p-2": "a", "p-3": "b"}
    plane.check()


def test_a_zone_that_falls_short_gets_from_the_other() -> None:
    plane = Plane(TWO)
    plane.pods("n0", "n0", "n0", "n1")
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 2, "b": 2}
    plane.check()


def test_shares_follow_the_cpu() -> None:
    plane = Plane(TWO)
    plane.cluster.put(make_node("n0", "a", cpu="12"))
    plane.pods(*["n0", "n1"] * 10)
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 15, "b": 5}
    plane.cluster.put(make_node("n0", "a", cpu="4"))
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 10, "b": 10}
    plane.check()
    assert plane.hints() == {f"p-{n}": "ab"[n % 2] for n in range(20)}  # all are at home again


def test_nodes_that_do_not_count() -> None:
    plane = Plane(TWO)
    control = {"node-role.kubernetes.io/control-plane": ""}
    plane.cluster.put(make_node("cp", "", cpu="0", **control))
    plane.cluster.put(make_node("broken", "", ready=False))
    plane.pods(*["n0", "n1"] * 3)
    assert plane.settle() == [ENABLED]
    plane.cluster.put(make_node("broken", ""))
    assert plane.settle() == [disabled(NO_INFORMATION)]
    assert plane.hints() == {}
    plane.cluster.put(make_node("broken", "b"))  # its zone label came late
    assert plane.settle() == [ENABLED]
    plane.check()


def test_two_ready_nodes_of_one_zone_are_no_zones() -> None:
    plane = Plane({"n0": "a", "n1": "a"})
    plane.pods("n0", "n1")
    assert plane.settle() == [disabled(NO_INFORMATION)]


def test_too_few_endpoints() -> None:
    plane = Plane({**TWO, "n2": "c"})
    plane.pods("n0", "n1")
    assert plane.settle() == [disabled("Insufficient number of endpoints (2 endpoints, 3 zones)")]
    plane.pods("n2", first=2)
    assert plane.settle() == [ENABLED]
    plane.cluster.remove(Pods, "shop", "p-0")
    assert plane.settle() == [disabled("Insufficient number of endpoints (2 endpoints, 3 zones)")]
    assert plane.hints() == {}


def test_no_allocation_within_the_overload_threshold() -> None:
    plane = Plane(TWO)
    plane.cluster.put(make_node("n0", "a", cpu="60"))
    plane.pods("n0", "n1", "n0")
    words = (
        "Unable to allocate minimum required endpoints to each zone without exceeding overload "
        "threshold"
    )
    assert plane.settle() == [disabled(f"{words} (3 endpoints, 2 zones)")]
    assert plane.hints() == {}


def test_an_endpoint_without_a_zone_turns_hints_off() -> None:
    plane = Plane(TWO, publish_not_ready_addresses=True)
    plane.pods("n0", "n1", "n0", "unknown")
    assert plane.settle() == [disabled("One or more endpoints do not have a zone specified")]
    plane.cluster.put(make_pod("p-3", node="n1"))
    assert plane.settle() == [ENABLED]


def test_the_annotation_comes_and_goes() -> None:
    plane = Plane(TWO)
    plane.pods("n0", "n1")
    plane.settle()
    plane.cluster.put(make_service())
    assert plane.settle() == [disabled("Topology Aware Hints has been disabled")]
    assert plane.hints() == {}
    plane.cluster.put(
        make_service(annotations={"service.kubernetes.io/topology-aware-hints": "auto"})
    )
    assert plane.settle() == [ENABLED]
    off = {"service.kubernetes.io/topology-aware-hints": "Disabled", **AUTO}
    plane.cluster.put(make_service(annotations=off, traffic_distribution="PreferSameZone"))
    plane.settle()
    assert plane.hints() == {
        "p-0": "a",
        "p-1": "b",
    }  # the field counts where the annotation does not say Auto


def test_a_problem_is_told_once_and_again_when_the_event_could_be_gone() -> None:
    plane = Plane({"n0": "a"})
    plane.pods("n0")
    assert plane.settle() == [disabled(NO_INFORMATION)]
    plane.pods("n0", first=1)
    assert plane.settle() == []
    plane.now += REPEAT_S
    plane.pods("n0", first=2)
    assert plane.settle() == [disabled(NO_INFORMATION)]


def test_families_are_told_apart() -> None:
    plane = Plane(TWO, ip_families=("IPv4", "IPv6"))
    plane.pods("n0", "n1")
    few = disabled("Insufficient number of endpoints (0 endpoints, 2 zones)", "IPv6")
    assert plane.settle() == [ENABLED, few]
    assert plane.hints() == {"p-0": "a", "p-1": "b"}
    plane.check()


def test_a_restart_moves_nothing() -> None:
    plane = Plane(TWO, max_endpoints=3)
    plane.pods(*["n0"] * 14, *["n1"] * 2)
    plane.settle()
    plane.pods(*["n1"] * 4, first=16)
    plane.settle()
    before, hints = len(plane.cluster.writes), plane.hints()
    plane.restart()
    assert plane.settle() == [ENABLED]
    assert (len(plane.cluster.writes), plane.hints()) == (before, hints)
    plane.check()


def test_a_flip_within_bounds_writes_one_slice_and_moves_no_hint() -> None:
    plane = Plane(TWO, max_endpoints=5)
    plane.pods(*["n0", "n1"] * 20)
    plane.settle()
    before = len(plane.cluster.writes)
    plane.cluster.put(make_pod("p-0", ready=False))
    plane.settle()
    assert len(plane.cluster.writes) == before + 1
    assert Counter(plane.hints().values()) == {"a": 19, "b": 20}


@pytest.mark.parametrize(
    "control", ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"]
)
def test_control_plane_nodes_have_no_share(control: str) -> None:
    assert NodeFacts(make_node("n", "a", **{control: ""})).topology is None
    assert NodeFacts(make_node("n", "a")).topology == ("a", "", 4000)


# -- any history

steps = st.one_of(
    st.tuples(st.just("pods"), st.integers(0, 30), st.integers(1, 12), st.integers(0, 3)),
    st.tuples(st.just("unready"), st.integers(0, 30), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("go"), st.integers(0, 30), st.integers(1, 12), st.just(0)),
    st.tuples(
        st.just("node"),
        st.integers(0, 3),
        st.sampled_from((0, 1, 4, 9)),
        st.sampled_from((0, 1, 2, 3)),
    ),
    st.tuples(st.just("node goes"), st.integers(0, 3), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0)),
)


@effort(60)
@given(st.lists(steps, min_size=1, max_size=10))
def test_after_every_step_hints_are_what_they_must_be(
    history: list[tuple[str, int, int, int]],
) -> None:
    planes = [Plane({f"n{n}": "abc"[n % 3] for n in range(4)}, max_endpoints=4) for _ in range(2)]
    for plane in planes:
        plane.pods(*["n0", "n1", "n2"] * 3)
    for kind, which, count, more in history:
        for plane in planes:
            match kind:
                case "pods":
                    plane.pods(*[f"n{more}"] * count, first=which)
                case "unready":
                    for number in range(which, which + count):
                        plane.cluster.put(make_pod(f"p-{number}", ready=False))
                case "go":
                    for number in range(which, which + count):
                        plane.cluster.remove(Pods, "shop", f"p-{number}")
                case "node":
                    plane.cluster.put(
                        make_node(f"n{which}", ("a", "b", "c", "")[more], cpu=str(count))
                    )
                case "node goes":
                    plane.cluster.remove(Nodes, "", f"n{which}")
                case "restart":
                    plane.restart()
            plane.settle()
            plane.check()
    assert planes[0].cluster.slices() == planes[1].cluster.slices(), (
        "equal histories, different slices"
    )


def test_kubernetes_122437_four_four_three_over_equal_zones_is_refused_with_the_reason_and_heals() -> (
    None
):
    """Each zone needs 4 of 11 within the threshold, 12 in all: the arithmetic says no, and people
    are told why.
    """
    plane = Plane({**TWO, "n2": "c"})
    plane.pods(*["n0", "n1", "n2"] * 4)
    assert plane.settle() == [ENABLED]
    plane.cluster.remove(Pods, "shop", "p-11")
    words = (
        "Unable to allocate minimum required endpoints to each zone without exceeding overload "
        "threshold"
    )
    assert plane.settle() == [disabled(f"{words} (11 endpoints, 3 zones)")]
    assert plane.hints() == {}
    plane.pods("n2", first=11)
    assert plane.settle() == [ENABLED]
    assert Counter(plane.hints().values()) == {"a": 4, "b": 4, "c": 4}
    plane.check()
