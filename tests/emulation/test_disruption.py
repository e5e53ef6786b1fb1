"""Emulated disruption budgets: how many Pods may be evicted, and that no more are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.emulation.emulated import Spy, bare_pod, condition, make, names, replica_set, said

from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import (
    DaemonSets,
    Deployments,
    Nodes,
    PodDisruptionBudgets,
    Pods,
    ReplicaSets,
    ReplicationControllers,
    StatefulSets,
)
from sliceplane.emulation.daemonset import DaemonSetController
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.disruption import DELETION_TIMEOUT_S, DisruptionController
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.emulation.statefulset import StatefulSetController
from sliceplane.lab.sim.cluster import Cluster

LABELS = {"app": "web"}


def cluster_of(*more: Any) -> Cluster:
    return make(DisruptionController(), *more)


def budget(cluster: Cluster, **spec: Any) -> None:
    whole = {"selector": {"matchLabels": LABELS}, **spec}
    cluster.create(PodDisruptionBudgets, {"metadata": {"name": "few"}, "spec": whole})


def told(cluster: Cluster) -> dict[str, Any]:
    cluster.converge()
    status: dict[str, Any] = cluster.get(PodDisruptionBudgets, "few")["status"]
    return status


def counts(cluster: Cluster) -> tuple[int, int, int, int]:
    status = told(cluster)
    return (
        status["expectedPods"],
        status["desiredHealthy"],
        status["currentHealthy"],
        status["disruptionsAllowed"],
    )


def evict(cluster: Cluster, name: str) -> bool:
    """Whether it was let go."""
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    body = json.dumps(document).encode()
    try:
        cluster.execute(
            Write(
                verb="create",
                resource=Pods,
                namespace="default",
                name=name,
                subresource="eviction",
                body=body,
            )
        )
    except StatusError as error:
        if (error.code, error.reason) != (429, "TooManyRequests"):
            raise
        return False
    return True


def first_pod(cluster: Cluster) -> str:
    return str(
        min(
            pod["metadata"]["name"]
            for pod in cluster.list(Pods)
            if not pod["metadata"].get("deletionTimestamp")
        )
    )


@pytest.mark.parametrize(
    ("spec", "desired"),
    [
        ({"minAvailable": 1}, 1),
        ({"minAvailable": "50%"}, 2),
        ({"minAvailable": "51%"}, 3),
        ({"maxUnavailable": 1}, 3),
        ({"maxUnavailable": "50%"}, 2),
        ({"maxUnavailable": "26%"}, 2),
        ({"maxUnavailable": "100%"}, 0),
        ({"maxUnavailable": 9}, 0),
        ({"minAvailable": 9}, 9),
    ],
)
def test_what_a_budget_allows(spec: dict[str, Any], desired: int) -> None:
    cluster = cluster_of()
    cluster.create(ReplicaSets, replica_set(4))
    budget(cluster, **spec)
    cluster.converge()
    assert counts(cluster) == (4, desired, 4, max(4 - desired, 0))
    status = told(cluster)
    assert status["observedGeneration"] == 1
    (one,) = status["conditions"]
    wanted = ("True", "SufficientPods") if desired < 4 else ("False", "InsufficientPods")
    assert (one["type"], one["status"], one["reason"], one["observedGeneration"]) == (
        "DisruptionAllowed",
        *wanted,
        1,
    )
    before = len(cluster.writes)
    cluster.replace(*cluster.controllers[:-1], DisruptionController())
    cluster.converge()
    assert len(cluster.writes) == before, "what is true is not written again"


@pytest.mark.parametrize(
    "resource", [Deployments, ReplicaSets, StatefulSets, ReplicationControllers]
)
def test_what_its_pods_controllers_want_counts(resource: Any) -> None:
    cluster = cluster_of(
        DeploymentController(),
        StatefulSetController(),
        ReplicaSetController(ReplicationControllers),
    )
    document = replica_set(3)
    if resource is ReplicationControllers:
        document["spec"]["selector"] = LABELS
    cluster.create(resource, document)
    budget(cluster, maxUnavailable=1)
    cluster.converge()
    assert counts(cluster) == (3, 2, 3, 1)
    cluster.patch(resource, "web", {"spec": {"replicas": 5}})
    assert counts(cluster) == (5, 4, 5, 1)


def test_a_rollout_of_two_sets_is_one_deployment() -> None:
    cluster = cluster_of(DeploymentController())
    cluster.create(
        Deployments,
        replica_set(4, strategy={"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}),
    )
    budget(cluster, maxUnavailable=1)
    cluster.converge()
    template = {"spec": {"containers": [{"name": "c", "image": "web:2"}]}}
    cluster.patch(Deployments, "web", {"spec": {"template": template}})
    for _ in range(30):
        cluster.converge(limit_s=0.2)
        cluster.now += 0.2
        assert cluster.get(PodDisruptionBudgets, "few")["status"]["expectedPods"] == 4
    assert counts(cluster) == (4, 3, 4, 1)


def test_pods_of_nobody_count_for_a_number_alone() -> None:
    cluster = cluster_of()
    for name in ("a", "b"):
        cluster.create(Pods, bare_pod(name, **LABELS))
    budget(cluster, minAvailable=1)
    assert counts(cluster) == (2, 1, 2, 1)
    cluster.patch(
        PodDisruptionBudgets, "few", {"spec": {"minAvailable": None, "maxUnavailable": 1}}
    )
    assert counts(cluster) == (0, 0, 2, 0)


def test_pods_whose_owner_has_no_number_allow_nothing_and_it_is_told_why() -> None:
    cluster = cluster_of(DaemonSetController())
    spec = {key: value for key, value in replica_set()["spec"].items() if key != "replicas"}
    cluster.create(DaemonSets, {"metadata": {"name": "web"}, "spec": spec})
    budget(cluster, maxUnavailable=1)
    one = condition({"status": told(cluster)}, "DisruptionAllowed")
    why = "daemonsets.apps does not implement the scale subresource"
    assert one is not None
    assert (one["status"], one["reason"], one["message"]) == ("False", "SyncFailed", why)
    assert (
        "CalculateExpectedPodCountFailed",
        f"Failed to calculate the number of expected pods: {why}",
    ) in said(cluster)
    assert not evict(cluster, first_pod(cluster))
    cluster.patch(
        PodDisruptionBudgets, "few", {"spec": {"maxUnavailable": None, "minAvailable": 1}}
    )
    assert counts(cluster) == (3, 1, 3, 2)


def test_no_more_are_evicted_than_it_allows_and_more_when_others_are_ready() -> None:
    """DisruptionController should block an eviction until the PDB is updated to allow it."""
    cluster = cluster_of()
    cluster.create(ReplicaSets, replica_set(3))
    budget(cluster, minAvailable=2)
    assert counts(cluster) == (3, 2, 3, 1)
    assert [evict(cluster, name) for name in sorted(names(cluster))] == [True, False, False]
    cluster.converge()
    assert counts(cluster) == (3, 2, 3, 1), "another Pod has come in its place"
    assert "disruptedPods" not in told(cluster)
    cluster.patch(PodDisruptionBudgets, "few", {"spec": {"minAvailable": 3}})
    assert counts(cluster)[3] == 0
    assert not evict(cluster, first_pod(cluster))
    cluster.patch(PodDisruptionBudgets, "few", {"spec": {"minAvailable": 1}})
    assert not evict(cluster, first_pod(cluster)), "nobody has looked at the new number yet"
    assert counts(cluster)[3] == 2
    assert evict(cluster, first_pod(cluster))


def test_who_was_let_go_and_stays_counts_again_after_a_while() -> None:
    cluster = cluster_of()
    cluster.create(ReplicaSets, replica_set(2))
    budget(cluster, minAvailable=1)
    assert counts(cluster) == (2, 1, 2, 1)
    name = first_pod(cluster)
    since = cluster.list(Pods)[0]["metadata"]["creationTimestamp"]
    cluster.patch(
        PodDisruptionBudgets,
        "few",
        {"status": {"disruptedPods": {name: since}}},
        subresource="status",
    )
    cluster.converge(limit_s=1.0)
    status = cluster.get(PodDisruptionBudgets, "few")["status"]
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (1, 0)
    cluster.now += DELETION_TIMEOUT_S
    assert counts(cluster) == (2, 1, 2, 1)


def test_a_drained_node_is_empty_in_the_end_and_the_budget_held_all_the_time() -> None:
    ready: list[int] = []

    def look(pods: dict[str, Pod]) -> None:
        ready.append(sum(pod.is_ready and not pod.metadata.is_deleting for pod in pods.values()))

    cluster = cluster_of(Spy(look))
    cluster.create(ReplicaSets, replica_set(6))
    budget(cluster, maxUnavailable=1)
    cluster.converge()
    node = cluster.list(Pods)[0]["spec"]["nodeName"]
    cluster.patch(Nodes, node, {"spec": {"unschedulable": True}})

    def left() -> list[str]:
        pods = cluster.list(Pods, field_selector=f"spec.nodeName={node}")
        return [
            pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")
        ]

    assert len(left()) == 2
    ready.clear()
    for _ in range(20):
        for name in left():
            evict(cluster, name)
        cluster.converge()
        if not left():
            break
    assert not left()
    assert min(ready) >= 5
    assert counts(cluster) == (6, 5, 6, 1)
