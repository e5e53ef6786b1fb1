"""Objects go when their owners are gone, and never before."""

from __future__ import annotations

import pytest
from tests.controllers.objects.owned_objects import make, names, owned_by, put
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
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def collector(cluster: FakeCluster) -> GarbageCollector:
    made = GarbageCollector()
    cluster.start(made, 0.0)
    return made


def test_dependents_go_with_their_owner(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    put(cluster, make("ConfigMap", "b", "c2", owned_by("ConfigMap", "a", "c1")))
    put(cluster, make("ConfigMap", "free", "c3"))
    now, _ = cluster.settle(collector, 0.0)
    assert names(cluster) == ["a", "b", "free", "web"]
    assert cluster.writes == []
    cluster.delete(Services, "shop", "web")
    cluster.settle(collector, now)
    assert names(cluster) == ["free"]


def test_owner_with_another_uid_is_no_owner(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "new"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "old")))
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["web"]


def test_owner_in_another_namespace_is_no_owner(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "s1", namespace="other"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["web"]


def test_dependent_seen_before_its_owner_stays(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """The caches of two kinds lag differently; the server is asked before anything is deleted."""
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.pending.reverse()
    cluster.deliver(collector, 0.0, 1)
    assert collector.take_work(0.0, 10).jobs == ()
    assert collector.next_deadline() == 1.0
    (job,) = collector.take_work(1.0, 10).jobs
    assert [write.verb for write in job.writes] == ["get"]
    collector.on_done(cluster.run(job), 1.0)
    cluster.settle(collector, 1.0)
    assert names(cluster) == ["a", "web"]


@pytest.mark.parametrize(
    "error", [internal("no"), unknown_resource(), StatusError(403, "Forbidden", "no")]
)
def test_unclear_answer_deletes_nothing(
    cluster: FakeCluster, collector: GarbageCollector, error: StatusError
) -> None:
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    collector.take_work(0.0, 10)
    (job,) = collector.take_work(1.0, 10).jobs
    collector.on_done(Done(job, (), error), 1.0)
    assert collector.take_work(1.0, 10).jobs == ()
    assert collector.next_deadline() == 1.5


def test_unwatched_owner_kinds_are_believed(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    custom = OwnerReference(api_version="example.com/v1", kind="Database", name="x", uid="u")
    put(cluster, make("ConfigMap", "a", "c1", custom))
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]


def test_dangling_reference_beside_a_solid_one_is_taken_out(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    solid, gone = owned_by("Service", "web", "s1"), owned_by("Service", "old", "s2")
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("Service", "old", "s2"))
    put(cluster, make("ConfigMap", "a", "c1", gone, solid))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "old")
    cluster.settle(collector, 0.0)
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references == (solid,)


def test_foreground_deletion_waits_for_blocking_dependents(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "s1"))
    owner = owned_by("Service", "web", "s1", blocks=True)
    put(cluster, make("ConfigMap", "a", "c1", owner, finalizers=("x.io/hold",)))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Foreground")
    now, _ = cluster.settle(collector, 0.0)
    assert names(cluster) == ["a", "web"]
    assert cluster.objects["configmaps", "shop", "a"].metadata.deletion_timestamp
    held = cluster.objects["configmaps", "shop", "a"]
    cluster._settle(replace(held, metadata=replace(held.metadata, finalizers=None)), ConfigMaps)
    cluster.settle(collector, now)
    assert names(cluster) == []


def test_foreground_circle_is_cut(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("ConfigMap", "a", "c1", owned_by("ConfigMap", "b", "c2", blocks=True)))
    put(cluster, make("ConfigMap", "b", "c2", owned_by("ConfigMap", "a", "c1", blocks=True)))
    cluster.deliver(collector, 0.0)
    cluster.delete(ConfigMaps, "shop", "a", "Foreground")
    cluster.settle(collector, 0.0)
    assert names(cluster) == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_circle_of_which_each_is_deleted_in_the_foreground_is_cut(
    cluster: FakeCluster, collector: GarbageCollector, size: int
) -> None:
    for number in range(size):
        owner = owned_by(
            "ConfigMap", f"c{(number + 1) % size}", f"u{(number + 1) % size}", blocks=True
        )
        put(cluster, make("ConfigMap", f"c{number}", f"u{number}", owner))
    for number in range(size):
        cluster.delete(ConfigMaps, "shop", f"c{number}", "Foreground")
    cluster.settle(collector, 0.0)
    assert names(cluster) == []


def test_what_cannot_be_collected_does_not_hold_its_owner(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("Node", "n", "n1", owned_by("Service", "web", "s1", blocks=True)))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Foreground")
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["n"]


@pytest.mark.parametrize("wrong", ["namespace", "name", "kind"])
def test_foreground_deletion_is_not_held_up_by_an_object_that_it_does_not_own(
    cluster: FakeCluster, collector: GarbageCollector, wrong: str
) -> None:
    """The uid of an owner can be read off any of its dependents; one in another namespace with a
    finalizer of its own kept the owner for ever, as upstream.
    """
    put(cluster, make("Service", "web", "s1"))
    name, kind = (
        ("other" if wrong == "name" else "web"),
        ("ConfigMap" if wrong == "kind" else "Service"),
    )
    owner = owned_by(kind, name, "s1", blocks=True)
    namespace = "evil" if wrong == "namespace" else "shop"
    put(
        cluster, make("ConfigMap", "a", "c1", owner, namespace=namespace, finalizers=("x.io/hold",))
    )
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Foreground")
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]


@pytest.mark.parametrize("namespace", ["shop", "evil"])
def test_foreground_deletion_of_a_cluster_wide_owner_waits_for_dependents_of_every_namespace(
    cluster: FakeCluster, collector: GarbageCollector, namespace: str
) -> None:
    put(cluster, make("Node", "n", "n1"))
    owner = owned_by("Node", "n", "n1", blocks=True)
    put(
        cluster, make("ConfigMap", "a", "c1", owner, namespace=namespace, finalizers=("x.io/hold",))
    )
    cluster.deliver(collector, 0.0)
    cluster.delete(Nodes, "", "n", "Foreground")
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a", "n"]


def test_an_object_of_another_namespace_makes_no_circle(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """A circle is cut by not blocking the owner any more: a stranger must not take that from an
    object.
    """
    put(cluster, make("Service", "web", "s1"))
    put(
        cluster,
        make(
            "ConfigMap",
            "a",
            "c1",
            owned_by("Service", "web", "s1", blocks=True),
            finalizers=("x.io/hold",),
        ),
    )
    put(
        cluster,
        make(
            "Service", "loop", "e1", owned_by("ConfigMap", "a", "c1", blocks=True), namespace="evil"
        ),
    )
    waited_for = owned_by("Service", "loop", "e1", blocks=True)
    put(
        cluster,
        make("ConfigMap", "b", "e2", waited_for, namespace="evil", finalizers=("x.io/hold",)),
    )
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "evil", "loop", "Foreground")
    cluster.delete(Services, "shop", "web", "Foreground")
    cluster.settle(collector, 0.0)
    (reference,) = cluster.objects["configmaps", "shop", "a"].metadata.owner_references or ()
    assert reference.block_owner_deletion
    assert "web" in names(cluster)


def test_orphaning_lets_go_of_what_is_owned_and_writes_nothing_elsewhere(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    put(cluster, make("ConfigMap", "b", "c2", owned_by("Service", "web", "s1"), namespace="evil"))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Orphan")
    cluster.deliver(collector, 0.0)
    jobs = [job for job in collector.take_work(0.0, 10).jobs if job.key == "s1"]
    assert {write.namespace for job in jobs for write in job.writes} == {"shop"}


def test_references_that_come_and_go_leave_nothing_behind(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """An account that changes what its object names, over and over, must not grow the collector."""
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("Service", "web", "s2", namespace="other"))
    put(cluster, make("ConfigMap", "kept", "c0", owned_by("Service", "web", "s1")))
    now = 0.0
    for number in range(20):
        wrong = (
            owned_by("Service", f"no-{number}", "s1"),
            owned_by("Service", "web", "s1"),
            owned_by("Node", "n", "s2"),
        )
        node_owner = owned_by("Service", "web", f"u{number}")
        put(cluster, make("ConfigMap", "a", "c1", *wrong))
        put(cluster, make("Node", "n", "n1", node_owner))
        now, _ = cluster.settle(collector, now)
        collector.check()
    assert sum(map(len, collector._graph._gone.values())) <= 2
    assert sum(map(len, collector._reported.values())) <= 1


def test_orphaning_lets_dependents_live(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Orphan")
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references is None


def test_an_owner_is_asked_for_once_however_many_ask(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "s1"))
    for number in range(300):
        put(
            cluster, make("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1"))
        )
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web")
    now, _ = cluster.settle(collector, 0.0)
    assert names(cluster) == []
    verbs = [write.verb for write in cluster.writes]
    assert (verbs.count("get"), verbs.count("delete"), len(verbs)) == (1, 300, 301)
    assert now < VERIFY_DELAY_S, "an owner that was seen to go needs no patience"


def test_a_deletion_seen_by_a_cache_is_no_proof(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """A list answered by a server that is behind lacks the newest objects; their dependents must
    not pay for it.
    """
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.settle(collector, 0.0)
    service = cluster.objects["services", "shop", "web"]
    collector.on_change(Change("services", service, None), 1.0)
    (job,) = collector.take_work(1.0, 10).jobs
    assert [write.verb for write in job.writes] == ["get"]
    collector.on_done(cluster.run(job), 1.0)
    assert collector.take_work(1.0, 10).jobs == ()
    collector.on_change(Change("services", None, service), 2.0)
    cluster.settle(collector, 2.0)
    assert names(cluster) == ["a", "web"]


def test_deletions_hold_for_the_object_and_version_that_was_judged(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    cluster.settle(collector, 0.0)
    (delete,) = (write for write in cluster.writes if write.verb == "delete")
    preconditions = decode_document(delete.body)["preconditions"]
    assert preconditions == {"uid": "c1", "resourceVersion": "101"}


def test_kubernetes_65200_a_wrong_reference_does_not_condemn_those_who_refer_rightly(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """A copy in another namespace, its owner kept: the owner is not there, and is well where
    it is.
    """
    put(
        cluster,
        make("ConfigMap", "copy", "c1", owned_by("Service", "web", "s1"), namespace="other"),
    )
    put(cluster, make("ConfigMap", "right", "c2", owned_by("Service", "web", "s1")))
    put(cluster, make("ConfigMap", "misnamed", "c3", owned_by("Service", "wob", "s1")))
    put(cluster, make("ConfigMap", "miskinded", "c4", owned_by("Pod", "web", "s1")))
    cluster.deliver(collector, 0.0)
    # The cache of Services lags: "right" looks no better than the others.
    late = cluster.pending
    put(cluster, make("Service", "web", "s1"))
    late, cluster.pending = cluster.pending, []
    now, _ = _turns(cluster, collector, 0.0, 3.0)
    assert names(cluster) == ["right", "web"]
    cluster.pending = late
    cluster.settle(collector, now)
    assert names(cluster) == ["right", "web"]


def test_kubernetes_88097_owners_in_foreground_deletion_take_only_their_own(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """A controller manager restarts while an owner is being deleted; who has a second owner
    stays.
    """
    web, api = (
        owned_by("Service", "web", "s1", blocks=True),
        owned_by("Service", "api", "s2", blocks=True),
    )
    put(cluster, make("Service", "web", "s1", finalizers=("x.io/hold",)))
    put(cluster, make("Service", "api", "s2"))
    put(cluster, make("ConfigMap", "of-web", "c1", web))
    put(cluster, make("ConfigMap", "of-both", "c2", web, api))
    put(cluster, make("ConfigMap", "of-api", "c3", api))
    cluster.delete(Services, "shop", "web", "Foreground")
    again = GarbageCollector()
    cluster.start(again, 0.0)
    cluster.settle(again, 0.0)
    assert names(cluster) == ["api", "of-api", "of-both", "web"]
    assert cluster.objects["configmaps", "shop", "of-both"].metadata.owner_references == (api,)


def test_what_waits_in_a_cache_is_confirmed_before_dependents_go(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """Foreground was changed for Orphan, and the cache does not know yet."""
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Foreground")
    cluster.deliver(collector, 0.0)
    waiting = cluster.objects["services", "shop", "web"]
    put(cluster, replace(waiting, metadata=replace(waiting.metadata, finalizers=("orphan",))))
    jobs = collector.take_work(0.0, 10).jobs
    for job in jobs:
        collector.on_done(cluster.run(job), 0.0)
    assert "a" in names(cluster)
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references is None


def test_an_unknown_version_of_a_known_kind_is_believed(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(
        cluster,
        make(
            "ConfigMap",
            "a",
            "c1",
            OwnerReference(api_version="v7", kind="Service", name="x", uid="u"),
        ),
    )
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]
    assert cluster.writes == []


def test_an_unknown_owner_keeps_an_object_that_another_left(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    custom = OwnerReference(api_version="example.com/v1", kind="Database", name="x", uid="u")
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"), custom))
    cluster.settle(collector, 0.0)
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references == (custom,)


def test_a_reference_to_what_never_was_is_taken_out_beside_a_solid_one(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    solid = owned_by("Service", "web", "s1")
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "never", "s2"), solid))
    cluster.settle(collector, 0.0)
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references == (solid,)


def test_owners_in_wrong_namespaces_are_told_about_once(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "s1", namespace="other"))
    put(
        cluster,
        make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"), finalizers=("x.io/hold",)),
    )
    put(cluster, make("Node", "n", "n1", owned_by("Service", "web", "s1")))
    now, notes = cluster.settle(collector, 0.0)
    held = cluster.objects["configmaps", "shop", "a"]
    put(cluster, replace(held, metadata=replace(held.metadata, labels={"a": "b"})))
    _, more = cluster.settle(collector, now)
    assert more == []
    told = {(each.regarding_resource.kind, each.regarding.metadata.key): each for each in notes}
    assert sorted(told) == [("ConfigMap", "shop/a"), ("Node", "n")]
    assert {(each.type, each.reason) for each in notes} == {("Warning", "OwnerRefInvalidNamespace")}
    assert told["ConfigMap", "shop/a"].note == (
        "ownerRef [v1/Service, namespace: shop, name: web, uid: s1] does not exist in namespace "
        '"shop"'
    )
    assert names(cluster) == ["a", "n", "web"], (
        "a cluster-wide object with a namespaced owner cannot be collected"
    )
    assert held.metadata.deletion_timestamp, "the owner is not where it should be"


def test_many_orphans_are_let_go_in_portions(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    put(cluster, make("Service", "web", "s1"))
    count = 2 * ORPHANS_MAX + 7
    for number in range(count):
        put(
            cluster, make("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1"))
        )
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Orphan")
    cluster.deliver(collector, 0.0)
    sizes = []
    while jobs := collector.take_work(0.0, 1).jobs:  # the cache sees nothing meanwhile
        sizes.append(len(jobs[0].writes))
        collector.on_done(cluster.run(jobs[0]), 0.0)
    assert sizes == [ORPHANS_MAX, ORPHANS_MAX, 7, 1]
    cluster.settle(collector, 0.0)
    assert len(names(cluster)) == count
    assert all(each.metadata.owner_references is None for each in cluster.objects.values())


def test_a_busy_dependent_is_let_go_all_the_same(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """It changes so often that no cache ever has its version."""
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Orphan")
    cluster.deliver(collector, 0.0)
    put(cluster, replace(cluster.objects["configmaps", "shop", "a"], api_version="v1"))
    (job,) = collector.take_work(0.0, 1).jobs
    assert cluster.run(job).error is None
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references is None


def test_blocking_dependents_cost_their_owner_nothing(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """Each dependent that goes has its owner looked at: that must not be a look at all of them."""
    put(cluster, make("Service", "web", "s1"))
    for number in range(200):
        put(
            cluster,
            make(
                "ConfigMap",
                f"c{number}",
                f"c{number}",
                owned_by("Service", "web", "s1", blocks=True),
            ),
        )
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Foreground")
    before = collector._queue.adds
    cluster.settle(collector, 0.0)
    assert names(cluster) == []
    assert collector._queue.adds - before < 5 * 200


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
