"""Objects go when their owners are gone, and never before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.slices.fake_cluster import FakeCluster, replace

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.errors import StatusError, internal, unknown_resource
from sliceplane.api.meta import Object, ObjectMeta, OwnerReference
from sliceplane.api.scheme import ConfigMaps, Nodes, Pods, Resource, Services
from sliceplane.controllers.base import Done, Job
from sliceplane.controllers.garbage_collector import GarbageCollector

KINDS: dict[str, tuple[Resource, type[Object]]] = {
    "Service": (Services, Service),
    "Pod": (Pods, Pod),
    "ConfigMap": (ConfigMaps, Object),
    "Node": (Nodes, Node),
}


def owned_by(kind: str, name: str, uid: str, *, blocks: bool = False) -> OwnerReference:
    return OwnerReference(api_version="v1", kind=kind, name=name, uid=uid, block_owner_deletion=blocks or None)


def make(kind: str, name: str, uid: str, *owners: OwnerReference, namespace: str = "shop", **meta: Any) -> Object:
    resource, projection = KINDS[kind]
    namespace = namespace if resource.namespaced else ""
    return projection(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=uid, owner_references=owners or None, **meta)
    )


def put(cluster: FakeCluster, each: Object) -> None:
    kind = next(k for k, (_, projection) in KINDS.items() if type(each) is projection)
    cluster.put(each, KINDS[kind][0])


def names(cluster: FakeCluster) -> list[str]:
    return sorted(name for _, _, name in cluster.objects)


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


def test_owner_with_another_uid_is_no_owner(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "new"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "old")))
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["web"]


def test_owner_in_another_namespace_is_no_owner(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1", namespace="other"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["web"]


def test_dependent_seen_before_its_owner_stays(cluster: FakeCluster, collector: GarbageCollector) -> None:
    """The caches of two kinds lag differently; the server is asked before anything is deleted."""
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.pending.reverse()
    cluster.deliver(collector, 0.0, 1)
    assert collector.take_work(0.0, 10).jobs == ()
    assert collector.next_deadline() == 1.0
    (job,) = collector.take_work(1.0, 10).jobs
    assert [write.verb for write in job.writes] == ["patch"]
    collector.on_done(cluster.run(job), 1.0)
    cluster.settle(collector, 1.0)
    assert names(cluster) == ["a", "web"]


@pytest.mark.parametrize("error", [internal("no"), unknown_resource(), StatusError(403, "Forbidden", "no")])
def test_unclear_answer_deletes_nothing(cluster: FakeCluster, collector: GarbageCollector, error: StatusError) -> None:
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    collector.take_work(0.0, 10)
    (job,) = collector.take_work(1.0, 10).jobs
    collector.on_done(Done(job, (), error), 1.0)
    assert collector.take_work(1.0, 10).jobs == ()
    assert collector.next_deadline() == 1.5


def test_unwatched_owner_kinds_are_believed(cluster: FakeCluster, collector: GarbageCollector) -> None:
    custom = OwnerReference(api_version="example.com/v1", kind="Database", name="x", uid="u")
    put(cluster, make("ConfigMap", "a", "c1", custom))
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]


def test_dangling_reference_beside_a_solid_one_is_taken_out(cluster: FakeCluster, collector: GarbageCollector) -> None:
    solid, gone = owned_by("Service", "web", "s1"), owned_by("Service", "old", "s2")
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("Service", "old", "s2"))
    put(cluster, make("ConfigMap", "a", "c1", gone, solid))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "old")
    cluster.settle(collector, 0.0)
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references == (solid,)


def test_foreground_deletion_waits_for_blocking_dependents(cluster: FakeCluster, collector: GarbageCollector) -> None:
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


def test_orphaning_lets_dependents_live(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Orphan")
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references is None


class Family(RuleBasedStateMachine):
    """Random owners, deletions, lags per kind, failures.  Nothing with a living owner is ever deleted by us."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.serial = 0
        self.cluster = FakeCluster()
        self.flying: list[Job] = []
        self.restart()

    @rule()
    def restart(self) -> None:
        self.flying.clear()
        self.collector = GarbageCollector()
        self.cluster.start(self.collector, self.now)

    @rule(
        kind=st.sampled_from(("Service", "Pod", "ConfigMap", "Node")),
        name=st.sampled_from("ab"),
        owners=st.lists(
            st.tuples(st.sampled_from(("Service", "Pod", "Node")), st.sampled_from("ab"), st.booleans(), st.booleans()),
            max_size=2,
            unique_by=lambda each: each[:2],
        ),
    )
    def make(self, kind: str, name: str, owners: list[tuple[str, str, bool, bool]]) -> None:
        resource, _ = KINDS[kind]
        if (resource.key, "shop" if resource.namespaced else "", name) in self.cluster.objects:
            return
        self.serial += 1
        references = []
        for owner_kind, owner_name, right, blocks in owners if kind != "Node" else ():
            owner = KINDS[owner_kind][0]
            found = self.cluster.objects.get((owner.key, "shop" if owner.namespaced else "", owner_name))
            uid = found.metadata.uid if found is not None and right else f"lost-{self.serial}-{owner_kind}{owner_name}"
            references.append(owned_by(owner_kind, owner_name, uid, blocks=blocks))
        put(self.cluster, make(kind, name, f"u{self.serial}", *references))

    @rule(
        kind=st.sampled_from(("Service", "Pod", "ConfigMap", "Node")),
        name=st.sampled_from("ab"),
        policy=st.sampled_from(("Background", "Background", "Foreground", "Orphan")),
    )
    def delete(self, kind: str, name: str, policy: str) -> None:
        resource, _ = KINDS[kind]
        self.cluster.delete(resource, "shop" if resource.namespaced else "", name, policy)

    @rule(kind=st.sampled_from(("Service", "Pod", "ConfigMap", "Node")))
    def deliver_one_kind(self, kind: str) -> None:
        """Streams of different kinds are in no order with each other."""
        key = KINDS[kind][0].key
        mine = [each for each in self.cluster.pending if each.resource == key]
        self.cluster.pending = [*mine, *(each for each in self.cluster.pending if each.resource != key)]
        self.cluster.deliver(self.collector, self.now, len(mine))

    @rule(seconds=st.sampled_from((0.0, 1.5, 30.0)))
    def take(self, seconds: float) -> None:
        self.now += seconds
        self.flying.extend(self.collector.take_work(self.now, 3).jobs)

    @precondition(lambda self: self.flying)
    @rule(fails=st.booleans())
    def job_ends(self, fails: bool) -> None:
        job = self.flying.pop(0)
        for write in job.writes:
            if write.verb == "delete":
                self.assert_unowned(job)
        done = self.cluster.run(job, fail_at=0 if fails else None, error=internal("no"))
        self.collector.on_done(done, self.now)

    def assert_unowned(self, job: Job) -> None:
        write = job.writes[0]
        victim = self.cluster.objects.get((write.resource.key, write.namespace, write.name))
        if victim is None or victim.metadata.uid != job.key:
            return
        living = {each.metadata.uid: each.metadata for each in self.cluster.objects.values()}
        for owner in victim.metadata.owner_references or ():
            found = living.get(owner.uid)
            leaving = found is not None and "foregroundDeletion" in (found.finalizers or ())
            assert found is None or leaving, f"{victim} is to be deleted and {owner} lives"

    @invariant()
    def graph_is_sound(self) -> None:
        self.collector.check()

    def teardown(self) -> None:
        for job in self.flying:
            self.collector.on_done(self.cluster.run(job), self.now)
        self.cluster.settle(self.collector, self.now)
        living = {each.metadata.uid for each in self.cluster.objects.values()}
        for each in self.cluster.objects.values():
            owners = each.metadata.owner_references or ()
            assert not owners or any(o.uid in living for o in owners), f"{each} has no owner left"
            assert each.metadata.deletion_timestamp is None, f"{each} was not finished"


TestFamily = Family.TestCase
TestFamily.settings = settings(max_examples=80, stateful_step_count=40)
