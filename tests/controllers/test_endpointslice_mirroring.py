"""The mirroring controller: KEP-0752's test plan bullet by bullet, then what users were bitten by and hosts rely on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.slices.fake_cluster import FakeCluster, make_service, replace

from sliceplane.api.core import CoreEndpointPort, EndpointAddress, Endpoints, EndpointSubset
from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    ANNOTATION_TRIGGER_TIME,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
)
from sliceplane.api.errors import StatusError, forbidden, internal
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.base import Done, Job
from sliceplane.controllers.endpointslice_mirroring import (
    FIRST_SYNC_TIMEOUT_S,
    MAX_RETRIES,
    PLANS_PER_TURN,
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.controllers.first_sync import FirstSync
from sliceplane.endpoints.mirroring.desired import ANNOTATION_LAST_APPLIED
from sliceplane.endpoints.mirroring.ledger import UNSEEN_TIMEOUT_S
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, SelectorChanges

HTTP = (CoreEndpointPort(name="http", port=80, app_protocol="h2c"),)
SKIPPED = {LABEL_SKIP_MIRROR: "true"}
Shown = dict[tuple[str, tuple[int | None, ...]], list[str]]


def subset(*ips: str, ports: tuple[CoreEndpointPort, ...] = HTTP, not_ready: tuple[str, ...] = ()) -> EndpointSubset:
    return EndpointSubset(
        addresses=tuple(EndpointAddress(ip=ip) for ip in ips) or None,
        not_ready_addresses=tuple(EndpointAddress(ip=ip) for ip in not_ready) or None,
        ports=ports,
    )


def custom(*subsets: EndpointSubset, name: str = "web", **meta: Any) -> Endpoints:
    found = subsets or (subset("192.0.2.1"),)
    uid = meta.pop("uid", f"custom-{name}")
    return Endpoints(metadata=ObjectMeta(name=name, namespace="shop", uid=uid, **meta), subsets=found)


class Plane:
    """A Service without a selector, and whatever Endpoints a test makes."""

    def __init__(
        self, *objects: Endpoints | EndpointSlice, config: MirroringConfig | None = None, **service: Any
    ) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(make_service(**{"selector": None, **service}))
        for each in objects:
            self.cluster.put(each)
        self.config = config
        self.now = 1000.0
        self.begin()

    def begin(self) -> None:
        self.controller = EndpointSliceMirroringController(self.config)
        self.cluster.start(self.controller, self.now)

    def settle(self) -> list[str]:
        self.now, notes = self.cluster.settle(self.controller, self.now)
        return [f"{note.type} {note.reason}: {note.note}" for note in notes]

    def put(self, new: Endpoints | EndpointSlice) -> list[str]:
        self.cluster.put(new)
        return self.settle()

    def deliver(self) -> None:
        self.cluster.deliver(self.controller, self.now)

    def jobs(self, seconds: float = 0.0) -> tuple[Job, ...]:
        self.now += seconds
        return self.controller.take_work(self.now, 10).jobs

    def slices(self) -> list[EndpointSlice]:
        found = self.cluster.slices()
        return [s for s in found if (s.metadata.labels or {}).get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING]

    def one(self) -> EndpointSlice:
        (found,) = self.slices()
        return found

    def shown(self) -> Shown:
        return {
            (each.address_type, tuple(port.port for port in each.ports or ())): sorted(
                e.addresses[0] for e in each.endpoints or ()
            )
            for each in self.slices()
        }

    def verbs(self) -> list[str]:
        return [write.verb for write in self.cluster.writes]

    def native(self, *, there: bool = True, kind: str = "IPv4") -> None:
        """The EndpointSlice controller's slice comes or goes."""
        labels = {LABEL_SERVICE_NAME: "web", LABEL_MANAGED_BY: MANAGED_BY_CONTROLLER}
        meta = ObjectMeta(name=f"native-{kind.lower()}", namespace="shop", uid=f"native-{kind}", labels=labels)
        if there:
            self.cluster.put(EndpointSlice(metadata=meta, address_type=kind))
        else:
            self.cluster.remove(EndpointSlices, "shop", meta.name)


def foreign(name: str, manager: str, **meta: Any) -> EndpointSlice:
    labels = {LABEL_SERVICE_NAME: "web", LABEL_MANAGED_BY: manager}
    return EndpointSlice(
        metadata=ObjectMeta(name=name, namespace="shop", uid=f"uid-{name}", labels=labels, **meta), address_type="IPv4"
    )


def too_many(limit: int, skipped: int) -> str:
    return (
        f"A max of {limit} addresses can be mirrored to EndpointSlices per Endpoints subset. "
        f"{skipped} addresses were skipped"
    )


# The test plan of the KEP


class TestPlan:
    def test_stale_slices_are_cleaned_up_at_the_start(self) -> None:
        plane = Plane(custom(), custom(name="other", labels=SKIPPED))
        plane.cluster.put(foreign("stale", MANAGED_BY_MIRRORING))
        lost = foreign("of-nothing", MANAGED_BY_MIRRORING)
        plane.cluster.put(
            replace(lost, metadata=replace(lost.metadata, labels={**lost.metadata.labels, LABEL_SERVICE_NAME: "gone"}))
        )  # type: ignore[dict-item]  # has labels
        plane.begin()
        plane.settle()
        assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1"]}
        assert plane.one().metadata.name == "stale", "what can be used again is"

    def test_only_endpoints_without_the_skip_label_are_mirrored(self) -> None:
        """The KEP's sentence says the contrary, and its prose what is meant."""
        plane = Plane(custom(labels=SKIPPED))
        plane.settle()
        assert plane.slices() == []
        plane.put(custom(labels={LABEL_SKIP_MIRROR: "false"}))
        assert len(plane.slices()) == 1

    def test_transitions_of_the_skip_label_create_and_delete(self) -> None:
        plane = Plane(custom())
        plane.settle()
        for _ in range(3):
            plane.put(custom(labels=SKIPPED))
            assert plane.slices() == []
            plane.put(custom())
            assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1"]}

    def test_labels_endpoints_and_ports_are_those_of_the_endpoints(self) -> None:
        target = ObjectReference(
            kind="VM", namespace="shop", name="vm", uid="u", api_version="v9", resource_version="3"
        )
        full = EndpointAddress(ip="192.0.2.1", hostname="h", node_name="n", target_ref=target)
        ports = (*HTTP, CoreEndpointPort(name="dns", port=53, protocol="UDP"))
        plane = Plane(
            custom(
                replace(subset("192.0.2.2", ports=ports, not_ready=("192.0.2.3",)), addresses=(full,)),
                labels={"a": "b"},
            )
        )
        plane.settle()
        found = plane.one()
        assert {k: v for k, v in (found.metadata.labels or {}).items() if "kubernetes.io" not in k} == {"a": "b"}
        assert [(p.name, p.protocol, p.port, p.app_protocol) for p in found.ports or ()] == [
            ("dns", "UDP", 53, None),
            ("http", "TCP", 80, "h2c"),
        ]
        first, second = found.endpoints or ()
        assert (first.addresses, first.hostname, first.node_name) == (("192.0.2.1",), "h", "n")
        assert first.target_ref == target, "as a whole"
        assert (first.conditions.ready, first.conditions.serving, first.conditions.terminating) == (True, None, None)
        assert (second.addresses, second.conditions.ready) == (("192.0.2.3",), False)
        assert (first.zone, first.hints) == (None, None)

    def test_owner_and_service_name_refer_to_the_endpoints(self) -> None:
        plane = Plane(custom())
        plane.settle()
        meta = plane.one().metadata
        (owner,) = meta.owner_references or ()
        assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Endpoints", "web", "custom-web")
        assert (owner.controller, owner.block_owner_deletion) == (True, True)
        assert (meta.labels or {})[LABEL_SERVICE_NAME] == "web"
        assert meta.name.startswith("web-")

    def test_managed_by_label_is_the_mirroring_controllers(self) -> None:
        plane = Plane(custom(labels={LABEL_MANAGED_BY: "me", LABEL_SERVICE_NAME: "not-web"}))
        plane.settle()
        labels = plane.one().metadata.labels or {}
        assert labels[LABEL_MANAGED_BY] == MANAGED_BY_MIRRORING
        assert labels[LABEL_SERVICE_NAME] == "web"

    def test_dual_stack_endpoints_are_a_slice_per_family(self) -> None:
        plane = Plane(custom(subset("192.0.2.1", "2001:db8::1", "192.0.2.2")))
        plane.settle()
        assert plane.shown() == {
            ("IPv4", (80,)): ["192.0.2.1", "192.0.2.2"],
            ("IPv6", (80,)): ["2001:db8::1"],
        }

    def test_several_subsets_are_a_slice_each(self) -> None:
        plane = Plane(
            custom(subset("192.0.2.1"), subset("192.0.2.2", ports=(CoreEndpointPort(name="other", port=81),)))
        )
        plane.settle()
        assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1"], ("IPv4", (81,)): ["192.0.2.2"]}

    def test_several_subsets_and_families_are_a_slice_for_each_of_both(self) -> None:
        other = (CoreEndpointPort(name="other", port=81),)
        plane = Plane(custom(subset("192.0.2.1", "2001:db8::1"), subset("192.0.2.2", "2001:db8::2", ports=other)))
        plane.settle()
        assert plane.shown() == {
            ("IPv4", (80,)): ["192.0.2.1"],
            ("IPv6", (80,)): ["2001:db8::1"],
            ("IPv4", (81,)): ["192.0.2.2"],
            ("IPv6", (81,)): ["2001:db8::2"],
        }

    def test_of_more_than_1000_endpoints_exactly_1000_are_mirrored(self) -> None:
        """Ready ones first, both families together; and on the way back down all of them."""
        ready = [f"10.0.{n >> 8}.{n & 255}" for n in range(600)]
        six = tuple(f"2001:db8::{n:x}" for n in range(401))
        plane = Plane(custom(subset(*ready, not_ready=six)))
        notes = plane.settle()
        assert sum(len(each) for each in plane.shown().values()) == 1000
        assert len(plane.shown()["IPv4", (80,)]) == 600
        assert notes == [f"Warning TooManyAddressesToMirror: {too_many(1000, 1)}"]
        assert plane.put(custom(subset(*ready, not_ready=six[:400]))) == []
        assert sum(len(each) for each in plane.shown().values()) == 1000

    def test_slices_managed_by_others_are_not_modified(self) -> None:
        theirs = [foreign("a", "someone-else"), foreign("b", MANAGED_BY_CONTROLLER), foreign("c", "")]
        plane = Plane(custom(), *theirs)
        before = {each.metadata.name: each for each in plane.cluster.slices()}
        plane.settle()
        plane.put(custom(labels=SKIPPED))
        plane.cluster.remove(EndpointsObjects, "shop", "web")
        plane.settle()
        assert {each.metadata.name: each for each in plane.cluster.slices()} == before

    def test_selector_added_deletes_what_was_mirrored(self) -> None:
        plane = Plane(custom())
        plane.settle()
        plane.cluster.put(make_service())
        plane.cluster.put(custom(labels=SKIPPED))  # as the Endpoints controller does
        plane.deliver()
        assert plane.jobs() == (), "not before its successor is there"
        plane.native()
        plane.deliver()
        (job,) = plane.jobs()
        assert [write.verb for write in job.writes] == ["delete"]
        plane.controller.on_done(plane.cluster.run(job), plane.now)
        plane.settle()
        assert plane.slices() == []


# The selector's life


def test_slices_wait_for_their_successors_type_by_type() -> None:
    plane = Plane(custom(subset("192.0.2.1", "2001:db8::1")))
    plane.settle()
    plane.cluster.put(make_service())
    plane.native()
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert [each.address_type for each in plane.slices()] == ["IPv6"]
    plane.native(kind="IPv6")
    plane.settle()
    assert plane.slices() == []


def test_slices_go_in_the_end_if_no_successor_comes() -> None:
    plane = Plane(custom())
    plane.settle()
    plane.cluster.put(make_service())
    plane.deliver()
    assert plane.jobs() == ()
    assert plane.jobs(HAND_OVER_TIMEOUT_S - 0.1) == ()
    (job,) = plane.jobs(0.2)
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert plane.slices() == []


def test_selector_that_comes_and_goes_leaves_the_mirror_in_place() -> None:
    plane = Plane(custom())
    plane.settle()
    before = plane.one()
    for _ in range(3):
        plane.cluster.put(make_service())
        plane.deliver()
        assert plane.jobs(1.0) == ()
        plane.cluster.put(make_service(selector=None))
        plane.settle()
        assert plane.one() == before


def test_successors_that_went_again_are_none() -> None:
    plane = Plane(custom())
    plane.settle()
    plane.native()
    plane.native(there=False)
    plane.cluster.put(make_service())
    plane.deliver()
    assert plane.jobs() == ()


def test_upstreams_way_deletes_at_once() -> None:
    plane = Plane(custom(), config=MirroringConfig(selector_changes=SelectorChanges.UPSTREAM))
    plane.settle()
    plane.cluster.put(make_service())
    plane.deliver()
    (job,) = plane.jobs()
    assert [write.verb for write in job.writes] == ["delete"]


def test_type_of_the_service_does_not_matter() -> None:
    plane = Plane(custom(), type="ExternalName")
    plane.settle()
    assert len(plane.slices()) == 1


def test_empty_selector_is_none() -> None:
    plane = Plane(custom(), selector={})
    plane.settle()
    assert len(plane.slices()) == 1


# Objects that come and go


def test_create_update_and_delete_follow() -> None:
    plane = Plane()
    plane.put(custom())
    plane.put(custom(subset("192.0.2.1", "192.0.2.9")))
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1", "192.0.2.9"]}
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.settle()
    assert plane.slices() == []
    assert plane.verbs() == ["create", "update", "delete"]
    assert plane.controller._engine._states == {}


def test_service_that_comes_and_goes() -> None:
    plane = Plane(custom())
    plane.settle()
    plane.cluster.remove(Services, "shop", "web")
    plane.settle()
    assert plane.slices() == []
    plane.cluster.put(make_service(selector=None))
    plane.settle()
    assert len(plane.slices()) == 1


def test_leases_are_not_mirrored() -> None:
    plane = Plane(custom(annotations={ANNOTATION_LEADER: "{}"}))
    plane.settle()
    assert plane.slices() == []


def test_endpoints_of_the_api_server_are_not_mirrored() -> None:
    plane = Plane(custom(name="kubernetes", labels=SKIPPED))
    plane.cluster.put(make_service("kubernetes", selector=None))
    plane.settle()
    assert plane.slices() == []


def test_empty_endpoints_are_no_slice_and_no_placeholder() -> None:
    """ovn-kubernetes#6247."""
    plane = Plane(custom())
    plane.settle()
    plane.put(replace(custom(), subsets=None))
    assert plane.slices() == []


def test_endpoints_deleted_and_made_again_own_their_slices_anew() -> None:
    """k/k#125354."""
    plane = Plane(custom())
    plane.settle()
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.cluster.put(custom(uid="another"))
    plane.settle()
    assert [owner.uid for owner in plane.one().metadata.owner_references or ()] == ["another"]


def test_slice_that_somebody_deletes_or_edits_is_put_right() -> None:
    plane = Plane(custom())
    plane.settle()
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.settle()
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1"]}
    right = plane.one()
    for change in (
        {"endpoints": ()},
        {"endpoints": (*(right.endpoints or ()), *(right.endpoints or ()))},
        {"metadata": replace(right.metadata, annotations={"odd": "1"})},
        {"metadata": replace(right.metadata, labels={**(right.metadata.labels or {}), "odd": "1"})},
        {"metadata": replace(right.metadata, owner_references=None)},
    ):
        plane.put(replace(plane.one(), **change))
        found = plane.one()
        assert found.endpoints == right.endpoints
        assert replace(found.metadata, resource_version="", generation=0) == replace(
            right.metadata, resource_version="", generation=0
        )


def test_hints_that_somebody_sets_are_left_alone() -> None:
    from sliceplane.api.discovery import EndpointHints, ForZone

    plane = Plane(custom())
    plane.settle()
    found = plane.one()
    hinted = tuple(replace(e, hints=EndpointHints(for_zones=(ForZone(name="a"),))) for e in found.endpoints or ())
    before = len(plane.verbs())
    plane.put(replace(found, endpoints=hinted))
    assert len(plane.verbs()) == before


def test_annotations_are_mirrored_but_for_two() -> None:
    annotations = {"a": "b", ANNOTATION_TRIGGER_TIME: "2026-11-21T10:00:00Z", ANNOTATION_LAST_APPLIED: "{}"}
    plane = Plane(custom(annotations=annotations))
    plane.settle()
    assert plane.one().metadata.annotations == {"a": "b"}
    before = len(plane.verbs())
    plane.put(custom(annotations={**annotations, ANNOTATION_TRIGGER_TIME: "2026-11-21T11:00:00Z"}))
    assert len(plane.verbs()) == before
    plane.put(custom(annotations={"a": "c"}))
    assert plane.one().metadata.annotations == {"a": "c"}


def test_slices_are_recycled() -> None:
    """One that would go becomes one that is needed: one write where delete and create would be two."""
    plane = Plane(custom())
    plane.settle()
    name = plane.one().metadata.name
    plane.put(custom(subset("192.0.2.7", ports=(CoreEndpointPort(name="http", port=8080),))))
    assert plane.verbs() == ["create", "update"]
    assert plane.one().metadata.name == name
    assert plane.shown() == {("IPv4", (8080,)): ["192.0.2.7"]}
    plane.put(custom(subset("2001:db8::1")))
    assert plane.verbs()[2:] == ["create", "delete"], "a slice cannot change its address type"


def test_many_families_recycled_at_once_are_all_there() -> None:
    """Upstream takes recycled slices off its list by a name that new ones do not have."""
    other = (CoreEndpointPort(name="other", port=81),)
    plane = Plane(custom(subset("192.0.2.1", "2001:db8::1")))
    plane.settle()
    plane.put(custom(subset("192.0.2.2", ports=other), subset("192.0.2.3", "2001:db8::3", ports=())))
    assert plane.shown() == {
        ("IPv4", (81,)): ["192.0.2.2"],
        ("IPv4", ()): ["192.0.2.3"],
        ("IPv6", ()): ["2001:db8::3"],
    }


def test_second_slice_of_a_group_goes() -> None:
    plane = Plane(custom())
    plane.settle()
    found = plane.one()
    plane.put(replace(found, metadata=replace(found.metadata, name="zz", uid="zz")))
    assert [each.metadata.name for each in plane.slices()] == [found.metadata.name]


def test_more_than_a_hundred_ports_are_mirrored() -> None:
    """k/k#99382."""
    ports = tuple(CoreEndpointPort(name=f"p{number}", port=number) for number in range(1, 301))
    plane = Plane(custom(subset("192.0.2.1", ports=ports)))
    plane.settle()
    assert len(plane.one().ports or ()) == 300


def test_limit_per_subset_is_a_flag() -> None:
    other = (CoreEndpointPort(name="other", port=81),)
    plane = Plane(
        custom(subset("192.0.2.1", "192.0.2.2", "192.0.2.3"), subset("192.0.2.4", "192.0.2.5", ports=other)),
        config=MirroringConfig(max_endpoints_per_subset=2),
    )
    assert plane.settle() == [f"Warning TooManyAddressesToMirror: {too_many(2, 1)}"]
    assert plane.shown() == {
        ("IPv4", (80,)): ["192.0.2.1", "192.0.2.2"],
        ("IPv4", (81,)): ["192.0.2.4", "192.0.2.5"],
    }


def test_what_is_no_address_is_told_and_left_out() -> None:
    """Events once for each version of the object, not for each look at it."""
    plane = Plane(
        custom(subset("192.0.2.1", "0-is-no-ip", "1.1.1.300")), config=MirroringConfig(max_endpoints_per_subset=1)
    )
    invalid = "Warning InvalidIPAddress: Skipped 2 invalid IP addresses when mirroring to EndpointSlices"
    assert plane.settle() == [invalid]
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1"]}
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    assert plane.settle() == []
    notes = plane.put(custom(subset("192.0.2.1", "192.0.2.2", "0-is-no-ip", "1.1.1.300")))
    assert notes == [
        invalid,
        f"Warning TooManyAddressesToMirror: {too_many(1, 3)}",
    ]


def test_old_spellings_are_mirrored_canonically() -> None:
    plane = Plane(custom(subset("192.000.002.001", "2001:0db8::0001", "::ffff:192.0.2.2")))
    plane.settle()
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1", "192.0.2.2"], ("IPv6", (80,)): ["2001:db8::1"]}


def test_nothing_is_made_for_an_object_that_is_going() -> None:
    plane = Plane(custom(deletion_timestamp="2026-11-21T10:00:00Z"))
    plane.settle()
    assert plane.slices() == []


# Caches, answers, failures


def test_restart_with_everything_in_place_writes_nothing() -> None:
    target = ObjectReference(kind="VM", name="vm", resource_version="3")
    with_target = EndpointSubset(addresses=(EndpointAddress(ip="192.0.2.8", target_ref=target, node_name=""),))
    plane = Plane(custom(subset("192.0.2.1", "2001:db8::1"), with_target, annotations={"a": "b"}, labels={"c": "d"}))
    plane.settle()
    before = len(plane.verbs())
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) == before


def test_own_create_that_the_cache_does_not_show_is_not_repeated() -> None:
    """k/k#93374."""
    plane = Plane(custom())
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    held, plane.cluster.pending = plane.cluster.pending, []
    plane.cluster.put(custom(subset("192.0.2.1", "192.0.2.2")))
    plane.deliver()
    (job,) = plane.jobs()
    assert [write.verb for write in job.writes] == ["update"]
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.cluster.pending[:0] = held
    plane.settle()
    assert plane.verbs() == ["create", "update"]


def test_create_that_was_deleted_before_its_answer_came_is_made_again() -> None:
    plane = Plane(custom())
    (job,) = plane.jobs()
    done = plane.cluster.run(job)
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.deliver()
    plane.controller.on_done(done, plane.now)
    assert len(plane.jobs()) == 1


def test_create_that_went_unseen_is_given_up_in_time() -> None:
    plane = Plane(custom())
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.cluster.pending.clear()
    start = plane.now
    plane.settle()
    assert len(plane.slices()) == 1
    assert plane.now - start >= UNSEEN_TIMEOUT_S


def test_after_a_conflict_nothing_is_written_before_the_cache_caught_up() -> None:
    """k/k#127429's case for mirrored slices."""
    plane = Plane(custom())
    plane.settle()
    plane.cluster.put(replace(plane.one(), endpoints=()))
    held = plane.cluster.pending.pop()
    plane.cluster.put(custom(subset("192.0.2.2")))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert plane.jobs(1.0) == ()
    plane.cluster.pending.append(held)
    plane.settle()
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.2"]}


def test_conflict_without_news_is_tried_again_in_the_end() -> None:
    plane = Plane(custom())
    plane.settle()
    plane.cluster.put(custom(subset("192.0.2.2")))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), StatusError(409, "Conflict", "no reason")), plane.now)
    plane.settle()
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.2"]}


def test_deletion_that_only_a_relist_tells_of_converges() -> None:
    """cilium#48050."""
    plane = Plane(custom())
    plane.settle()
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.cluster.relist(plane.controller, plane.now)
    plane.settle()
    assert plane.slices() == []


def test_failures_back_off_to_a_hundred_seconds_and_are_given_up_after_fifteen() -> None:
    plane = Plane(custom())
    delays = []
    for _ in range(MAX_RETRIES + 1):
        (job,) = plane.jobs()
        plane.controller.on_done(Done(job, (), internal("disk full")), plane.now)
        deadline = plane.controller.next_deadline()
        if deadline is not None:
            delays.append(round(deadline - plane.now))
            plane.now = deadline
    assert delays == [1, 2, 4, 8, 16, 32, 64, *[100] * (MAX_RETRIES - 7)]
    plane.put(custom(subset("192.0.2.2")))
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.2"]}


def test_terminating_namespace_ends_a_sync_without_a_word() -> None:
    plane = Plane(custom())
    (job,) = plane.jobs()
    cause = {"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}
    error = forbidden("endpointslices", "discovery.k8s.io", "", "x", [cause])
    plane.controller.on_done(Done(job, (), error), plane.now)
    work = plane.controller.take_work(plane.now, 10)
    assert (work.jobs, work.notes, plane.controller.next_deadline()) == ((), (), None)


def test_slice_changes_wait_for_the_batch_period_and_others_do_not() -> None:
    plane = Plane(custom(), config=MirroringConfig(endpointslice_updates_batch_period_s=5.0))
    plane.settle()
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.deliver()
    assert plane.jobs(4.0) == ()
    assert len(plane.jobs(1.5)) == 1
    plane.cluster.put(custom(subset("192.0.2.2"), name="other"))
    plane.cluster.put(make_service("other", selector=None))
    plane.deliver()
    assert len(plane.jobs()) == 1


# The start


def test_nothing_is_mirrored_before_the_endpoints_controllers_first_sync() -> None:
    first_sync = FirstSync()
    first_sync.begin()
    controller = EndpointSliceMirroringController(None, first_sync)
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.start(controller, 1000.0)
    assert controller.take_work(1000.0, 10).jobs == ()
    deadline = controller.next_deadline()
    assert deadline is not None
    assert controller.take_work(deadline, 10).jobs == ()
    first_sync.end()
    assert len(controller.take_work(deadline, 10).jobs) == 1
    first_sync.begin()
    cluster.put(custom(subset("192.0.2.3"), name="other"))
    cluster.put(make_service("other", selector=None))
    cluster.deliver(controller, deadline)
    assert len(controller.take_work(deadline, 10).jobs) == 1, "an Endpoints controller that starts again stops nobody"


def test_first_sync_that_never_ends_is_not_waited_for_for_ever() -> None:
    first_sync = FirstSync()
    first_sync.begin()
    controller = EndpointSliceMirroringController(None, first_sync)
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.start(controller, 1000.0)
    assert len(controller.take_work(1000.0 + FIRST_SYNC_TIMEOUT_S, 10).jobs) == 1


def test_nothing_is_done_before_the_caches_are_filled() -> None:
    controller = EndpointSliceMirroringController()
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.deliver(controller, 1000.0)
    assert (controller.take_work(2000.0, 10).jobs, controller.next_deadline()) == ((), None)


@pytest.mark.parametrize("values", [{"max_endpoints_per_subset": 0}, {"max_endpoints_per_subset": 1001},
    {"concurrent_service_endpoint_syncs": 51}])  # fmt: skip
def test_config_refuses_what_upstream_refuses(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="mirroring"):
        MirroringConfig(**values)  # type: ignore[arg-type]  # integers


def test_churn_leaves_nothing_behind() -> None:
    """k/k#128928."""
    plane = Plane()
    for number in range(100):
        plane.cluster.put(make_service(f"s{number}", selector=None))
        plane.cluster.put(custom(name=f"s{number}"))
    plane.settle()
    assert len(plane.slices()) == 100
    assert plane.controller._engine.totals == (100, 100, 100)
    for number in range(100):
        plane.cluster.remove(EndpointsObjects, "shop", f"s{number}")
        plane.cluster.remove(Services, "shop", f"s{number}")
    plane.settle()
    assert (plane.controller._engine._states, plane.controller._engine._selecting) == ({}, {"shop/web": False})
    assert plane.controller._engine.totals == (0, 0, 0)


def test_a_start_with_much_to_look_at_gives_others_their_turn() -> None:
    plane = Plane()
    for number in range(2 * PLANS_PER_TURN):
        plane.cluster.put(make_service(f"s{number}", selector=None))
        plane.cluster.put(replace(custom(name=f"s{number}"), subsets=None))
    plane.begin()
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() == plane.now, "there is more, at once"
    assert plane.controller._queue.depth == PLANS_PER_TURN
    assert plane.jobs() == ()
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() is None


# Figures


def test_figures_are_upstreams() -> None:
    plane = Plane(custom(subset("192.0.2.1", "192.0.2.2", "x")))
    plane.settle()
    plane.put(custom(subset("192.0.2.1", "192.0.2.3")))
    plane.put(custom(labels=SKIPPED))
    found = {family.name: family for family in plane.controller.samples(plane.now)}
    prefix = "endpoint_slice_mirroring_controller_"
    assert {name for name in found if name.startswith(prefix)} == {
        prefix + name
        for name in (
            *("addresses_skipped_per_sync", "changes", "desired_endpoint_slices", "endpoints_added_per_sync"),
            *("endpoints_desired", "endpoints_removed_per_sync", "endpoints_sync_duration"),
            *("endpoints_updated_per_sync", "num_endpoint_slices"),
        )
    }
    changes = {sample.labels: sample.value for sample in found[prefix + "changes"].samples}
    assert changes == {("create",): 1, ("update",): 1}, "what goes because nothing is mirrored is not counted"
    assert found[prefix + "endpoints_added_per_sync"].samples[0].value.total == 3  # type: ignore[union-attr]
    assert found[prefix + "endpoints_removed_per_sync"].samples[0].value.total == 1  # type: ignore[union-attr]
    assert found[prefix + "addresses_skipped_per_sync"].samples[0].value.total >= 1  # type: ignore[union-attr]
    assert found["workqueue_depth"].samples[0].labels == ("endpoint_slice_mirroring",)
