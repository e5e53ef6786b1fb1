"""Hints by heuristics: what users see, what a bad plug-in can do, how much moves and what it
costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from tests.slices.fake_cluster import FakeCluster, make_node, make_pod, make_service
from tests.slices.heuristics import Local, TwoZones

from sliceplane.api.core import Node, Pod
from sliceplane.api.discovery import LABEL_REGION
from sliceplane.api.scheme import Pods
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.kit.names import is_domain_qualified
from sliceplane.slices import oracle
from sliceplane.slices.heuristics.balanced import ANNOTATION_MAX_OVERLOAD, Balanced
from sliceplane.slices.heuristics.measured import ANNOTATION_SHARES
from sliceplane.slices.heuristics.queries import (
    PROBLEM_MAX,
    problem_of_heuristic,
    query_local,
    query_zonal,
)
from sliceplane.slices.heuristics.shipped import find_shipped
from sliceplane.slices.heuristics.spread_constraints import KEY_HOSTNAME, KEY_REGION, KEY_ZONE
from sliceplane.slices.heuristics.types import (
    Allocation,
    EndpointLocation,
    Heuristic,
    HeuristicError,
    Hints,
    Portion,
    ServiceView,
    ZoneView,
)
from sliceplane.slices.hinting.plugin_hints import STEP_S

TWO = {"n0": "a", "n1": "b"}
BALANCED = "sliceplane.dev/Balanced"
SPREAD = "sliceplane.dev/SpreadConstraints"


class Counting:
    """``TwoZones``, and what it was asked."""

    name = "test.dev/Counting"
    kind: Literal["zonal"] = "zonal"

    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        self.asked.append(dict(endpoints))
        return TwoZones().allocate(service, endpoints, zones)


class Plane:
    def __init__(
        self,
        distribution: str,
        *others: Heuristic,
        zones: dict[str, str] | None = None,
        **over: Any,
    ) -> None:
        self.cluster = FakeCluster()
        for node, zone in (zones or TWO).items():
            self.cluster.put(make_node(node, zone))
        self.max = over.pop("max_endpoints", 100)
        self.over = {"traffic_distribution": distribution, **over}
        self.cluster.put(make_service(**self.over))
        self.others = {each.name: each for each in others}
        self.now = 1000.0
        self.restart()

    def find(self, name: str) -> Heuristic | str:
        return self.others.get(name) or find_shipped(name)

    def restart(self) -> None:
        config = EndpointSliceConfig(max_endpoints_per_slice=self.max, find_heuristic=self.find)
        self.controller = EndpointSliceController(config)
        self.cluster.start(self.controller, self.now)

    def pods(self, *nodes: str, first: int = 0, **over: Any) -> None:
        for number, node in enumerate(nodes, first):
            self.cluster.put(make_pod(f"p-{number}", node=node, **over))

    def settle(self) -> list[tuple[str, str, str]]:
        self.now, notes = self.cluster.settle(self.controller, self.now)
        return [(note.type, note.reason, note.note) for note in notes]

    def writes(self) -> int:
        before = len(self.cluster.writes)
        self.settle()
        return len(self.cluster.writes) - before

    def hints(self) -> dict[str, str]:
        """Pod -> zones joined by "+", then "@node"s."""
        found = {}
        for each in self.cluster.endpoints():
            if each.target_ref is not None and each.hints is not None:
                zones = "+".join(zone.name for zone in each.hints.for_zones or ())
                found[each.target_ref.name] = zones + "".join(
                    f"@{node.name}" for node in each.hints.for_nodes or ()
                )
        return found

    def check(self) -> None:
        objects = self.cluster.objects.values()
        pods = [each for each in objects if isinstance(each, Pod)]
        nodes = {each.metadata.name: each for each in objects if isinstance(each, Node)}
        service = self.cluster.objects["services", "shop", "web"]
        oracle.check_converged(
            service, pods, nodes, self.cluster.slices(), self.max, find=self.find
        )  # type: ignore[arg-type]  # it is a Service


# -- what comes with us


@pytest.mark.parametrize(
    ("annotations", "field", "hinted"),
    [
        ({"service.kubernetes.io/topology-mode": BALANCED}, None, True),
        ({"service.kubernetes.io/topology-aware-hints": BALANCED}, None, True),
        ({"service.kubernetes.io/topology-mode": BALANCED}, "PreferSameNode", True),
        (
            {
                "service.kubernetes.io/topology-mode": BALANCED,
                "service.kubernetes.io/topology-aware-hints": "Disabled",
            },
            None,
            False,
        ),
        ({"service.kubernetes.io/topology-mode": "Balanced"}, None, False),
        ({"service.kubernetes.io/topology-mode": "test.dev/Unknown"}, None, False),
    ],
)
def test_the_annotation_names_a_heuristic_where_a_server_refuses_it_in_the_field(
    annotations: dict[str, str], field: str | None, hinted: bool
) -> None:
    """KEP-2433 leaves values with a domain to implementations."""
    plane = Plane("", traffic_distribution=field, annotations=annotations)
    plane.pods(*["n0"] * 8, *["n1"] * 2)
    plane.settle()
    assert len(plane.hints()) == (10 if hinted else 0)
    assert not any("@" in hints for hints in plane.hints().values()), "no hints of PreferSameNode"


def test_balanced_spills_just_enough() -> None:
    plane = Plane(BALANCED)
    plane.pods(*["n0"] * 8, *["n1"] * 2)
    assert plane.settle() == []
    # each zone sends half: 5 fair shares; with 20% overload ceil(5 / 1.2) = 5 endpoints are enough
    # for each
    assert Counter(plane.hints().values()) == {"a": 5, "b": 5}
    plane.check()


def test_a_parameter_is_an_annotation() -> None:
    plane = Plane(BALANCED, annotations={ANNOTATION_MAX_OVERLOAD: "100%"})
    plane.pods(*["n0"] * 8, *["n1"] * 2)
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 7, "b": 3}
    plane.cluster.put(
        make_service(**plane.over | {"annotations": {ANNOTATION_MAX_OVERLOAD: "25%"}})
    )
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 6, "b": 4}
    plane.check()


def test_spread_constraints_of_each_pod() -> None:
    plane = Plane(SPREAD)
    for node, zone in (*TWO.items(), ("n2", "c")):
        plane.cluster.put(make_node(node, zone, **{LABEL_REGION: "far" if zone == "c" else "near"}))
    for number, key in enumerate((KEY_ZONE, KEY_HOSTNAME, KEY_REGION, "rack")):
        plane.pods("n0", first=number, spread=(key,))
    plane.settle()
    assert plane.hints() == {"p-0": "a", "p-1": "a@n0", "p-2": "a+b"}
    plane.cluster.put(make_node("n1", "b", **{LABEL_REGION: "far"}))
    plane.settle()
    assert plane.hints() == {"p-0": "a", "p-1": "a@n0", "p-2": "a"}
    plane.check()


def test_the_annotation_is_stronger() -> None:
    plane = Plane(BALANCED, annotations={"service.kubernetes.io/topology-mode": "Auto"})
    plane.pods("n0", "n1")
    ((_, reason, _),) = plane.settle()
    assert reason == "TopologyAwareHintsEnabled"


def test_metrics_do_not_have_a_label_for_each_name() -> None:
    plane = Plane("nobody.dev/Knows")
    plane.settle()
    (family,) = (
        f
        for f in plane.controller.samples(0.0)
        if f.name.endswith("services_count_by_traffic_distribution")
    )
    assert [(each.labels, each.value) for each in family.samples] == [
        (("ImplementationSpecific",), 1)
    ]


# -- bad plug-ins


def failing(text: str) -> tuple[str, str, str]:
    return "Warning", "TrafficDistributionFailed", f"test.dev/Local: {text}, addressType: IPv4"


def boom(*_: object) -> Hints:
    raise ZeroDivisionError("a\nb")


def refuse(*_: object) -> Hints:
    raise HeuristicError("the moon is full")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (boom, "it failed with ZeroDivisionError: a b"),
        (refuse, "the moon is full"),
        (None, "its answer cannot be used: the answer is a NoneType, not Hints"),
        ("a", "its answer cannot be used: the answer is a str, not Hints"),
        (
            Hints(("",)),
            "its answer cannot be used: hinted zones [''] have an empty or a repeated name",
        ),
        (Hints("abc"), "its answer cannot be used: hinted zones are 'abc', not a tuple of names"),  # type: ignore[arg-type]
        (Hints(tuple("abcdefghi")), "its answer cannot be used: 9 zones are hinted, 8 are allowed"),
    ],
)
def test_a_failure_costs_the_hints_of_its_service_alone(answer: Any, text: str) -> None:
    bad = Local(answer)
    plane = Plane(bad.name, bad)
    plane.cluster.put(make_service("other", traffic_distribution=SPREAD))
    plane.pods("n0", "n1", spread=(KEY_ZONE,))
    assert plane.settle() == [failing(text)]
    assert plane.hints() == {"p-0": "a", "p-1": "b"}, "those of the other service"
    plane.cluster.put(make_pod("p-1", node="n1", ready=False))
    assert plane.settle() == [], "the same problem is told once"
    bad.answer = lambda *_: Hints(("a",))
    plane.cluster.put(make_node("n2", "c"))
    assert plane.settle() == [
        (
            "Normal",
            "TrafficDistributionEnabled",
            "test.dev/Local: hints are given again, addressType: IPv4",
        )
    ]
    plane.check()


def test_an_answer_that_the_server_would_refuse_is_not_written() -> None:
    bad = Local(Hints(("not a zone",)))
    plane = Plane(bad.name, bad)
    plane.pods("n0")
    ((_, _, note),) = plane.settle()
    assert "'not a zone' cannot be the name of a zone" in note
    assert "hinted nodes" not in note
    assert plane.hints() == {}


def test_a_name_that_nobody_has() -> None:
    plane = Plane("nobody.dev/Knows", ip_families=("IPv4", "IPv6"))
    plane.pods("n0")
    told = plane.settle()
    assert told == [
        ("Warning", "TrafficDistributionUnsupported", "no heuristic nobody.dev/Knows is installed")
    ]
    assert plane.hints() == {}
    plane.cluster.put(make_service(**plane.over | {"ports": ()}))
    assert plane.settle() == [], "another shape of the same service is no news"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"a": (Portion(1, ("a",)),)},
        {"a": (Portion(2.0, ("a",)),)},
        {"a": (Portion(2, "a"),)},
        {"a": 2},
    ],
)
def test_nonsense_about_zones(answer: Any) -> None:
    class Nonsense(Counting):
        def allocate(self, *_: object) -> Any:  # type: ignore[override]
            return answer

    found = query_zonal(Nonsense(), ServiceView(namespace="n", name="s"), {"a": 2}, ())
    assert isinstance(found, str)
    assert found


def test_a_text_is_bounded() -> None:
    def long(*_: object) -> Hints:
        raise HeuristicError("x" * 10_000)

    found = query_local(Local(long), ServiceView(namespace="n", name="s"), EndpointLocation(), ())
    assert isinstance(found, str)
    assert len(found) == PROBLEM_MAX


def test_annotations_cannot_be_changed() -> None:
    class Writing(Local):
        def hints(self, service: ServiceView, *_: object) -> Hints:
            service.annotations["x"] = "y"  # type: ignore[index]
            return Hints()

    plane = Plane(Writing.name, Writing(None))
    plane.pods("n0")
    ((_, _, note),) = plane.settle()
    assert "it failed with TypeError" in note


def test_what_a_plug_in_must_be() -> None:
    assert problem_of_heuristic(Balanced(), BALANCED) == ""
    assert problem_of_heuristic(Balanced(), "x.dev/Y") == f"its name is {BALANCED!r}"
    assert problem_of_heuristic(object(), "x.dev/Y") == "its name is None"
    assert "its kind is None" in problem_of_heuristic(
        type("X", (), {"name": "x.dev/Y"})(), "x.dev/Y"
    )
    bare = type("X", (), {"name": "x.dev/Y", "kind": "local"})()
    assert problem_of_heuristic(bare, "x.dev/Y") == "it has no method hints"


def test_names() -> None:
    assert is_domain_qualified("example.com/Nearest")
    for bad in ("PreferClose", "", "/x", "x/", "a/b/c", "Example.com/x", "example.com/a b"):
        assert not is_domain_qualified(bad), bad


# -- how much moves, and what it costs


def test_several_zones_in_one_portion() -> None:
    plane = Plane("test.dev/TwoZones", TwoZones())
    plane.pods(*["n0", "n1"] * 3)
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 1, "b": 1, "a+b": 4}
    plane.check()


def test_a_restart_takes_over_what_slices_show() -> None:
    plane = Plane("test.dev/TwoZones", TwoZones(), max_endpoints=4)
    plane.pods(*["n0", "n1"] * 10)
    plane.settle()
    for number in (3, 4, 8):  # a history leaves portions that a fresh start would not choose
        plane.cluster.remove(Pods, "shop", f"p-{number}")
        plane.settle()
        plane.pods("n1", first=number)
        plane.settle()
    plane.check()
    before = plane.hints()
    plane.restart()
    assert plane.writes() == 0
    assert plane.hints() == before


def test_a_flip_writes_one_slice_where_the_allocation_moves_within_it() -> None:
    plane = Plane("test.dev/TwoZones", TwoZones(), max_endpoints=10)
    plane.pods(*["n0"] * 40)
    plane.settle()
    for number in (3, 17, 29, 38):
        for ready in (False, True):
            plane.cluster.put(make_pod(f"p-{number}", node="n0", ready=ready))
            assert plane.writes() == 1, "another endpoint of the same slice takes the portion over"
            plane.check()


def test_nodes_that_change_ask_anew() -> None:
    plane = Plane(BALANCED)
    plane.pods(*["n0", "n1"] * 6)
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 6, "b": 6}
    plane.cluster.put(
        make_node("n0", "a", cpu="12")
    )  # three quarters: 9 fair shares need 8 endpoints
    plane.settle()
    assert Counter(plane.hints().values()) == {"a": 8, "b": 4}
    plane.check()


def test_a_zonal_heuristic_is_asked_once_for_a_change_and_never_for_an_echo() -> None:
    heuristic = Counting()
    plane = Plane(heuristic.name, heuristic)
    plane.pods(*["n0", "n1"] * 20)
    plane.settle()
    assert heuristic.asked == [{"a": 20, "b": 20}]
    plane.cluster.put(make_pod("p-3", node="n1", ready=False))
    plane.settle()
    assert heuristic.asked[1:] == [{"a": 20, "b": 19}]
    plane.cluster.put(make_pod("p-5", node="n1", labels={"app": "web", "x": "y"}))
    plane.settle()
    assert len(heuristic.asked) == 2


def test_a_local_heuristic_is_asked_once_for_each_place() -> None:
    heuristic = Local(lambda endpoint, zones: Hints((endpoint.zone,)))
    plane = Plane(heuristic.name, heuristic)
    plane.pods(*["n0", "n1"] * 20)
    plane.settle()
    assert len(heuristic.asked) == 2
    plane.cluster.put(make_pod("p-3", node="n1", ready=False))
    plane.settle()
    plane.cluster.put(make_pod("p-3", node="n1"))
    plane.settle()
    assert len(heuristic.asked) == 2
    plane.cluster.put(make_node("n2", "c"))
    assert plane.writes() == 0
    assert len(heuristic.asked) == 4, "zones changed: once more for each place"


# -- annotations that change


MEASURED = "sliceplane.dev/Measured"


class Steps(Plane):
    """A Service with measured shares, and how many hints moved when."""

    def __init__(self, each: int = 15) -> None:
        super().__init__(MEASURED, annotations={ANNOTATION_SHARES: "a=32/64,b=32/64"})
        self.pods(*["n0"] * each, *["n1"] * each)
        self.settle()

    def share(self, text: str) -> None:
        annotations = {ANNOTATION_SHARES: text}
        self.cluster.put(make_service(**self.over | {"annotations": annotations}))

    def move(self) -> int:
        """Performs what is due now. Returns the number of endpoints with other hints."""
        before = self.hints()
        self.cluster.deliver(self.controller, self.now)
        while jobs := self.controller.take_work(self.now, 10).jobs:
            for job in jobs:
                self.controller.on_done(self.cluster.run(job), self.now)
            self.cluster.deliver(self.controller, self.now)
        self.controller.check()
        return sum(before[pod] != hints for pod, hints in self.hints().items())


def test_measured_shares_move_a_tenth_at_a_time() -> None:
    plane = Steps()
    plane.share("a=58/64,b=6/64")
    moved = []
    for _ in range(6):
        moved.append(plane.move())
        plane.now += STEP_S - 0.1
        assert plane.move() == 0, "before its time"
        plane.now += 0.1
    assert moved == [3, 3, 2, 0, 0, 0], "b lends 8: a needs ceil(58 / 64 * 30 / 1.2)"
    assert Counter(plane.hints().values()) == {"a": 23, "b": 7}
    plane.check()


def test_the_steps_come_by_themselves_and_a_flip_does_not_hasten_them() -> None:
    plane = Steps()
    plane.share("a=58/64,b=6/64")
    assert plane.move() == 3
    plane.cluster.put(make_pod("p-0", node="n0", ready=False))
    assert plane.move() <= 1
    start = plane.now
    plane.settle()
    assert start + STEP_S <= plane.now <= start + 4 * STEP_S
    plane.check()


def test_a_zone_that_comes_ends_the_steps() -> None:
    plane = Steps()
    plane.share("a=50/64,b=6/64,c=8/64")
    assert plane.move() == 3
    plane.cluster.put(make_node("n2", "c"))
    assert plane.move() > 3
    plane.check()


def test_one_endpoint_moves_at_least() -> None:
    plane = Steps(each=2)
    plane.share("a=58/64,b=6/64")
    assert plane.move() == 1
    plane.now += STEP_S
    assert plane.move() == 1
    plane.check()


def test_an_annotation_builds_no_endpoint_anew() -> None:
    plane = Plane(BALANCED, annotations={ANNOTATION_MAX_OVERLOAD: "100%"}, max_endpoints=2)
    plane.pods(*["n0"] * 8, *["n1"] * 2)
    plane.settle()
    members = plane.controller._engine._services["shop/web"].members
    before = plane.hints()
    over = plane.over | {"annotations": {ANNOTATION_MAX_OVERLOAD: "25%"}}
    plane.cluster.put(make_service(**over))
    assert plane.writes() == 1, "one endpoint of one slice"
    assert sum(before[pod] != hints for pod, hints in plane.hints().items()) == 1
    plane.cluster.put(make_service(**over | {"annotations": {**over["annotations"], "x": "y"}}))
    assert plane.writes() == 0
    assert plane.controller._engine._services["shop/web"].members is members
    plane.check()


def test_a_local_heuristic_sees_the_annotation_that_changed() -> None:
    class Told(Local):
        def hints(self, service: ServiceView, *_: object) -> Hints:
            return Hints((service.annotations.get("test.dev/zone", "a"),))

    plane = Plane(Told.name, Told(None))
    plane.pods("n0", "n1")
    plane.settle()
    assert plane.hints() == {"p-0": "a", "p-1": "a"}
    plane.cluster.put(make_service(**plane.over | {"annotations": {"test.dev/zone": "b"}}))
    plane.settle()
    assert plane.hints() == {"p-0": "b", "p-1": "b"}
    plane.check()
