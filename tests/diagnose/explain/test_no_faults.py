"""What real clusters are full of, and is no fault: nothing is said of it, asked about one by one or
all at once.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.explain.world import (
    World,
    add_node,
    add_pod,
    add_service,
    add_workload,
    ago,
    endpoint_of,
    healthy,
    owner,
    write_slice,
)

from sliceplane.diagnose.explain.question import ExplainQuestion


def _rewritten(world: World, name: str = "cart") -> None:
    world.drop("EndpointSlice", "shop", f"{name}-x7k2p")
    write_slice(world, name)


def _starts(pod: Any, since_s: float) -> None:
    pod["metadata"]["creationTimestamp"] = ago(since_s)
    pod["status"]["startTime"] = ago(since_s)
    for condition in pod["status"]["conditions"]:
        if condition["type"] in ("ContainersReady", "Ready"):
            condition.update(status="False", lastTransitionTime=ago(since_s))
    pod["status"]["containerStatuses"][0].update(
        ready=False, state={"running": {"startedAt": ago(since_s)}}
    )


def a_rollout_is_under_way(world: World) -> None:
    deployment = world.get("Deployment", "shop", "cart")
    template = deployment["spec"]["template"]
    new = world.add(
        "ReplicaSet",
        "shop",
        "cart-59b6",
        labels={"app": "cart"},
        meta={"ownerReferences": [owner(deployment)]},
        spec={"replicas": 1, "template": template},
    )
    pod = add_pod(
        world, "cart-new", "shop", "node-2", {"app": "cart", "pod-template-hash": "59b6"}, new
    )
    pod["spec"]["containers"][0]["image"] = "web:v2"
    _starts(pod, 20)
    leaving = world.get("Pod", "shop", "cart-0")["metadata"]
    leaving.update(deletionTimestamp=ago(-50), deletionGracePeriodSeconds=60)
    _rewritten(world)


def a_pod_has_just_been_bound(world: World) -> None:
    pod = add_pod(
        world,
        "cart-new",
        "shop",
        "node-2",
        {"app": "cart"},
        world.get("ReplicaSet", "shop", "cart-7d9f"),
    )
    pod["status"] = {
        "phase": "Pending",
        "startTime": ago(3),
        "conditions": [{"type": "PodScheduled", "status": "True"}],
    }
    pod["metadata"]["creationTimestamp"] = ago(4)


def jobs_are_done_and_run(world: World) -> None:
    for name, phase in (("report-1", "Succeeded"), ("report-2", "Failed"), ("report-3", "Running")):
        job = world.add(
            "Job", "shop", name, spec={"template": {"metadata": {"labels": {"job": "report"}}}}
        )
        add_pod(world, f"{name}-x", "shop", "node-1", {"job": "report"}, job)["status"]["phase"] = (
            phase
        )


def evicted_pods_lie_about(world: World) -> None:
    replica_set = world.get("ReplicaSet", "shop", "cart-7d9f")
    for number in range(4):
        pod = add_pod(world, f"cart-old-{number}", "shop", "node-1", {"app": "cart"}, replica_set)
        pod["status"].update(phase="Failed", reason="Evicted")


def a_database_has_peers(world: World) -> None:
    """A StatefulSet behind a headless Service that publishes those that start; one of them does."""
    headless = {"clusterIP": "None", "clusterIPs": ["None"], "publishNotReadyAddresses": True}
    ports = [{"name": "pg", "port": 8080, "protocol": "TCP", "targetPort": 8080}]
    add_service(world, "db", ports=ports, **headless)
    template = {
        "metadata": {"labels": {"app": "db"}},
        "spec": {"containers": [{"name": "db", "image": "postgres"}]},
    }
    stateful_set = world.add(
        "StatefulSet", "shop", "db", spec={"replicas": 3, "serviceName": "db", "template": template}
    )
    for number in range(2):
        add_pod(world, f"db-{number}", "shop", f"node-{number}", {"app": "db"}, stateful_set)
    write_slice(world, "db")


def services_lead_outside(world: World) -> None:
    """By name, and by a slice that somebody keeps by hand."""
    add_service(
        world,
        "mail",
        type="ExternalName",
        externalName="mail.example.org",
        selector=None,
        ports=None,
        clusterIP="",
        clusterIPs=None,
    )
    add_service(world, "legacy", selector=None)
    document = write_slice(world, "legacy")
    document["metadata"]["labels"] = {"kubernetes.io/service-name": "legacy"}
    document["endpoints"] = [{"addresses": ["192.0.2.10"], "conditions": {"ready": True}}]
    world.add(
        "Deployment",
        "shop",
        "unrelated",
        spec={"replicas": 0, "template": {"metadata": {"labels": {"a": "b"}}}},
    )


def a_balancer_and_a_canary(world: World) -> None:
    spec = world.get("Service", "shop", "cart")["spec"]
    spec.update(type="LoadBalancer", loadBalancerSourceRanges=["198.51.100.0/24"])
    world.get("Service", "shop", "cart")["status"] = {
        "loadBalancer": {"ingress": [{"ip": "203.0.113.80"}]}
    }
    add_workload(world, "cart-canary", "shop", 1, app="cart", track="canary")
    world.get("Pod", "shop", "cart-canary-0")["spec"]["containers"][0]["image"] = "web:v2"
    _rewritten(world)


def an_emulated_plane_has_a_load_balancer(world: World) -> None:
    """Nothing there ever gives it an address, as asked for with --emulate."""
    for node in world.all("Node"):
        node["metadata"]["labels"]["emulation.sliceplane.dev/node"] = "true"
    world.get("Service", "shop", "cart")["spec"]["type"] = "LoadBalancer"


def a_node_joins(world: World) -> None:
    node = add_node(world, "node-9", "zone-a")
    node["metadata"]["creationTimestamp"] = ago(25)
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "no CNI plugin yet",
    }
    node["status"]["conditions"] = [{**ready, "lastTransitionTime": ago(25)}]
    template = {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": []}}
    agents = world.add(
        "DaemonSet",
        "shop",
        "agent",
        spec={"template": template},
        status={"desiredNumberScheduled": 4},
    )
    add_service(world, "agent")
    for number in (0, 1, 2):
        add_pod(world, f"agent-{number}", "shop", f"node-{number}", {"app": "agent"}, agents)
    _starts(add_pod(world, "agent-9", "shop", "node-9", {"app": "agent"}, agents), 20)
    write_slice(world, "agent")


def pods_share_the_network_of_their_nodes(world: World) -> None:
    zones = {f"node-{number}": f"zone-{'abc'[number]}" for number in range(3)}
    for number in range(3):
        pod = world.get("Pod", "shop", f"cart-{number}")
        pod["spec"]["hostNetwork"] = True
        address = f"192.168.0.{number + 1}"
        pod["status"].update(podIP=address, podIPs=[{"ip": address}])
        twin = add_pod(world, f"exporter-{number}", "shop", f"node-{number}", {"app": "exporter"})
        twin["spec"]["hostNetwork"] = True
        twin["status"].update(podIP=address, podIPs=[{"ip": address}])
    endpoints = world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]
    endpoints[:] = [
        endpoint_of(world.get("Pod", "shop", f"cart-{number}"), zones) for number in range(3)
    ]


PARTS = (
    a_rollout_is_under_way,
    a_pod_has_just_been_bound,
    jobs_are_done_and_run,
    evicted_pods_lie_about,
    an_emulated_plane_has_a_load_balancer,
    a_database_has_peers,
    services_lead_outside,
    a_balancer_and_a_canary,
    a_node_joins,
    pods_share_the_network_of_their_nodes,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_nothing_is_said_of_what_is_no_fault(part: Any) -> None:
    world = healthy()
    part(world)
    names = [document["metadata"]["name"] for document in world.all("Service")]
    answers = [world.explain(name) for name in names]
    answers.append(world.ask(ExplainQuestion("everything")))
    assert [
        (answer.question.name, finding.code, finding.sentence)
        for answer in answers
        for finding in answer.findings
        if finding.severity != "note" or finding.too_young
    ] == []
    assert [answer.unchecked for answer in answers if answer.unchecked] == []
