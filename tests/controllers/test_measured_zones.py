"""Measured zones: the controller on virtual time, from reports to shares, hints and condition."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from tests.controllers.measured_world import EVEN, PLAIN, SKEWED, TWELVE, UID, MeasuredWorld
from tests.effort import scaled
from tests.slices.fake_cluster import make_node

from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.consume.demand import MEASURED
from sliceplane.consume.progress import ANNOTATION_DEMAND
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.measured.controller import (
    DEMAND_CAPPED,
    KEPT_S,
    PERIOD_S,
    SHARES_DECIDED,
    SHARES_REPLACED,
    WARMING_S,
    MeasuredZonesController,
)
from sliceplane.controllers.measured.decision import HintInputs
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.slices.heuristics.measured import ANNOTATION_SHARES, read_shares, read_weights
from sliceplane.slices.heuristics.shipped import find_shipped

DAY_S = 86_400
HOUR_S = 3_600


# -- the controller


def test_from_a_step_to_hints_within_three_minutes() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1200, EVEN)
    assert world.condition == ("True", "Measured")
    assert len(world.writes) == 1
    world.run(180, {zone: 10 * rate for zone, rate in SKEWED.items()})
    demand = SKEWED
    assert world.same_zone(demand).load == pytest.approx(2.4)
    assert world.cost(demand).load <= 1.25
    assert world.cost(demand).crossing <= 0.4 + 0.02, "the linear programme's, and two points"
    times = world.writes
    assert all(later - earlier >= PERIOD_S for earlier, later in pairwise(times))


@pytest.mark.parametrize(
    "after", [{"a": 5.0, "b": 15.0, "c": 80.0}, {"a": 10.0, "b": 60.0, "c": 30.0}]
)
def test_a_step_without_more_traffic_is_followed_as_quickly(after: dict[str, float]) -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1200, {zone: 3 * rate for zone, rate in SKEWED.items()})
    world.run(150, {zone: 3 * rate for zone, rate in after.items()})
    assert world.cost(after).load <= 1.25
    assert world.cost(after).crossing <= world.least_crossing(after) + 0.02
    writes = len(world.writes)
    world.run(3600, {zone: 3 * rate for zone, rate in after.items()})
    assert len(world.writes) - writes <= 1


@pytest.mark.parametrize("demand", [EVEN, SKEWED, {"a": 100.0}], ids=["even", "skewed", "one"])
def test_steady_demand_writes_nothing(demand: dict[str, float]) -> None:
    world = MeasuredWorld(TWELVE, seed=3)
    world.run(1800, demand)
    writes, status_writes = len(world.writes), len(world.status_writes)
    assert writes <= 2
    assert status_writes == 2, "Warming and Measured"
    world.run(scaled(DAY_S), demand)
    assert (len(world.writes), len(world.status_writes)) == (writes, status_writes)


def test_views_report_requests_and_nobody_for_services_of_others() -> None:
    world = MeasuredWorld(TWELVE, {ANNOTATION_DEMAND: "requests"})
    uid, honest = UID[:8], {"sliceplane-view-web-1": ("a", 80), "sliceplane-view-web-2": ("b", 15)}
    for second in range(0, 1200, 10):
        for name, (zone, rate) in honest.items():
            world.report_requests(f"shop/{name}", f"{zone}/{uid}:{rate * second}")
        world.report_requests("kube-node-lease/sliceplane-xds-1", f"c/{uid}:{5 * second}")
        for key in (
            "bank/sliceplane-view-web-1",
            "bank/sliceplane-xds-1",
            "shop/sliceplane-xds-1",
            "shop/sliceplane-proxy-c-0",
            "kube-node-lease/sliceplane-view-web-1",
        ):
            world.report_requests(key, f"c/{uid}:{10**6 * second}")
        world.run(10, {})
    assert world.condition == ("True", "Measured")
    assert world.shares == "a=50/64,b=10/64,c=4/64"
    assert world.cost(SKEWED).load <= 1.25


def test_a_tenant_who_opens_a_million_connections_is_bounded() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(600, EVEN)
    world.run(600, EVEN | {"c": 10_000.0})
    assert world.cost(EVEN).load <= 12 * 1.2, "each zone keeps an endpoint"
    hinted = HintInputs(PLAIN, TWELVE, world.views).placement(world.shares)
    for zone in TWELVE:
        assert any(zone in names for by in hinted.values() for names in by)
    world.run(900, EVEN)
    assert world.cost(EVEN).load <= 1.2, "the harm ends with the connections"


def test_a_lying_node_cannot_take_the_endpoints() -> None:
    world = MeasuredWorld(TWELVE, nodes=4)
    world.run(900, EVEN)
    for _ in range(90):
        world.totals["c-0"] += 10**12
        world.run(10, EVEN)
    samples = {family.name: family.samples for family in world.controller.samples(world.now)}
    assert samples["sliceplane_demand_nodes_capped"][0].value == 1
    (note,) = [note for note in world.notes if note.startswith(DEMAND_CAPPED)]
    assert "node c-0 reports more connections than 3 times the median" in note
    # its zone counts 3 + 3 * 1 instead of 4 parts: 1.5 times
    assert world.cost(EVEN).load <= 1.5 * 1.2


def test_restarts_of_counters_and_of_the_controller_write_nothing() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1200, SKEWED)
    before = (world.shares, len(world.writes), len(world.status_writes))
    world.totals = dict.fromkeys(world.totals, 0)
    world.run(300, SKEWED)
    world.start()
    world.run(WARMING_S - 30, SKEWED)
    assert world.condition == ("True", "Measured"), "kept while the averages warm up"
    world.run(900, SKEWED)
    assert (world.shares, len(world.writes), len(world.status_writes)) == before


def silence(world: MeasuredWorld, *zones: str) -> None:
    world.silent |= {f"{zone}-{n}" for zone in zones for n in range(world.nodes)}


@pytest.mark.parametrize(("silent", "reason"), [("a", "NodesSilent"), ("abc", "NotMeasured")])
def test_without_reports_shares_stay_for_ten_minutes(silent: str, reason: str) -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1200, SKEWED)
    shares = world.shares
    silence(world, *silent)
    world.run(240, SKEWED)
    assert world.condition == ("False", reason)
    assert world.shares == shares
    world.run(KEPT_S, SKEWED)
    assert world.shares == ""
    assert world.cost(SKEWED).load == pytest.approx(2.4), "as Balanced with equal CPU"
    world.silent.clear()
    world.run(600, SKEWED)
    assert world.condition == ("True", "Measured")
    assert world.shares != ""


def test_too_little_traffic() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1200, {"a": 1.0})
    assert world.condition == ("False", "TooLittleTraffic")
    assert world.shares == ""
    world.run(1200, {"a": 20.0})
    assert world.condition == ("True", "Measured")
    shares = world.shares
    world.run(300, {"a": 1.5})
    assert world.condition == ("True", "Measured"), "half is enough to stay"
    world.run(1200, {})
    assert (world.condition, world.shares) == (("False", "TooLittleTraffic"), ""), shares


@pytest.mark.parametrize(
    ("annotation", "spec", "reason"),
    [
        (None, {"internalTrafficPolicy": "Local"}, "LocalPolicy"),
        ("requests", {}, "NotMeasured"),
        ("latency", {}, "NotMeasured"),
        ("weights: a", {}, "NotMeasured"),
        ("weights: a=0", {}, "NotMeasured"),
    ],
)
def test_what_cannot_be_measured_says_why(
    annotation: str | None, spec: dict[str, Any], reason: str
) -> None:
    annotations = {} if annotation is None else {ANNOTATION_DEMAND: annotation}
    world = MeasuredWorld(TWELVE, annotations, **spec)
    world.run(1200, SKEWED)
    assert world.condition == ("False", reason)
    assert world.shares == ""


def test_weights_are_fixed_and_need_no_report() -> None:
    world = MeasuredWorld(TWELVE, {ANNOTATION_DEMAND: "weights: a=3,b=1"})
    world.work()
    assert world.shares == "a=48/64,b=16/64"
    assert world.condition == ("True", "Measured")
    world.run(1200, EVEN)
    assert len(world.writes) == 1
    world.annotate(ANNOTATION_DEMAND, "weights: a=1,b=1")
    world.work()
    assert world.shares == "a=32/64,b=32/64"


def test_weights_that_are_taken_back_at_once_are_no_measurement() -> None:
    world = MeasuredWorld(TWELVE, {ANNOTATION_DEMAND: "weights: a=3,b=1"})
    world.work()
    world.annotate(ANNOTATION_DEMAND, None)
    world.work()
    assert world.condition == ("Unknown", "Warming")


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (" zone-a=3, zone-b=1 ", {"zone-a": 3.0, "zone-b": 1.0}),
        ("a=3,a=1", {}),
        ("a=-1", {}),
        ("a=1.5", {}),
        ("a=", {}),
        ("=1", {}),
        ("a b=1", {}),
        ("a=1e9", {}),
        ("a=" + "9" * 400, {}),
        ("a=0,b=0", {}),
        ("a=٣", {}),
    ],
)
def test_forms_of_weights(text: str, weights: dict[str, float]) -> None:
    assert read_weights(f"weights:{text}") == weights
    assert not read_weights(text), "the source is another"


def test_shares_that_are_edited_hold_until_the_next_decision() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1200, SKEWED)
    ours = world.shares
    world.annotate(ANNOTATION_SHARES, "a=1/64,b=31/64,c=32/64")
    world.work()
    assert world.shares != ours, "fixed until then"
    world.run(2 * PERIOD_S, SKEWED)
    assert set(read_shares(world.shares)) == set("abc")
    assert read_shares(world.shares)["a"] >= 48
    first, second = world.notes
    assert first == (
        f"{SHARES_DECIDED}: shares (none) -> {ours}: zones have hints for the connections that "
        "start in them"
    )
    assert second.startswith(f"{SHARES_REPLACED}: ")


def test_the_condition_says_the_overload_that_no_hints_avoid() -> None:
    """Twenty-four zones are too many for shares in 64ths."""
    zones = {f"z{number:02}": number**3 / 100 for number in range(24)}
    world = MeasuredWorld(dict.fromkeys(zones, 2), nodes=1)
    world.run(400, zones)
    (condition,) = world.service["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "Measured")
    said = re.search(r"carry (.*) fair shares, .* 1\.2 are allowed$", condition["message"])
    assert said
    cost = world.controller._followed["shop/web"].cost
    assert cost is not None
    assert cost.load == pytest.approx(float(said[1]), abs=0.1)
    assert float(said[1]) > 1.3
    writes = len(world.status_writes)
    world.run(200, zones)
    assert len(world.status_writes) == writes, "its figure is that of the decision"


def test_a_zone_that_comes_decides_at_once() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1210, SKEWED)
    before = len(world.writes)
    world.put(Nodes, make_node("d-0", "d"))
    world.work()
    assert len(world.writes) == before + 1
    assert set(read_shares(world.shares)) == set("abcd")
    world.put(Nodes, None, "d-0")
    world.work()
    assert set(read_shares(world.shares)) == set("abc")


def test_a_service_that_asks_no_more_is_cleaned_up() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1200, SKEWED)
    world.service["spec"]["trafficDistribution"] = "PreferSameZone"
    world.put_service()
    world.work()
    assert (world.shares, world.condition) == ("", ("", ""))
    before = len(world.writes)
    world.run(300, SKEWED)
    assert len(world.writes) == before
    assert world.controller._meter.rates(UID[:8], world.now) == {}


def test_metrics() -> None:
    world = MeasuredWorld(TWELVE)
    world.run(1800, SKEWED)
    world.report("a-0", "rubbish")
    found = {family.name: family.samples for family in world.controller.samples(world.now)}
    demand = {each.labels[2]: each.value for each in found["sliceplane_service_zone_demand"]}
    assert demand == {z: pytest.approx(rate, rel=0.2) for z, rate in SKEWED.items()}
    (overload,) = found["sliceplane_service_overload"]
    assert overload.labels == ("shop", "web")
    assert 1.1 <= overload.value <= 1.25  # type: ignore[operator]  # no histogram
    assert found["sliceplane_service_cross_zone_share"][0].value == pytest.approx(0.4, abs=0.03)
    assert found["sliceplane_service_hint_moves_total"][0].value == 12
    assert found["sliceplane_demand_reports_invalid_total"][0].value == 1


# -- with the controller of EndpointSlices


class Plane:
    """Pods, slices and hints over the production registry."""

    def __init__(self, **annotations: str) -> None:
        config = EndpointSliceConfig(find_heuristic=find_shipped)
        self.cluster = Cluster(EndpointSliceController(config), MeasuredZonesController())
        for zone in "ab":
            labels = {"topology.kubernetes.io/zone": zone}
            self.cluster.create(Nodes, {"metadata": {"name": f"n-{zone}", "labels": labels}})
            status = {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "4"},
            }
            self.cluster.patch(Nodes, f"n-{zone}", {"status": status}, subresource="status")
        for number in range(20):
            self.pod(number)
        spec = {
            "selector": {"app": "web"},
            "ports": [{"port": 80}],
            "trafficDistribution": MEASURED,
        }
        meta = {"name": "web", "annotations": annotations}
        self.cluster.create(Services, {"metadata": meta, "spec": spec})
        self.cluster.converge(limit_s=300)

    def pod(self, number: int) -> None:
        spec = {
            "nodeName": f"n-{'ab'[number % 2]}",
            "containers": [{"name": "c", "image": "i"}],
        }
        meta = {"name": f"p-{number}", "labels": {"app": "web"}}
        self.cluster.create(Pods, {"metadata": meta, "spec": spec})
        address = f"10.0.0.{number + 1}"
        change = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        ready = [{"type": "Ready", "status": "True"}]
        self.cluster.patch(
            Pods, f"p-{number}", {"status": {**change, "conditions": ready}}, subresource="status"
        )

    def hints(self) -> dict[str, int]:
        return dict(
            Counter(
                "+".join(zone["name"] for zone in each.get("hints", {}).get("forZones", ()))
                for found in self.cluster.list(EndpointSlices)
                for each in found["endpoints"]
            )
        )


def test_weights_move_hints_over_the_registry() -> None:
    plane = Plane(**{ANNOTATION_DEMAND: "weights: a=7,b=1"})
    service = plane.cluster.get(Services, "web")
    assert service["metadata"]["annotations"][ANNOTATION_SHARES] == "a=56/64,b=8/64"
    assert plane.hints() == {"a": 15, "b": 5}
    (condition,) = service["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("TrafficDistributionMeasured", "True")
    for controller in plane.cluster.controllers:
        controller.check()
