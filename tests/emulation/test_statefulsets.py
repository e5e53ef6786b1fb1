"""Emulated StatefulSets: names that stay, one after the other, replaced from the highest number
down.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.emulation.emulated import Spy, bare_pod, make, names, owners, said

from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import ControllerRevisions, Pods, ResourceQuotas, StatefulSets
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.resource_quota import ResourceQuotaController
from sliceplane.emulation.history import LABEL_REVISION
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.emulation.statefulset import LABEL_POD_INDEX, LABEL_POD_NAME, StatefulSetController
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, deletion
from sliceplane.watch.controller.expectations import Expectations

LABELS = {"app": "db"}


def stateful_set(replicas: int = 3, **spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "c", "image": "db:1"}]},
    }
    needed = {
        "replicas": replicas,
        "serviceName": "db",
        "selector": {"matchLabels": LABELS},
        "template": template,
    }
    return {"metadata": {"name": "db"}, "spec": {**needed, **spec}}


def image(name: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": name}]}}}}


def images(cluster: Cluster) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in cluster.list(Pods)
    }


def status(cluster: Cluster) -> dict[str, Any]:
    told: dict[str, Any] = cluster.get(StatefulSets, "db")["status"]
    return told


CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def test_pods_have_names_that_stay_and_the_status_tells() -> None:
    cluster = make(StatefulSetController())
    cluster.create(
        StatefulSets,
        stateful_set(volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": CLAIM}]),
    )
    cluster.converge()
    assert names(cluster) == {"db-0", "db-1", "db-2"}
    pod = cluster.get(Pods, "db-1")
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("db-1", "db")
    assert pod["metadata"]["generateName"] == "db-"
    labels = pod["metadata"]["labels"]
    assert (labels[LABEL_POD_NAME], labels[LABEL_POD_INDEX], labels["app"]) == ("db-1", "1", "db")
    assert pod["spec"]["volumes"][0] == {
        "name": "data",
        "persistentVolumeClaim": {"claimName": "data-db-1"},
    }
    revision = labels[LABEL_REVISION]
    assert revision.startswith("db-")
    assert status(cluster) == {
        "observedGeneration": 1,
        "replicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
        "currentReplicas": 3,
        "updatedReplicas": 3,
        "currentRevision": revision,
        "updateRevision": revision,
        "collisionCount": 0,
    }
    assert ("SuccessfulCreate", "Create Pod db-0 in StatefulSet db successful") in said(
        cluster, "Normal"
    )
    cluster.check()


def test_a_pod_that_goes_comes_back_under_its_name() -> None:
    cluster = make(StatefulSetController())
    cluster.create(StatefulSets, stateful_set())
    cluster.converge()
    before = cluster.get(Pods, "db-1")["metadata"]["uid"]
    cluster.delete(Pods, "db-1")
    cluster.converge()
    assert names(cluster) == {"db-0", "db-1", "db-2"}
    assert cluster.get(Pods, "db-1")["metadata"]["uid"] != before


def test_a_pod_that_failed_is_made_again_under_its_name() -> None:
    """As one that its node evicted."""
    cluster = make(StatefulSetController())
    cluster.create(StatefulSets, stateful_set())
    cluster.converge()
    before = cluster.get(Pods, "db-1")["metadata"]["uid"]
    cluster.patch(Pods, "db-1", {"status": {"phase": "Failed"}}, subresource="status")
    cluster.converge()
    assert names(cluster) == {"db-0", "db-1", "db-2"}
    assert cluster.get(Pods, "db-1")["metadata"]["uid"] != before


def test_ordered_pods_wait_for_those_before_them_and_parallel_ones_do_not() -> None:
    for policy, made in (("OrderedReady", {"db-0"}), ("Parallel", {"db-0", "db-1", "db-2"})):
        cluster = make(StatefulSetController(), ready_s=5.0)
        cluster.create(StatefulSets, stateful_set(podManagementPolicy=policy))
        cluster.converge(limit_s=1)
        assert names(cluster) == made
        cluster.converge()
        assert status(cluster)["readyReplicas"] == 3


def test_scaling_down_takes_the_highest_first_and_ordinals_may_start_later() -> None:
    cluster = make(StatefulSetController())
    cluster.create(StatefulSets, stateful_set(3, ordinals={"start": 5}))
    cluster.converge()
    assert names(cluster) == {"db-5", "db-6", "db-7"}
    cluster.patch(StatefulSets, "db", {"spec": {"replicas": 1}})
    cluster.converge(limit_s=1)
    assert names(cluster) == {"db-5", "db-6"}, "db-7 has to be gone first"
    cluster.converge()
    assert names(cluster) == {"db-5"}
    cluster.patch(StatefulSets, "db", {"spec": {"ordinals": {"start": 4}, "replicas": 2}})
    cluster.converge()
    assert names(cluster) == {"db-4", "db-5"}


def test_a_rollout_goes_down_to_the_partition_and_on_when_that_is_lowered() -> None:
    cluster = make(StatefulSetController())
    cluster.create(StatefulSets, stateful_set(updateStrategy={"rollingUpdate": {"partition": 2}}))
    cluster.converge()
    cluster.patch(StatefulSets, "db", image("db:2"))
    cluster.converge()
    assert images(cluster) == {"db-0": "db:1", "db-1": "db:1", "db-2": "db:2"}
    told = status(cluster)
    assert (told["currentReplicas"], told["updatedReplicas"]) == (2, 1)
    assert told["currentRevision"] != told["updateRevision"]
    cluster.delete(Pods, "db-0")
    cluster.converge()
    assert images(cluster)["db-0"] == "db:1", "below the partition the older template counts"
    cluster.patch(
        StatefulSets, "db", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
    )
    cluster.converge()
    assert set(images(cluster).values()) == {"db:2"}
    told = status(cluster)
    assert (told["currentReplicas"], told["currentRevision"]) == (3, told["updateRevision"])


def test_a_controller_that_starts_again_knows_the_older_template() -> None:
    cluster = make(StatefulSetController())
    cluster.create(StatefulSets, stateful_set(updateStrategy={"rollingUpdate": {"partition": 3}}))
    cluster.converge()
    cluster.patch(StatefulSets, "db", image("db:2"))
    cluster.converge()
    cluster.replace(StatefulSetController(), *cluster.controllers[1:-1])
    cluster.delete(Pods, "db-0")
    cluster.converge()
    assert set(images(cluster).values()) == {"db:1"}
    older = next(one for one in cluster.list(ControllerRevisions) if one["revision"] == 1)
    cluster.delete(ControllerRevisions, older["metadata"]["name"])
    cluster.delete(Pods, "db-1")
    cluster.converge()
    assert images(cluster) == {"db-0": "db:1", "db-1": "db:2", "db-2": "db:1"}, (
        "what nobody knows any more"
    )


def test_on_delete_replaces_what_somebody_deletes() -> None:
    cluster = make(StatefulSetController())
    cluster.create(StatefulSets, stateful_set(updateStrategy={"type": "OnDelete"}))
    cluster.converge()
    cluster.patch(StatefulSets, "db", image("db:2"))
    cluster.converge()
    assert set(images(cluster).values()) == {"db:1"}
    cluster.delete(Pods, "db-1")
    cluster.converge()
    assert images(cluster) == {"db-0": "db:1", "db-1": "db:2", "db-2": "db:1"}


def test_a_rollout_waits_for_a_pod_that_does_not_become_ready() -> None:
    cluster = make(StatefulSetController(), ready_by_default=False)
    document = stateful_set()
    document["spec"]["template"]["metadata"]["annotations"] = {
        "emulation.sliceplane.dev/ready": "true"
    }
    cluster.create(StatefulSets, document)
    cluster.converge()
    broken = image("db:2")
    broken["spec"]["template"]["metadata"] = {
        "annotations": {"emulation.sliceplane.dev/ready": "false"}
    }
    cluster.patch(StatefulSets, "db", broken)
    cluster.converge()
    assert images(cluster) == {"db-0": "db:1", "db-1": "db:1", "db-2": "db:2"}
    assert status(cluster)["readyReplicas"] == 2


def test_only_pods_with_a_name_of_the_set_are_adopted() -> None:
    cluster = make(StatefulSetController())
    for name in ("db-1", "db-01", "db-x", "other-0"):
        cluster.create(Pods, bare_pod(name, **LABELS))
    cluster.converge()
    made = cluster.create(StatefulSets, stateful_set(2))
    cluster.converge()
    owned = {pod["metadata"]["name"] for pod in cluster.list(Pods) if owners(pod)}
    assert owned == {"db-0", "db-1"}
    assert owners(cluster.get(Pods, "db-1")) == [("StatefulSet", made["metadata"]["uid"])]
    assert cluster.get(Pods, "db-1")["metadata"]["labels"][LABEL_POD_NAME] == "db-1"
    cluster.check()


def test_a_quota_that_stops_it_is_told_in_an_event_and_tried_again() -> None:
    cluster = make(StatefulSetController(), ResourceQuotaController())
    cluster.create(ResourceQuotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    cluster.converge()
    cluster.create(StatefulSets, stateful_set())
    cluster.converge(limit_s=20)
    [(reason, note)] = set(said(cluster))
    assert reason == "FailedCreate"
    assert note.startswith(
        'Create Pod db-1 in StatefulSet db failed error: pods "db-1" is forbidden: exceeded quota'
    )
    cluster.patch(ResourceQuotas, "few", {"spec": {"hard": {"pods": "5"}}})
    cluster.converge(limit_s=60)
    assert status(cluster)["readyReplicas"] == 3


class Order:
    """What must hold at each change of a Pod of an ``OrderedReady`` set that nobody else
    touches.
    """

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.faults: list[str] = []

    def look(self, pods: dict[str, Pod]) -> None:
        steady = {
            name
            for name, pod in pods.items()
            if pod.is_ready and not pod.metadata.deletion_timestamp
        }
        for name in pods.keys() - self.known:
            before = {f"db-{number}" for number in range(int(name.removeprefix("db-")))}
            if not before <= steady:
                self.faults.append(f"{name} was made before {sorted(before - steady)} was ready")
        going = [name for name, pod in pods.items() if pod.metadata.deletion_timestamp]
        if len(going) > 1:
            self.faults.append(f"{sorted(going)} go at a time")
        self.known = set(pods)


@effort(40)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("replicas"), st.integers(0, 5)),
            st.tuples(st.just("image"), st.integers(1, 3)),
            st.tuples(st.just("partition"), st.integers(0, 4)),
            st.tuples(st.just("wait"), st.integers(1, 8)),
        ),
        max_size=8,
    ),
    ready_s=st.sampled_from([0.0, 1.0]),
)
def test_ordered_pods_come_and_go_one_after_the_other(
    steps: list[tuple[str, int]], ready_s: float
) -> None:
    order = Order()
    cluster = make(StatefulSetController(), Spy(order.look), ready_s=ready_s)
    cluster.create(StatefulSets, stateful_set(2))
    for step, number in steps:
        match step:
            case "replicas":
                cluster.patch(StatefulSets, "db", {"spec": {"replicas": number}})
            case "image":
                cluster.patch(StatefulSets, "db", image(f"db:{number}"))
            case "partition":
                rolling = {"updateStrategy": {"rollingUpdate": {"partition": number}}}
                cluster.patch(StatefulSets, "db", {"spec": rolling})
            case "wait":
                cluster.converge(limit_s=number)
    cluster.converge()
    assert order.faults == []
    spec = cluster.get(StatefulSets, "db")["spec"]
    newest = spec["template"]["spec"]["containers"][0]["image"]
    partition = spec["updateStrategy"]["rollingUpdate"]["partition"]
    shown = images(cluster)
    assert set(shown) == {f"db-{number}" for number in range(spec["replicas"])}
    assert {shown[name] for name in shown if int(name[3:]) >= partition} <= {newest}
    cluster.check()


DEEDS = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 5)),
    st.tuples(st.just("image"), st.integers(1, 3)),
    st.tuples(st.just("start"), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.integers(0, 7)),
    st.tuples(st.just("fail"), st.integers(0, 7)),
    st.tuples(st.just("relabel"), st.integers(0, 7)),
    st.tuples(st.just("wait"), st.integers(0, 10)),
    st.tuples(st.just("restart")),
)


def perform(cluster: Cluster, deed: tuple[Any, ...]) -> None:
    found = sorted(names(cluster))
    match deed:
        case ("scale", replicas):
            cluster.patch(StatefulSets, "db", {"spec": {"replicas": replicas}})
        case ("image", number):
            cluster.patch(StatefulSets, "db", image(f"db:{number}"))
        case ("start", number):
            cluster.patch(StatefulSets, "db", {"spec": {"ordinals": {"start": number}}})
        case ("delete", index) if found:
            cluster.delete(Pods, found[index % len(found)])
        case ("fail", index) if found:
            cluster.patch(
                Pods,
                found[index % len(found)],
                {"status": {"phase": "Failed"}},
                subresource="status",
            )
        case ("relabel", index) if found:
            pod = found[index % len(found)]
            cluster.patch(Pods, pod, {"metadata": {"labels": {LABEL_POD_NAME: None}}})
        case ("wait", seconds):
            cluster.converge(limit_s=seconds)
        case ("restart",):
            kubelet = KubeletController(EmulationConfig(nodes=make_nodes(3, ["a", "b"])))
            cluster.replace(StatefulSetController(), kubelet, GarbageCollector())


@effort(60)
@given(deeds=st.lists(DEEDS, max_size=12), policy=st.sampled_from(["OrderedReady", "Parallel"]))
def test_whatever_happened_the_set_ends_with_exactly_its_pods(
    deeds: list[tuple[Any, ...]], policy: str
) -> None:
    cluster = make(StatefulSetController(), GarbageCollector())
    cluster.create(StatefulSets, stateful_set(2, podManagementPolicy=policy))
    for deed in deeds:
        perform(cluster, deed)
    cluster.converge()
    cluster.check()
    spec, told = cluster.get(StatefulSets, "db")["spec"], status(cluster)
    start, replicas = spec.get("ordinals", {}).get("start", 0), spec["replicas"]
    pods = cluster.list(Pods)
    assert {pod["metadata"]["name"] for pod in pods} == {
        f"db-{start + number}" for number in range(replicas)
    }
    assert {pod["metadata"]["labels"][LABEL_REVISION] for pod in pods} <= {told["updateRevision"]}
    assert all(pod["metadata"]["labels"][LABEL_POD_NAME] == pod["metadata"]["name"] for pod in pods)
    counts = (
        "replicas",
        "readyReplicas",
        "availableReplicas",
        "updatedReplicas",
        "currentReplicas",
    )
    assert [told.get(name, 0) for name in counts] == [replicas] * 5
    assert told["currentRevision"] == told["updateRevision"]


def test_the_answer_to_a_delete_that_comes_after_its_event_holds_nobody_up() -> None:
    """The next Pod of that name waited half a minute for a version that the one before it would
    never show.
    """
    expectations = Expectations()
    meta = ObjectMeta(name="db-0", namespace="default", uid="u", resource_version="5")
    expectations.observe(Change(Pods.key, None, Pod(metadata=meta)))
    expectations.observe(Change(Pods.key, Pod(metadata=meta), None))
    gone = {"kind": "Pod", "metadata": {"name": "db-0", "uid": "u", "resourceVersion": "6"}}
    job = Job(key="pod/default/db-0", writes=(deletion(Pods, meta),))
    expectations.expect(Done(job, (encode(gone),)), 1.0)
    assert expectations.pending("pod/default/db-0", 2.0) is None
