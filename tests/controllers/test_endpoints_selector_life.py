"""Endpoints without a Service, Endpoints of others, and what becomes of them as selectors come and
go.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.endpoints_plane import OURS, Plane, custom
from tests.slices.fake_cluster import make_pod, make_service

from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    LABEL_SKIP_MIRROR,
)
from sliceplane.api.scheme import EndpointsObjects, Services
from sliceplane.controllers.endpoints import STRAY_DELAY_S, EndpointsConfig
from sliceplane.slices.succession import SelectorChanges

# Objects without a Service, and of others


def test_endpoints_go_with_their_service() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(Services, "shop", "web")
    plane.settle()
    assert plane.maybe() is None
    assert plane.controller._engine._states == {}


def test_strays_go_at_the_start_but_for_leases() -> None:
    plane = Plane()
    plane.cluster.put(custom("stray"))
    plane.cluster.put(custom("lease", annotations={ANNOTATION_LEADER: "{}"}))
    began = plane.now
    plane.begin()
    plane.settle()
    assert plane.maybe("stray") is None
    assert plane.maybe("lease") is not None
    assert plane.now >= began + STRAY_DELAY_S
    plane.cluster.put(custom("later"))
    plane.settle()
    assert plane.maybe("later") is not None, "upstream leaves it until its next start, too"


def test_stray_whose_service_turns_up_is_spared() -> None:
    plane = Plane()
    plane.cluster.put(custom("late"))
    plane.begin()
    plane.jobs(STRAY_DELAY_S / 2)
    plane.cluster.put(make_service("late", selector=None))
    plane.settle()
    assert plane.maybe("late") == plane.cluster.cache[EndpointsObjects.key, "shop", "late"]


@pytest.mark.parametrize("change", [{"selector": None}, {"selector": {}}, {"type": "ExternalName"}])
def test_endpoints_of_others_are_left_alone(change: dict[str, Any]) -> None:
    plane = Plane(make_pod("p-1"), **change)
    stored = plane.cluster.put(custom(labels={LABEL_SKIP_MIRROR: "true"}))
    plane.begin()
    plane.settle()
    assert plane.one() == stored
    assert plane.verbs() == []


def test_endpoints_of_the_api_server_are_its_own() -> None:
    plane = Plane()
    service = make_service("kubernetes", selector=None)
    plane.cluster.put(service)
    stored = plane.cluster.put(custom("kubernetes", labels={LABEL_SKIP_MIRROR: "true"}))
    plane.begin()
    plane.settle()
    assert plane.one("kubernetes") == stored


# The selector's life


def test_selector_added_takes_over_endpoints_that_are_there() -> None:
    """KEP-0752, test plan: the skip label is added to the existing object."""
    plane = Plane(make_pod("p-1"), selector=None)
    plane.cluster.put(custom(annotations={"note": "mine"}))
    plane.settle()
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    assert plane.one().metadata.labels == OURS
    assert (plane.one().metadata.annotations or {})["note"] == "mine"


def test_selector_removed_hands_endpoints_over() -> None:
    """kubernetes/kubernetes#103804, #105987: nobody else would know that they may be mirrored
    now.
    """
    plane = Plane(make_pod("p-1"), labels={"a": "b"})
    plane.settle()
    before = plane.one()
    plane.cluster.put(make_service(selector=None, labels={"a": "b"}))
    plane.settle()
    assert plane.one().subsets == before.subsets
    assert plane.one().metadata.labels == {"a": "b"}
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.settle()
    assert plane.one().subsets == before.subsets
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.subsets() == [([], ["10.0.0.2"], [8080])]


def test_selector_removed_before_the_cache_shows_the_object() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    held, plane.cluster.pending = plane.cluster.pending, []
    plane.cluster.put(make_service(selector=None))
    plane.deliver()
    assert plane.jobs(1.0) == ()
    plane.cluster.pending = held
    plane.settle()
    assert plane.one().metadata.labels is None
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]


def test_selector_that_was_removed_while_nobody_looked_is_handed_over_at_the_start() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_service(selector=None))
    plane.begin()
    plane.settle()
    assert plane.one().metadata.labels is None


def test_external_name_and_back() -> None:
    """kubernetes/kubernetes#103804, #125354."""
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_service(type="ExternalName"))
    plane.settle()
    assert plane.maybe() is None
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]


def test_upstreams_way_leaves_everything_where_it_is() -> None:
    plane = Plane(
        make_pod("p-1"), config=EndpointsConfig(selector_changes=SelectorChanges.UPSTREAM)
    )
    plane.settle()
    before = plane.one()
    assert LABEL_SKIP_MIRROR not in (before.metadata.labels or {})
    for change in ({"selector": None}, {"type": "ExternalName"}):
        plane.cluster.put(make_service(**change))
        plane.settle()
        assert plane.one() == before
