"""Emulated ReplicaSets against upstream's published behaviour: order of deletion, refusals,
status.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.emulation.emulated import bare_pod, condition, make, names, owners, replica_set, said

from sliceplane.api.core import Pod, PodSpec, PodStatus
from sliceplane.api.meta import Condition, ObjectMeta
from sliceplane.api.scheme import (
    Deployments,
    Events,
    LimitRanges,
    Pods,
    ReplicaSets,
    ReplicationControllers,
    ResourceQuotas,
)
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.resource_quota import ResourceQuotaController
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.emulation.replicaset import ReplicaSetController, deletion_cost, deletion_rank
from sliceplane.kit.times import format_time
from sliceplane.lab.sim.cluster import Cluster

# -- what the server refuses


def test_a_set_that_its_quota_stops_says_failed_create_and_counts_what_there_is() -> None:
    """3/0/0 with one Pod running, and not a word why: that is what a user saw."""
    cluster = make(ResourceQuotaController())
    cluster.create(ResourceQuotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    cluster.converge()
    cluster.create(ReplicaSets, replica_set(3))
    cluster.converge(limit_s=20)
    status = cluster.get(ReplicaSets, "web")["status"]
    assert (status["replicas"], status["readyReplicas"], status["availableReplicas"]) == (1, 1, 1)
    failure = condition({"status": status}, "ReplicaFailure")
    assert failure is not None
    assert (failure["status"], failure["reason"]) == ("True", "FailedCreate")
    assert (
        "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
        in failure["message"]
    )
    assert set(said(cluster)) == {("FailedCreate", f"Error creating: {failure['message']}")}, (
        "one Event with a count"
    )
    assert failure["message"].startswith('pods "web-" is forbidden: ')
    tries = len(said(cluster))
    cluster.converge(limit_s=300)
    assert len(said(cluster)) - tries <= 300 / 30 + 1, "the back-off has grown to its cap"
    assert cluster.get(ReplicaSets, "web")["status"]["conditions"] == [failure], (
        "it does not change with each try"
    )

    cluster.patch(ResourceQuotas, "few", {"spec": {"hard": {"pods": "5"}}})
    cluster.converge(limit_s=60)
    status = cluster.get(ReplicaSets, "web")["status"]
    assert status["availableReplicas"] == 3
    assert "conditions" not in status
    assert len(said(cluster, "Normal")) == 3
    cluster.check()


def test_a_set_that_wants_less_of_a_spent_quota_is_tried_at_once() -> None:
    cluster = make(ResourceQuotaController())
    cluster.create(ResourceQuotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}})
    cluster.converge()
    cluster.create(ReplicaSets, replica_set(3))
    cluster.converge(limit_s=120)
    cluster.patch(ReplicaSets, "web", {"spec": {"replicas": 2}})
    cluster.converge(limit_s=1)
    assert "conditions" not in cluster.get(ReplicaSets, "web")["status"]


def test_a_limit_range_that_refuses_every_pod_is_told_the_same_way() -> None:
    cluster = make()
    limits = [{"type": "Container", "max": {"cpu": "1"}}]
    cluster.create(LimitRanges, {"metadata": {"name": "small"}, "spec": {"limits": limits}})
    large = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "2"}}}]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": large}
    cluster.create(ReplicaSets, replica_set(5, template=template))
    cluster.converge(limit_s=0.05)
    assert len(said(cluster)) == 1, "the first refusal ends the try, however many Pods are wanted"
    failure = condition(cluster.get(ReplicaSets, "web"), "ReplicaFailure")
    assert failure is not None
    assert "maximum cpu usage per Container is 1, but limit is 2" in failure["message"]


# -- which Pods go

NOW = 1_800_000_000.0


def pod(
    name: str, node: str = "n1", *, phase: str = "Running", age_s: float = 100.0, **given: Any
) -> Pod:
    ready_s = given.get("ready_s")
    conditions = ()
    if ready_s is not None:
        conditions = (
            Condition(type="Ready", status="True", last_transition_time=format_time(NOW - ready_s)),
        )
    cost = given.get("cost")
    annotations = {"controller.kubernetes.io/pod-deletion-cost": cost} if cost is not None else None
    meta = ObjectMeta(
        name=name,
        uid=name,
        creation_timestamp=format_time(NOW - age_s),
        annotations=annotations,
        namespace="default",
    )
    return Pod(
        metadata=meta,
        spec=PodSpec(node_name=node),
        status=PodStatus(phase=phase, conditions=conditions),
    )


@pytest.mark.parametrize(
    ("first", "then", "crowd"),
    [
        (pod("a", node="", phase="Pending"), pod("b", phase="Pending"), {}),
        (pod("a", phase="Pending"), pod("b", phase="Running"), {}),
        (pod("z", phase="Running"), pod("b", phase="Running", ready_s=5), {}),
        (pod("z", ready_s=5, cost="-1"), pod("b", ready_s=5), {}),
        (pod("z", ready_s=5), pod("b", ready_s=5, cost="1"), {}),
        (pod("z", node="n1", ready_s=50), pod("b", node="n2", ready_s=5), {"n1": 3, "n2": 1}),
        (pod("z", ready_s=5), pod("b", ready_s=50), {}),
        (pod("z", ready_s=50, age_s=60), pod("b", ready_s=50, age_s=600), {}),
        (pod("a", ready_s=50, age_s=600), pod("b", ready_s=50, age_s=601), {}),
    ],
    ids=[
        "no-node",
        "pending",
        "not-ready",
        "cost-below",
        "cost-above",
        "crowd",
        "ready-since",
        "younger",
        "uid",
    ],
)
def test_the_order_in_which_pods_go(first: Pod, then: Pod, crowd: dict[str, int]) -> None:
    assert deletion_rank(first, crowd, NOW) < deletion_rank(then, crowd, NOW)


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        *(
            ("5", 5),
            ("-5", -5),
            ("+5", 0),
            ("05", 0),
            ("-05", -5),
            ("", 0),
            ("-", 0),
            ("five", 0),
            ("0", 0),
        ),
        *(
            ("2147483647", 2**31 - 1),
            ("2147483648", 0),
            ("-2147483648", -(2**31)),
            ("9" * 4000, 0),
            ("٣", 0),
        ),
    ],
)
def test_a_deletion_cost_that_is_no_number_counts_as_zero(text: str, cost: int) -> None:
    assert deletion_cost(pod("p", cost=text)) == cost


def test_the_pod_of_the_lowest_deletion_cost_goes_first() -> None:
    cluster = make()
    cluster.create(ReplicaSets, replica_set(4))
    cluster.converge()
    cheap, *_, dear = sorted(names(cluster))
    for name, cost in ((cheap, "-100"), (dear, "100")):
        annotation = {"controller.kubernetes.io/pod-deletion-cost": cost}
        cluster.patch(Pods, name, {"metadata": {"annotations": annotation}})
    cluster.patch(ReplicaSets, "web", {"spec": {"replicas": 3}})
    cluster.converge()
    assert cheap not in names(cluster)
    cluster.patch(ReplicaSets, "web", {"spec": {"replicas": 1}})
    cluster.converge()
    assert names(cluster) == {dear}


def test_of_a_crowded_node_one_goes_before_others_even_across_the_sets_of_one_deployment() -> None:
    cluster = Cluster(ReplicaSetController())
    owner = cluster.create(
        Deployments,
        {
            "metadata": {"name": "web"},
            "spec": {k: replica_set()["spec"][k] for k in ("selector", "template")},
        },
    )
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True}
    sets = []
    for track in ("old", "new"):
        labels = {"app": "web", "track": track}
        document = replica_set(0, name=f"web-{track}", selector={"matchLabels": labels})
        document["spec"]["template"]["metadata"] = {"labels": labels}
        document["metadata"]["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"]}]
        sets.append(cluster.create(ReplicaSets, document))
    # "new" has one Pod on each node; beside that on n2 there are two of "old".
    for name, node, track in (
        ("a", "n1", "new"),
        ("b", "n2", "new"),
        ("c", "n2", "old"),
        ("d", "n2", "old"),
    ):
        document = bare_pod(name, app="web", track=track)
        document["spec"]["nodeName"] = node
        mine = sets[1] if track == "new" else sets[0]
        document["metadata"]["ownerReferences"] = [
            {
                **reference,
                "kind": "ReplicaSet",
                "name": mine["metadata"]["name"],
                "uid": mine["metadata"]["uid"],
            }
        ]
        cluster.create(Pods, document)
    cluster.patch(ReplicaSets, "web-new", {"spec": {"replicas": 1}})
    cluster.patch(ReplicaSets, "web-old", {"spec": {"replicas": 2}})
    cluster.converge()
    assert names(cluster) == {"a", "c", "d"}


# -- status


def test_status_tells_terminating_and_fully_labelled_pods_apart() -> None:
    cluster = make(termination_s=30.0)
    cluster.create(ReplicaSets, replica_set(2))
    cluster.converge()
    status = cluster.get(ReplicaSets, "web")["status"]
    assert (status["fullyLabeledReplicas"], status["terminatingReplicas"]) == (2, 0)
    template = {"metadata": {"labels": {"app": "web", "tier": "front"}}}
    cluster.patch(ReplicaSets, "web", {"spec": {"template": template}})
    cluster.delete(Pods, sorted(names(cluster))[0], gracePeriodSeconds=30)
    cluster.converge(limit_s=5)
    status = cluster.get(ReplicaSets, "web")["status"]
    assert (status["replicas"], status["fullyLabeledReplicas"], status["terminatingReplicas"]) == (
        2,
        1,
        1,
    )
    cluster.converge()
    assert cluster.get(ReplicaSets, "web")["status"]["terminatingReplicas"] == 0


def test_available_only_after_min_ready_seconds() -> None:
    cluster = make()
    cluster.create(ReplicaSets, replica_set(2, minReadySeconds=10))
    cluster.converge(limit_s=5)
    status = cluster.get(ReplicaSets, "web")["status"]
    assert status["readyReplicas"] == 2
    assert "availableReplicas" not in status
    cluster.converge(limit_s=15)
    assert cluster.get(ReplicaSets, "web")["status"]["availableReplicas"] == 2


def test_a_replication_controller_is_a_set_that_selects_by_labels_alone() -> None:
    cluster = make(ReplicaSetController(ReplicationControllers))
    cluster.create(Pods, bare_pod("lonely", app="old"))
    cluster.create(Pods, bare_pod("other", app="new"))
    cluster.converge()
    template = {
        "metadata": {"labels": {"app": "old"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    made = cluster.create(
        ReplicationControllers,
        {"metadata": {"name": "old"}, "spec": {"replicas": 3, "template": template}},
    )
    cluster.converge()
    assert owners(cluster.get(Pods, "lonely")) == [
        ("ReplicationController", made["metadata"]["uid"])
    ]
    assert owners(cluster.get(Pods, "other")) == []
    assert cluster.get(ReplicationControllers, "old")["status"] == {
        "replicas": 3,
        "fullyLabeledReplicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
        "observedGeneration": 1,
    }
    cluster.patch(Pods, "lonely", {"metadata": {"labels": {"app": "looked-at"}}})
    cluster.patch(ReplicationControllers, "old", {"spec": {"replicas": 1}})
    cluster.converge()
    assert owners(cluster.get(Pods, "lonely")) == []
    assert len([pod for pod in cluster.list(Pods) if owners(pod)]) == 1
    cluster.check()


# -- any history

DEEDS = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 5)),
    st.tuples(st.just("bare"), st.sampled_from(["web", "shop"])),
    st.tuples(st.just("relabel"), st.integers(0, 7), st.sampled_from(["web", "shop"])),
    st.tuples(st.just("delete"), st.integers(0, 7)),
    st.tuples(st.just("wait"), st.integers(0, 20)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("quota"), st.integers(1, 8)),
)


def perform(cluster: Cluster, deed: tuple[Any, ...], number: int) -> None:
    found = sorted(names(cluster))
    match deed:
        case ("scale", replicas):
            cluster.patch(ReplicaSets, "web", {"spec": {"replicas": replicas}})
        case ("bare", app):
            if len(cluster.list(Pods)) < 8:
                cluster.create(Pods, bare_pod(f"bare-{number}", app=app))
        case ("relabel", index, app) if found:
            cluster.patch(Pods, found[index % len(found)], {"metadata": {"labels": {"app": app}}})
        case ("delete", index) if found:
            cluster.delete(Pods, found[index % len(found)])
        case ("wait", seconds):
            cluster.converge(limit_s=seconds)
        case ("quota", pods):
            cluster.patch(ResourceQuotas, "some", {"spec": {"hard": {"pods": str(pods)}}})
        case ("restart",):
            kubelet = KubeletController(EmulationConfig(nodes=make_nodes(3, ["a", "b"])))
            cluster.replace(
                ReplicaSetController(), kubelet, ResourceQuotaController(), GarbageCollector()
            )


@effort(60)
@given(deeds=st.lists(DEEDS, max_size=12))
def test_whatever_happened_the_set_ends_with_exactly_its_pods(deeds: list[tuple[Any, ...]]) -> None:
    cluster = make(ResourceQuotaController(), GarbageCollector())
    cluster.create(ResourceQuotas, {"metadata": {"name": "some"}, "spec": {"hard": {"pods": "8"}}})
    made = cluster.create(ReplicaSets, replica_set(2))
    for number, deed in enumerate(deeds):
        try:
            perform(cluster, deed, number)
        except Exception as error:
            if "exceeded quota" not in str(error):
                raise
    cluster.patch(ResourceQuotas, "some", {"spec": {"hard": {"pods": "50"}}})
    cluster.converge(limit_s=200)
    cluster.check()
    replicas = cluster.get(ReplicaSets, "web")["spec"]["replicas"]
    uid = made["metadata"]["uid"]
    pods = cluster.list(Pods)
    for each in pods:
        matches = each["metadata"]["labels"]["app"] == "web"
        assert owners(each) == ([("ReplicaSet", uid)] if matches else []), each["metadata"]
    mine = [each for each in pods if owners(each)]
    assert len(mine) == replicas
    status = cluster.get(ReplicaSets, "web")["status"]
    assert (status["replicas"], status.get("availableReplicas", 0)) == (replicas, replicas)
    assert "conditions" not in status
    assert not cluster.list(Events)
