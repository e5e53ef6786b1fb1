"""Pods that no kubelet will ever finish are deleted, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.emulation.emulated import bare_pod, condition, make, replica_set

from sliceplane.api.core import Node, Pod, PodSpec
from sliceplane.api.errors import internal
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import Nodes, Pods, ReplicaSets
from sliceplane.controllers.objects.pod_garbage_collector import (
    CHECK_PERIOD_S,
    QUARANTINE_S,
    TAINT_OUT_OF_SERVICE,
    PodGarbageCollector,
)
from sliceplane.lab.sim.cluster import START, Cluster
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Write

FINALIZER = "example.com/keep"


def cluster_of(terminated_max: int = 12_500) -> Cluster:
    cluster = make(PodGarbageCollector(terminated_max))
    cluster.converge()
    return cluster


def after(cluster: Cluster, seconds: float) -> None:
    """*seconds* pass, with all that is due in them."""
    end = cluster.now + seconds
    cluster.converge(limit_s=seconds)
    cluster.now = end
    cluster.converge(limit_s=0)
    cluster.check()


def pods(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["name"]: pod for pod in cluster.list(Pods)}


def nodes_of(cluster: Cluster) -> list[str]:
    return sorted({pod["spec"].get("nodeName", "") for pod in cluster.list(Pods)})


def writes_to_pods(cluster: Cluster) -> list[Write]:
    return [write for _, write in cluster.writes if write.resource is Pods]


def on_a_node_without_a_kubelet(cluster: Cluster, name: str = "p", **meta: Any) -> None:
    """A Pod that runs, on a Node that nothing emulates."""
    cluster.create(Nodes, {"metadata": {"name": "alone"}})
    pod = bare_pod(name)
    pod["metadata"] |= meta
    pod["spec"]["nodeName"] = "alone"
    cluster.create(Pods, pod)
    cluster.patch(Pods, name, {"status": {"phase": "Running"}}, subresource="status")


def test_pods_of_a_deleted_node_go_after_the_quarantine_and_are_replaced() -> None:
    cluster = cluster_of()
    cluster.create(ReplicaSets, replica_set(6))
    cluster.converge()
    orphans = {name for name, pod in pods(cluster).items() if pod["spec"]["nodeName"] == "node-1"}
    cluster.delete(Nodes, "node-1")
    after(cluster, QUARANTINE_S - 1)
    assert orphans <= pods(cluster).keys(), "deleted in the quarantine"
    cluster.writes.clear()
    after(cluster, 2)
    assert len(orphans) == 2
    assert not orphans & pods(cluster).keys()
    assert nodes_of(cluster) == ["node-2", "node-3"]
    assert len(pods(cluster)) == 6
    (marks,) = {
        write.body.decode() for write in writes_to_pods(cluster) if write.name == min(orphans)
    } - {write.body.decode() for write in writes_to_pods(cluster) if write.verb == "delete"}
    status = json.loads(marks)["status"]
    assert status["phase"] == "Failed"
    (told,) = status["conditions"]
    assert (told["type"], told["status"], told["reason"], told["message"]) == (
        "DisruptionTarget",
        "True",
        "DeletionByPodGC",
        "PodGC: node no longer exists",
    )


def test_a_node_that_returns_in_time_keeps_its_pods() -> None:
    cluster = cluster_of()
    on_a_node_without_a_kubelet(cluster)
    cluster.delete(Nodes, "alone")
    after(cluster, QUARANTINE_S - 1)
    cluster.create(Nodes, {"metadata": {"name": "alone"}})
    after(cluster, 10 * QUARANTINE_S)
    assert (pods(cluster).keys(), writes_to_pods(cluster)) == ({"p"}, [])


def test_pods_that_ended_before_keep_their_phase() -> None:
    cluster = cluster_of()
    on_a_node_without_a_kubelet(cluster)
    cluster.patch(Pods, "p", {"status": {"phase": "Succeeded"}}, subresource="status")
    cluster.delete(Nodes, "alone")
    after(cluster, QUARANTINE_S + 1)
    assert [write.verb for write in writes_to_pods(cluster)] == ["delete"]
    assert not pods(cluster)


def test_a_pod_that_a_finalizer_keeps_is_failed_once_and_let_alone() -> None:
    cluster = cluster_of()
    on_a_node_without_a_kubelet(cluster, finalizers=[FINALIZER])
    cluster.delete(Nodes, "alone")
    after(cluster, QUARANTINE_S + 1)
    (left,) = pods(cluster).values()
    assert (left["status"]["phase"], condition(left, "DisruptionTarget") is not None) == (
        "Failed",
        True,
    )
    written = len(writes_to_pods(cluster))
    after(cluster, 20 * QUARANTINE_S)
    assert len(writes_to_pods(cluster)) == written, "a loop"


def test_a_terminating_pod_without_a_node_is_failed() -> None:
    cluster = cluster_of()
    pod = bare_pod("p")
    pod["metadata"]["finalizers"] = [FINALIZER]
    pod["spec"]["nodeSelector"] = {"nowhere": "true"}
    cluster.create(Pods, pod)
    cluster.converge()
    assert pods(cluster)["p"]["status"]["phase"] == "Pending"
    cluster.delete(Pods, "p")
    after(cluster, 1)
    assert pods(cluster)["p"]["status"]["phase"] == "Failed"
    assert condition(pods(cluster)["p"], "DisruptionTarget") is None


@pytest.mark.parametrize(
    ("taint", "ready", "goes"),
    [
        (TAINT_OUT_OF_SERVICE, "False", True),
        (TAINT_OUT_OF_SERVICE, "True", False),
        ("other", "False", False),
    ],
)
def test_a_terminating_pod_goes_only_from_a_node_that_is_out_of_service(
    taint: str, ready: str, goes: bool
) -> None:
    cluster = cluster_of()
    on_a_node_without_a_kubelet(cluster)
    cluster.create(
        Pods, {**bare_pod("stays"), "spec": {**bare_pod("stays")["spec"], "nodeName": "alone"}}
    )
    cluster.delete(Pods, "p")
    after(cluster, 100)
    assert pods(cluster).keys() == {"p", "stays"}
    conditions = [{"type": "Ready", "status": ready}]
    cluster.patch(Nodes, "alone", {"status": {"conditions": conditions}}, subresource="status")
    cluster.patch(Nodes, "alone", {"spec": {"taints": [{"key": taint, "effect": "NoExecute"}]}})
    after(cluster, 1)
    assert pods(cluster).keys() == ({"stays"} if goes else {"p", "stays"})


def test_of_too_many_ended_pods_evicted_ones_and_the_oldest_go() -> None:
    cluster = cluster_of(terminated_max=2)
    cluster.create(Nodes, {"metadata": {"name": "alone"}})
    for name, phase, reason in (
        ("old", "Succeeded", ""),
        ("runs", "Running", ""),
        ("newer", "Failed", ""),
        ("evicted", "Failed", "Evicted"),
        ("newest", "Succeeded", ""),
    ):
        pod = bare_pod(name)
        pod["spec"]["nodeName"] = "alone"
        cluster.create(Pods, pod)
        cluster.patch(
            Pods, name, {"status": {"phase": phase, "reason": reason}}, subresource="status"
        )
        cluster.now += 2
    assert len(pods(cluster)) == 5
    after(cluster, CHECK_PERIOD_S)
    assert pods(cluster).keys() == {"runs", "newer", "newest"}


# The server has the last word.


def pod_of(name: str, uid: str = "") -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid or name),
        spec=PodSpec(node_name="n"),
    )


def asked(collector: PodGarbageCollector, now: float) -> Job:
    (job,) = collector.take_work(now, 10).jobs
    assert [(write.verb, write.resource, write.name) for write in job.writes] == [
        ("get", Nodes, "n")
    ]
    return job


def collector_with(*known: Pod) -> PodGarbageCollector:
    collector = PodGarbageCollector()
    for item in known:
        collector.on_change(Change(Pods.key, None, item), START)
    collector.on_synced(START)
    assert not collector.take_work(START + QUARANTINE_S - 1, 10).jobs
    return collector


def test_a_node_that_only_the_cache_misses_keeps_its_pods() -> None:
    collector = collector_with(pod_of("p"))
    now = START + QUARANTINE_S
    collector.on_done(Done(asked(collector, now), (b"{}",)), now)
    collector.check()
    assert not collector.take_work(now + QUARANTINE_S - 1, 10).jobs
    asked(collector, now + QUARANTINE_S)


def test_a_pod_that_was_bound_after_the_question_is_not_deleted_by_its_answer() -> None:
    collector = collector_with(pod_of("p"), pod_of("replaced", "first"))
    now = START + QUARANTINE_S
    job = asked(collector, now)
    collector.on_change(Change(Pods.key, None, pod_of("later")), now)
    collector.on_change(
        Change(Pods.key, pod_of("replaced", "first"), pod_of("replaced", "second")), now
    )
    collector.on_done(Done(job, (b"",)), now)
    collector.check()
    assert {job.key for job in collector.take_work(now, 10).jobs} == {"pod/default/p"}


def test_a_node_that_comes_between_answer_and_deletion_keeps_its_pods() -> None:
    collector = collector_with(pod_of("p"))
    now = START + QUARANTINE_S
    collector.on_done(Done(asked(collector, now), (b"",)), now)
    collector.on_change(Change(Nodes.key, None, Node(metadata=ObjectMeta(name="n"))), now)
    assert not collector.take_work(now, 10).jobs
    collector.check()


def test_an_error_is_no_answer() -> None:
    collector = collector_with(pod_of("p"))
    now = START + QUARANTINE_S
    collector.on_done(Done(asked(collector, now), (), internal("away")), now)
    collector.check()
    asked(collector, now + QUARANTINE_S)
