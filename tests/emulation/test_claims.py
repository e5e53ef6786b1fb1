"""Emulated ReplicaSets adopt what matches and release what does not match any more, as upstream's
do.
"""

from __future__ import annotations

import sys

from tests.emulation.emulated import bare_pod, make, names, owners, replica_set

from sliceplane.api.core import Pod
from sliceplane.api.meta import LabelSelector, ObjectMeta
from sliceplane.api.scheme import Pods, ReplicaSets
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.emulation.claims import Claims
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.lab.sim.cluster import Cluster


def test_a_bare_pod_that_matches_is_adopted_and_counts() -> None:
    cluster = make()
    cluster.create(Pods, bare_pod("lonely", app="web"))
    cluster.create(Pods, bare_pod("other", app="shop"))
    cluster.converge()
    made = cluster.create(ReplicaSets, replica_set(2))
    cluster.converge()
    assert owners(cluster.get(Pods, "lonely")) == [("ReplicaSet", made["metadata"]["uid"])]
    assert owners(cluster.get(Pods, "other")) == []
    assert len(cluster.list(Pods)) == 3, "one was adopted, one made, one is somebody else's"
    assert cluster.get(ReplicaSets, "web")["status"]["replicas"] == 2
    cluster.check()


def test_a_bare_pod_created_beside_a_full_set_is_adopted_and_one_goes() -> None:
    cluster = make(start_s=1.0)
    cluster.create(ReplicaSets, replica_set(2))
    cluster.converge()
    cluster.create(Pods, bare_pod("late", app="web"))
    cluster.converge()
    assert len(names(cluster)) == 2
    assert "late" not in names(cluster), "it had not started yet, so it goes first"


def test_a_pod_whose_labels_stop_matching_is_released_and_replaced_and_comes_home_again() -> None:
    cluster = make()
    made = cluster.create(ReplicaSets, replica_set(2))
    cluster.converge()
    taken = sorted(names(cluster))[0]
    cluster.patch(Pods, taken, {"metadata": {"labels": {"app": "debugged"}}})
    cluster.converge()
    assert owners(cluster.get(Pods, taken)) == []
    assert len(names(cluster)) == 3
    cluster.patch(ReplicaSets, "web", {"spec": {"replicas": 3}})
    cluster.converge()
    cluster.patch(Pods, taken, {"metadata": {"labels": {"app": "web"}}})
    cluster.patch(ReplicaSets, "web", {"spec": {"replicas": 4}})
    cluster.converge()
    assert owners(cluster.get(Pods, taken)) == [("ReplicaSet", made["metadata"]["uid"])]
    assert len(names(cluster)) == 4
    cluster.check()


def test_pods_of_another_owner_and_of_other_uids_are_left_alone() -> None:
    cluster = make()
    stranger = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "not-ours",
        "controller": True,
    }
    taken = bare_pod("taken", app="web")
    taken["metadata"]["ownerReferences"] = [stranger]
    cluster.create(Pods, taken)
    cluster.create(ReplicaSets, replica_set(1))
    cluster.converge()
    assert owners(cluster.get(Pods, "taken")) == [("ReplicaSet", "not-ours")], (
        "the name is ours, the uid is not"
    )
    assert len(cluster.list(Pods)) == 2


def test_a_set_that_goes_and_orphans_its_pods_does_not_take_them_back() -> None:
    cluster = make(GarbageCollector())
    cluster.create(ReplicaSets, replica_set(3))
    cluster.converge()
    before = names(cluster)
    cluster.delete(ReplicaSets, "web", propagationPolicy="Orphan")
    cluster.converge()
    assert not cluster.list(ReplicaSets)
    assert [owners(pod) for pod in cluster.list(Pods)] == [[]] * 3
    again = cluster.create(ReplicaSets, replica_set(3))
    cluster.converge()
    assert names(cluster) == before, (
        "the next set of that selector adopts them; no Pod was restarted"
    )
    assert {uid for pod in cluster.list(Pods) for _, uid in owners(pod)} == {
        again["metadata"]["uid"]
    }
    cluster.check()


def test_before_an_adoption_the_server_is_asked_whether_the_set_is_still_there() -> None:
    """A cache that has missed the deletion would take back what was orphaned
    (kubernetes/kubernetes#42639).
    """
    controller = ReplicaSetController()
    cluster = Cluster(controller)
    cluster.create(ReplicaSets, replica_set(0))
    cluster.converge()
    cluster.controllers = ()  # the watch of ReplicaSets is silent from here on
    cluster.delete(ReplicaSets, "web", propagationPolicy="Background")
    cluster.controllers = (controller,)
    cluster.create(Pods, bare_pod("lonely", app="web"))
    cluster.converge(limit_s=5)
    assert owners(cluster.get(Pods, "lonely")) == []
    assert [write.verb for _, write in cluster.writes if write.resource is Pods] == []


def test_sets_with_expressions_only_adopt_too() -> None:
    cluster = make()
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "shop"]}]}
    cluster.create(ReplicaSets, replica_set(1, selector=selector))
    cluster.create(Pods, bare_pod("lonely", app="shop"))
    cluster.converge()
    assert len(names(cluster)) == 1
    cluster.check()


def test_two_sets_that_select_the_same_pod_share_nothing() -> None:
    cluster = make()
    for name in ("one", "two"):
        cluster.create(ReplicaSets, replica_set(0, name=name))
    cluster.converge()
    cluster.patch(ReplicaSets, "one", {"spec": {"replicas": 1}})
    cluster.patch(ReplicaSets, "two", {"spec": {"replicas": 1}})
    cluster.create(Pods, bare_pod("lonely", app="web"))
    cluster.converge()
    assert all(len(owners(pod)) == 1 for pod in cluster.list(Pods))
    assert [cluster.get(ReplicaSets, name)["status"]["replicas"] for name in ("one", "two")] == [
        1,
        1,
    ]
    cluster.check()


def test_a_bare_pod_costs_the_same_beside_many_sets() -> None:
    """Sets of one app differ by their hash; a Pod of that app without one must not be compared with
    each of them.
    """

    def looks(sets: int) -> int:
        claims: Claims[Pod] = Claims(ReplicaSets, Pods)
        for number in range(sets):
            labels = {"app": "web", "pod-template-hash": f"h{number}"}
            claims.on_owner(f"default/web-{number}", LabelSelector(match_labels=labels))
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        bare, of_one = (
            Pod(
                metadata=ObjectMeta(
                    name=name, namespace="default", uid=name, labels={"app": "web", **more}
                )
            )
            for name, more in (("bare", {}), ("of-one", {"pod-template-hash": "h3"}))
        )
        sys.setprofile(count)
        try:
            told = [claims.on_child(None, pod) for pod in (bare, of_one)]
        finally:
            sys.setprofile(None)
        assert told == [(), ("default/web-3",)]
        claims.check()
        return calls

    assert looks(4000) == looks(1000)
