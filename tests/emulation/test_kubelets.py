"""What emulated kubelets and the emulated scheduler do as real ones: images, host ports, taints,
addresses, Events.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.emulation import emulated
from tests.emulation.emulated import bare_pod, condition, names

from sliceplane.api.scheme import Nodes, Pods
from sliceplane.emulation.nodes import make_nodes, parse_nodes
from sliceplane.lab.sim.cluster import Cluster


def make(nodes: int = 3) -> Cluster:
    cluster = emulated.make(nodes=nodes)
    cluster.converge()
    return cluster


def pod(name: str, **spec: Any) -> dict[str, Any]:
    document = bare_pod(name)
    return {**document, "spec": {**document["spec"], **spec}}


def notes(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    return [
        (note.reason, note.note) for note in cluster.notes if note.regarding.metadata.name == name
    ]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("UPPER:1", "InvalidImageName"),
        ("invalid.registry.k8s.io/a:1", "ImagePullBackOff"),
        ("a.invalid/b", "ImagePullBackOff"),
    ],
)
def test_a_pod_whose_image_cannot_be_pulled_stays_pending_until_the_image_is_another(
    image: str, reason: str
) -> None:
    cluster = make()
    cluster.create(
        Pods, pod("p", containers=[{"name": "c", "image": image}, {"name": "d", "image": "d:1"}])
    )
    cluster.converge()
    status = cluster.get(Pods, "p")["status"]
    assert status["phase"] == "Pending"
    assert [one["state"]["waiting"]["reason"] for one in status["containerStatuses"]] == [
        reason,
        "ContainerCreating",
    ]
    ready = condition({"status": status}, "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("False", "ContainersNotReady")
    assert [note for note, _ in notes(cluster, "p")] == ["Scheduled", "Failed"]
    first, second = cluster.get(Pods, "p")["spec"]["containers"]
    cluster.patch(Pods, "p", {"spec": {"containers": [{**first, "image": "c:1"}, second]}})
    cluster.converge()
    status = cluster.get(Pods, "p")["status"]
    assert status["phase"] == "Running"
    assert all(
        set(one["state"]) == {"running"} and one["ready"] for one in status["containerStatuses"]
    )
    cluster.check()


def test_a_port_of_a_node_is_given_once() -> None:
    cluster = make(nodes=2)
    port = {"containerPort": 80, "hostPort": 8080}
    container = {"name": "c", "image": "i"}
    for name in ("a", "b", "c"):
        cluster.create(Pods, pod(name, containers=[{**container, "ports": [port]}]))
    cluster.create(
        Pods, pod("udp", containers=[{**container, "ports": [{**port, "protocol": "UDP"}]}])
    )
    cluster.converge()
    placed = {one["metadata"]["name"]: one["spec"].get("nodeName") for one in cluster.list(Pods)}
    assert sorted(str(placed[name]) for name in ("a", "b", "c")) == ["None", "node-1", "node-2"]
    assert placed["udp"]
    gone = next(name for name in ("a", "b", "c") if placed[name])
    cluster.delete(Pods, gone)
    cluster.converge()
    assert all(one["spec"].get("nodeName") for one in cluster.list(Pods)), (
        "the Pod that waited has the port"
    )
    cluster.check()


def test_pods_leave_a_node_that_they_do_not_tolerate_when_their_time_is_over() -> None:
    cluster = make(nodes=1)
    taint = {"key": "out", "effect": "NoExecute"}
    tolerated = {"key": "out", "operator": "Exists"}
    cluster.create(Pods, pod("plain"))
    cluster.create(
        Pods,
        pod("later", tolerations=[{**tolerated, "effect": "NoExecute", "tolerationSeconds": 60}]),
    )
    cluster.create(Pods, pod("stays", tolerations=[tolerated]))
    cluster.converge()
    cluster.patch(Nodes, "node-1", {"spec": {"taints": [taint]}})
    cluster.converge(limit_s=10)
    assert names(cluster) == {"later", "stays"}
    assert ("TaintManagerEviction", "Marking for deletion Pod default/plain") in notes(
        cluster, "plain"
    )
    cluster.converge(limit_s=120)
    assert names(cluster) == {"stays"}
    cluster.create(Pods, pod("new"))
    cluster.converge(limit_s=10)
    assert not cluster.get(Pods, "new")["spec"].get("nodeName")
    cluster.patch(Nodes, "node-1", {"spec": {"taints": None}})
    cluster.converge(limit_s=10)
    assert cluster.get(Pods, "new")["spec"]["nodeName"] == "node-1"
    cluster.check()


def test_a_node_has_an_address_of_each_family_that_its_pods_have() -> None:
    cluster = make(nodes=1)
    cluster.create(Pods, pod("p"))
    cluster.converge()
    addresses = cluster.get(Nodes, "node-1")["status"]["addresses"]
    assert [one["address"] for one in addresses if one["type"] == "InternalIP"] == [
        "192.0.2.1",
        "2001:db8::1",
    ]
    status = cluster.get(Pods, "p")["status"]
    assert [one["ip"] for one in status["hostIPs"]] == ["192.0.2.1", "2001:db8::1"]
    assert len(status["podIPs"]) == 2
    assert parse_nodes([{"name": "n", "podCIDRs": ["10.0.0.0/24"]}])[0].addresses == ("192.0.2.1",)
    assert make_nodes(17, [])[16].addresses == ("192.0.2.17", "2001:db8::11")
    with pytest.raises(ValueError, match="at most one of IPv4 and one of IPv6"):
        parse_nodes([{"name": "n", "address": ["192.0.2.1", "192.0.2.2"]}])


def test_conditions_and_status_say_which_generation_they_are_of() -> None:
    cluster = make()
    cluster.create(Pods, pod("p"))
    cluster.converge()

    def generations() -> set[int]:
        document = cluster.get(Pods, "p")
        status = document["status"]
        assert status["observedGeneration"] == document["metadata"]["generation"]
        return {
            one["observedGeneration"]
            for one in status["conditions"]
            if one["type"] in ("Ready", "ContainersReady")
        }

    first = generations()
    cluster.patch(Pods, "p", {"spec": {"activeDeadlineSeconds": 1000}})
    cluster.converge(limit_s=10)
    assert generations() == {number + 1 for number in first}
    assert notes(cluster, "p") == [
        (
            "Scheduled",
            f"Successfully assigned default/p to {cluster.get(Pods, 'p')['spec']['nodeName']}",
        ),
        ("Started", "Container started"),
    ]
