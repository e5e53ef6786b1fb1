"""KEP-0752's test plan of the mirroring controller, bullet by bullet
(tests/upstream_tests.md).
"""

from __future__ import annotations

from tests.controllers.mirrored_plane import HTTP, SKIPPED, Plane, custom, foreign, subset, too_many
from tests.slices.fake_cluster import make_service, replace

from sliceplane.api.core import CoreEndpointPort, EndpointAddress
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
)
from sliceplane.api.meta import ObjectReference
from sliceplane.api.scheme import EndpointsObjects


class TestPlan:
    def test_stale_slices_are_cleaned_up_at_the_start(self) -> None:
        plane = Plane(custom(), custom(name="other", labels=SKIPPED))
        plane.cluster.put(foreign("stale", MANAGED_BY_MIRRORING))
        lost = foreign("of-nothing", MANAGED_BY_MIRRORING)
        plane.cluster.put(
            replace(
                lost,
                metadata=replace(
                    lost.metadata, labels={**lost.metadata.labels, LABEL_SERVICE_NAME: "gone"}
                ),
            )
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
                replace(
                    subset("192.0.2.2", ports=ports, not_ready=("192.0.2.3",)), addresses=(full,)
                ),
                labels={"a": "b"},
            )
        )
        plane.settle()
        found = plane.one()
        assert {
            k: v for k, v in (found.metadata.labels or {}).items() if "kubernetes.io" not in k
        } == {"a": "b"}
        assert [(p.name, p.protocol, p.port, p.app_protocol) for p in found.ports or ()] == [
            ("dns", "UDP", 53, None),
            ("http", "TCP", 80, "h2c"),
        ]
        first, second = found.endpoints or ()
        assert (first.addresses, first.hostname, first.node_name) == (("192.0.2.1",), "h", "n")
        assert first.target_ref == target, "as a whole"
        assert (first.conditions.ready, first.conditions.serving, first.conditions.terminating) == (
            True,
            None,
            None,
        )
        assert (second.addresses, second.conditions.ready) == (("192.0.2.3",), False)
        assert (first.zone, first.hints) == (None, None)

    def test_owner_and_service_name_refer_to_the_endpoints(self) -> None:
        plane = Plane(custom())
        plane.settle()
        meta = plane.one().metadata
        (owner,) = meta.owner_references or ()
        assert (owner.api_version, owner.kind, owner.name, owner.uid) == (
            "v1",
            "Endpoints",
            "web",
            "custom-web",
        )
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
            custom(
                subset("192.0.2.1"),
                subset("192.0.2.2", ports=(CoreEndpointPort(name="other", port=81),)),
            )
        )
        plane.settle()
        assert plane.shown() == {("IPv4", (80,)): ["192.0.2.1"], ("IPv4", (81,)): ["192.0.2.2"]}

    def test_several_subsets_and_families_are_a_slice_for_each_of_both(self) -> None:
        other = (CoreEndpointPort(name="other", port=81),)
        plane = Plane(
            custom(
                subset("192.0.2.1", "2001:db8::1"), subset("192.0.2.2", "2001:db8::2", ports=other)
            )
        )
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
        theirs = [
            foreign("a", "someone-else"),
            foreign("b", MANAGED_BY_CONTROLLER),
            foreign("c", ""),
        ]
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
