"""Emulated DaemonSets: one Pod on every node that fits, replaced within its bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.emulation.emulated import Spy, bare_pod, make, names, owners, said

from sliceplane.api.core import Pod
from sliceplane.api.scheme import DaemonSets, Nodes, Pods, ResourceQuotas
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.resource_quota import ResourceQuotaController
from sliceplane.emulation.daemonset import DaemonSetController
from sliceplane.emulation.eligibility import target_node
from sliceplane.emulation.history import LABEL_REVISION
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.lab.sim.cluster import Cluster

LABELS = {"app": "agent"}


def daemon_set(image: str = "agent:1", **spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }
    return {
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": LABELS}, "template": template, **spec},
    }


def image(name: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": name}]}}}}


def placed(cluster: Cluster) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in cluster.list(Pods))


def status(cluster: Cluster) -> dict[str, Any]:
    told: dict[str, Any] = cluster.get(DaemonSets, "agent")["status"]
    return told


def test_every_node_has_one_pod_and_the_status_tells() -> None:
    cluster = make(DaemonSetController())
    cluster.create(DaemonSets, daemon_set())
    cluster.converge()
    assert placed(cluster) == ["node-1", "node-2", "node-3"]
    assert status(cluster) == {
        "desiredNumberScheduled": 3,
        "currentNumberScheduled": 3,
        "numberMisscheduled": 0,
        "numberReady": 3,
        "updatedNumberScheduled": 3,
        "numberAvailable": 3,
        "observedGeneration": 1,
    }
    assert sorted(said(cluster, "Normal"))[0][0] == "SuccessfulCreate"
    cluster.check()


def test_a_pod_is_bound_to_its_node_by_affinity_and_tolerates_what_a_node_says_of_itself() -> None:
    cluster = make(DaemonSetController())
    document = daemon_set()
    mine = {"key": "team", "operator": "Exists"}
    preferred = [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    ]
    document["spec"]["template"]["spec"] |= {
        "tolerations": [mine],
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        },
    }
    cluster.create(DaemonSets, document)
    cluster.converge()
    for pod in cluster.list(Pods):
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        fields = [{"key": "metadata.name", "operator": "In", "values": [pod["spec"]["nodeName"]]}]
        required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert required == [{"matchFields": fields}]
        assert affinity["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
        tolerated = [
            (one["key"].rpartition("/")[2], one.get("effect", ""))
            for one in pod["spec"]["tolerations"]
        ]
        assert tolerated[0] == ("team", "")
        assert set(tolerated) >= {("not-ready", "NoExecute"), ("unschedulable", "NoSchedule")}
        assert ("network-unavailable", "NoSchedule") not in tolerated


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ({"nodeSelector": {"topology.kubernetes.io/zone": "zone-a"}}, ["node-1", "node-3"]),
        ({"nodeName": "node-2"}, ["node-2"]),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {
                                            "key": "kubernetes.io/hostname",
                                            "operator": "NotIn",
                                            "values": ["node-1", "node-2"],
                                        }
                                    ]
                                }
                            ]
                        }
                    }
                }
            },
            ["node-3"],
        ),
    ],
    ids=["selector", "name", "affinity"],
)
def test_the_template_says_which_nodes(spec: dict[str, Any], nodes: list[str]) -> None:
    cluster = make(DaemonSetController())
    document = daemon_set()
    document["spec"]["template"]["spec"] |= spec
    cluster.create(DaemonSets, document)
    cluster.converge()
    assert placed(cluster) == nodes
    assert status(cluster)["desiredNumberScheduled"] == len(nodes)


def test_taints_keep_pods_away_and_only_no_execute_drives_them_out() -> None:
    cluster = make(DaemonSetController())
    cluster.create(DaemonSets, daemon_set())
    cluster.converge()
    cluster.patch(Nodes, "node-1", {"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}})
    cluster.converge()
    assert placed(cluster) == ["node-1", "node-2", "node-3"]
    assert (status(cluster)["desiredNumberScheduled"], status(cluster)["numberMisscheduled"]) == (
        2,
        1,
    )
    cluster.patch(Nodes, "node-1", {"spec": {"taints": [{"key": "gpu", "effect": "NoExecute"}]}})
    cluster.converge()
    assert placed(cluster) == ["node-2", "node-3"]
    cluster.patch(Nodes, "node-1", {"spec": {"taints": []}})
    cluster.converge()
    assert placed(cluster) == ["node-1", "node-2", "node-3"]


def test_a_cordoned_node_keeps_its_pod_and_gets_one() -> None:
    cluster = make(DaemonSetController())
    cluster.converge()
    cluster.patch(Nodes, "node-2", {"spec": {"unschedulable": True}})
    cluster.create(DaemonSets, daemon_set())
    cluster.converge()
    assert placed(cluster) == ["node-1", "node-2", "node-3"]


def test_on_delete_replaces_what_somebody_deletes() -> None:
    cluster = make(DaemonSetController())
    cluster.create(DaemonSets, daemon_set(updateStrategy={"type": "OnDelete"}))
    cluster.converge()
    cluster.patch(DaemonSets, "agent", image("agent:2"))
    cluster.converge()
    assert "updatedNumberScheduled" not in status(cluster)
    cluster.delete(Pods, sorted(names(cluster))[0])
    cluster.converge()
    assert status(cluster)["updatedNumberScheduled"] == 1
    assert placed(cluster) == ["node-1", "node-2", "node-3"]


def test_a_pod_that_ended_is_replaced() -> None:
    cluster = make(DaemonSetController())
    cluster.create(DaemonSets, daemon_set())
    cluster.converge()
    failed = sorted(names(cluster))[0]
    cluster.patch(Pods, failed, {"status": {"phase": "Failed"}}, subresource="status")
    cluster.converge()
    assert failed not in names(cluster)
    assert placed(cluster) == ["node-1", "node-2", "node-3"]


def test_bare_pods_are_adopted_and_one_too_many_goes() -> None:
    cluster = make(DaemonSetController(), nodes=1)
    cluster.create(Pods, bare_pod("lonely", **LABELS))
    cluster.converge()
    made = cluster.create(DaemonSets, daemon_set(updateStrategy={"type": "OnDelete"}))
    cluster.converge()
    assert names(cluster) == {"lonely"}, "a rollout would replace it, since it is of no revision"
    assert owners(cluster.get(Pods, "lonely")) == [("DaemonSet", made["metadata"]["uid"])]
    cluster.create(Pods, bare_pod("second", **LABELS))
    cluster.converge()
    assert len(names(cluster)) == 1
    cluster.check()


def test_a_quota_that_stops_it_is_told_in_an_event_and_tried_again() -> None:
    cluster = make(DaemonSetController(), ResourceQuotaController())
    cluster.create(ResourceQuotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    cluster.converge()
    cluster.create(DaemonSets, daemon_set())
    cluster.converge(limit_s=20)
    assert status(cluster)["currentNumberScheduled"] == 1
    assert {reason for reason, _ in said(cluster)} == {"FailedCreate"}
    cluster.patch(ResourceQuotas, "few", {"spec": {"hard": {"pods": "5"}}})
    cluster.converge(limit_s=60)
    assert status(cluster)["numberReady"] == 3


class Bound:
    """How many of the nodes that should have a ready Pod have none, and how many have more than
    one.
    """

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.down = 0
        self.doubled = 0

    def look(self, pods: dict[str, Pod]) -> None:
        ready = [
            pod.spec.node_name
            for pod in pods.values()
            if pod.is_ready and not pod.metadata.deletion_timestamp
        ]
        running = [
            target_node(pod.spec) for pod in pods.values() if not pod.metadata.deletion_timestamp
        ]
        self.down = max(self.down, self.nodes - len(set(ready)))
        self.doubled = max(self.doubled, len(running) - len(set(running)))


@effort(40)
@given(
    nodes=st.integers(1, 7),
    bound=st.integers(1, 4) | st.sampled_from(["1%", "34%", "50%", "100%"]),
    surges=st.booleans(),
    ready_s=st.sampled_from([0.0, 1.0]),
    images=st.lists(st.sampled_from(["agent:2", "agent:3", "agent:1"]), min_size=1, max_size=3),
)
def test_a_rollout_keeps_within_its_bound(
    nodes: int, bound: int | str, surges: bool, ready_s: float, images: list[str]
) -> None:
    allowed = bound if isinstance(bound, int) else -(-int(bound[:-1]) * nodes // 100)
    rolling = {"maxSurge": bound, "maxUnavailable": 0} if surges else {"maxUnavailable": bound}
    cluster = make(DaemonSetController(), nodes=nodes, ready_s=ready_s)
    cluster.create(DaemonSets, daemon_set(updateStrategy={"rollingUpdate": rolling}))
    cluster.converge()
    seen = Bound(nodes)
    cluster.controllers = (*cluster.controllers, Spy(seen.look))
    for pod in cluster.list(Pods):  # the spy learns of those that are there
        cluster.patch(
            Pods, pod["metadata"]["name"], {"metadata": {"annotations": {"seen": "true"}}}
        )
    seen.down = 0
    for name in images:
        cluster.patch(DaemonSets, "agent", image(name))
        cluster.converge(limit_s=1)
    cluster.converge()
    assert seen.down <= (0 if surges else allowed), f"{seen.down} of {nodes} down"
    assert seen.doubled <= (allowed if surges else 0), f"{seen.doubled} nodes have two"
    pods = cluster.list(Pods)
    assert len(pods) == nodes == len({pod["spec"]["nodeName"] for pod in pods})
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {images[-1]}
    assert len({pod["metadata"]["labels"][LABEL_REVISION] for pod in pods}) == 1
    cluster.check()


DEEDS = st.one_of(
    st.tuples(st.just("delete"), st.integers(0, 7)),
    st.tuples(
        st.just("taint"), st.integers(1, 4), st.sampled_from(["NoSchedule", "NoExecute", ""])
    ),
    st.tuples(st.just("image"), st.integers(1, 3)),
    st.tuples(st.just("unready"), st.integers(0, 7)),
    st.tuples(st.just("bare"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(0, 10)),
    st.tuples(st.just("restart")),
)


def perform(cluster: Cluster, deed: tuple[Any, ...]) -> None:
    found = sorted(names(cluster))
    match deed:
        case ("delete", index) if found:
            cluster.delete(Pods, found[index % len(found)])
        case ("taint", node, effect):
            taints = [{"key": "t", "effect": effect}] if effect else []
            if f"node-{node}" in {one["metadata"]["name"] for one in cluster.list(Nodes)}:
                cluster.patch(Nodes, f"node-{node}", {"spec": {"taints": taints}})
        case ("image", number):
            cluster.patch(DaemonSets, "agent", image(f"agent:{number}"))
        case ("unready", index) if found:
            ready = {"emulation.sliceplane.dev/ready": "false"}
            cluster.patch(Pods, found[index % len(found)], {"metadata": {"annotations": ready}})
        case ("bare", number):
            if f"bare-{number}" not in {pod["metadata"]["name"] for pod in cluster.list(Pods)}:
                cluster.create(Pods, bare_pod(f"bare-{number}", **LABELS))
        case ("wait", seconds):
            cluster.converge(limit_s=seconds)
        case ("restart",):
            kubelet = KubeletController(EmulationConfig(nodes=make_nodes(4, ["a", "b"])))
            cluster.replace(DaemonSetController(), kubelet, GarbageCollector())


@effort(60)
@given(deeds=st.lists(DEEDS, max_size=12))
def test_whatever_happened_every_node_that_fits_has_one_pod(deeds: list[tuple[Any, ...]]) -> None:
    cluster = make(DaemonSetController(), GarbageCollector(), nodes=4)
    cluster.create(DaemonSets, daemon_set())
    for deed in deeds:
        perform(cluster, deed)
    for pod in cluster.list(Pods):
        cluster.patch(Pods, pod["metadata"]["name"], {"metadata": {"annotations": None}})
    cluster.converge()
    cluster.check()
    taints = {
        node["metadata"]["name"]: node["spec"].get("taints", []) for node in cluster.list(Nodes)
    }
    free = {name for name, effects in taints.items() if not effects}
    driven = {
        name
        for name, effects in taints.items()
        if any(one["effect"] == "NoExecute" for one in effects)
    }
    pods = placed(cluster)
    assert len(pods) == len(set(pods)), "never two Pods on one node"
    assert free <= set(pods) <= set(taints) - driven
    told = status(cluster)
    assert (told["desiredNumberScheduled"], told["numberReady"]) == (len(free), len(free))
    assert told["numberMisscheduled"] == len(set(pods) - free)
