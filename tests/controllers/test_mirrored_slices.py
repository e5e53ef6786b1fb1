"""What mirrored slices look like and how long they live: Endpoints, selectors and foreign edits
come and go.
"""

from __future__ import annotations

from tests.controllers.mirrored_plane import SKIPPED, Plane, custom, subset, too_many
from tests.slices.fake_cluster import make_service, replace

from sliceplane.api.codec import decode
from sliceplane.api.core import CoreEndpointPort, Endpoints
from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    ANNOTATION_TRIGGER_TIME,
    EndpointSlice,
)
from sliceplane.api.errors import conflict
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.endpointslice_mirroring import (
    MirroringConfig,
)
from sliceplane.slices.endpoints.mirroring.desired import ANNOTATION_LAST_APPLIED
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, SelectorChanges
from sliceplane.watch.controller.base import Done
from sliceplane.watch.controller.own_writes import STALE_PLANS

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
    """kubernetes/kubernetes#125354."""
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
    hinted = tuple(
        replace(e, hints=EndpointHints(for_zones=(ForZone(name="a"),)))
        for e in found.endpoints or ()
    )
    before = len(plane.verbs())
    plane.put(replace(found, endpoints=hinted))
    assert len(plane.verbs()) == before


def test_annotations_are_mirrored_but_for_two() -> None:
    annotations = {
        "a": "b",
        ANNOTATION_TRIGGER_TIME: "2026-11-21T10:00:00Z",
        ANNOTATION_LAST_APPLIED: "{}",
    }
    plane = Plane(custom(annotations=annotations))
    plane.settle()
    assert plane.one().metadata.annotations == {"a": "b"}
    before = len(plane.verbs())
    plane.put(custom(annotations={**annotations, ANNOTATION_TRIGGER_TIME: "2026-11-21T11:00:00Z"}))
    assert len(plane.verbs()) == before
    plane.put(custom(annotations={"a": "c"}))
    assert plane.one().metadata.annotations == {"a": "c"}


def test_slices_are_recycled() -> None:
    """One that would go becomes one that is needed: one write where delete and create would
    be two.
    """
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
    plane.put(
        custom(subset("192.0.2.2", ports=other), subset("192.0.2.3", "2001:db8::3", ports=()))
    )
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


def test_kubernetes_99382_more_than_a_hundred_ports_are_mirrored() -> None:
    """kubernetes/kubernetes#99382."""
    ports = tuple(CoreEndpointPort(name=f"p{number}", port=number) for number in range(1, 301))
    plane = Plane(custom(subset("192.0.2.1", ports=ports)))
    plane.settle()
    assert len(plane.one().ports or ()) == 300


def test_limit_per_subset_is_a_flag() -> None:
    other = (CoreEndpointPort(name="other", port=81),)
    plane = Plane(
        custom(
            subset("192.0.2.1", "192.0.2.2", "192.0.2.3"),
            subset("192.0.2.4", "192.0.2.5", ports=other),
        ),
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
        custom(subset("192.0.2.1", "0-is-no-ip", "1.1.1.300")),
        config=MirroringConfig(max_endpoints_per_subset=1),
    )
    invalid = (
        "Warning InvalidIPAddress: Skipped 2 invalid IP addresses when mirroring to EndpointSlices"
    )
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
    assert plane.shown() == {
        ("IPv4", (80,)): ["192.0.2.1", "192.0.2.2"],
        ("IPv6", (80,)): ["2001:db8::1"],
    }


def test_nothing_is_made_for_an_object_that_is_going() -> None:
    plane = Plane(custom(deletion_timestamp="2026-11-21T10:00:00Z"))
    plane.settle()
    assert plane.slices() == []


# Packed, which upstream never does


def thousand(*, every: int = 1, of: int = 1000, but: int = -1) -> Endpoints:
    return custom(
        subset(*(f"10.0.{n >> 8}.{n & 255}" for n in range(of) if n % every == 0 and n != but))
    )


def test_packed_on_request_and_one_changed_address_writes_one_small_slice() -> None:
    plane = Plane(thousand())
    plane.settle()
    assert [len(each.endpoints or ()) for each in plane.slices()] == [1000], "as upstream"
    plane.config = MirroringConfig(max_endpoints_per_slice=100)
    before = len(plane.verbs())
    plane.begin()
    plane.settle()
    assert [len(each.endpoints or ()) for each in plane.slices()] == [100] * 10
    assert plane.verbs()[before:] == [*["create"] * 9, "update"], (
        "the old slice gives what others have by then"
    )
    before = len(plane.verbs())
    plane.put(thousand(but=7))
    assert plane.verbs()[before:] == ["update"]
    plane.config = None
    plane.begin()
    plane.settle()
    assert [len(each.endpoints or ()) for each in plane.slices()] == [999], (
        "and all of it goes back"
    )


def test_half_empty_slices_are_put_together() -> None:
    plane = Plane(thousand(of=300), config=MirroringConfig(max_endpoints_per_slice=100))
    plane.settle()
    before = len(plane.verbs())
    plane.put(thousand(of=300, every=3))
    assert [len(each.endpoints or ()) for each in plane.slices()] == [100]
    assert plane.verbs()[before:] == ["update", "delete", "delete"]


def test_seed_100376_a_slice_that_met_a_conflict_is_proven_by_a_job_of_its_own() -> None:
    """Recordings rest on it that one job writes a slice once."""
    other = (CoreEndpointPort(name="admin", port=9000),)
    plane = Plane(custom(subset("192.0.2.1"), subset("192.0.2.2", ports=other)))
    plane.settle()
    plane.cluster.put(custom(subset("192.0.2.3"), subset("192.0.2.2", ports=other)))
    plane.deliver()
    (job,) = plane.jobs()
    (refused,) = job.writes
    plane.controller.on_done(
        Done(job, (), conflict("endpointslices", "discovery.k8s.io", refused.name, "")), plane.now
    )
    plane.cluster.put(custom(subset("192.0.2.3"), subset("192.0.2.4", ports=other)))
    plane.deliver()
    (job,) = next(jobs for _ in range(STALE_PLANS + 1) if (jobs := plane.jobs(60.0)))
    (proof,) = job.writes
    (stored,) = (known for known in plane.slices() if known.metadata.name == refused.name)
    assert decode(proof.body, EndpointSlice) == stored
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    (job,) = plane.jobs()
    assert len(job.writes) == 2
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.3"], ("IPv4", (9000,)): ["192.0.2.4"]}
