"""What becomes of slices as their Service loses its selector, turns into a name elsewhere, comes
back or goes.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.slices_plane import Plane
from tests.slices.fake_cluster import make_pod, make_service, replace

from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, SelectorChanges


def test_upstreams_way_leaves_slices_without_a_selector_where_they_are() -> None:
    plane = Plane(
        make_pod("p-1"), config=EndpointSliceConfig(selector_changes=SelectorChanges.UPSTREAM)
    )
    plane.settle()
    before = plane.slice()
    for change in ({"type": "ExternalName"}, {"selector": None}, {"selector": {}}):
        plane.cluster.put(make_service(**change))
        plane.cluster.put(make_pod("p-1", ready=False))
        plane.settle()
        assert plane.slice() == before
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.cluster.endpoints()[0].conditions.ready is False


def successor(kind: str = "IPv4", **over: Any) -> EndpointSlice:
    """A slice that mirrors Endpoints of the service."""
    meta = ObjectMeta(
        name=f"mirror-{kind.lower()}",
        namespace="shop",
        uid=f"mirror-{kind}",
        labels={
            LABEL_SERVICE_NAME: "web",
            LABEL_MANAGED_BY: "endpointslicemirroring-controller.k8s.io",
        },
    )
    endpoints = over.get("endpoints", (SliceEndpoint(addresses=("192.0.2.1",)),))
    return EndpointSlice(metadata=meta, address_type=kind, endpoints=endpoints)


@pytest.mark.parametrize("change", [{"selector": None}, {"selector": {}}])
def test_slices_stay_until_others_follow_them(change: dict[str, Any]) -> None:
    """kubernetes/kubernetes#103804, #105987: upstream leaves them for ever, and nobody keeps them
    true.
    """
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_service(**change))
    plane.deliver()
    assert plane.jobs() == ()
    plane.cluster.put(successor(endpoints=()))
    plane.deliver()
    assert plane.jobs(1.5) == (), "an empty slice takes nobody's traffic"
    plane.cluster.put(successor())
    plane.deliver()
    (job,) = plane.jobs(1.5)
    assert [write.verb for write in job.writes] == ["delete"]
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.settle()
    assert [each.metadata.name for each in plane.cluster.slices()] == ["mirror-ipv4"]


def test_slices_that_nobody_follows_go_in_the_end() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_service(selector=None))
    plane.deliver()
    assert plane.jobs() == ()
    plane.cluster.put(successor("IPv6"))
    plane.deliver()
    assert plane.jobs(HAND_OVER_TIMEOUT_S - 1) == (), "of another address type"
    (job,) = plane.jobs(1.0)
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert [each.address_type for each in plane.cluster.slices()] == ["IPv6"]


def test_selector_that_goes_and_comes_back_changes_nothing() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    before = plane.slice()
    for _ in range(3):
        plane.cluster.put(make_service(selector=None))
        plane.deliver()
        assert plane.jobs(5.0) == ()
        plane.cluster.put(make_service())
        plane.settle()
        assert plane.slice() == before


def test_external_name_needs_no_slices_and_gets_them_back() -> None:
    """kubernetes/kubernetes#103804, #125354."""
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_service(type="ExternalName"))
    plane.settle()
    assert plane.cluster.slices() == []
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.addresses() == ["10.0.0.2"]


def test_orphans_of_an_earlier_controller_go_and_those_of_others_do_not() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    left = plane.slice()
    plane.cluster.put(
        replace(left, metadata=replace(left.metadata, name="a", uid="a", owner_references=None))
    )
    plane.cluster.put(make_service(selector=None))
    plane.controller = EndpointSliceController()
    plane.cluster.start(plane.controller, plane.now)
    plane.settle()
    assert [each.metadata.name for each in plane.cluster.slices()] == ["a"], (
        "what the service does not own"
    )


def test_slices_of_a_deleted_service_are_left_to_the_garbage_collector() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    writes = len(plane.cluster.writes)
    plane.cluster.remove(Services, "shop", "web")
    plane.settle()
    assert len(plane.cluster.writes) == writes
    owner = plane.slice().metadata.owner_references
    assert owner is not None
    assert (owner[0].kind, owner[0].uid, owner[0].controller, owner[0].block_owner_deletion) == (
        "Service",
        "uid-web",
        True,
        True,
    )
    plane.cluster.remove(EndpointSlices, "shop", plane.slice().metadata.name)
    plane.settle()
    assert plane.controller._engine._services == {}
