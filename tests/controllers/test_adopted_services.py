"""Controllers with the scope of adopted Services, beside upstream's: which slices and Endpoints they
write, delete and leave alone at each stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.controllers.controller_plane import ControllerPlane
from tests.slices.fake_cluster import make_node, make_pod, make_service, replace

from sliceplane.api.core import Endpoints, Pod, Service
from sliceplane.api.discovery import (
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.findings.wording import pairs_text
from sliceplane.api.meta import ObjectMeta, OwnerReference
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.api.selectors.adoption import (
    ANNOTATION_ADOPTION,
    ANNOTATION_SELECTOR,
    MANAGED_BY_ADOPTED,
    AdoptionStage,
    Scope,
    parse_selector,
    selector_of,
    stage_of,
)
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S

UPSTREAM: dict[str, str] = {}
ADOPTING = {ANNOTATION_SELECTOR: "app=web", ANNOTATION_ADOPTION: "adopting"}
ADOPTED = {ANNOTATION_SELECTOR: "app=web"}
RELEASING = {ANNOTATION_SELECTOR: "app=web", ANNOTATION_ADOPTION: "releasing"}


def service(annotations: dict[str, str], *, selects: bool, **over: Any) -> Service:
    selector = {"app": "web"} if selects else None
    return make_service(annotations=annotations or None, selector=selector, **over)


def upstream_slice(
    *ips: str, name: str = "up-1", owner: str = "uid-web", **over: Any
) -> EndpointSlice:
    """A slice of upstream's controller."""
    endpoints = tuple(
        SliceEndpoint(addresses=(ip,), conditions=EndpointConditions(ready=over.get("ready", True)))
        for ip in ips
    )
    return EndpointSlice(
        metadata=ObjectMeta(
            name=name,
            namespace="shop",
            uid=f"uid-{name}",
            labels={
                LABEL_SERVICE_NAME: "web",
                LABEL_MANAGED_BY: over.get("manager", MANAGED_BY_CONTROLLER),
            },
            owner_references=(
                OwnerReference(
                    api_version="v1", kind="Service", name="web", uid=owner, controller=True
                ),
            ),
        ),
        address_type="IPv4",
        endpoints=endpoints,
        ports=(EndpointPort(name="http", protocol="TCP", port=8080),),
    )


class Plane(ControllerPlane):
    """The EndpointSlice controller of adopted Services, and slices that upstream's wrote."""

    controller: EndpointSliceController

    def __init__(self, first: Service, *pods: Pod) -> None:
        super().__init__(make_node("n0", "a"), first, *pods)

    def make(self) -> EndpointSliceController:
        return EndpointSliceController(EndpointSliceConfig(scope=Scope.ADOPTED))

    def managers(self) -> list[str]:
        return sorted(observed.manager for observed in self.cluster.slices())

    def changes(self) -> list[str]:
        """The writes since the last call."""
        verbs = self.verbs()
        self.cluster.writes.clear()
        return verbs


@pytest.mark.parametrize(
    ("annotations", "selects", "stage", "theirs", "readers"),
    [
        ({}, False, AdoptionStage.UNSELECTED, {}, {}),
        ({}, True, AdoptionStage.UPSTREAM, {}, {"app": "web"}),
        (ADOPTING, True, AdoptionStage.ADOPTING, {"app": "web"}, {"app": "web"}),
        (ADOPTED, False, AdoptionStage.ADOPTED, {"app": "web"}, {"app": "web"}),
        (ADOPTING, False, AdoptionStage.ADOPTED, {"app": "web"}, {"app": "web"}),
        (RELEASING, False, AdoptionStage.ADOPTED, {"app": "web"}, {"app": "web"}),
        (RELEASING, True, AdoptionStage.RELEASING, {"app": "web"}, {"app": "web"}),
        (ADOPTED, True, AdoptionStage.CONFLICT, {}, {"app": "web"}),
        ({ANNOTATION_SELECTOR: ""}, False, AdoptionStage.INVALID, {}, {}),
        ({ANNOTATION_SELECTOR: "app in (web)"}, False, AdoptionStage.INVALID, {}, {}),
        (
            {**ADOPTING, ANNOTATION_SELECTOR: "web"},
            True,
            AdoptionStage.CONFLICT,
            {},
            {"app": "web"},
        ),
    ],
)
def test_each_stage_has_one_selector_for_each_reader(
    annotations: dict[str, str],
    selects: bool,
    stage: AdoptionStage,
    theirs: dict[str, str],
    readers: dict[str, str],
) -> None:
    observed = service(annotations, selects=selects)
    assert stage_of(observed) is stage
    assert selector_of(observed, Scope.ADOPTED) == theirs
    assert selector_of(observed) == readers
    assert selector_of(observed, Scope.SELECTING) == ({"app": "web"} if selects else {})


@pytest.mark.parametrize(
    "selector", [{"app": "web"}, {"a.b/c": "", "app": "web"}, {"x": "1", "y": "v-1.2_3"}]
)
def test_a_selector_survives_the_annotation(selector: dict[str, str]) -> None:
    assert parse_selector(pairs_text(selector)) == selector


@pytest.mark.parametrize(
    "text", ["", "app", "=web", "app=web,", "app=web,app=api", "a/b/c=d", "app=-", "a=b," * 300]
)
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_selector(text)


def test_a_service_that_is_not_adopted_is_never_touched() -> None:
    plane = Plane(service(UPSTREAM, selects=True), make_pod("p-1"))
    plane.cluster.put(upstream_slice("192.0.2.9"))
    plane.cluster.put(upstream_slice("192.0.2.8", name="no-owner", owner="other"))
    plane.settle()
    plane.cluster.put(service(UPSTREAM, selects=False))
    plane.settle()
    plane.cluster.remove(Services, "shop", "web")
    plane.settle()
    assert plane.changes() == []


def test_from_upstream_to_ours_and_back() -> None:
    plane = Plane(service(UPSTREAM, selects=True), make_pod("p-1"))
    plane.cluster.put(upstream_slice("10.0.0.2"))
    plane.settle()
    plane.cluster.put(service(ADOPTING, selects=True))
    plane.settle()
    assert plane.changes() == ["create"]
    assert plane.managers() == [MANAGED_BY_CONTROLLER, MANAGED_BY_ADOPTED]
    theirs, ours = plane.cluster.slices()[::-1], plane.cluster.slices()
    assert {e.conditions.ready for one in (*theirs, *ours) for e in one.endpoints or ()} == {True}
    plane.cluster.put(service(ADOPTED, selects=False))
    plane.settle()
    assert plane.changes() == ["delete"], "a leftover of upstream's, and nothing of ours"
    assert plane.managers() == [MANAGED_BY_ADOPTED]
    plane.cluster.put(service(RELEASING, selects=True))
    plane.settle()
    assert plane.changes() == []
    plane.cluster.put(service(UPSTREAM, selects=True))
    plane.settle()
    assert plane.changes() == [], "upstream has no slice yet"
    plane.cluster.put(upstream_slice("10.0.0.2"))
    plane.settle()
    assert plane.changes() == ["delete"]
    assert plane.managers() == [MANAGED_BY_CONTROLLER]


def test_leftovers_stay_until_the_server_has_ours() -> None:
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"))
    plane.cluster.put(upstream_slice("10.0.0.2"))
    plane.deliver()
    (job,) = plane.jobs()
    assert [write.verb for write in job.writes] == ["create"]
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.settle()
    assert plane.changes() == ["create", "delete"]


def test_a_late_write_of_upstream_is_taken_away() -> None:
    """Its informer may lag behind the Service."""
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"))
    plane.settle()
    plane.changes()
    plane.cluster.put(upstream_slice("192.0.2.77"))
    plane.settle()
    assert plane.changes() == ["delete"]
    assert plane.managers() == [MANAGED_BY_ADOPTED]


@pytest.mark.parametrize(
    "observed",
    [
        upstream_slice("192.0.2.1", name="user", manager="me"),
        upstream_slice("192.0.2.1", name="stranger", owner="uid-of-another"),
    ],
)
def test_slices_of_other_writers_are_no_leftovers(observed: EndpointSlice) -> None:
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"))
    plane.cluster.put(observed)
    plane.settle()
    assert plane.changes() == ["create"]


def test_after_a_service_was_applied_again_one_set_of_slices_remains() -> None:
    """An apply from Git leaves the annotations alone and restores spec.selector."""
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.changes()
    plane.cluster.put(service(ADOPTED, selects=True))
    (event,) = plane.settle()
    assert event.startswith("Warning AdoptionConflict: spec.selector was applied again")
    assert plane.changes() == [], "ours stay while upstream has none"
    plane.cluster.put(upstream_slice("10.0.0.2"))
    plane.deliver()
    assert plane.jobs(2.0) == (), "one endpoint of two"
    plane.cluster.put(upstream_slice("10.0.0.3", name="up-2"))
    plane.settle()
    assert plane.managers() == [MANAGED_BY_CONTROLLER] * 2
    plane.cluster.put(service(ADOPTING, selects=True))
    plane.settle()
    plane.cluster.put(service(ADOPTED, selects=False))
    plane.settle()
    assert plane.managers() == [MANAGED_BY_ADOPTED], "adopt completes it again"


def test_two_sets_that_never_agree_do_not_stay() -> None:
    """A drained Pod, or one that a mass removal retains, is ready in one set only."""
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(service(ADOPTED, selects=True))
    plane.cluster.put(upstream_slice("10.0.0.2"))
    began = plane.now
    plane.settle()
    assert plane.managers() == [MANAGED_BY_CONTROLLER]
    assert plane.now >= began + HAND_OVER_TIMEOUT_S


def test_replaced_without_its_annotations_a_service_returns_as_well() -> None:
    """``kubectl replace``."""
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"))
    plane.settle()
    plane.cluster.put(service(UPSTREAM, selects=True))
    plane.cluster.put(upstream_slice("10.0.0.2"))
    plane.settle()
    assert plane.managers() == [MANAGED_BY_CONTROLLER]


def test_a_selector_that_nobody_can_read_changes_no_slice() -> None:
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"))
    plane.settle()
    plane.changes()
    plane.cluster.put(service({ANNOTATION_SELECTOR: "app in (web)"}, selects=False))
    (event,) = plane.settle()
    assert "Warning InvalidSelector" in event
    assert plane.changes() == []
    plane.cluster.put(service(ADOPTED, selects=False))
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.settle()
    assert plane.changes() == ["update"]


def test_a_restart_at_any_stage_writes_nothing_that_is_there() -> None:
    plane = Plane(service(ADOPTED, selects=False), make_pod("p-1"))
    plane.settle()
    plane.changes()
    for stage, selects in ((ADOPTED, False), (ADOPTING, True), (RELEASING, True)):
        plane.cluster.put(service(stage, selects=selects))
        plane.begin()
        plane.settle()
        assert plane.changes() == []


def test_both_sets_are_selected_by_label() -> None:
    watched = {
        watch.resource: watch for watch in Plane(service({}, selects=True)).make().info.watches
    }
    assert watched[EndpointSlices].label_selector == (
        f"{LABEL_MANAGED_BY} in ({MANAGED_BY_CONTROLLER},{MANAGED_BY_ADOPTED})"
    )


# Endpoints


class EndpointsPlane(ControllerPlane):
    controller: EndpointsController

    def make(self) -> EndpointsController:
        return EndpointsController(EndpointsConfig(scope=Scope.ADOPTED))

    def endpoints(self) -> Endpoints:
        found = self.cluster.objects[EndpointsObjects.key, "shop", "web"]
        assert isinstance(found, Endpoints)
        return found

    def ips(self) -> list[str]:
        return [a.ip for subset in self.endpoints().subsets or () for a in subset.addresses or ()]


def marked(labels: Sequence[str] = (LABEL_SKIP_MIRROR,)) -> Endpoints:
    """Endpoints that upstream's controller wrote, with labels of ours."""
    return Endpoints(
        metadata=ObjectMeta(
            name="web",
            namespace="shop",
            uid="uid-endpoints",
            labels={
                LABEL_ENDPOINTS_MANAGED_BY: "endpoint-controller",
                **dict.fromkeys(labels, "true"),
            },
        )
    )


@pytest.mark.parametrize(
    ("annotations", "selects"),
    [(UPSTREAM, True), (UPSTREAM, False), (ADOPTING, True), (RELEASING, True), (ADOPTED, True)],
)
def test_endpoints_stay_upstreams_while_the_spec_has_a_selector(
    annotations: dict[str, str], selects: bool
) -> None:
    plane = EndpointsPlane(service(annotations, selects=selects), make_pod("p-1"), marked())
    plane.settle()
    plane.cluster.remove(Services, "shop", "web")
    plane.settle()
    assert plane.verbs() == []


def test_endpoints_of_an_adopted_service_are_kept_true_and_unmirrored() -> None:
    plane = EndpointsPlane(service(ADOPTED, selects=False), make_pod("p-1"), marked())
    plane.settle()
    assert plane.ips() == ["10.0.0.2"]
    assert (plane.endpoints().metadata.labels or {})[LABEL_SKIP_MIRROR] == "true"
    plane.cluster.put(make_pod("p-2"))
    plane.settle()
    assert plane.ips() == ["10.0.0.2", "10.0.0.3"]
    assert plane.verbs() == ["update", "update"]


def test_endpoints_whose_label_upstream_removed_get_it_back() -> None:
    """Then they are not in the cache, which has only labelled ones; a create is refused."""
    plane = EndpointsPlane(service(ADOPTED, selects=False), make_pod("p-1"))
    plane.cluster.pending.clear()
    stored = plane.cluster.put(marked(labels=()))
    plane.cluster.pending.clear()
    plane.settle()
    assert plane.verbs()[:3] == ["create", "patch", "update"]
    assert plane.ips() == ["10.0.0.2"]
    assert plane.endpoints().metadata.uid == stored.metadata.uid


def test_endpoints_of_deleted_services_are_left_to_upstream() -> None:
    plane = EndpointsPlane(service(ADOPTED, selects=False), make_pod("p-1"), marked())
    plane.settle()
    before = len(plane.verbs())
    plane.cluster.remove(Services, "shop", "web")
    plane.settle()
    plane.begin()
    plane.settle()
    assert plane.verbs()[before:] == []


def test_a_selector_applied_again_ends_our_writes_of_endpoints() -> None:
    plane = EndpointsPlane(service(ADOPTED, selects=False), make_pod("p-1"), marked())
    plane.settle()
    plane.cluster.put(service(ADOPTED, selects=True))
    plane.cluster.put(replace(plane.endpoints(), subsets=()))
    plane.settle()
    assert plane.ips() == []
