"""Emulated Pods are Ready when their containers are and their readiness gates are met, as the
kubelet says it.
"""

from __future__ import annotations

from typing import Any

from tests.emulation.emulated import bare_pod, make, replica_set

from sliceplane.api.scheme import Pods, ReplicaSets
from sliceplane.lab.sim.cluster import Cluster


def gated(**spec: Any) -> dict[str, Any]:
    document = bare_pod("gated", app="web")
    document["spec"]["readinessGates"] = [
        {"conditionType": "example.com/lb"},
        {"conditionType": "example.com/dns"},
    ]
    document["spec"].update(spec)
    return document


def conditions_of(cluster: Cluster, name: str) -> dict[str, tuple[str, str, str]]:
    found = cluster.get(Pods, name)["status"]["conditions"]
    return {
        one["type"]: (one["status"], one.get("reason", ""), one.get("message", "")) for one in found
    }


def set_condition(cluster: Cluster, kind: str, status: str) -> None:
    kept = [
        one for one in cluster.get(Pods, "gated")["status"]["conditions"] if one["type"] != kind
    ]
    change = {"status": {"conditions": [*kept, {"type": kind, "status": status}]}}
    cluster.patch(Pods, "gated", change, subresource="status")


def test_a_pod_is_ready_only_when_its_readiness_gates_are_met() -> None:
    cluster = make(ready_s=1.0)
    cluster.create(Pods, gated())
    cluster.converge()
    told = conditions_of(cluster, "gated")
    assert told["ContainersReady"] == ("True", "", "")
    missing = (
        'corresponding condition of pod readiness gate "example.com/lb" does not exist., '
        'corresponding condition of pod readiness gate "example.com/dns" does not exist.'
    )
    assert told["Ready"] == ("False", "ReadinessGatesNotReady", missing)
    set_condition(cluster, "example.com/lb", "True")
    set_condition(cluster, "example.com/dns", "False")
    cluster.converge()
    unmet = 'the status of pod readiness gate "example.com/dns" is not "True", but False'
    assert conditions_of(cluster, "gated")["Ready"] == ("False", "ReadinessGatesNotReady", unmet)
    set_condition(cluster, "example.com/dns", "True")
    cluster.converge()
    assert conditions_of(cluster, "gated")["Ready"] == ("True", "", "")
    set_condition(cluster, "example.com/lb", "False")
    cluster.converge()
    assert conditions_of(cluster, "gated")["Ready"][0] == "False", "a gate may close again"


def test_a_pod_with_unready_containers_says_which_whatever_its_gates_say() -> None:
    cluster = make(ready_by_default=False)
    cluster.create(Pods, gated())
    cluster.converge()
    why = ("False", "ContainersNotReady", "containers with unready status: [c]")
    assert (
        conditions_of(cluster, "gated")["Ready"]
        == conditions_of(cluster, "gated")["ContainersReady"]
        == why
    )


def test_min_ready_seconds_begin_when_the_gate_opens() -> None:
    cluster = make()
    document = replica_set(1, minReadySeconds=10)
    document["spec"]["template"]["spec"]["readinessGates"] = [{"conditionType": "example.com/lb"}]
    cluster.create(ReplicaSets, document)
    cluster.converge(limit_s=30)
    cluster.now += 30
    (made,) = cluster.list(Pods)
    conditions = [*made["status"]["conditions"], {"type": "example.com/lb", "status": "True"}]
    cluster.patch(
        Pods, made["metadata"]["name"], {"status": {"conditions": conditions}}, subresource="status"
    )
    cluster.converge(limit_s=5)
    status = cluster.get(ReplicaSets, "web")["status"]
    assert status["readyReplicas"] == 1
    assert "availableReplicas" not in status
