"""Bugs that others had, each named by its issue where it has one, as scenarios for store, watch and
controllers.

Each ends at a quiet point, where every named invariant is checked besides what the scenario itself
says.
"""

from __future__ import annotations

from tests.lab.sim.stage import Stage

from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.scheme import Deployments, EndpointSlices, Nodes, Pods, ReplicaSets, Services
from sliceplane.lab.sim.users import documents
from sliceplane.server.store.types import StoreEvent


def test_kubernetes_115658_a_delete_in_a_watch_gap_is_told_by_the_next_list() -> None:
    """production-stack#1091, kubernetes/kubernetes#115658, kcp#4364."""
    stage = Stage()
    stage.pods(3)
    stage.rest()
    stage.process().pause(30.0)
    stage.gone("p-1")
    stage.server.forget_history()
    stage.process().cut_watches()
    stage.rest()
    assert stage.ready() == ["10.1.0.1", "10.1.0.3"]


def test_kopf_585_a_half_open_connection_is_found_out_by_silence() -> None:
    """kopf#585, python#2145."""
    stage = Stage()
    stage.pods(3)
    stage.rest()
    stage.process().silence(Pods)
    stage.gone("p-0")
    stage.wait(5.0)
    assert "10.1.0.1" in stage.ready(), "nobody could know"
    assert stage.rest() < 300.0
    assert stage.ready() == ["10.1.0.2", "10.1.0.3"]


def test_kubernetes_127429_what_was_written_counts_before_the_cache_shows_it() -> None:
    """Not ready, written; ready again before the cache shows it: compared with the cache, nothing
    would be to do.
    """
    stage = Stage()
    stage.pods(2)
    stage.rest()
    stage.process().silence(EndpointSlices)
    stage.status("p-0", "10.1.0.1", ready=False)
    stage.wait(3.0)
    assert stage.ready() == ["10.1.0.2"]
    stage.status("p-0", "10.1.0.1", ready=True)
    stage.wait(3.0)
    assert stage.ready() == ["10.1.0.1", "10.1.0.2"], "and it does not take the end of the silence"
    stage.rest()


def test_kubernetes_127429_ready_not_ready_ready_within_the_lag_and_one_conflict() -> None:
    """Converges without any further event."""
    stage = Stage()
    stage.pods(2)
    stage.rest()
    name = stage.slices()[0]["metadata"]["name"]
    stage.process().silence(EndpointSlices)
    stage.must(
        "patch", EndpointSlices, "default", {"metadata": {"annotations": {"theirs": "1"}}}, name
    )
    for ready in (False, True, False):
        stage.status("p-0", "10.1.0.1", ready=ready)
        stage.wait(0.03)
    stage.rest()
    assert stage.ready() == ["10.1.0.2"]
    assert stage.slices()[0]["metadata"]["annotations"]["theirs"] == "1"


def test_kubernetes_107927_a_pod_on_an_unknown_node_degrades_alone() -> None:
    """kubernetes/kubernetes#107927."""
    stage = Stage()
    stage.pods(2)
    stage.pod("lost", "10.1.0.9", node="nowhere")
    assert stage.rest() < 5.0
    assert stage.ready() == ["10.1.0.1", "10.1.0.2"]
    stage.must("create", Nodes, "", documents.node("nowhere", "c"))
    stage.rest()
    assert stage.ready() == ["10.1.0.1", "10.1.0.2", "10.1.0.9"]


def test_kubernetes_123401_the_zone_label_comes_after_the_node() -> None:
    """kubernetes/kubernetes#123401: hints return by themselves."""
    stage = Stage(trafficDistribution="PreferClose")
    stage.must("create", Nodes, "", documents.node("late", None))
    stage.pod("p-0", "10.1.0.1", node="late")
    stage.rest()
    assert all("hints" not in each for each in stage.slices()[0]["endpoints"])
    stage.must("patch", Nodes, "", {"metadata": {"labels": {LABEL_ZONE: "b"}}}, "late")
    stage.rest()
    assert [each["hints"] for each in stage.slices()[0]["endpoints"]] == [
        {"forZones": [{"name": "b"}]}
    ]


def test_kuberesolver_66_one_pod_of_many_touches_one_slice() -> None:
    """kuberesolver#66: the other slices are not written, the view stays whole."""
    stage = Stage()
    stage.pods(21)
    stage.rest()
    before = {
        each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in stage.slices()
    }
    stage.status("p-7", "10.1.0.8", ready=False)
    stage.rest()
    after = {
        each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in stage.slices()
    }
    assert len(set(before.items()) - set(after.items())) == 1
    assert before.keys() == after.keys()
    assert len(stage.ready()) == 20


def test_fabric8_7896_a_history_that_is_gone_is_listed_anew_within_a_bound() -> None:
    """Also production-stack#999: neither a tight loop nor a wait without end."""
    stage = Stage()
    stage.pods(3)
    stage.rest()
    stage.process().pause(30.0)
    stage.status("p-0", "10.1.0.1", ready=False)
    stage.server.forget_history()
    stage.process().cut_watches()
    assert stage.rest() < 120.0
    assert stage.ready() == ["10.1.0.2", "10.1.0.3"]


def test_kubernetes_135334_a_ghost_and_a_live_pod_with_one_address() -> None:
    """Both are told, each as what it is: the one that terminates is not ready, the live one is."""
    stage = Stage()
    stage.pods(2)
    stage.rest()
    stage.must("delete", Pods, "default", {"gracePeriodSeconds": 30}, "p-0")
    stage.rest()
    stage.pod("p-9", "10.1.0.1", node="bare-1")
    stage.rest()
    assert stage.ready() == ["10.1.0.1", "10.1.0.2"]
    found = {
        e["targetRef"]["name"]: e["conditions"]
        for each in stage.slices()
        for e in each["endpoints"]
    }
    assert found["p-0"] == {"ready": False, "serving": True, "terminating": True}
    assert found["p-9"] == {"ready": True, "serving": True, "terminating": False}
    stage.gone("p-0")
    stage.rest()
    assert stage.ready() == ["10.1.0.1", "10.1.0.2"], "the ghost takes nothing with it"


def test_kubernetes_103804_without_selector_and_as_external_name_and_back() -> None:
    """kubernetes/kubernetes#103804, #105987, #118376: what is left in between is taken over or
    replaced.
    """
    stage = Stage()
    stage.pods(3)
    stage.rest()
    stage.service({"spec": {"selector": None}})
    stage.rest()
    stage.gone("p-0")
    stage.service({"spec": {"selector": {"app": "web"}}})
    stage.rest()
    assert stage.ready() == ["10.1.0.2", "10.1.0.3"]
    stage.service({"spec": {"type": "ExternalName", "externalName": "a.example"}})
    stage.rest()
    stage.gone("p-1")
    stage.service({"spec": {"type": "ClusterIP", "externalName": None}})
    stage.rest()
    assert stage.ready() == ["10.1.0.3"]
    assert len(stage.slices()) == 1


def test_cilium_48050_a_deletion_while_the_api_is_away_and_nothing_after_it() -> None:
    """cilium#48050."""
    stage = Stage()
    stage.pods(2)
    stage.rest()
    stage.process().cut_watches()
    stage.gone("p-0")
    stage.rest()
    assert stage.ready() == ["10.1.0.2"]


def test_kubernetes_109414_the_address_of_a_failed_pod_is_given_to_another() -> None:
    """kubernetes/kubernetes#109414: never advertised for the old one's sake."""
    stage = Stage()
    stage.pods(2)
    stage.rest()
    stage.status("p-0", "10.1.0.1", ready=True, phase="Failed")
    other = documents.bare_pod("other", "db", "bare-1", stage.people.rng)
    stage.must("create", Pods, "default", other)
    stage.status("other", "10.1.0.1", ready=True)
    stage.rest()
    assert stage.ready() == ["10.1.0.2"]


def test_nacos_10209_a_restart_pushes_nothing_empty_and_writes_nothing() -> None:
    """nacos#10209, kubernetes/kubernetes#23034."""
    stage = Stage()
    stage.pods(9)
    stage.rest()
    revision = stage.server.store.revision
    stage.sim.crash("endpointslice")
    stage.rest()
    assert stage.server.store.revision == revision
    seen: list[int] = []

    def count(event: StoreEvent) -> None:
        seen.append(len(stage.ready()))

    stage.server.listeners.append(count)
    stage.gone("p-0")
    stage.sim.crash("endpointslice")
    stage.rest()
    assert min(seen) >= 8


def test_kubernetes_23034_a_restart_in_the_middle_of_a_rolling_update() -> None:
    """No endpoint lost or doubled: that is the invariants' to say; and the rollout ends."""
    stage = Stage("endpointslice", "garbage-collector", "deployment", "replicaset", "kubelet")
    stage.must("create", Deployments, "default", documents.deployment("web", "web", 8, "image:1"))
    stage.rest()
    stage.must("patch", Deployments, "default", documents.image_change("image:11"), "web")
    for _ in range(6):
        stage.wait(1.0)
        for name in stage.sim.options.controllers:
            stage.sim.crash(name)
        assert len(stage.ready()) >= 6, "at most a quarter may be away"
    stage.rest()
    assert len(stage.ready()) == 8


def test_kubernetes_99382_more_than_a_hundred_ports() -> None:
    stage = Stage()
    stage.pods(3)
    ports = [
        {"name": f"p{number}", "port": number, "targetPort": number} for number in range(1, 251)
    ]
    stage.service({"spec": {"ports": ports}})
    stage.rest()
    (only,) = stage.slices()
    assert len(only["ports"]) == 250
    assert len(stage.ready()) == 3


def test_kubernetes_93374_own_creates_that_the_cache_does_not_show_are_not_repeated() -> None:
    """A slice holds four here; the fifth Pod needs a new one, and the sixth finds its room
    there.
    """
    stage = Stage()
    stage.pods(4)
    stage.rest()
    stage.process().silence(EndpointSlices)
    for which in (4, 5, 6):
        stage.pod(f"p-{which}", f"10.1.0.{which + 1}")
        stage.wait(2.0)
    assert sorted(len(each["endpoints"]) for each in stage.slices()) == [3, 4]
    stage.rest()


def test_a_service_that_comes_back_under_its_name_has_its_own_slices() -> None:
    stage = Stage()
    stage.pods(3)
    stage.rest()
    old = {each["metadata"]["uid"] for each in stage.slices()}
    stage.must("delete", Services, "default", {}, "web")
    stage.must("create", Services, "default", {"metadata": {"name": "web"}, "spec": SPEC})
    stage.rest()
    assert not old & {each["metadata"]["uid"] for each in stage.slices()}
    assert len(stage.ready()) == 3


def test_seed_5245_nobody_makes_pods_for_a_replica_set_that_is_gone() -> None:
    """Found by ``simulate --seed 5245``: while the watch of ReplicaSets was half open a set was
    deleted; the garbage collector took the Pods away, the controller made new ones, 60 times a
    second, for a minute and a half.
    """
    stage = Stage("endpointslice", "garbage-collector", "deployment", "replicaset", "kubelet")
    stage.must("create", Deployments, "default", documents.deployment("web", "web", 3, "image:1"))
    stage.rest()
    for name, kind in (("replicaset", ReplicaSets), ("deployment", Deployments)):
        stage.process(name).silence(kind)
    stage.must("delete", Deployments, "default", {"propagationPolicy": "Background"}, "web")
    before = stage.sim.network.writes
    stage.rest()
    assert stage.ready() == []
    assert stage.sim.network.writes - before < 150


SPEC = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
