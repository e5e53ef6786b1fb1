"""The page's table of relays, in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.diagnose.drift.test_relay_tree import HEALTHY, lease, served
from tests.ui.browser import AXE, Tab, violations
from tests.ui.cluster import RunningPage
from tests.ui.test_page import HOSTILE

from sliceplane.api.codec import encode
from sliceplane.testing import Plane

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane(nodes=2) as plane:
        yield plane


@pytest.fixture(scope="module")
def page(plane: Plane) -> Iterator[RunningPage]:
    with RunningPage(plane) as running:
        yield running


@pytest.mark.parametrize("width", [1280, 320])
def test_relays_are_a_tree_above_the_nodes(
    plane: Plane, page: RunningPage, tab: Tab, width: int
) -> None:
    """With hostile names, as a child may report any."""
    heard = plane.clock()
    eu = replace(HEALTHY, heard=heard, **served(21.0, 2890), nodes=960)
    evil = HOSTILE[0]
    gone = replace(eu, name=evil, below="eu", is_late=True, zone=HOSTILE[1])
    document = json.loads(encode(lease(eu, gone, replace(eu, name="edge", below=evil))))
    document |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    plane.apply(document)
    try:
        tab.resize(width, 700)
        tab.go(f"{page.url}#/nodes")
        tab.shows("stopped", "#relays")
        marks = tab.eval(
            "[...document.querySelectorAll('#relays .rows [role=row]')].map((row) => "
            "row.querySelector('.mark').innerText)"
        )
        assert [text.split(" ", 1)[1] for text in marks] == ["ready", "stopped", "unknown"]
        places = tab.eval(
            "[...document.querySelectorAll('#relays .rows bdi')].filter((name) => "
            "name.parentElement.style.paddingLeft !== '').map((name) => "
            "Math.round(name.getBoundingClientRect().left))"
        )
        assert [place - places[0] for place in places] == [0, 14, 28]
        assert tab.eval("document.documentElement.scrollWidth") <= width
        assert tab.eval("window.pwned === undefined && !document.querySelector('main img')")
        tab.shows("N16", "main")
        tab.eval("location.hash = '#/now'")
        tab.shows("1 of 3 relays ready", "section[aria-labelledby=h-fresh]")
        tab.eval(AXE.read_text())
        assert violations(tab) == []
    finally:
        plane.delete("Lease", "sliceplane-relay-eu", namespace="kube-node-lease")
