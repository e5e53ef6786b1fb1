"""Objects go when their owners are gone, and never before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.slices.fake_cluster import FakeCluster, replace

from sliceplane.api.codec import decode_document
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.errors import StatusError, internal, unknown_resource
from sliceplane.api.meta import Object, ObjectMeta, OwnerReference
from sliceplane.api.scheme import ConfigMaps, Nodes, Pods, Resource, Services
from sliceplane.controllers.base import Done, Job
from sliceplane.controllers.garbage_collector import ORPHANS_MAX, VERIFY_DELAY_S, GarbageCollector
from sliceplane.informer.changes import Change

KINDS: dict[str, tuple[Resource, type[Object]]] = {
    "Service": (Services, Service),
    "Pod": (Pods, Pod),
    "ConfigMap": (ConfigMaps, Object),
    "Node": (Nodes, Node),
}
SPACES = ("shop", "shop", "other")


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
    assert [write.verb for write in job.writes] == ["get"]
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


@pytest.mark.parametrize("size", [1, 2, 3])
def test_circle_of_which_each_is_deleted_in_the_foreground_is_cut(
    cluster: FakeCluster, collector: GarbageCollector, size: int
) -> None:
    for number in range(size):
        owner = owned_by("ConfigMap", f"c{(number + 1) % size}", f"u{(number + 1) % size}", blocks=True)
        put(cluster, make("ConfigMap", f"c{number}", f"u{number}", owner))
    for number in range(size):
        cluster.delete(ConfigMaps, "shop", f"c{number}", "Foreground")
    cluster.settle(collector, 0.0)
    assert names(cluster) == []


def test_what_cannot_be_collected_does_not_hold_its_owner(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("Node", "n", "n1", owned_by("Service", "web", "s1", blocks=True)))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Foreground")
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["n"]


def test_orphaning_lets_dependents_live(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Orphan")
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]
    assert cluster.objects["configmaps", "shop", "a"].metadata.owner_references is None


def test_an_owner_is_asked_for_once_however_many_ask(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1"))
    for number in range(300):
        put(cluster, make("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1")))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web")
    now, _ = cluster.settle(collector, 0.0)
    assert names(cluster) == []
    verbs = [write.verb for write in cluster.writes]
    assert (verbs.count("get"), verbs.count("delete"), len(verbs)) == (1, 300, 301)
    assert now < VERIFY_DELAY_S, "an owner that was seen to go needs no patience"


def test_a_deletion_seen_by_a_cache_is_no_proof(cluster: FakeCluster, collector: GarbageCollector) -> None:
    """A list answered by a server that is behind lacks the newest objects; their dependents must not pay for it."""
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
    """A copy in another namespace, its owner kept: the owner is not there, and is well where it is."""
    put(cluster, make("ConfigMap", "copy", "c1", owned_by("Service", "web", "s1"), namespace="other"))
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
    """A controller manager restarts while an owner is being deleted; who has a second owner stays."""
    web, api = owned_by("Service", "web", "s1", blocks=True), owned_by("Service", "api", "s2", blocks=True)
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


def test_an_unknown_version_of_a_known_kind_is_believed(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("ConfigMap", "a", "c1", OwnerReference(api_version="v7", kind="Service", name="x", uid="u")))
    cluster.settle(collector, 0.0)
    assert names(cluster) == ["a"]
    assert cluster.writes == []


def test_an_unknown_owner_keeps_an_object_that_another_left(cluster: FakeCluster, collector: GarbageCollector) -> None:
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


def test_owners_in_wrong_namespaces_are_told_about_once(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1", namespace="other"))
    put(cluster, make("ConfigMap", "a", "c1", owned_by("Service", "web", "s1"), finalizers=("x.io/hold",)))
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
        'ownerRef [v1/Service, namespace: shop, name: web, uid: s1] does not exist in namespace "shop"'
    )
    assert names(cluster) == ["a", "n", "web"], "a cluster-wide object with a namespaced owner cannot be collected"
    assert held.metadata.deletion_timestamp, "the owner is not where it should be"


def test_many_orphans_are_let_go_in_portions(cluster: FakeCluster, collector: GarbageCollector) -> None:
    put(cluster, make("Service", "web", "s1"))
    count = 2 * ORPHANS_MAX + 7
    for number in range(count):
        put(cluster, make("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1")))
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


def test_a_busy_dependent_is_let_go_all_the_same(cluster: FakeCluster, collector: GarbageCollector) -> None:
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


def test_blocking_dependents_cost_their_owner_nothing(cluster: FakeCluster, collector: GarbageCollector) -> None:
    """Each dependent that goes has its owner looked at: that must not be a look at all of them."""
    put(cluster, make("Service", "web", "s1"))
    for number in range(200):
        put(cluster, make("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1", blocks=True)))
    cluster.deliver(collector, 0.0)
    cluster.delete(Services, "shop", "web", "Foreground")
    before = collector._queue.adds
    cluster.settle(collector, 0.0)
    assert names(cluster) == []
    assert collector._queue.adds - before < 5 * 200


def _turns(cluster: FakeCluster, collector: GarbageCollector, now: float, seconds: float) -> tuple[float, int]:
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


FAMILY = ("Service", "Pod", "ConfigMap", "Node")
CUSTOM = "Database"
Reference = tuple[str, str, str, bool]


class Family(RuleBasedStateMachine):
    """Random owners (circles, wrong and unknown ones), deletions, lags, lists from the past, failures, lost answers.

    The truth is looked at with every deletion: nothing that has an owner left is ever deleted by us.  At the end,
    when all is calm: nothing without one is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.serial = 0
        self.cluster = FakeCluster()
        self.history: list[dict[Any, Object]] = [{}]
        self.flying: list[Job] = []
        self.restart()

    @rule()
    def restart(self) -> None:
        self.flying.clear()
        self.collector = GarbageCollector()
        self.cluster.start(self.collector, self.now)

    def references(self, wanted: list[Reference]) -> list[OwnerReference]:
        """*wanted*: kind, name, whether the uid is right, "lost" or another object's, and whether it blocks."""
        made = []
        for kind, name, which, blocks in wanted:
            if kind == CUSTOM:
                owner = OwnerReference(api_version="example.com/v1", kind=kind, name=name, uid=f"custom-{name}")
                made.append(owner)
                continue
            self.serial += 1
            found = self.cluster.objects.get(_place(kind, name))
            anything = [each.metadata.uid for _, each in sorted(self.cluster.objects.items())]
            uid = f"lost-{self.serial}"
            if which == "right" and found is not None:
                uid = found.metadata.uid
            elif which == "another" and anything:
                uid = anything[self.serial % len(anything)]
            made.append(owned_by(kind, name, uid, blocks=blocks))
        return list({each.uid: each for each in made}.values())

    wanted = st.lists(
        st.tuples(
            st.sampled_from((*FAMILY, CUSTOM)),
            st.sampled_from("ab"),
            st.sampled_from(("right", "right", "right", "lost", "another")),
            st.booleans(),
        ),
        max_size=2,
    )

    @rule(kind=st.sampled_from(FAMILY), name=st.sampled_from("ab"), namespace=st.sampled_from(SPACES), owners=wanted)
    def make(self, kind: str, name: str, namespace: str, owners: list[Reference]) -> None:
        if _place(kind, name, namespace) not in self.cluster.objects:
            self.serial += 1
            put(self.cluster, make(kind, name, f"u{self.serial}", *self.references(owners), namespace=namespace))

    @rule(kind=st.sampled_from(FAMILY), name=st.sampled_from("ab"), owners=wanted)
    def change_owners(self, kind: str, name: str, owners: list[Reference]) -> None:
        found = self.cluster.objects.get(_place(kind, name))
        if found is not None:
            changed = replace(found.metadata, owner_references=tuple(self.references(owners)) or None)
            put(self.cluster, replace(found, metadata=changed))

    @rule(
        kind=st.sampled_from(FAMILY),
        name=st.sampled_from("ab"),
        namespace=st.sampled_from(SPACES),
        policy=st.sampled_from(("Background", "Background", "Foreground", "Orphan")),
    )
    def delete(self, kind: str, name: str, namespace: str, policy: str) -> None:
        resource, _ = KINDS[kind]
        self.cluster.delete(resource, namespace if resource.namespaced else "", name, policy)

    @rule(kind=st.sampled_from(FAMILY))
    def deliver_one_kind(self, kind: str) -> None:
        """Streams of different kinds are in no order with each other."""
        key = KINDS[kind][0].key
        mine = [each for each in self.cluster.pending if each.resource == key]
        self.cluster.pending = [*mine, *(each for each in self.cluster.pending if each.resource != key)]
        self.cluster.deliver(self.collector, self.now, len(mine))

    @rule(kind=st.sampled_from(FAMILY), back=st.integers(1, 8))
    def list_from_the_past(self, kind: str, back: int) -> None:
        """The watch broke, and the server that answers the list is behind; its watch will catch up."""
        key, cluster = KINDS[kind][0].key, self.cluster
        past = {place: each for place, each in self.history[-min(back, len(self.history))].items() if place[0] == key}
        cluster.pending = [each for each in cluster.pending if each.resource != key]
        for place in sorted({*past, *(place for place in cluster.cache if place[0] == key)}):
            if cluster.cache.get(place) != past.get(place):
                cluster._show(Change(key, cluster.cache.get(place), past.get(place)), self.collector, self.now)
        for place in sorted({*past, *(place for place in cluster.objects if place[0] == key)}):
            if cluster.objects.get(place) != past.get(place):
                cluster.pending.append(Change(key, past.get(place), cluster.objects.get(place)))

    @rule(seconds=st.sampled_from((0.0, 1.5, 30.0)))
    def take(self, seconds: float) -> None:
        self.now += seconds
        self.flying.extend(self.collector.take_work(self.now, 3).jobs)

    @precondition(lambda self: self.flying)
    @rule(fate=st.sampled_from(("well", "well", "fails", "answer lost")))
    def job_ends(self, fate: str) -> None:
        job = self.flying.pop(0)
        for write in job.writes:
            if write.verb == "delete":
                self.assert_unowned(job)
        done = self.cluster.run(
            job, fail_at=None if fate == "well" else 0, error=internal("no"), lost=fate == "answer lost"
        )
        self.collector.on_done(done, self.now)

    def assert_unowned(self, job: Job) -> None:
        write = job.writes[0]
        victim = self.cluster.objects.get((write.resource.key, write.namespace, write.name))
        wanted = decode_document(write.body)["preconditions"]
        if victim is None or victim.metadata.resource_version != wanted["resourceVersion"]:
            return  # refused
        for owner in victim.metadata.owner_references or ():
            found = self.owner_of(victim, owner)
            leaving = found is not None and "foregroundDeletion" in (found.metadata.finalizers or ())
            assert leaving or (found is None and owner.kind != CUSTOM), f"{victim} goes and {owner} lives"

    def owner_of(self, dependent: Object, owner: OwnerReference) -> Object | None:
        """The oracle: by the server alone.  A namespaced owner of a cluster-wide object is the object itself: kept."""
        if owner.kind == CUSTOM:
            return None
        if KINDS[owner.kind][0].namespaced and not dependent.metadata.namespace:
            return dependent
        found = self.cluster.objects.get(_place(owner.kind, owner.name, dependent.metadata.namespace))
        return found if found is not None and found.metadata.uid == owner.uid else None

    @invariant()
    def graph_is_sound(self) -> None:
        self.collector.check()
        self.history.append(dict(self.cluster.objects))

    def teardown(self) -> None:
        for job in self.flying:
            self.collector.on_done(self.cluster.run(job), self.now)
        self.cluster.settle(self.collector, self.now)
        for each in self.cluster.objects.values():
            owners = each.metadata.owner_references or ()
            held = [owner for owner in owners if owner.kind == CUSTOM or self.owner_of(each, owner) is not None]
            assert len(held) == len(owners), f"{each} keeps owners that are gone"
            assert each.metadata.deletion_timestamp is None, f"{each} was not finished"


def _place(kind: str, name: str, namespace: str = "shop") -> tuple[str, str, str]:
    resource, _ = KINDS[kind]
    return resource.key, namespace if resource.namespaced else "", name


TestFamily = Family.TestCase
TestFamily.settings = settings(max_examples=100, stateful_step_count=40)
