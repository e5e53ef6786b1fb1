"""A terminating namespace is emptied, says what remains, and goes."""

from __future__ import annotations

import pytest
from tests.slices.fake_cluster import FakeCluster, make_pod, make_service, replace

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.core import Namespace, NamespaceSpec, NamespaceStatus, Pod
from sliceplane.api.errors import StatusError, conflict
from sliceplane.api.meta import Condition, Object, ObjectMeta
from sliceplane.api.scheme import ConfigMaps, Namespaces, Pods, Services
from sliceplane.controllers.objects.namespace import (
    CACHE_LAG_S,
    DELETES_MAX,
    QUIET_S,
    NamespaceController,
)
from sliceplane.kit.times import parse_time
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Write

ENDING = "2026-11-21T12:00:00Z"


def make_namespace(name: str = "shop", *, ending: bool = True) -> Namespace:
    return Namespace(
        metadata=ObjectMeta(
            name=name, uid=f"ns-{name}", deletion_timestamp=ENDING if ending else None
        ),
        spec=NamespaceSpec(finalizers=("kubernetes",)),
    )


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.put(make_namespace(ending=False), Namespaces)
    made.put(make_namespace("other", ending=False), Namespaces)
    made.put(make_pod("p-1"))
    made.put(make_service())
    made.put(make_service(namespace="other"))
    return made


@pytest.fixture
def controller(cluster: FakeCluster) -> NamespaceController:
    made = NamespaceController()
    cluster.start(made, 0.0)
    return made


def test_active_namespaces_are_left_alone(
    cluster: FakeCluster, controller: NamespaceController
) -> None:
    cluster.settle(controller, 0.0)
    assert cluster.writes == []


def test_contents_go_pods_first_then_the_namespace(
    cluster: FakeCluster, controller: NamespaceController
) -> None:
    cluster.put(make_namespace(), Namespaces)
    now, _ = cluster.settle(controller, 10.0)
    assert sorted(cluster.objects) == [("namespaces", "", "other"), ("services", "other", "web")]
    deletes = [write.resource.key for write in cluster.writes if write.verb == "delete"]
    assert deletes == ["pods", "services"]
    last = cluster.writes[-1]
    assert (last.verb, last.subresource) == ("update", "finalize")
    assert decode_document(last.body)["spec"] == {"finalizers": []}
    assert now >= 10.0 + QUIET_S


def test_finalizers_hold_it_and_are_told(
    cluster: FakeCluster, controller: NamespaceController
) -> None:
    held = Object(metadata=ObjectMeta(name="c", namespace="shop", uid="c", finalizers=("x.io/f",)))
    cluster.put(held, ConfigMaps)
    cluster.put(make_namespace(), Namespaces)
    now, _ = cluster.settle(controller, 10.0)
    assert ("namespaces", "", "shop") in cluster.objects
    patches = [
        decode_document(write.body) for write in cluster.writes if write.subresource == "status"
    ]
    conditions = {each["type"]: each for each in patches[-1]["status"]["conditions"]}
    assert conditions["NamespaceContentRemaining"]["status"] == "True"
    assert conditions["NamespaceFinalizersRemaining"]["message"] == (
        "Some content in the namespace has finalizers remaining: x.io/f in 1 resource instances"
    )
    assert conditions["NamespaceDeletionContentFailure"]["status"] == "False"
    stored = cluster.objects["configmaps", "shop", "c"]
    cluster._settle(replace(stored, metadata=replace(stored.metadata, finalizers=None)), ConfigMaps)
    cluster.settle(controller, now + 10)
    assert ("namespaces", "", "shop") not in cluster.objects


def test_object_that_turns_up_late_is_deleted(
    cluster: FakeCluster, controller: NamespaceController
) -> None:
    cluster.put(make_namespace(), Namespaces)
    now, _ = cluster.settle(controller, 10.0)
    cluster.put(make_pod("p-2"))
    cluster.settle(controller, now + 1)
    assert ("pods", "shop", "p-2") not in cluster.objects


def test_conflict_is_tried_again(cluster: FakeCluster, controller: NamespaceController) -> None:
    cluster.remove(Pods, "shop", "p-1")
    cluster.remove(Services, "shop", "web")
    cluster.put(make_namespace(), Namespaces)
    cluster.deliver(controller, 10.0)
    assert controller.take_work(10.0, 5).jobs == ()
    (job,) = controller.take_work(10.0 + QUIET_S, 5).jobs
    controller.on_done(Done(job, (), conflict("namespaces", "", "shop", "no")), 11.0)
    cluster.settle(controller, 11.0)
    assert ("namespaces", "", "shop") not in cluster.objects


def test_many_objects_go_in_parts(cluster: FakeCluster, controller: NamespaceController) -> None:
    for number in range(DELETES_MAX + 10):
        cluster.put(make_pod(f"q-{number}", ips=("10.0.0.1",)))
    cluster.put(make_namespace(), Namespaces)
    cluster.settle(controller, 10.0)
    assert ("namespaces", "", "shop") not in cluster.objects


class Stubborn(FakeCluster):
    """Will not delete objects of some names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.stuck = names

    def perform(self, write: Write) -> bytes:
        if write.verb == "delete" and write.name in self.stuck:
            self.writes.append(write)
            raise StatusError(403, "Forbidden", f"admission webhook denied {write.name}")
        return super().perform(write)


def conditions_of(write: Write) -> dict[str, dict[str, str]]:
    return {each["type"]: each for each in decode_document(write.body)["status"]["conditions"]}


def turns(
    cluster: FakeCluster, controller: NamespaceController, now: float, seconds: float
) -> float:
    """Like ``settle``, for what never comes to rest."""
    end = now + seconds
    while now <= end:
        cluster.deliver(controller, now)
        for job in controller.take_work(now, 10).jobs:
            controller.on_done(cluster.run(job), now)
        controller.check()
        due = controller.next_deadline()
        if not cluster.pending:
            if due is None or due > end:
                return now
            now = max(now, due)
    return now


def test_what_cannot_be_deleted_holds_up_nothing_else_and_is_told() -> None:
    """Upstream goes on with other kinds after an error, too, and says what it was."""
    cluster = Stubborn("p-1", "p-2")
    cluster.put(make_namespace(), Namespaces)
    for number in range(6):
        cluster.put(
            Object(metadata=ObjectMeta(name=f"p-{number}", namespace="shop", uid=f"{number}")),
            ConfigMaps,
        )
    cluster.put(make_pod("p-9"))
    cluster.put(make_service())
    controller = NamespaceController()
    cluster.start(controller, 0.0)
    now = turns(cluster, controller, 0.0, 60.0)
    assert sorted(name for _, _, name in cluster.objects) == ["p-1", "p-2", "shop"]
    told = [conditions_of(write) for write in cluster.writes if write.subresource == "status"]
    failure = told[-1]["NamespaceDeletionContentFailure"]
    assert (failure["status"], failure["reason"]) == ("True", "ContentDeletionFailed")
    assert failure["message"] == (
        "Failed to delete all resource types, 2 remaining: admission webhook denied p-1, "
        "admission webhook denied p-2"
    )
    assert told[-1]["NamespaceContentRemaining"]["message"] == (
        "Some resources are remaining: configmaps. has 2 resource instances"
    )
    tries = [
        write.name
        for write in cluster.writes
        if write.verb == "delete" and write.name in cluster.stuck
    ]
    assert abs(tries.count("p-1") - tries.count("p-2")) <= 1, "each has its turn"
    assert len(tries) < 20, "with back-off"
    cluster.stuck = ()
    cluster.settle(controller, now + 60.0)
    assert cluster.objects == {}


def test_a_new_life_goes_on_from_the_conditions_that_it_finds(cluster: FakeCluster) -> None:
    """Also when nothing is left: what an earlier life said must not stay untrue behind another
    finalizer.
    """
    theirs = Condition(
        type="Theirs", status="True", reason="R", message="m", last_transition_time=ENDING
    )
    remaining = Condition(
        type="NamespaceContentRemaining",
        status="True",
        reason="R",
        message="m",
        last_transition_time=ENDING,
    )
    held = make_namespace("held")
    held = replace(
        held, status=NamespaceStatus(phase="Terminating", conditions=(remaining, theirs))
    )
    cluster.put(held, Namespaces)
    controller = NamespaceController()
    cluster.start(controller, 1e9)
    (job,) = controller.take_work(1e9, 10).jobs
    told = conditions_of(job.writes[0])
    assert told["Theirs"]["message"] == "m"
    assert told["NamespaceContentRemaining"]["status"] == "False"
    assert told["NamespaceContentRemaining"]["lastTransitionTime"] != ENDING


def test_a_condition_that_stays_keeps_its_time(cluster: FakeCluster) -> None:
    remaining = Condition(
        type="NamespaceContentRemaining",
        status="True",
        reason="R",
        message="m",
        last_transition_time=ENDING,
    )
    cluster.put(
        replace(
            make_namespace(), status=NamespaceStatus(phase="Terminating", conditions=(remaining,))
        ),
        Namespaces,
    )
    controller = NamespaceController()
    cluster.start(controller, 1e9)
    (job,) = controller.take_work(1e9, 10).jobs
    (patch,) = (write for write in job.writes if write.subresource == "status")
    assert conditions_of(patch)["NamespaceContentRemaining"]["lastTransitionTime"] == ENDING


def test_planning_does_not_depend_on_what_was_asked_for(
    cluster: FakeCluster, controller: NamespaceController
) -> None:
    """The third job of many looks at its own objects only."""
    for number in range(3 * DELETES_MAX):
        cluster.put(make_pod(f"q-{number}", ips=("10.0.0.1",)))
    cluster.put(make_namespace(), Namespaces)
    cluster.deliver(controller, 10.0)
    sizes = []
    for _ in range(4):
        (job,) = controller.take_work(10.0, 5).jobs
        sizes.append(sum(write.verb == "delete" for write in job.writes))
        controller.on_done(cluster.run(job), 10.0)
        controller.check()
    assert sizes == [DELETES_MAX, DELETES_MAX, DELETES_MAX, 1], "the Service waits for the Pods"
    assert controller.take_work(10.0, 5).jobs == ()


def test_contents_of_a_namespace_that_is_back_are_not_stragglers(
    cluster: FakeCluster, controller: NamespaceController
) -> None:
    """Its watch lags behind theirs: what was made in the new namespace was deleted for the
    old one.
    """
    cluster.put(make_namespace(), Namespaces)
    now, _ = cluster.settle(controller, 10.0)
    assert ("namespaces", "", "shop") not in cluster.objects
    back = make_namespace(ending=False)
    late = make_pod("p-2")
    controller.on_change(Change(Pods.key, None, late), now + 1)
    (job,) = controller.take_work(now + 1, 5).jobs
    assert [(each.verb, each.resource) for each in job.writes] == [("get", Namespaces)]
    controller.on_done(Done(job, (encode(back),)), now + 1)
    assert controller.take_work(now + 2, 5).jobs == (), "the cache is given time"
    (again,) = controller.take_work(now + 1 + CACHE_LAG_S, 5).jobs
    assert again.writes[0].verb == "get", "perhaps it is gone once more"
    controller.on_change(Change(Namespaces.key, None, back), now + 7)
    controller.on_done(Done(again, (encode(back),)), now + 7)
    assert controller.take_work(now + 60, 5).jobs == ()
    controller.check()


def test_what_came_after_the_question_is_not_condemned_by_the_answer(
    cluster: FakeCluster, controller: NamespaceController
) -> None:
    cluster.put(make_namespace(), Namespaces)
    now, _ = cluster.settle(controller, 10.0)
    controller.on_change(Change(Pods.key, None, make_pod("p-2")), now + 1)
    (job,) = controller.take_work(now + 1, 5).jobs
    controller.on_change(Change(Pods.key, None, make_pod("p-3")), now + 1)
    controller.on_done(Done(job, (b"",)), now + 1)
    (again,) = controller.take_work(now + 1, 5).jobs
    assert [each.verb for each in again.writes] == ["get"], "p-3 may be of a new namespace"
    controller.on_done(Done(again, (b"",)), now + 1)
    (deletes,) = controller.take_work(now + 1, 5).jobs
    assert [(each.verb, each.name) for each in deletes.writes] == [
        ("delete", "p-2"),
        ("delete", "p-3"),
    ]


def lingering(name: str, grace_s: int, *finalizers: str) -> Pod:
    """A Pod whose deletion was announced: its kubelet has to stop it."""
    pod = make_pod(name)
    head = replace(pod.metadata, deletion_timestamp=ENDING, finalizers=finalizers or None)
    return replace(
        pod, metadata=head, spec=replace(pod.spec, termination_grace_period_seconds=grace_s)
    )


def test_nothing_but_pods_goes_and_is_told_while_there_are_pods(cluster: FakeCluster) -> None:
    """KEP-5080: what a Pod needs until its end, a NetworkPolicy say, stays until then."""
    cluster.put(lingering("p-1", 30, "x.io/f"))
    held = Object(metadata=ObjectMeta(name="c", namespace="shop", uid="c", finalizers=("y.io/f",)))
    cluster.put(held, ConfigMaps)
    cluster.put(make_namespace(), Namespaces)
    controller = NamespaceController()
    start = parse_time(ENDING)
    cluster.start(controller, start)
    now = turns(cluster, controller, start, 100.0)
    assert [write.resource for write in cluster.writes if write.verb == "delete"] == []
    (told,) = (conditions_of(write) for write in cluster.writes if write.subresource == "status")
    assert (
        told["NamespaceContentRemaining"]["message"]
        == "Some resources are remaining: pods. has 1 resource instances"
    )
    assert told["NamespaceFinalizersRemaining"]["message"].endswith(
        "finalizers remaining: x.io/f in 1 resource instances"
    )
    assert told["NamespaceDeletionContentFailure"]["status"] == "False", (
        "its finalizer says what is waited for"
    )
    cluster.remove(Pods, "shop", "p-1")
    turns(cluster, controller, now, 10.0)
    assert [write.name for write in cluster.writes if write.verb == "delete"] == ["c", "web"]
    last = conditions_of([write for write in cluster.writes if write.subresource == "status"][-1])
    assert "y.io/f" in last["NamespaceFinalizersRemaining"]["message"]


def test_pods_that_outlast_their_grace_are_told(cluster: FakeCluster) -> None:
    """As upstream says it when no kubelet stops them."""
    cluster.put(lingering("p-1", 30))
    cluster.put(lingering("p-2", 5))
    cluster.put(make_namespace(), Namespaces)
    controller = NamespaceController()
    start = parse_time(ENDING)
    cluster.start(controller, start)
    turns(cluster, controller, start, 29.0)
    told = [conditions_of(write) for write in cluster.writes if write.subresource == "status"]
    assert [each["NamespaceDeletionContentFailure"]["status"] for each in told] == ["False"]
    turns(cluster, controller, start, 31.0)
    failure = conditions_of(cluster.writes[-1])["NamespaceDeletionContentFailure"]
    assert (failure["status"], failure["reason"]) == ("True", "ContentDeletionFailed")
    assert failure["message"] == (
        "Failed to delete all resource types, 1 remaining: "
        "unexpected items still remain in namespace: shop for gvr: /v1, Resource=pods"
    )
