"""A terminating namespace is emptied, says what remains, and goes."""

from __future__ import annotations

import pytest
from tests.slices.fake_cluster import FakeCluster, make_pod, make_service, replace

from sliceplane.api.codec import decode_document
from sliceplane.api.core import Namespace, NamespaceSpec
from sliceplane.api.errors import conflict
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import ConfigMaps, Namespaces, Pods, Services
from sliceplane.controllers.base import Done
from sliceplane.controllers.namespace import DELETES_MAX, QUIET_S, NamespaceController

ENDING = "2026-11-21T12:00:00Z"


def make_namespace(name: str = "shop", *, ending: bool = True) -> Namespace:
    return Namespace(
        metadata=ObjectMeta(name=name, uid=f"ns-{name}", deletion_timestamp=ENDING if ending else None),
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


def test_active_namespaces_are_left_alone(cluster: FakeCluster, controller: NamespaceController) -> None:
    cluster.settle(controller, 0.0)
    assert cluster.writes == []


def test_contents_go_pods_first_then_the_namespace(cluster: FakeCluster, controller: NamespaceController) -> None:
    cluster.put(make_namespace(), Namespaces)
    now, _ = cluster.settle(controller, 10.0)
    assert sorted(cluster.objects) == [("namespaces", "", "other"), ("services", "other", "web")]
    deletes = [write.resource.key for write in cluster.writes if write.verb == "delete"]
    assert deletes == ["pods", "services"]
    last = cluster.writes[-1]
    assert (last.verb, last.subresource) == ("update", "finalize")
    assert decode_document(last.body)["spec"] == {"finalizers": []}
    assert now >= 10.0 + QUIET_S


def test_finalizers_hold_it_and_are_told(cluster: FakeCluster, controller: NamespaceController) -> None:
    held = Object(metadata=ObjectMeta(name="c", namespace="shop", uid="c", finalizers=("x.io/f",)))
    cluster.put(held, ConfigMaps)
    cluster.put(make_namespace(), Namespaces)
    now, _ = cluster.settle(controller, 10.0)
    assert ("namespaces", "", "shop") in cluster.objects
    patches = [decode_document(write.body) for write in cluster.writes if write.subresource == "status"]
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


def test_object_that_turns_up_late_is_deleted(cluster: FakeCluster, controller: NamespaceController) -> None:
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
