"""Emulated Deployments against upstream's published behaviour: strategies, scaling, history,
conditions, collisions.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.effort import effort
from tests.emulation.emulated import condition, deployment, names, owners, said

from sliceplane.api.scheme import Deployments, Pods, ReplicaSets, ResourceQuotas
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.resource_quota import ResourceQuotaController
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.deployments.rollout import Counts, proportional_sizes
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.watch.controller.base import Controller

PREFIX = "deployment.kubernetes.io"
RECREATE = {"type": "Recreate", "rollingUpdate": None}


def controllers(**config: Any) -> tuple[Controller, ...]:
    kubelet = KubeletController(
        EmulationConfig(nodes=make_nodes(3, ["zone-a", "zone-b"]), **config)
    )
    return (
        DeploymentController(),
        ReplicaSetController(),
        kubelet,
        GarbageCollector(),
        ResourceQuotaController(),
    )


def make(**config: Any) -> Cluster:
    return Cluster(*controllers(**config))


def rolling(surge: int | str, unavailable: int | str) -> dict[str, Any]:
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
    }


def with_image(image: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}


def image_of(document: dict[str, Any]) -> str:
    spec = document["spec"].get("template", document)["spec"]
    image: str = spec["containers"][0]["image"]
    return image


def sets_by_image(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {image_of(item): item for item in cluster.list(ReplicaSets)}


def sizes(cluster: Cluster) -> dict[str, int]:
    return {image: item["spec"]["replicas"] for image, item in sets_by_image(cluster).items()}


def annotations(document: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = document["metadata"].get("annotations", {})
    return found


def told(cluster: Cluster, kind: str) -> tuple[str, str, str]:
    found = condition(cluster.get(Deployments, "web"), kind)
    assert found is not None, f"no {kind} in {cluster.get(Deployments, 'web')['status']}"
    return found["status"], found["reason"], found["message"]


# -- strategies


def test_undoing_a_recreate_rollout_waits_for_the_last_pod_too() -> None:
    """The set of the old template is there already; its Pods came while those of the newer one
    still served.
    """
    cluster = make(termination_s=3.0)
    cluster.create(Deployments, deployment(2, strategy=RECREATE))
    cluster.converge()
    for image in ("web:2", "web:1"):
        cluster.patch(Deployments, "web", with_image(image))
        for _ in range(60):
            cluster.converge(limit_s=0.25)
            assert len({image_of(pod) for pod in cluster.list(Pods)}) <= 1
            cluster.now += 0.25
        assert [image_of(pod) for pod in cluster.list(Pods)] == [image] * 2


def test_recreate_does_not_wait_for_pods_that_have_ended() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(1, strategy=RECREATE))
    cluster.converge()
    (pod,) = cluster.list(Pods)
    cluster.patch(
        Pods, pod["metadata"]["name"], {"status": {"phase": "Failed"}}, subresource="status"
    )
    cluster.converge()
    cluster.patch(Deployments, "web", with_image("web:2"))
    cluster.converge()
    assert sorted(image_of(pod) for pod in cluster.list(Pods)) == ["web:1", "web:2"]
    assert told(cluster, "Progressing")[1] == "NewReplicaSetAvailable"


def test_recreate_is_available_only_with_all_of_its_pods() -> None:
    cluster = make(ready_by_default=False)
    cluster.create(Deployments, deployment(2, strategy=RECREATE))
    cluster.converge(limit_s=5)
    name = sorted(names(cluster))[0]
    cluster.patch(
        Pods, name, {"metadata": {"annotations": {"emulation.sliceplane.dev/ready": "true"}}}
    )
    cluster.converge(limit_s=5)
    assert told(cluster, "Available")[:2] == ("False", "MinimumReplicasUnavailable")


def test_min_ready_seconds_slow_a_rollout_down_and_reach_the_set_that_is_there() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(2, strategy=rolling(1, 0)))
    cluster.converge()
    cluster.patch(Deployments, "web", {"spec": {"minReadySeconds": 20}})
    cluster.converge()
    assert sets_by_image(cluster)["web:1"]["spec"]["minReadySeconds"] == 20
    assert len(cluster.list(ReplicaSets)) == 1, "it is no part of the template"
    cluster.patch(Deployments, "web", with_image("web:2"))
    cluster.converge(limit_s=15)
    assert sizes(cluster) == {"web:1": 2, "web:2": 1}, (
        "the first new Pod is ready and not yet available"
    )
    cluster.converge(limit_s=100)
    assert sizes(cluster) == {"web:1": 0, "web:2": 2}


def test_percentages_round_surge_up_and_unavailability_down() -> None:
    cluster = make(ready_by_default=False)
    cluster.create(Deployments, deployment(5, strategy=rolling("30%", "30%")))
    cluster.converge(limit_s=5)
    cluster.patch(Deployments, "web", with_image("web:2"))
    cluster.converge(limit_s=5)
    assert sum(sizes(cluster).values()) == 5 + 2, "30% of 5 are 2 more Pods"
    assert annotations(sets_by_image(cluster)["web:2"])[f"{PREFIX}/max-replicas"] == "7"


# -- scaling


def test_scaling_in_the_middle_of_a_rollout_is_proportional() -> None:
    """The sample of the Deployment page: 8 old and 5 new of 10 become 11 and 7 of 15."""
    cluster = make()
    cluster.create(Deployments, deployment(10, strategy=rolling(3, 2)))
    cluster.converge()
    stuck = with_image("web:stuck")
    stuck["spec"]["template"]["spec"]["readinessGates"] = [{"conditionType": "example.com/never"}]
    cluster.patch(Deployments, "web", stuck)
    cluster.converge(limit_s=60)
    assert sizes(cluster) == {"web:1": 8, "web:stuck": 5}
    cluster.patch(Deployments, "web", {"spec": {"replicas": 15}})
    cluster.converge(limit_s=60)
    assert sizes(cluster) == {"web:1": 11, "web:stuck": 7}
    for item in cluster.list(ReplicaSets):
        assert annotations(item)[f"{PREFIX}/desired-replicas"] == "15"
        assert annotations(item)[f"{PREFIX}/max-replicas"] == "18"
    cluster.patch(Deployments, "web", {"spec": {"replicas": 0}})
    cluster.converge(limit_s=60)
    assert sizes(cluster) == {"web:1": 0, "web:stuck": 0}


SETS = st.lists(st.integers(1, 20), min_size=1, max_size=5)


@effort(300)
@given(desired=SETS, replicas=st.integers(0, 60), surge=st.integers(0, 20), slack=st.integers(0, 5))
@example(desired=[8, 5], replicas=15, surge=3, slack=0)
def test_proportional_sizes_equal_the_dumb_ones(
    desired: list[int], replicas: int, surge: int, slack: int
) -> None:
    before = sum(desired) + slack
    sets = [Counts(f"rs-{n}", size, 0, before) for n, size in enumerate(desired)]
    sizes = proportional_sizes(replicas, surge, sets)
    if replicas == 0:
        assert set(sizes.values()) == {0}
        return
    allowed = replicas + surge
    growing = allowed > sum(desired)
    largest = max(sets, key=lambda one: (one.desired, int(one.name[3:]) * (1 if growing else -1)))
    for one in sets:
        exact = Fraction(one.desired * allowed, before)
        assert sizes[one.name] >= 0
        if one is not largest:
            # Rounded, but no further than there is something left to give or take.
            low, high = sorted((one.desired, int(exact + Fraction(1, 2))))
            assert low <= sizes[one.name] <= high
    if sizes[largest.name]:
        assert sum(sizes.values()) == allowed


def test_a_set_that_somebody_resized_by_hand_gets_its_size_back() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(3))
    cluster.converge()
    (item,) = cluster.list(ReplicaSets)
    cluster.patch(ReplicaSets, item["metadata"]["name"], {"spec": {"replicas": 7}})
    cluster.converge()
    assert sizes(cluster) == {"web:1": 3}
    assert len(cluster.list(Pods)) == 3


def test_scaling_is_told_in_events() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(1))
    cluster.converge()
    cluster.patch(Deployments, "web", {"spec": {"replicas": 3}})
    cluster.converge()
    (item,) = cluster.list(ReplicaSets)
    name = item["metadata"]["name"]
    assert [note for reason, note in said(cluster, "Normal") if reason == "ScalingReplicaSet"] == [
        f"Scaled up replica set {name} from 0 to 1",
        f"Scaled up replica set {name} from 1 to 3",
    ]


# -- history


def test_change_cause_and_revisions_are_where_rollout_history_reads_them() -> None:
    cluster = make()
    first = deployment(1)
    first["metadata"]["annotations"] = {"kubernetes.io/change-cause": "first"}
    cluster.create(Deployments, first)
    cluster.converge()
    second = {
        "metadata": {"annotations": {"kubernetes.io/change-cause": "second"}},
        **with_image("web:2"),
    }
    cluster.patch(Deployments, "web", second)
    cluster.converge()
    cluster.patch(
        Deployments,
        "web",
        {"metadata": {"annotations": {"kubernetes.io/change-cause": "second, in short"}}},
    )
    cluster.converge()
    found = {image: annotations(item) for image, item in sets_by_image(cluster).items()}
    assert found["web:1"]["kubernetes.io/change-cause"] == "first"
    assert found["web:2"]["kubernetes.io/change-cause"] == "second, in short"
    assert f"{PREFIX}/revision-history" not in found["web:1"]
    for image in ("web:1", "web:2", "web:1"):
        cluster.patch(Deployments, "web", with_image(image))
        cluster.converge()
    found = {image: annotations(item) for image, item in sets_by_image(cluster).items()}
    assert found["web:1"][f"{PREFIX}/revision"] == "5"
    assert found["web:1"][f"{PREFIX}/revision-history"] == "1,3"
    assert annotations(cluster.get(Deployments, "web"))[f"{PREFIX}/revision"] == "5"


def test_history_waits_until_the_rollout_is_complete() -> None:
    cluster = make(ready_by_default=False)
    cluster.create(Deployments, deployment(1, revisionHistoryLimit=0))
    cluster.converge(limit_s=5)
    cluster.patch(Deployments, "web", with_image("web:2"))
    cluster.converge(limit_s=5)
    assert len(cluster.list(ReplicaSets)) == 2, "what may still be wanted back is kept"
    for pod in sorted(names(cluster)):
        cluster.patch(
            Pods, pod, {"metadata": {"annotations": {"emulation.sliceplane.dev/ready": "true"}}}
        )
    cluster.converge()
    assert sizes(cluster) == {"web:2": 1}


def test_a_template_that_somebody_edits_in_a_set_is_not_the_deployments_any_more() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(1))
    cluster.converge()
    (item,) = cluster.list(ReplicaSets)
    cluster.patch(ReplicaSets, item["metadata"]["name"], with_image("web:edited"))
    cluster.converge()
    assert sizes(cluster) == {"web:edited": 0, "web:1": 1}
    assert cluster.get(Deployments, "web")["status"]["collisionCount"] == 1, (
        "the old set still has the name"
    )
    cluster.check()


# -- collisions, adoption, release


def test_a_name_that_another_set_has_is_a_collision_and_gets_another_hash() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    (old,) = cluster.list(ReplicaSets)
    cluster.replace()
    cluster.delete(Deployments, "web")
    cluster.replace(*controllers()[:3])  # nothing collects the set of the first Deployment
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    found = cluster.get(Deployments, "web")
    assert found["status"]["collisionCount"] == 1
    assert found["status"]["availableReplicas"] == 2
    (new,) = (
        item
        for item in cluster.list(ReplicaSets)
        if item["metadata"]["uid"] != old["metadata"]["uid"]
    )
    assert owners(new) == [("Deployment", found["metadata"]["uid"])]
    assert (
        new["metadata"]["labels"]["pod-template-hash"]
        != old["metadata"]["labels"]["pod-template-hash"]
    )
    assert owners(cluster.get(ReplicaSets, old["metadata"]["name"])) == owners(old), (
        "the uid is another one's"
    )
    cluster.check()


def test_sets_of_any_template_are_adopted_released_and_taken_back() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    cluster.patch(Deployments, "web", with_image("web:2"))
    cluster.converge()
    old = sets_by_image(cluster)["web:1"]["metadata"]["name"]
    cluster.patch(ReplicaSets, old, {"metadata": {"labels": {"app": "museum"}}})
    cluster.converge()
    assert owners(cluster.get(ReplicaSets, old)) == []
    cluster.patch(ReplicaSets, old, {"metadata": {"labels": {"app": "web"}}})
    cluster.converge()
    assert owners(cluster.get(ReplicaSets, old)) == [
        ("Deployment", cluster.get(Deployments, "web")["metadata"]["uid"])
    ]
    cluster.delete(Deployments, "web", propagationPolicy="Orphan")
    cluster.converge()
    before = names(cluster)
    cluster.create(Deployments, deployment(2, image="web:2"))
    cluster.converge()
    assert len(cluster.list(ReplicaSets)) == 2, "both are back"
    assert names(cluster) == before
    cluster.check()


# -- conditions


def test_pausing_and_resuming_are_told_and_the_deadline_counts_anew() -> None:
    cluster = make(ready_by_default=False)
    cluster.create(Deployments, deployment(1, progressDeadlineSeconds=30))
    cluster.converge(limit_s=5)
    cluster.patch(Deployments, "web", {"spec": {"paused": True}})
    cluster.converge(limit_s=100)
    assert told(cluster, "Progressing") == ("Unknown", "DeploymentPaused", "Deployment is paused")
    cluster.now += 100
    cluster.patch(Deployments, "web", {"spec": {"paused": False}})
    cluster.converge(limit_s=10)
    assert told(cluster, "Progressing") == ("Unknown", "DeploymentResumed", "Deployment is resumed")
    cluster.converge(limit_s=60)
    assert told(cluster, "Progressing")[:2] == ("False", "ProgressDeadlineExceeded")


def test_a_paused_template_rolls_out_when_it_is_resumed() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    cluster.patch(Deployments, "web", {"spec": {"paused": True}})
    cluster.patch(Deployments, "web", with_image("web:2"))
    cluster.converge()
    assert sizes(cluster) == {"web:1": 2}
    cluster.patch(Deployments, "web", {"spec": {"paused": False}})
    cluster.converge()
    assert sizes(cluster) == {"web:1": 0, "web:2": 2}
    (name,) = (
        item["metadata"]["name"] for item in cluster.list(ReplicaSets) if item["spec"]["replicas"]
    )
    message = f'ReplicaSet "{name}" has successfully progressed.'
    assert told(cluster, "Progressing") == ("True", "NewReplicaSetAvailable", message)


def test_without_a_deadline_nobody_estimates_progress() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(1, progressDeadlineSeconds=2**31 - 1))
    cluster.converge()
    assert condition(cluster.get(Deployments, "web"), "Progressing") is None
    assert told(cluster, "Available")[0] == "True"


def test_a_complete_rollout_stays_complete_when_pods_fail_later() -> None:
    cluster = make()
    cluster.create(Deployments, deployment(2, progressDeadlineSeconds=10))
    cluster.converge()
    for pod in names(cluster):
        cluster.patch(
            Pods, pod, {"metadata": {"annotations": {"emulation.sliceplane.dev/ready": "false"}}}
        )
    cluster.converge(limit_s=100)
    assert told(cluster, "Available")[1] == "MinimumReplicasUnavailable"
    assert told(cluster, "Progressing")[1] == "NewReplicaSetAvailable"


def test_pods_that_a_quota_refuses_are_told_by_the_deployment_until_there_is_room() -> None:
    cluster = make()
    cluster.create(ResourceQuotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    cluster.converge()
    cluster.create(Deployments, deployment(3))
    cluster.converge(limit_s=20)
    status, reason, message = told(cluster, "ReplicaFailure")
    assert (status, reason) == ("True", "FailedCreate")
    assert "exceeded quota: few" in message
    found = cluster.get(Deployments, "web")["status"]
    assert (found["replicas"], found["availableReplicas"], found["unavailableReplicas"]) == (
        1,
        1,
        2,
    )
    cluster.patch(ResourceQuotas, "few", {"spec": {"hard": {"pods": "9"}}})
    cluster.converge(limit_s=60)
    assert condition(cluster.get(Deployments, "web"), "ReplicaFailure") is None
    assert told(cluster, "Progressing")[1] == "NewReplicaSetAvailable"


def test_a_set_that_a_quota_refuses_is_told_and_tried_again() -> None:
    cluster = make()
    cluster.create(
        ResourceQuotas,
        {"metadata": {"name": "none"}, "spec": {"hard": {"count/replicasets.apps": "0"}}},
    )
    cluster.converge()
    cluster.create(Deployments, deployment(1))
    cluster.converge(limit_s=20)
    status, reason, message = told(cluster, "Progressing")
    assert (status, reason) == ("False", "ReplicaSetCreateError")
    assert message.startswith('Failed to create new replica set "web-')
    assert "exceeded quota: none" in message
    assert [reason for reason, _ in said(cluster)][:1] == ["ReplicaSetCreateError"]
    cluster.patch(ResourceQuotas, "none", {"spec": {"hard": {"count/replicasets.apps": "2"}}})
    cluster.converge(limit_s=60)
    assert told(cluster, "Progressing")[1] == "NewReplicaSetAvailable"
    cluster.check()


def test_status_counts_terminating_pods_and_observes_the_generation() -> None:
    cluster = make(termination_s=30.0)
    made = cluster.create(Deployments, deployment(2))
    cluster.converge()
    name = sorted(names(cluster))[0]
    cluster.delete(Pods, name, gracePeriodSeconds=30)
    cluster.converge(limit_s=5)
    status = cluster.get(Deployments, "web")["status"]
    assert (status["replicas"], status["terminatingReplicas"]) == (2, 1)
    assert status["observedGeneration"] == made["metadata"]["generation"]
    assert "unavailableReplicas" not in status


# -- any history

DEEDS = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 5)),
    st.tuples(st.just("image"), st.integers(1, 3)),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(
        st.just("strategy"),
        st.sampled_from([RECREATE, rolling(1, 0), rolling(0, 1), rolling("50%", "50%")]),
    ),
    st.tuples(st.just("resize set"), st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.just("relabel set"), st.integers(0, 3), st.sampled_from(["web", "museum"])),
    st.tuples(st.just("delete set"), st.integers(0, 3)),
    st.tuples(st.just("delete pod"), st.integers(0, 7)),
    st.tuples(st.just("orphan")),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 2, 5, 60])),
    st.tuples(st.just("restart")),
)


def perform(cluster: Cluster, deed: tuple[Any, ...]) -> None:
    sets = sorted(cluster.list(ReplicaSets), key=image_of)
    found = sorted(names(cluster))
    match deed:
        case ("scale", replicas):
            cluster.patch(Deployments, "web", {"spec": {"replicas": replicas}})
        case ("image", number):
            cluster.patch(Deployments, "web", with_image(f"web:{number}"))
        case ("pause", paused):
            cluster.patch(Deployments, "web", {"spec": {"paused": paused}})
        case ("strategy", strategy):
            cluster.patch(Deployments, "web", {"spec": {"strategy": strategy}})
        case ("resize set", index, size) if sets:
            name = sets[index % len(sets)]["metadata"]["name"]
            cluster.patch(ReplicaSets, name, {"spec": {"replicas": size}})
        case ("relabel set", index, app) if sets:
            name = sets[index % len(sets)]["metadata"]["name"]
            cluster.patch(ReplicaSets, name, {"metadata": {"labels": {"app": app}}})
        case ("delete set", index) if sets:
            cluster.delete(ReplicaSets, sets[index % len(sets)]["metadata"]["name"])
        case ("delete pod", index) if found:
            cluster.delete(Pods, found[index % len(found)])
        case ("orphan",):
            before = cluster.get(Deployments, "web")
            cluster.delete(Deployments, "web", propagationPolicy="Orphan")
            cluster.converge(limit_s=30)
            kept = {
                key: before["spec"][key] for key in ("replicas", "selector", "template", "strategy")
            }
            cluster.create(Deployments, {"metadata": {"name": "web"}, "spec": kept})
        case ("wait", seconds):
            cluster.converge(limit_s=seconds)
        case ("restart",):
            cluster.replace(*controllers(ready_s=1.0))


@effort(60)
@given(deeds=st.lists(DEEDS, max_size=12))
def test_whatever_happened_the_deployment_ends_with_exactly_its_pods(
    deeds: list[tuple[Any, ...]],
) -> None:
    cluster = make(ready_s=1.0)
    cluster.create(Deployments, deployment(2))
    for deed in deeds:
        perform(cluster, deed)
    cluster.patch(Deployments, "web", {"spec": {"paused": False}})
    cluster.converge(limit_s=500)
    cluster.check()
    found = cluster.get(Deployments, "web")
    replicas, uid = found["spec"]["replicas"], found["metadata"]["uid"]
    mine = [item for item in cluster.list(ReplicaSets) if owners(item) == [("Deployment", uid)]]
    for item in cluster.list(ReplicaSets):
        matches = item["metadata"]["labels"]["app"] == "web"
        assert owners(item) == ([("Deployment", uid)] if matches else []), item["metadata"]
    (newest,) = (item for item in mine if image_of(item) == image_of(found))
    assert newest["spec"]["replicas"] == sum(item["spec"]["replicas"] for item in mine) == replicas
    revisions = [int(annotations(item)[f"{PREFIX}/revision"]) for item in mine]
    assert len(set(revisions)) == len(revisions)
    assert (
        annotations(found)[f"{PREFIX}/revision"]
        == annotations(newest)[f"{PREFIX}/revision"]
        == str(max(revisions))
    )
    owner = [("ReplicaSet", newest["metadata"]["uid"])]
    assert sum(owners(pod) == owner for pod in cluster.list(Pods)) == replicas
    status = found["status"]
    assert status["observedGeneration"] == found["metadata"]["generation"]
    assert {status.get(f"{which}eplicas", 0) for which in ("r", "updatedR", "availableR")} == {
        replicas
    }
    assert told(cluster, "Progressing")[1] == "NewReplicaSetAvailable"
    before = cluster.store.revision
    cluster.replace(*controllers(ready_s=1.0))
    cluster.converge(limit_s=2000)
    assert cluster.store.revision == before, "at rest nothing is written, nor after a restart"
