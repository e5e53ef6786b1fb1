"""Any history of owners and dependents ends as a plain look at all references says it must."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.controllers.objects.owned_objects import KINDS, SPACES, make, owned_by, put
from tests.effort import machine
from tests.slices.fake_cluster import FakeCluster, replace

from sliceplane.api.codec import decode_document
from sliceplane.api.errors import internal
from sliceplane.api.meta import Object, OwnerReference
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Job

FAMILY = ("Service", "Pod", "ConfigMap", "Node")
CUSTOM = "Database"
Reference = tuple[str, str, str, bool]


class Family(RuleBasedStateMachine):
    """Random owners (circles, wrong and unknown ones), deletions, lags, lists from the past,
    failures, lost answers.

    The truth is looked at with every deletion: nothing that has an owner left is ever deleted by
    us. At the end, when all is calm: nothing without one is left.
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
        """*wanted*: kind, name, whether the uid is right, "lost" or another object's, and whether
        it blocks.
        """
        made = []
        for kind, name, which, blocks in wanted:
            if kind == CUSTOM:
                owner = OwnerReference(
                    api_version="example.com/v1", kind=kind, name=name, uid=f"custom-{name}"
                )
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

    @rule(
        kind=st.sampled_from(FAMILY),
        name=st.sampled_from("ab"),
        namespace=st.sampled_from(SPACES),
        owners=wanted,
    )
    def make(self, kind: str, name: str, namespace: str, owners: list[Reference]) -> None:
        if _place(kind, name, namespace) not in self.cluster.objects:
            self.serial += 1
            put(
                self.cluster,
                make(kind, name, f"u{self.serial}", *self.references(owners), namespace=namespace),
            )

    @rule(kind=st.sampled_from(FAMILY), name=st.sampled_from("ab"), owners=wanted)
    def change_owners(self, kind: str, name: str, owners: list[Reference]) -> None:
        found = self.cluster.objects.get(_place(kind, name))
        if found is not None:
            changed = replace(
                found.metadata, owner_references=tuple(self.references(owners)) or None
            )
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
        self.cluster.pending = [
            *mine,
            *(each for each in self.cluster.pending if each.resource != key),
        ]
        self.cluster.deliver(self.collector, self.now, len(mine))

    @rule(kind=st.sampled_from(FAMILY), back=st.integers(1, 8))
    def list_from_the_past(self, kind: str, back: int) -> None:
        """The watch broke, and the server that answers the list is behind; its watch will
        catch up.
        """
        key, cluster = KINDS[kind][0].key, self.cluster
        past = {
            place: each
            for place, each in self.history[-min(back, len(self.history))].items()
            if place[0] == key
        }
        cluster.pending = [each for each in cluster.pending if each.resource != key]
        for place in sorted({*past, *(place for place in cluster.cache if place[0] == key)}):
            if cluster.cache.get(place) != past.get(place):
                cluster._show(
                    Change(key, cluster.cache.get(place), past.get(place)), self.collector, self.now
                )
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
            job,
            fail_at=None if fate == "well" else 0,
            error=internal("no"),
            lost=fate == "answer lost",
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
            leaving = found is not None and "foregroundDeletion" in (
                found.metadata.finalizers or ()
            )
            assert leaving or (found is None and owner.kind != CUSTOM), (
                f"{victim} goes and {owner} lives"
            )

    def owner_of(self, dependent: Object, owner: OwnerReference) -> Object | None:
        """The oracle: by the server alone.  A namespaced owner of a cluster-wide object is the
        object itself: kept.
        """
        if owner.kind == CUSTOM:
            return None
        if KINDS[owner.kind][0].namespaced and not dependent.metadata.namespace:
            return dependent
        found = self.cluster.objects.get(
            _place(owner.kind, owner.name, dependent.metadata.namespace)
        )
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
            held = [
                owner
                for owner in owners
                if owner.kind == CUSTOM or self.owner_of(each, owner) is not None
            ]
            assert len(held) == len(owners), f"{each} keeps owners that are gone"
            assert each.metadata.deletion_timestamp is None, f"{each} was not finished"


def _place(kind: str, name: str, namespace: str = "shop") -> tuple[str, str, str]:
    resource, _ = KINDS[kind]
    return resource.key, namespace if resource.namespaced else "", name


TestFamily = Family.TestCase
TestFamily.settings = machine(100)
