"""Objects go when their owners are gone, and never before."""

from __future__ import annotations

import pytest
from tests.controllers.objects.owned_objects import Plane, owned_by, put
from tests.slices.fake_cluster import FakeCluster, replace

from sliceplane.api.codec import decode_document
from sliceplane.api.errors import StatusError, internal, unknown_resource
from sliceplane.api.meta import OwnerReference
from sliceplane.api.scheme import ConfigMaps, Nodes, Services
from sliceplane.controllers.objects.garbage_collector import (
    ORPHANS_MAX,
    VERIFY_DELAY_S,
    GarbageCollector,
)
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done


@pytest.fixture
def plane() -> Plane:
    return Plane()


def test_dependents_go_with_their_owner(plane: Plane) -> None:
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.add("ConfigMap", "b", "c2", owned_by("ConfigMap", "a", "c1"))
    plane.add("ConfigMap", "free", "c3")
    plane.settle()
    assert plane.names() == ["a", "b", "free", "web"]
    assert plane.cluster.writes == []
    plane.cluster.delete(Services, "shop", "web")
    plane.settle()
    assert plane.names() == ["free"]


def test_owner_with_another_uid_is_no_owner(plane: Plane) -> None:
    plane.add("Service", "web", "new")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "old"))
    plane.settle()
    assert plane.names() == ["web"]


def test_owner_in_another_namespace_is_no_owner(plane: Plane) -> None:
    plane.add("Service", "web", "s1", namespace="other")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.settle()
    assert plane.names() == ["web"]


def test_dependent_seen_before_its_owner_stays(plane: Plane) -> None:
    """The caches of two kinds lag differently; the server is asked before anything is deleted."""
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.cluster.pending.reverse()
    plane.cluster.deliver(plane.controller, 0.0, 1)
    assert plane.controller.take_work(0.0, 10).jobs == ()
    assert plane.controller.next_deadline() == 1.0
    (job,) = plane.jobs(1.0)
    assert [write.verb for write in job.writes] == ["get"]
    plane.finish(job)
    plane.settle()
    assert plane.names() == ["a", "web"]


@pytest.mark.parametrize(
    "error", [internal("no"), unknown_resource(), StatusError(403, "Forbidden", "no")]
)
def test_unclear_answer_deletes_nothing(plane: Plane, error: StatusError) -> None:
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.deliver()
    plane.controller.take_work(0.0, 10)
    (job,) = plane.controller.take_work(1.0, 10).jobs
    plane.controller.on_done(Done(job, (), error), 1.0)
    assert plane.controller.take_work(1.0, 10).jobs == ()
    assert plane.controller.next_deadline() == 1.5


def test_unwatched_owner_kinds_are_believed(plane: Plane) -> None:
    custom = OwnerReference(api_version="example.com/v1", kind="Database", name="x", uid="u")
    plane.add("ConfigMap", "a", "c1", custom)
    plane.settle()
    assert plane.names() == ["a"]


def test_dangling_reference_beside_a_solid_one_is_taken_out(plane: Plane) -> None:
    solid, gone = owned_by("Service", "web", "s1"), owned_by("Service", "old", "s2")
    plane.add("Service", "web", "s1")
    plane.add("Service", "old", "s2")
    plane.add("ConfigMap", "a", "c1", gone, solid)
    plane.delete(Services, "old")
    plane.settle()
    assert plane.owners("a") == (solid,)


def test_foreground_deletion_waits_for_blocking_dependents(plane: Plane) -> None:
    plane.add("Service", "web", "s1")
    owner = owned_by("Service", "web", "s1", blocks=True)
    plane.add("ConfigMap", "a", "c1", owner, finalizers=("x.io/hold",))
    plane.delete(Services, "web", "Foreground")
    plane.settle()
    assert plane.names() == ["a", "web"]
    assert plane.cluster.objects["configmaps", "shop", "a"].metadata.deletion_timestamp
    held = plane.cluster.objects["configmaps", "shop", "a"]
    plane.cluster._settle(
        replace(held, metadata=replace(held.metadata, finalizers=None)), ConfigMaps
    )
    plane.settle()
    assert plane.names() == []


def test_foreground_circle_is_cut(plane: Plane) -> None:
    plane.add("ConfigMap", "a", "c1", owned_by("ConfigMap", "b", "c2", blocks=True))
    plane.add("ConfigMap", "b", "c2", owned_by("ConfigMap", "a", "c1", blocks=True))
    plane.delete(ConfigMaps, "a", "Foreground")
    plane.settle()
    assert plane.names() == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_circle_of_which_each_is_deleted_in_the_foreground_is_cut(plane: Plane, size: int) -> None:
    for number in range(size):
        owner = owned_by(
            "ConfigMap", f"c{(number + 1) % size}", f"u{(number + 1) % size}", blocks=True
        )
        plane.add("ConfigMap", f"c{number}", f"u{number}", owner)
    for number in range(size):
        plane.cluster.delete(ConfigMaps, "shop", f"c{number}", "Foreground")
    plane.settle()
    assert plane.names() == []


def test_what_cannot_be_collected_does_not_hold_its_owner(plane: Plane) -> None:
    plane.add("Service", "web", "s1")
    plane.add("Node", "n", "n1", owned_by("Service", "web", "s1", blocks=True))
    plane.delete(Services, "web", "Foreground")
    plane.settle()
    assert plane.names() == ["n"]


@pytest.mark.parametrize("wrong", ["namespace", "name", "kind"])
def test_foreground_deletion_is_not_held_up_by_an_object_that_it_does_not_own(
    plane: Plane, wrong: str
) -> None:
    """The uid of an owner can be read off any of its dependents; one in another namespace with a
    finalizer of its own kept the owner for ever, as upstream.
    """
    plane.add("Service", "web", "s1")
    name, kind = (
        ("other" if wrong == "name" else "web"),
        ("ConfigMap" if wrong == "kind" else "Service"),
    )
    owner = owned_by(kind, name, "s1", blocks=True)
    namespace = "evil" if wrong == "namespace" else "shop"
    plane.add("ConfigMap", "a", "c1", owner, namespace=namespace, finalizers=("x.io/hold",))
    plane.delete(Services, "web", "Foreground")
    plane.settle()
    assert plane.names() == ["a"]


@pytest.mark.parametrize("namespace", ["shop", "evil"])
def test_foreground_deletion_of_a_cluster_wide_owner_waits_for_dependents_of_every_namespace(
    plane: Plane, namespace: str
) -> None:
    plane.add("Node", "n", "n1")
    owner = owned_by("Node", "n", "n1", blocks=True)
    plane.add("ConfigMap", "a", "c1", owner, namespace=namespace, finalizers=("x.io/hold",))
    plane.delete(Nodes, "n", "Foreground")
    plane.settle()
    assert plane.names() == ["a", "n"]


def test_an_object_of_another_namespace_makes_no_circle(plane: Plane) -> None:
    """A circle is cut by not blocking the owner any more: a stranger must not take that from an
    object.
    """
    plane.add("Service", "web", "s1")
    plane.add(
        "ConfigMap",
        "a",
        "c1",
        owned_by("Service", "web", "s1", blocks=True),
        finalizers=("x.io/hold",),
    )
    plane.add(
        "Service", "loop", "e1", owned_by("ConfigMap", "a", "c1", blocks=True), namespace="evil"
    )
    waited_for = owned_by("Service", "loop", "e1", blocks=True)
    plane.add("ConfigMap", "b", "e2", waited_for, namespace="evil", finalizers=("x.io/hold",))
    plane.deliver()
    plane.cluster.delete(Services, "evil", "loop", "Foreground")
    plane.cluster.delete(Services, "shop", "web", "Foreground")
    plane.settle()
    (reference,) = plane.owners("a") or ()
    assert reference.block_owner_deletion
    assert "web" in plane.names()


def test_orphaning_lets_go_of_what_is_owned_and_writes_nothing_elsewhere(plane: Plane) -> None:
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.add("ConfigMap", "b", "c2", owned_by("Service", "web", "s1"), namespace="evil")
    plane.delete(Services, "web", "Orphan")
    plane.deliver()
    jobs = [job for job in plane.controller.take_work(0.0, 10).jobs if job.key == "s1"]
    assert {write.namespace for job in jobs for write in job.writes} == {"shop"}


def test_references_that_come_and_go_leave_nothing_behind(plane: Plane) -> None:
    """An account that changes what its object names, over and over, must not grow the collector."""
    plane.add("Service", "web", "s1")
    plane.add("Service", "web", "s2", namespace="other")
    plane.add("ConfigMap", "kept", "c0", owned_by("Service", "web", "s1"))
    for number in range(20):
        wrong = (
            owned_by("Service", f"no-{number}", "s1"),
            owned_by("Service", "web", "s1"),
            owned_by("Node", "n", "s2"),
        )
        node_owner = owned_by("Service", "web", f"u{number}")
        plane.add("ConfigMap", "a", "c1", *wrong)
        plane.add("Node", "n", "n1", node_owner)
        plane.settle()
        plane.controller.check()
    assert sum(map(len, plane.controller._graph._gone.values())) <= 2
    assert sum(map(len, plane.controller._told.values())) <= 1


def test_orphaning_lets_dependents_live(plane: Plane) -> None:
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.delete(Services, "web", "Orphan")
    plane.settle()
    assert plane.names() == ["a"]
    assert plane.owners("a") is None


def test_an_owner_is_asked_for_once_however_many_ask(plane: Plane) -> None:
    plane.add("Service", "web", "s1")
    for number in range(300):
        plane.add("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1"))
    plane.delete(Services, "web")
    plane.settle()
    assert plane.names() == []
    verbs = [write.verb for write in plane.cluster.writes]
    assert (verbs.count("get"), verbs.count("delete"), len(verbs)) == (1, 300, 301)
    assert plane.now < VERIFY_DELAY_S, "an owner that was seen to go needs no patience"


def test_a_deletion_seen_by_a_cache_is_no_proof(plane: Plane) -> None:
    """A list answered by a server that is behind lacks the newest objects; their dependents must
    not pay for it.
    """
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.settle()
    service = plane.cluster.objects["services", "shop", "web"]
    plane.controller.on_change(Change("services", service, None), 1.0)
    (job,) = plane.controller.take_work(1.0, 10).jobs
    assert [write.verb for write in job.writes] == ["get"]
    plane.controller.on_done(plane.cluster.run(job), 1.0)
    assert plane.controller.take_work(1.0, 10).jobs == ()
    plane.now = 2.0
    plane.controller.on_change(Change("services", None, service), plane.now)
    plane.settle()
    assert plane.names() == ["a", "web"]


def test_deletions_hold_for_the_object_and_version_that_was_judged(plane: Plane) -> None:
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.deliver()
    plane.settle()
    (delete,) = (write for write in plane.cluster.writes if write.verb == "delete")
    preconditions = decode_document(delete.body)["preconditions"]
    assert preconditions == {"uid": "c1", "resourceVersion": "101"}


def test_kubernetes_65200_a_wrong_reference_does_not_condemn_those_who_refer_rightly(
    plane: Plane,
) -> None:
    """A copy in another namespace, its owner kept: the owner is not there, and is well where
    it is.
    """
    plane.add("ConfigMap", "copy", "c1", owned_by("Service", "web", "s1"), namespace="other")
    plane.add("ConfigMap", "right", "c2", owned_by("Service", "web", "s1"))
    plane.add("ConfigMap", "misnamed", "c3", owned_by("Service", "wob", "s1"))
    plane.add("ConfigMap", "miskinded", "c4", owned_by("Pod", "web", "s1"))
    plane.deliver()
    # The cache of Services lags: "right" looks no better than the others.
    late = plane.cluster.pending
    plane.add("Service", "web", "s1")
    late, plane.cluster.pending = plane.cluster.pending, []
    plane.now, _ = _turns(plane.cluster, plane.controller, 0.0, 3.0)
    assert plane.names() == ["right", "web"]
    plane.cluster.pending = late
    plane.settle()
    assert plane.names() == ["right", "web"]


def test_kubernetes_88097_owners_in_foreground_deletion_take_only_their_own(plane: Plane) -> None:
    """A controller manager restarts while an owner is being deleted; who has a second owner
    stays.
    """
    web, api = (
        owned_by("Service", "web", "s1", blocks=True),
        owned_by("Service", "api", "s2", blocks=True),
    )
    plane.add("Service", "web", "s1", finalizers=("x.io/hold",))
    plane.add("Service", "api", "s2")
    plane.add("ConfigMap", "of-web", "c1", web)
    plane.add("ConfigMap", "of-both", "c2", web, api)
    plane.add("ConfigMap", "of-api", "c3", api)
    plane.cluster.delete(Services, "shop", "web", "Foreground")
    again = GarbageCollector()
    plane.cluster.start(again, 0.0)
    plane.cluster.settle(again, 0.0)
    assert plane.names() == ["api", "of-api", "of-both", "web"]
    assert plane.owners("of-both") == (api,)


def test_what_waits_in_a_cache_is_confirmed_before_dependents_go(plane: Plane) -> None:
    """Foreground was changed for Orphan, and the cache does not know yet."""
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.delete(Services, "web", "Foreground")
    plane.deliver()
    waiting = plane.cluster.objects["services", "shop", "web"]
    put(plane.cluster, replace(waiting, metadata=replace(waiting.metadata, finalizers=("orphan",))))
    jobs = plane.controller.take_work(0.0, 10).jobs
    for job in jobs:
        plane.controller.on_done(plane.cluster.run(job), 0.0)
    assert "a" in plane.names()
    plane.settle()
    assert plane.names() == ["a"]
    assert plane.owners("a") is None


def test_an_unknown_version_of_a_known_kind_is_believed(plane: Plane) -> None:
    plane.add(
        "ConfigMap", "a", "c1", OwnerReference(api_version="v7", kind="Service", name="x", uid="u")
    )
    plane.settle()
    assert plane.names() == ["a"]
    assert plane.cluster.writes == []


def test_an_unknown_owner_keeps_an_object_that_another_left(plane: Plane) -> None:
    custom = OwnerReference(api_version="example.com/v1", kind="Database", name="x", uid="u")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"), custom)
    plane.settle()
    assert plane.owners("a") == (custom,)


def test_a_reference_to_what_never_was_is_taken_out_beside_a_solid_one(plane: Plane) -> None:
    solid = owned_by("Service", "web", "s1")
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "never", "s2"), solid)
    plane.settle()
    assert plane.owners("a") == (solid,)


def test_owners_in_wrong_namespaces_are_told_about_once(plane: Plane) -> None:
    plane.add("Service", "web", "s1", namespace="other")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"), finalizers=("x.io/hold",))
    plane.add("Node", "n", "n1", owned_by("Service", "web", "s1"))
    now, notes = plane.cluster.settle(plane.controller, 0.0)
    held = plane.cluster.objects["configmaps", "shop", "a"]
    put(plane.cluster, replace(held, metadata=replace(held.metadata, labels={"a": "b"})))
    _, more = plane.cluster.settle(plane.controller, now)
    assert more == []
    told = {(each.regarding_resource.kind, each.regarding.metadata.key): each for each in notes}
    assert sorted(told) == [("ConfigMap", "shop/a"), ("Node", "n")]
    assert {(each.type, each.reason) for each in notes} == {("Warning", "OwnerRefInvalidNamespace")}
    assert told["ConfigMap", "shop/a"].note == (
        "ownerRef [v1/Service, namespace: shop, name: web, uid: s1] does not exist in namespace "
        '"shop"'
    )
    assert plane.names() == ["a", "n", "web"], (
        "a cluster-wide object with a namespaced owner cannot be collected"
    )
    assert held.metadata.deletion_timestamp, "the owner is not where it should be"


def test_many_orphans_are_let_go_in_portions(plane: Plane) -> None:
    plane.add("Service", "web", "s1")
    count = 2 * ORPHANS_MAX + 7
    for number in range(count):
        plane.add("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1"))
    plane.delete(Services, "web", "Orphan")
    plane.deliver()
    sizes = []
    while jobs := plane.controller.take_work(0.0, 1).jobs:  # the cache sees nothing meanwhile
        sizes.append(len(jobs[0].writes))
        plane.controller.on_done(plane.cluster.run(jobs[0]), 0.0)
    assert sizes == [ORPHANS_MAX, ORPHANS_MAX, 7, 1]
    plane.settle()
    assert len(plane.names()) == count
    assert all(each.metadata.owner_references is None for each in plane.cluster.objects.values())


def test_a_busy_dependent_is_let_go_all_the_same(plane: Plane) -> None:
    """It changes so often that no cache ever has its version."""
    plane.add("Service", "web", "s1")
    plane.add("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"))
    plane.delete(Services, "web", "Orphan")
    plane.deliver()
    put(plane.cluster, replace(plane.cluster.objects["configmaps", "shop", "a"], api_version="v1"))
    (job,) = plane.controller.take_work(0.0, 1).jobs
    assert plane.cluster.run(job).error is None
    assert plane.owners("a") is None


def test_blocking_dependents_cost_their_owner_nothing(plane: Plane) -> None:
    """Each dependent that goes has its owner looked at: that must not be a look at all of them."""
    plane.add("Service", "web", "s1")
    for number in range(200):
        plane.add(
            "ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1", blocks=True)
        )
    plane.delete(Services, "web", "Foreground")
    before = plane.controller._queue.adds
    plane.settle()
    assert plane.names() == []
    assert plane.controller._queue.adds - before < 5 * 200


def _turns(
    cluster: FakeCluster, collector: GarbageCollector, now: float, seconds: float
) -> tuple[float, int]:
    """Work without any news from the server."""
    count, end = 0, now + seconds
    while True:
        for job in collector.take_work(now, 10).jobs:
            collector.on_done(cluster.run(job), now)
            count += 1
        due = collector.next_deadline()
        if due is None or due > end:
            return now, count
        now = max(now, due)
