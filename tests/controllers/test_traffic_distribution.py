"""Conditions of Services with trafficDistribution, over the production registry on virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.slices.heuristics import find

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.core import Node, Service, ServiceStatus
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError, conflict
from sliceplane.api.meta import ObjectMeta, ObservedCondition
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Pods, Services
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    IDLE_PERIOD_S,
    LEASE_DURATION_S,
    Progress,
)
from sliceplane.consume.selections import ALL
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.node_progress import STOPPED_KEPT_S
from sliceplane.controllers.service_syncs import HintProblems
from sliceplane.controllers.traffic_distribution import (
    ACCEPTED,
    CACHE_DIFFERS,
    GRACE_S,
    HONORED,
    PERIOD_S,
    PROGRAMMED,
    DesiredCondition,
    TrafficDistributionController,
    _changes,
)
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import Done

AUTO = "service.kubernetes.io/topology-mode"


class Plane:
    def __init__(
        self, distribution: str | None = "PreferSameZone", pods: int = 4, **annotations: str
    ) -> None:
        self.cluster = Cluster(*self.controllers())
        for number, zone in enumerate(("zone-a", "zone-b")):
            self.node(f"node-{number}", zone)
        for number in range(pods):
            self.pod(number)
        spec: dict[str, Any] = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
        if distribution:
            spec["trafficDistribution"] = distribution
        self.cluster.create(
            Services, {"metadata": {"name": "web", "annotations": annotations}, "spec": spec}
        )
        self.proxies: dict[str, Progress] = {}
        self.settle()

    def controllers(self) -> tuple[EndpointSliceController, TrafficDistributionController]:
        problems = HintProblems()
        slices = EndpointSliceController(EndpointSliceConfig(find_heuristic=find), problems)
        return slices, TrafficDistributionController(find, problems)

    def restart(self) -> None:
        self.cluster.replace(*self.controllers())

    def settle(self, seconds: float = 5.0) -> None:
        """Everything until *seconds* from now."""
        end = self.cluster.now + seconds
        self.cluster.bookmark()
        self.cluster.converge(limit_s=seconds)
        self.cluster.now = max(self.cluster.now, end)
        for controller in self.cluster.controllers:
            controller.check()

    def node(self, name: str, zone: str) -> None:
        self.cluster.create(
            Nodes, {"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}}
        )
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}}
        self.cluster.patch(Nodes, name, {"status": ready}, subresource="status")

    def pod(self, number: int) -> None:
        spec = {"nodeName": f"node-{number % 2}", "containers": [{"name": "c", "image": "i"}]}
        self.cluster.create(
            Pods, {"metadata": {"name": f"p-{number}", "labels": {"app": "web"}}, "spec": spec}
        )
        self.ready(number)

    def ready(self, number: int, *, status: str = "True") -> None:
        address = f"10.0.0.{number + 1}"
        change = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        change["conditions"] = [{"type": "Ready", "status": status}]
        self.cluster.patch(Pods, f"p-{number}", {"status": change}, subresource="status")

    def change(self, **spec: Any) -> None:
        self.cluster.patch(Services, "web", {"spec": spec})
        self.settle()

    def conditions(self) -> dict[str, dict[str, Any]]:
        status = self.cluster.get(Services, "web")["status"]
        return {each["type"]: each for each in status.get("conditions", [])}

    def told(self) -> dict[str, tuple[str, str]]:
        prefix = "TrafficDistribution"
        return {
            name.removeprefix(prefix): (c["status"], c["reason"])
            for name, c in self.conditions().items()
        }

    def status_writes(self) -> int:
        return sum(write.resource is Services for _, write in self.cluster.writes)

    def report(self, node: str, revision: int | None = None, *, lost: str = "") -> None:
        """What the proxy of *node* writes: by default, that it holds everything, but for the slice
        *lost*. It knows its Node if there is one. With *revision* it is of a release that told
        nothing but that.
        """
        progress = self.proxies[node] = Progress(node, ("IPv4",))
        if node in ("node-0", "node-1"):
            known = decode(encode(self.cluster.get(Nodes, node)), Node)
            progress.on_change(Change(Nodes.key, None, known), ALL, self.cluster.now)
        for listed in self.cluster.list(EndpointSlices):
            seen = decode(encode(listed), EndpointSlice)
            if seen.metadata.name != lost:
                progress.on_change(Change(EndpointSlices.key, None, seen), ALL, self.cluster.now)
        newest = str(self.cluster.store.revision if revision is None else revision)
        progress.on_mark(EndpointSlices.key, ALL, Mark(EndpointSlices.key, newest))
        progress.on_idle("IPv4")
        report = decode_document(progress.take_report(self.cluster.now))
        if revision is not None:
            report["metadata"]["annotations"] |= {ANNOTATION_PROGRESS: None}
        try:
            self.cluster.patch(Leases, progress.name, report, namespace="kube-node-lease")
        except StatusError as error:
            if error.reason != "NotFound":
                raise
            report["metadata"]["annotations"].pop(
                ANNOTATION_PROGRESS if revision is not None else "", None
            )
            self.cluster.create(Leases, report, "kube-node-lease")

    def report_all(self, *nodes: str) -> None:
        for node in nodes:
            self.report(node)
        self.settle()


GOOD = {
    "Accepted": ("True", "Accepted"),
    "Programmed": ("True", "HintsProgrammed"),
    "Honored": ("Unknown", "NoReports"),
}


@pytest.mark.parametrize(
    "value", ["PreferClose", "PreferSameZone", "PreferSameNode", "sliceplane.dev/Balanced"]
)
def test_all_is_well(value: str) -> None:
    plane = Plane(value)
    assert plane.told() == GOOD
    found = plane.conditions()[ACCEPTED]
    assert found["message"] == f"{value} is supported"
    assert "observedGeneration" not in found, "Services have no generation that could be observed"
    assert found["lastTransitionTime"].endswith("Z")


def test_without_the_field_nothing_is_written() -> None:
    plane = Plane(None)
    plane.settle(200)
    assert plane.status_writes() == 0
    assert "conditions" not in plane.cluster.get(Services, "web")["status"]


def test_at_rest_and_after_a_restart_nothing_is_written() -> None:
    plane = Plane()
    plane.report_all("node-0", "node-1")
    before = plane.status_writes()
    plane.settle(20)
    plane.restart()
    plane.settle(20)
    assert plane.status_writes() == before


def test_pods_that_flip_cost_no_status_write() -> None:
    plane = Plane("sliceplane.dev/Balanced", pods=8)
    plane.report_all("node-0", "node-1")
    plane.report_all("node-0", "node-1")
    before = plane.status_writes()
    for number in range(8):
        for status in ("False", "True"):
            plane.ready(number, status=status)
            plane.settle(2)
            plane.report_all("node-0", "node-1")
    assert plane.status_writes() == before
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")


def test_the_field_goes() -> None:
    plane = Plane()
    theirs = {"type": "example.com/Fine", "status": "True", "reason": "Yes", "message": ""}
    theirs["lastTransitionTime"] = "2026-11-21T10:00:00Z"
    status = plane.cluster.get(Services, "web")["status"]
    status["conditions"].append(theirs)
    plane.cluster.patch(Services, "web", {"status": status}, subresource="status")
    plane.change(trafficDistribution=None)
    assert plane.cluster.get(Services, "web")["status"]["conditions"] == [theirs]
    before = plane.status_writes()
    plane.settle(100)
    assert plane.status_writes() == before


def test_a_transition_has_a_time_and_anything_else_keeps_it() -> None:
    plane = Plane("PreferSameZone")
    first = plane.conditions()
    plane.settle(50)
    plane.change(trafficDistribution="PreferSameNode")
    second = plane.conditions()
    assert second[ACCEPTED]["lastTransitionTime"] == first[ACCEPTED]["lastTransitionTime"]
    assert second[ACCEPTED]["message"] == "PreferSameNode is supported"
    plane.settle(50)
    plane.change(trafficDistribution="nobody.dev/Knows")
    third = plane.conditions()
    assert third[ACCEPTED]["lastTransitionTime"] > first[ACCEPTED]["lastTransitionTime"]
    assert plane.told() == dict.fromkeys(("Accepted", "Programmed"), ("False", "UnsupportedValue"))
    assert third[PROGRAMMED]["message"] == "Z13: no heuristic nobody.dev/Knows is installed"


def test_the_annotation_is_stronger() -> None:
    plane = Plane("PreferSameZone", **{AUTO: "Auto"})
    assert plane.told() == dict.fromkeys(
        ("Accepted", "Programmed"), ("False", "AnnotationOverrides")
    )
    plane.cluster.patch(Services, "web", {"metadata": {"annotations": None}})
    plane.settle()
    assert plane.told() == GOOD


def test_why_there_are_no_hints() -> None:
    plane = Plane("test.dev/NoThrees", pods=6)
    assert plane.told()["Programmed"] == ("False", "HintsUnavailable")
    text = plane.conditions()[PROGRAMMED]["message"]
    assert text == "Z13: [('zone-a', 3), ('zone-b', 3)] has a three"
    assert "Honored" not in plane.told()
    for number in range(2, 6):
        plane.cluster.delete(Pods, f"p-{number}", gracePeriodSeconds=0)
    plane.settle()
    assert plane.told() == GOOD


def test_a_reason_that_changes_although_slices_do_not() -> None:
    plane = Plane("test.dev/NoThrees", pods=6)
    plane.node("node-9", "zone-c")
    plane.cluster.patch(
        Nodes, "node-1", {"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-c"}}}
    )
    plane.settle(PERIOD_S + 5)
    assert (
        plane.conditions()[PROGRAMMED]["message"]
        == "Z13: [('zone-a', 3), ('zone-c', 3)] has a three"
    )


def test_no_endpoint_is_ready_and_nodes_without_zones() -> None:
    plane = Plane("PreferSameZone", pods=0)
    assert plane.told()["Programmed"] == ("False", "NoReadyEndpoints")
    plane.cluster.patch(
        Nodes, "node-1", {"metadata": {"labels": {"topology.kubernetes.io/zone": None}}}
    )
    plane.pod(0)
    plane.pod(1)
    plane.settle()
    assert plane.told()["Programmed"] == ("False", "EndpointsWithoutZone")
    plane.change(trafficDistribution="sliceplane.dev/SpreadConstraints")
    assert plane.told()["Programmed"] == ("False", "NoHints")


def test_slices_of_others_count() -> None:
    """A Service without a selector: whoever writes its slices gives the hints."""
    plane = Plane(None)
    spec = {"ports": [{"port": 80}], "trafficDistribution": "PreferSameZone"}
    plane.cluster.create(Services, {"metadata": {"name": "manual"}, "spec": spec})
    endpoint = {"addresses": ["10.1.0.1"], "zone": "zone-a"}
    made = {
        "metadata": {"name": "m", "labels": {"kubernetes.io/service-name": "manual"}},
        "addressType": "IPv4",
    }
    plane.cluster.create(EndpointSlices, {**made, "endpoints": [endpoint], "ports": []})
    plane.settle()
    status = plane.cluster.get(Services, "manual")["status"]
    assert [each["reason"] for each in status["conditions"]] == ["Accepted", "NoHints"]
    hinted = {**endpoint, "hints": {"forZones": [{"name": "zone-a"}]}}
    plane.cluster.patch(
        EndpointSlices, "m", {"endpoints": [hinted, {**endpoint, "addresses": ["10.1.0.2"]}]}
    )
    plane.settle()
    status = plane.cluster.get(Services, "manual")["status"]
    assert [each["reason"] for each in status["conditions"]] == ["Accepted", "IncompleteHints"]


# -- honored


def test_nodes_report_and_fall_behind() -> None:
    plane = Plane()
    old = plane.cluster.store.revision
    plane.report_all("n1", "n2", "n3")
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")
    plane.ready(0, status="False")
    plane.settle(2)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate"), "they have time"
    for _ in range(int(GRACE_S / 5)):
        plane.report("n1")
        plane.report("n2", old)
        plane.report("n3", old)
        plane.settle(7)
    found = plane.conditions()[HONORED]
    assert (found["status"], found["reason"]) == ("False", "NodesBehind")
    assert found["message"].startswith("N2: 2 of 3 nodes have not applied the EndpointSlices of 20")
    assert found["message"].endswith("Z yet: n2, n3")
    plane.report("n2")
    plane.report("n3")
    plane.settle(12)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")


def late(plane: Plane, *alive: str, seconds: float = GRACE_S) -> str:
    """The message after *seconds* in which *alive* report what they had, and the slices changed at
    the start.
    """
    old = plane.cluster.store.revision
    plane.ready(0, status="False")
    for _ in range(int(seconds / 7) + 2):
        for node in alive:
            plane.report(node, old)
        plane.settle(7)
    found = plane.conditions()[HONORED]
    assert (found["status"], found["reason"]) == ("False", "NodesBehind")
    return str(found["message"]).partition(" yet")[2]


def test_the_node_that_lags_is_named_and_of_many_the_first_few() -> None:
    plane = Plane()
    plane.report_all("n1")
    assert late(plane, "n1") == ": n1"
    plane = Plane()
    names = [f"n{number}" for number in range(7)]
    for number, name in enumerate(names):
        plane.report(name, 10 - number)
    assert late(plane) == ": n6, n5, n4 and 4 more", "those that are furthest behind"


def test_a_node_whose_proxy_stopped_is_named_and_one_that_was_removed_is_not() -> None:
    plane = Plane()
    plane.report_all("node-0", "node-1")
    plane.ready(0, status="False")
    told = []
    for _ in range(12):
        plane.settle(20)
        plane.report("node-0")
        plane.settle(1)
        told.append(plane.conditions()[HONORED])
    assert told[-1]["status"] == "False", "its kernel still sends to an endpoint that is not ready"
    assert told[-1]["message"].endswith(" yet: node-1 (its proxy stopped reporting)")
    assert told[-1]["message"].startswith("N2: 1 of 2 nodes"), "after 90 s as before"
    # as the garbage collector does when the Node goes
    plane.cluster.delete(Leases, plane.proxies["node-1"].name, namespace="kube-node-lease")
    plane.settle(12)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")


def test_a_proxy_that_stopped_and_comes_back_is_heard_at_once() -> None:
    plane = Plane()
    plane.report_all("node-0", "node-1")
    plane.ready(0, status="False")
    plane.settle(LEASE_DURATION_S + PERIOD_S + 20)
    found = plane.conditions()[HONORED]
    assert (found["status"], found["reason"]) == ("Unknown", "NoReports"), "nobody reports at all"
    assert found["message"].endswith(
        ": node-0 (its proxy stopped reporting), node-1 (its proxy stopped reporting)"
    )
    plane.report_all("node-0", "node-1")
    plane.settle(PERIOD_S)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")


def test_a_proxy_that_was_taken_away_is_forgotten_after_a_day() -> None:
    plane = Plane()
    plane.report_all("node-0", "node-1")
    plane.ready(0, status="False")
    lag = plane.cluster.controllers[1]._progress.lag
    newest = {ALL: plane.cluster.store.revision}
    day = plane.cluster.now + STOPPED_KEPT_S
    assert lag(newest, day).nodes == 2
    assert lag(newest, day + LEASE_DURATION_S + 1).nodes == 0


def test_nodes_that_are_gone_do_not_count() -> None:
    plane = Plane()
    plane.report_all("n1", "n2")
    plane.ready(0, status="False")
    for _ in range(int(LEASE_DURATION_S / IDLE_PERIOD_S) + 2):
        plane.settle(IDLE_PERIOD_S)
        plane.report("n1")
    plane.settle(12)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate"), "n2 was not heard of"
    plane.settle(LEASE_DURATION_S + PERIOD_S)
    assert plane.told()["Honored"] == ("Unknown", "NoReports")


def test_a_node_whose_cache_lost_an_event_holds_nothing_until_it_listed_anew() -> None:
    plane = Plane()
    plane.report_all("node-0", "node-1")
    plane.settle(12)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")
    (lost,) = (listed["metadata"]["name"] for listed in plane.cluster.list(EndpointSlices))
    plane.ready(0, status="False")
    plane.settle(2)
    for _ in range(4):
        plane.report("node-0")
        plane.report("node-1", lost=lost)
        plane.settle(12)
    found = plane.conditions()[HONORED]
    assert (found["status"], found["reason"]) == ("False", "NodesBehind")
    assert found["message"].endswith(" yet: node-1 (its cache lost an event)")
    (note,) = (note for note in plane.cluster.notes if note.reason == CACHE_DIFFERS)
    assert (note.regarding.metadata.name, note.type) == ("node-1", "Warning")
    assert note.regarding.metadata.uid == plane.cluster.get(Nodes, "node-1")["metadata"]["uid"]
    assert states(plane) == {"cache_differs": 1, "current": 1}
    plane.report_all("node-0", "node-1")
    plane.settle(12)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")
    assert states(plane) == {"current": 2}


def states(plane: Plane) -> dict[str, float]:
    families = {
        family.name: family for family in plane.cluster.controllers[1].samples(plane.cluster.now)
    }
    samples = families["sliceplane_node_proxies"].samples
    return {sample.labels[0]: sample.value for sample in samples if sample.value}


def test_an_endpoint_that_went_with_its_slice_must_be_gone_from_nodes() -> None:
    plane = Plane()
    foreign = {
        "metadata": {"name": "more", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.9.9"], "hints": {"forZones": [{"name": "zone-a"}]}}],
    }
    plane.cluster.create(EndpointSlices, foreign)
    plane.settle()
    before = plane.cluster.store.revision
    plane.report("n1", before)
    plane.settle(15)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")
    plane.cluster.delete(EndpointSlices, "more")
    for _ in range(5):
        plane.report("n1", before)
        plane.settle(12)
    assert plane.told()["Honored"] == ("False", "NodesBehind"), (
        "the kernel of n1 still sends to 10.0.9.9"
    )
    plane.report("n1")
    plane.settle(12)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")


def test_another_wish_is_not_honored_before_nodes_say_so() -> None:
    plane = Plane("PreferSameZone")
    plane.report_all("n1")
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")
    plane.change(trafficDistribution="PreferSameNode")
    assert plane.told()["Honored"] == ("Unknown", "NodesCatchUp")
    plane.report("n1")
    plane.settle(12)
    assert plane.told()["Honored"] == ("True", "NodesUpToDate")


def test_headless_services_are_no_matter_of_proxies() -> None:
    plane = Plane(None)
    spec = {
        "selector": {"app": "web"},
        "clusterIP": "None",
        "trafficDistribution": "PreferSameZone",
    }
    plane.cluster.create(Services, {"metadata": {"name": "headless"}, "spec": spec})
    plane.settle()
    status = plane.cluster.get(Services, "headless")["status"]
    assert [each["type"] for each in status["conditions"]] == [ACCEPTED, PROGRAMMED]


# -- writes that fail


def test_a_conflict_is_tried_again_and_a_service_that_went_is_left() -> None:
    plane = Plane()
    controller = plane.cluster.controllers[1]
    plane.cluster.patch(Services, "web", {"spec": {"trafficDistribution": "PreferSameNode"}})
    plane.cluster.now += 2
    (job,) = controller.take_work(plane.cluster.now, 5).jobs
    (write,) = job.writes
    assert (write.verb, write.subresource, write.patch_type) == ("patch", "status", "strategic")
    assert controller.take_work(plane.cluster.now, 5).jobs == ()
    error = conflict("services", "", "web", "try again")
    controller.on_done(Done(job, (), error), plane.cluster.now)
    plane.settle()
    assert plane.conditions()[ACCEPTED]["message"] == "PreferSameNode is supported"
    plane.cluster.patch(Services, "web", {"spec": {"trafficDistribution": "PreferClose"}})
    plane.cluster.now += 2
    (job,) = controller.take_work(plane.cluster.now, 5).jobs
    plane.cluster.delete(Services, "web")
    controller.on_done(Done(job, (b"",)), plane.cluster.now)
    plane.settle(100)
    controller.check()


def test_a_server_that_counts_generations_of_services_is_told_which_one() -> None:
    service = Service(metadata=ObjectMeta(name="web", generation=3))
    (change,) = _changes(service, (DesiredCondition(ACCEPTED, "True", "Accepted", "fine"),), 0.0)
    assert change["observedGeneration"] == 3
    seen = ObservedCondition(
        type=ACCEPTED,
        status="True",
        reason="Accepted",
        message="fine",
        observed_generation=2,
        last_transition_time="2026-11-21T10:00:00Z",
    )
    told = Service(metadata=service.metadata, status=ServiceStatus(conditions=(seen,)))
    (again,) = _changes(told, (DesiredCondition(ACCEPTED, "True", "Accepted", "fine"),), 0.0)
    assert (again["observedGeneration"], again["lastTransitionTime"]) == (3, "2026-11-21T10:00:00Z")


def test_a_condition_that_somebody_spoils_comes_back() -> None:
    plane = Plane()
    plane.cluster.patch(Services, "web", {"status": {"conditions": None}}, subresource="status")
    plane.settle()
    assert plane.told() == GOOD
