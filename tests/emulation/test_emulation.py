"""Workload emulation on the production registry and store, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.emulation.emulated import deployment

from sliceplane.api.scheme import Deployments, Namespaces, Nodes, Pods, ReplicaSets
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.deployments.rollout import Counts, limits, newest_size, older_sizes
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes, parse_nodes
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.emulation.templates import template_hash
from sliceplane.lab.sim.cluster import Cluster

NONE_FITS = (
    "none is schedulable, has the labels asked for, tolerated taints, free ports and a Pod "
    "address left"
)


def make(**config: Any) -> tuple[DeploymentController, ReplicaSetController, KubeletController]:
    nodes = make_nodes(3, ["zone-a", "zone-b"])
    return (
        DeploymentController(),
        ReplicaSetController(),
        KubeletController(EmulationConfig(nodes=nodes, **config)),
    )


def ready(pod: dict[str, Any]) -> bool:
    return any(
        c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ())
    )


def warnings(cluster: Cluster) -> list[tuple[str, str]]:
    return [(note.reason, note.note) for note in cluster.notes if note.type == "Warning"]


def images(cluster: Cluster) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in cluster.list(Pods))


def test_pods_spread_over_the_zone_that_a_node_is_labelled_with_now() -> None:
    cluster = Cluster(*make())
    cluster.converge()

    def label(node: str, zone: str) -> None:
        cluster.patch(Nodes, node, {"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}})

    def nodes() -> list[str]:
        return sorted(pod["spec"]["nodeName"] for pod in cluster.list(Pods))

    label("node-2", "zone-a")
    label("node-3", "zone-b")
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    assert nodes() == ["node-1", "node-3"]
    label("node-2", "zone-b")
    label("node-3", "zone-a")
    cluster.patch(Deployments, "web", {"spec": {"replicas": 3}})
    cluster.converge()
    cluster.check()
    assert nodes() == ["node-1", "node-2", "node-3"]


def test_a_deployment_becomes_ready_pods_spread_over_zones() -> None:
    cluster = Cluster(*make())
    cluster.create(Deployments, deployment(4))
    cluster.converge()
    pods = cluster.list(Pods)
    assert len(pods) == 4
    assert all(ready(pod) and pod["status"]["phase"] == "Running" for pod in pods)
    zones = sorted(pod["metadata"]["labels"]["topology.kubernetes.io/zone"] for pod in pods)
    assert zones == ["zone-a", "zone-a", "zone-b", "zone-b"]
    addresses = [item["ip"] for pod in pods for item in pod["status"]["podIPs"]]
    assert len(set(addresses)) == 8, "two families each, no address twice"
    status = cluster.get(Deployments, "web")["status"]
    assert status["availableReplicas"] == status["updatedReplicas"] == status["replicas"] == 4
    assert {c["type"]: c["reason"] for c in status["conditions"]} == {
        "Available": "MinimumReplicasAvailable",
        "Progressing": "NewReplicaSetAvailable",
    }
    cluster.check()


def test_emulated_nodes_register_ready_and_lose_the_taint_of_new_nodes() -> None:
    cluster = Cluster(*make())
    cluster.converge()
    for node in cluster.list(Nodes):
        assert "taints" not in node["spec"]
        assert [(c["type"], c["status"]) for c in node["status"]["conditions"]] == [
            ("Ready", "True")
        ]
        assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] in ("zone-a", "zone-b")


def test_at_rest_nothing_is_written_and_a_restart_writes_nothing() -> None:
    cluster = Cluster(*make())
    cluster.create(Deployments, deployment())
    cluster.converge()
    before = cluster.store.revision
    cluster.converge(limit_s=10_000)
    cluster.replace(*make())
    cluster.converge(limit_s=10_000)
    assert cluster.store.revision == before


def test_rolling_update_keeps_within_surge_and_unavailable() -> None:
    cluster = Cluster(*make(ready_s=5.0))
    cluster.create(Deployments, deployment(4))
    cluster.converge()
    cluster.patch(Deployments, "web", deployment(4, image="web:2"))
    seen_old_and_new = False
    for _ in range(200):
        cluster.converge(limit_s=0.5)
        pods = [pod for pod in cluster.list(Pods) if not pod["metadata"].get("deletionTimestamp")]
        assert len(pods) <= 4 + 1
        assert sum(ready(pod) for pod in pods) >= 4 - 1
        seen_old_and_new |= len({pod["spec"]["containers"][0]["image"] for pod in pods}) == 2
        cluster.now += 0.5
    assert seen_old_and_new
    assert images(cluster) == ["web:2"] * 4
    sets = cluster.list(ReplicaSets)
    assert sorted(item["spec"]["replicas"] for item in sets) == [0, 4]
    cluster.check()


def test_undo_reuses_the_old_set_with_a_higher_revision() -> None:
    cluster = Cluster(*make())
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    cluster.patch(Deployments, "web", deployment(2, image="web:2"))
    cluster.converge()
    cluster.patch(Deployments, "web", deployment(2, image="web:1"))
    cluster.converge()
    sets = {
        item["spec"]["replicas"]: item["metadata"]["annotations"]
        for item in cluster.list(ReplicaSets)
    }
    assert sets[2]["deployment.kubernetes.io/revision"] == "3"
    assert sets[0]["deployment.kubernetes.io/revision"] == "2"
    annotations = cluster.get(Deployments, "web")["metadata"]["annotations"]
    assert annotations["deployment.kubernetes.io/revision"] == "3"


def test_recreate_never_mixes_versions() -> None:
    cluster = Cluster(*make())
    cluster.create(Deployments, deployment(3, strategy={"type": "Recreate"}))
    cluster.converge()
    cluster.patch(Deployments, "web", deployment(3, image="web:2"))
    for _ in range(50):
        cluster.converge(limit_s=0.2)
        assert len({pod["spec"]["containers"][0]["image"] for pod in cluster.list(Pods)}) <= 1
        cluster.now += 0.2
    assert images(cluster) == ["web:2"] * 3


def test_history_is_bounded() -> None:
    cluster = Cluster(*make())
    cluster.create(Deployments, deployment(1, revisionHistoryLimit=2))
    for number in range(1, 6):
        cluster.converge()
        cluster.patch(Deployments, "web", deployment(1, image=f"web:{number + 1}"))
    cluster.converge()
    assert len(cluster.list(ReplicaSets)) == 3


def test_scale_to_zero_and_back() -> None:
    cluster = Cluster(*make())
    cluster.create(Deployments, deployment(3))
    cluster.converge()
    cluster.patch(Deployments, "web", {"spec": {"replicas": 0}})
    cluster.converge()
    assert cluster.list(Pods) == []
    cluster.patch(Deployments, "web", {"spec": {"replicas": 2}})
    cluster.converge()
    assert len(cluster.list(Pods)) == 2
    assert len(cluster.list(ReplicaSets)) == 1


def test_a_deleted_pod_terminates_gracefully_and_is_replaced_meanwhile() -> None:
    cluster = Cluster(*make(termination_s=2.0))
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    victim = cluster.list(Pods)[0]["metadata"]["name"]
    cluster.delete(Pods, victim)
    cluster.converge(limit_s=1.0)
    pods = {pod["metadata"]["name"]: pod for pod in cluster.list(Pods)}
    assert ready(pods[victim]), "it serves while it terminates"
    assert sum(ready(pod) for pod in pods.values()) == 3
    assert cluster.converge() <= 2.0
    assert victim not in {pod["metadata"]["name"] for pod in cluster.list(Pods)}
    cluster.check()


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_jumps_holds_no_pod_up(jump_s: float) -> None:
    """The server stamps by a clock that was set; the host's clock goes on steadily."""
    cluster = Cluster(*make(start_s=1.0, termination_s=2.0))
    cluster.ahead_s = jump_s
    cluster.create(Deployments, deployment(2))
    assert cluster.converge(limit_s=60) <= 2.0
    pods = cluster.list(Pods)
    assert all(ready(pod) for pod in pods)
    cluster.delete(Pods, pods[0]["metadata"]["name"])
    assert cluster.converge(limit_s=60) <= 3.0
    assert len(cluster.list(Pods)) == 2


def test_readiness_can_be_handed_to_somebody_else() -> None:
    cluster = Cluster(*make(ready_by_default=False))
    cluster.create(Deployments, deployment(1))
    cluster.converge()
    (pod,) = cluster.list(Pods)
    assert pod["status"]["podIPs"]
    assert not ready(pod)
    name = pod["metadata"]["name"]
    for said, expected in (("true", True), ("false", False), ("true", True)):
        cluster.patch(
            Pods, name, {"metadata": {"annotations": {"emulation.sliceplane.dev/ready": said}}}
        )
        cluster.converge()
        assert ready(cluster.get(Pods, name)) is expected


def test_a_pod_that_fits_nowhere_waits_and_says_why() -> None:
    cluster = Cluster(*make())
    wanted = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"disk": "ssd"}},
    }
    cluster.create(Pods, wanted)
    cluster.converge()
    assert "nodeName" not in cluster.get(Pods, "p")["spec"]
    assert {reason for reason, _ in warnings(cluster)} == {"FailedScheduling"}
    cluster.patch(Nodes, "node-2", {"metadata": {"labels": {"disk": "ssd"}}})
    cluster.converge()
    assert cluster.get(Pods, "p")["spec"]["nodeName"] == "node-2"


def test_full_nodes_take_no_pods_and_those_that_wait_get_the_places_that_become_free() -> None:
    nodes = parse_nodes(
        [
            {"name": "small", "zone": "a", "podCIDRs": ["10.1.0.0/29"]},
            {"name": "large", "zone": "b", "podCIDRs": ["10.2.0.0/28"]},
        ]
    )
    room = (8 - 3) + (16 - 3)
    cluster = Cluster(
        DeploymentController(),
        ReplicaSetController(),
        KubeletController(EmulationConfig(nodes=nodes)),
    )
    cluster.converge()
    cluster.create(Deployments, deployment(room))
    cluster.converge()
    assert sum(ready(pod) for pod in cluster.list(Pods)) == room, (
        "zones are spread over no further than they reach"
    )
    assert not warnings(cluster)
    cluster.patch(Deployments, "web", {"spec": {"replicas": room + 3}})
    cluster.converge()
    waiting = [
        pod["metadata"]["name"] for pod in cluster.list(Pods) if "nodeName" not in pod["spec"]
    ]
    assert len(waiting) == 3
    assert (
        warnings(cluster)
        == [
            (
                "FailedScheduling",
                f"0/2 emulated nodes fit: {NONE_FITS}",
            )
        ]
        * 3
    )
    cluster.patch(Deployments, "web", {"spec": {"replicas": room}})
    cluster.converge()
    assert sum(ready(pod) for pod in cluster.list(Pods)) == room
    cluster.check()


def test_a_pod_bound_to_a_full_node_by_hand_says_why_it_does_not_start() -> None:
    nodes = parse_nodes([{"name": "tiny", "podCIDRs": ["10.1.0.0/30"]}])
    cluster = Cluster(KubeletController(EmulationConfig(nodes=nodes)))
    cluster.converge()
    for name in ("first", "second"):
        spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "tiny"}
        cluster.create(Pods, {"metadata": {"name": name}, "spec": spec})
    cluster.converge()
    assert warnings(cluster) == [("FailedCreatePodSandBox", "node tiny has no Pod address left")]
    cluster.delete(Pods, "first")
    cluster.converge()
    assert ready(cluster.get(Pods, "second"))
    cluster.check()


def test_an_orphaned_set_is_adopted_by_the_next_deployment_of_its_name() -> None:
    cluster = Cluster(*make(), GarbageCollector())
    cluster.create(Deployments, deployment(3))
    cluster.converge()
    (before,) = cluster.list(ReplicaSets)
    pods = {pod["metadata"]["uid"] for pod in cluster.list(Pods)}
    cluster.delete(Deployments, "web", propagationPolicy="Orphan")
    cluster.converge()
    assert not cluster.list(Deployments)
    created = cluster.create(Deployments, deployment(3))
    cluster.converge()
    (after,) = cluster.list(ReplicaSets)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [owner["uid"] for owner in after["metadata"]["ownerReferences"]] == [
        created["metadata"]["uid"]
    ]
    assert {pod["metadata"]["uid"] for pod in cluster.list(Pods)} == pods, "no Pod was restarted"
    assert cluster.get(Deployments, "web")["status"]["availableReplicas"] == 3
    cluster.check()


def test_nothing_is_tried_again_in_a_namespace_that_goes() -> None:
    cluster = Cluster(*make())
    cluster.converge()
    cluster.create(Namespaces, {"metadata": {"name": "going"}}, namespace="")
    cluster.create(Deployments, deployment(3), namespace="going")
    cluster.converge()
    cluster.delete(Namespaces, "going", namespace="")
    cluster.patch(Deployments, "web", {"spec": {"replicas": 5}}, namespace="going")
    assert cluster.converge() < 1.0, "no back-off is waited for"
    assert len(cluster.list(Pods, namespace="going")) == 3


def test_progress_deadline_is_noticed_without_any_event() -> None:
    cluster = Cluster(*make(ready_by_default=False))
    cluster.create(Deployments, deployment(1, progressDeadlineSeconds=30))
    cluster.converge(limit_s=100)
    conditions = {c["type"]: c for c in cluster.get(Deployments, "web")["status"]["conditions"]}
    assert conditions["Progressing"]["reason"] == "ProgressDeadlineExceeded"
    assert conditions["Available"]["status"] == "False"


def test_a_paused_deployment_scales_but_does_not_roll() -> None:
    cluster = Cluster(*make())
    cluster.create(Deployments, deployment(2))
    cluster.converge()
    cluster.patch(Deployments, "web", deployment(3, image="web:2", paused=True))
    cluster.converge()
    assert images(cluster) == ["web:1"] * 3


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ("x", "expected a list of nodes"),
        ([], "expected a list of nodes"),
        ([{"zone": "a"}], "node 1: expected a mapping with a name"),
        ([{"name": "n", "colour": "red"}], "node n: unknown member 'colour'"),
        ([{"name": "N"}], "node N: a lowercase RFC 1123 subdomain"),
        (
            [{"name": "n", "podCIDRs": ["10.0.0.1/8"]}],
            "node n: podCIDRs: 10.0.0.1/8 has host bits set",
        ),
        ([{"name": "n"}, {"name": "n"}], "node n: named more than once"),
        (
            [{"name": "n", "podCIDRs": None}],
            "node n: podCIDRs: expected a list of address ranges, got None",
        ),
        ([{"name": "n", "podCIDRs": [5]}], "node n: podCIDRs: expected a list of address ranges"),
        (
            [{"name": "n", "podCIDRs": "10.0.0.0/8"}],
            "node n: podCIDRs: expected a list of address ranges",
        ),
        (
            [{"name": "n", "podCIDRs": ["10.0.0.0/31"]}],
            "node n: podCIDRs: 10.0.0.0/31 has room for no Pod",
        ),
        ([{"name": "n", "address": "here"}], "node n: address: 'here' is not an IP address"),
        (
            [{"name": "n", "address": 7}],
            "node n: address: 7 is not an IP address or a list of them",
        ),
        ([{"name": "n", "labels": "x"}], "node n: labels: expected a mapping, got 'x'"),
        ([{"name": "n", "labels": {"a b": "c"}}], "node n: name part must consist of"),
        ([{"name": "n", "region": "a b"}], "node n: a valid label must be"),
        ([{"name": f"n{i}"} for i in range(251)], "at most 250"),
    ],
)
def test_bad_node_files_are_named(entries: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_nodes(entries)


def test_template_hash_ignores_its_own_label_and_nothing_else() -> None:
    plain = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}
    labelled = {**plain, "metadata": {"labels": {"app": "web", "pod-template-hash": "x"}}}
    other = {**plain, "metadata": {"labels": {"app": "other"}}}
    assert template_hash(plain) == template_hash(labelled) != template_hash(other)


@effort(300)
@given(
    replicas=st.integers(0, 12),
    surge=st.integers(0, 5),
    unavailable=st.integers(0, 5),
    newest=st.integers(0, 12),
    older=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=3),
    data=st.data(),
)
def test_rollout_arithmetic_keeps_its_bounds_and_always_ends(
    replicas: int,
    surge: int,
    unavailable: int,
    newest: int,
    older: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    unavailable = min(unavailable, replicas)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    new = Counts("new", newest, data.draw(st.integers(0, newest)))
    old = [Counts(f"old{n}", wanted, min(have, wanted)) for n, (wanted, have) in enumerate(older)]
    for _ in range(200):
        size = newest_size(replicas, surge, new, old)
        assert size <= max(replicas, new.desired)
        if size > new.desired:
            assert size + sum(one.desired for one in old) <= replicas + surge
        if size != new.desired:
            new = Counts("new", size, min(new.available, size))
        else:
            available = new.available + sum(one.available for one in old)
            sizes = older_sizes(replicas, unavailable, new, old)
            assert all(0 <= sizes[one.name] <= one.desired for one in old)
            old = [Counts(o.name, sizes[o.name], min(o.available, sizes[o.name])) for o in old]
            left = new.available + sum(one.available for one in old)
            assert left >= min(available, replicas - unavailable), (
                "took away more available Pods than allowed"
            )
        new = Counts("new", new.desired, new.desired)  # everything becomes available at last
    assert new.desired == replicas
    assert all(one.desired == 0 for one in old)


def test_limits_resolve_percentages() -> None:
    from sliceplane.api.apps import DeploymentStrategy, RollingUpdateDeployment

    def of(surge: int | str | None, unavailable: int | str | None) -> tuple[int, int]:
        return limits(
            DeploymentStrategy(
                rolling_update=RollingUpdateDeployment(max_surge=surge, max_unavailable=unavailable)
            ),
            5,
        )

    assert of(None, None) == (2, 1)
    assert of("50%", 0) == (3, 0)
    assert of(0, 0) == (0, 1)
    assert of(0, 9) == (0, 5), "no more can be missing than there are"
    assert limits(DeploymentStrategy(type="Recreate"), 5) == (0, 0)


def bare(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def test_a_pod_ends_at_its_deadline_which_may_be_set_later() -> None:
    """Pods should allow activeDeadlineSeconds to be updated."""
    cluster = Cluster(*make())
    cluster.create(Pods, bare())
    cluster.converge()
    began = cluster.now
    cluster.patch(Pods, "p", {"spec": {"activeDeadlineSeconds": 60}})
    cluster.converge(limit_s=50)
    assert cluster.get(Pods, "p")["status"]["phase"] == "Running"
    cluster.converge()
    assert 55 <= cluster.now - began <= 61
    status = cluster.get(Pods, "p")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["message"] == "Pod was active on the node longer than the specified deadline"
    assert not ready({"status": status})
    assert list(status["containerStatuses"][0]["state"]) == ["terminated"]


def test_a_container_for_debugging_runs_beside_the_others() -> None:
    """Ephemeral Containers will start an ephemeral container in an existing pod."""
    cluster = Cluster(*make())
    cluster.create(Pods, bare())
    cluster.converge()
    for names in (["look"], ["look", "again"]):
        wanted = [{"name": name, "image": "busybox"} for name in names]
        cluster.patch(
            Pods, "p", {"spec": {"ephemeralContainers": wanted}}, subresource="ephemeralcontainers"
        )
        cluster.converge()
        pod = cluster.get(Pods, "p")
        told = {
            one["name"]: list(one["state"]) for one in pod["status"]["ephemeralContainerStatuses"]
        }
        assert told == {name: ["running"] for name in names}
        assert ready(pod)
    before = len(cluster.writes)
    cluster.converge()
    assert len(cluster.writes) == before
