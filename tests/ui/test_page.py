"""The page in a real Chromium: what a person sees of a cluster, live. No test may see a console
error, a report of the Content-Security-Policy, or a request to anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ui.browser import AXE, Tab, violations
from tests.ui.cluster import (
    RunningPage,
    connection_with,
    deployment,
    mark,
    proxy_lease,
    reader_of,
    report_until,
    service,
    slices,
    staying,
)

from sliceplane.api.core import Node, Service, ServiceSpec, ServiceStatus
from sliceplane.api.discovery import (
    EndpointConditions,
    EndpointHints,
    EndpointSlice,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference, ObservedCondition
from sliceplane.diagnose.page.model import ClusterModel
from sliceplane.slices.removing.guard import REASON_RETAINED
from sliceplane.testing import Plane
from sliceplane.watch.cache import Change

VIEWS = (
    "now",
    "services",
    "service/shop/cart?client=node/node-1",
    "service/shop/search",
    "zones",
    "nodes",
    "drains",
    "timeline",
    "timeline/shop/cart",
    "trace?from=node/node-1&to=cart.shop:80",
    "what-if",
    "what-if/shop/cart?set=zone-lost%3Dzone-a",
)
#: markup, a change of direction, and the longest name
HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    "\u202eevil\u2066<script>window.pwned=1<!--",
    "n" * 253,
)
READY = "document.querySelectorAll('.map .cell.ready').length"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane(nodes=4, zones=("zone-a", "zone-b")) as plane:
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        plane.apply(
            [
                deployment("cart", 6),
                service("cart", trafficDistribution="PreferSameZone"),
                deployment("search", 2),
                service("search", selector={"app": "serach"}),
            ],
            namespace="shop",
        )
        plane.wait_for(
            lambda: len([e for e in plane.endpoints("cart", namespace="shop") if e.ready]) == 6,
            timeout=60,
        )
        yield plane


@pytest.fixture(scope="module")
def page(plane: Plane) -> Iterator[RunningPage]:
    with RunningPage(plane) as running:
        yield running


def test_a_rollout_is_seen_live_and_told_as_activity(
    plane: Plane, page: RunningPage, tab: Tab
) -> None:
    tab.go(f"{page.url}#/service/shop/cart")
    tab.until(f"{READY} === 6")
    plane.apply(deployment("cart", 9), namespace="shop")
    tab.until(f"{READY} === 9")
    tab.shows("9 endpoints")
    tab.eval(
        "window.before = [...document.querySelectorAll('.map .cell')].map((cell) => "
        "cell.title.split(' ')[0])"
    )
    plane.apply(deployment("cart", 9, image="web:2"), namespace="shop")
    tab.until(
        f"{READY} === 9 && document.querySelectorAll('.map .cell').length === 9 && "
        "![...document.querySelectorAll('.map .cell')].some((cell) => "
        "window.before.includes(cell.title.split(' ')[0]))"
    )
    plane.apply(deployment("cart", 6, image="web:2"), namespace="shop")
    tab.until(f"{READY} === 6 && document.querySelectorAll('.map .cell').length === 6")
    # A rollout leaves them where its surge found room; made at once they are three in each zone.
    plane.apply(deployment("cart", 0, image="web:2"), namespace="shop")
    tab.shows("no endpoint", "section[aria-labelledby=h-map]")
    plane.apply(deployment("cart", 6, image="web:2"), namespace="shop")
    tab.until(f"{READY} === 6 && document.querySelectorAll('.map .cell').length === 6")
    assert (
        tab.eval("document.querySelectorAll('[role=grid]#endpoints .rows [role=row]').length") == 6
    )
    tab.eval("location.hash = '#/now'")
    tab.shows("shop/cart", "ol.activity")
    tab.shows("behind", ".freshness")


def test_the_page_names_the_account_of_the_kubeconfig_and_counts_one_service_as_one(
    plane: Plane, tab: Tab
) -> None:
    """It named none, and said "1 Services"."""
    with RunningPage(plane, namespace="default") as page:
        tab.go(page.url)
        tab.shows("1 Service\n0 endpoints ready\n4 Nodes\n2 zones", ".sums")
        assert tab.eval("document.querySelector('.account bdi').innerText") == "sliceplane-admin"
        assert "kubeconfig" in tab.eval("document.querySelector('.account').title")
        tab.shows("as sliceplane-admin", "footer")
        tab.send("Page.navigate", url="about:blank")
        tab.until("location.href === 'about:blank'")


def test_a_fault_is_explained_with_its_remedy(page: RunningPage, tab: Tab) -> None:
    tab.go(page.url)
    tab.shows("shop/search", ".findings")
    tab.eval(
        "[...document.querySelectorAll('.findings a')].find((link) => "
        "link.innerText.includes('search')).click()"
    )
    tab.shows("they have search, not serach", "section[aria-labelledby=h-explain]")
    tab.shows("kubectl -n shop patch service search", "section[aria-labelledby=h-explain]")
    tab.shows("error B1", ".axes")
    tab.shows("sliceplane explain service search -n shop", "footer")


def test_a_client_sees_who_gets_its_connections(plane: Plane, page: RunningPage, tab: Tab) -> None:
    near = sum(endpoint.zone == "zone-a" for endpoint in plane.endpoints("cart", namespace="shop"))
    tab.go(f"{page.url}#/service/shop/cart?client=node/node-1")
    tab.shows(f"{near} of 6 zone zone-a", ".reach")
    tab.until(f"document.querySelectorAll('.map .cell.used').length === {near}")
    tab.eval("location.hash = '#/trace?from=node/node-1&to=cart.shop:80'")
    tab.shows("dnat", ".verdict")
    tab.shows("sliceplane trace --from node/node-1 --to cart.shop:80", "footer")
    shares = tab.eval("[...document.querySelectorAll('.share')].map((share) => share.innerText)")
    assert sorted(shares) == sorted([f"1/{near}"] * near + ["0"] * (6 - near))
    tab.eval("location.hash = '#/zones'")
    tab.shows("of connections leave their zone")
    tab.eval("location.hash = '#/timeline/shop/cart'")
    tab.shows("Deployment cart: made")


def test_what_if_a_zone_were_lost(plane: Plane, page: RunningPage, tab: Tab) -> None:
    """Asked by the form; the URL, the command and the picture tell the same."""
    lost = sum(endpoint.zone == "zone-a" for endpoint in plane.endpoints("cart", namespace="shop"))
    tab.go(f"{page.url}#/service/shop/cart")
    tab.shows("what if", ".links")
    tab.eval("document.querySelector('.links a[href*=what-if]').click()")
    tab.until(
        "[...document.querySelectorAll('[name=zone-lost] option')].some((option) => option.value "
        "=== 'zone-a')"
    )
    tab.eval(
        "document.querySelector('select[name=zone-lost]').value = 'zone-a'; "
        "document.querySelector('form.trace').requestSubmit()"
    )
    tab.shows("nothing gets worse", ".verdict")
    assert tab.eval("location.hash") == "#/what-if/shop/cart?set=zone-lost%3Dzone-a"
    tab.shows("sliceplane what-if shop/cart --set zone-lost=zone-a", "footer")
    tab.shows(f"{lost} → 0", "[aria-label='by zone']")
    tab.shows("at once", "[aria-label='after the loss']")
    tab.shows("40 s", "[aria-label='after the loss']")
    assert tab.eval("document.querySelectorAll('.pictures svg').length") == 3
    assert tab.eval("document.querySelectorAll('.pictures path.line').length") == 2
    tab.eval("location.hash = '#/what-if/shop/cart?set=replicas%3D0'")
    tab.shows("connections find no endpoint", ".verdict")
    tab.eval("location.hash = '#/what-if/shop/cart?set=zone-lost%3Dzone-x%20%24(reboot)'")
    tab.shows("'$(reboot)' is nothing that can be set", "main .trouble")
    tab.shows("--set zone-lost=zone-x --set '$(reboot)'", "footer")


def test_a_node_behind_is_named(plane: Plane, page: RunningPage, tab: Tab) -> None:
    """Its Lease tells of slices as they were a rollout ago; the others hold what the server has."""
    told, revision = slices(plane)
    plane.apply(deployment("cart", 7, image="web:2"), namespace="shop")
    plane.wait_for(
        lambda: len([e for e in plane.endpoints("cart", namespace="shop") if e.ready]) == 7,
        timeout=60,
    )
    plane.apply([proxy_lease(f"node-{number}", plane) for number in (1, 2, 3)])
    plane.apply(proxy_lease("node-4", plane, told=told, revision=revision))
    tab.go(f"{page.url}#/nodes")
    rows = "[...document.querySelectorAll('#nodes .rows [role=row]')].map((row) => row.innerText)"
    tab.until(f"{rows}.some((row) => /node-4\\s+[^\\n]*(catching up|behind)/.test(row))")
    tab.until(f"{rows}.filter((row) => row.includes('in step')).length === 3")
    tab.eval("location.hash = '#/now'")
    tab.shows("3 of 4 nodes in step", "section[aria-labelledby=h-fresh]")
    tab.shows("node-4", "section[aria-labelledby=h-fresh]")
    plane.apply(deployment("cart", 6, image="web:2"), namespace="shop")


def test_a_drain_names_the_nodes_that_are_waited_for(
    plane: Plane, page: RunningPage, tab: Tab
) -> None:
    going, ended = (f"section[aria-labelledby=h-{name}]" for name in ("going", "ended"))
    nodes = [f"node-{number}" for number in (1, 2, 3, 4)]
    plane.apply([proxy_lease(node, plane) for node in nodes])
    pod = plane.wait_for(lambda: staying(plane), timeout=60)
    tab.go(f"{page.url}#/drains")
    tab.shows("No Pod is leaving", going)
    mark(plane, pod, "shop", "true")
    try:
        tab.shows("waiting for node-1", going)
        tab.shows(f"sliceplane drain pod shop/{pod} --wait-only", "footer")
        report_until(plane, nodes[:3], lambda: tab.text(going), "waiting for node-4")
        report_until(plane, nodes, lambda: tab.text(going), "drained")
        tab.eval("location.hash = '#/now'")
        tab.shows(f"drained shop/{pod}", "section[aria-labelledby=h-drains]")
    finally:
        mark(plane, pod, "shop", None)
    tab.eval("location.hash = '#/drains'")
    tab.shows(f"shop/{pod}", ended)
    tab.shows("No Pod is leaving", going)


def test_a_page_server_that_dies_is_told_of_and_comes_back(
    plane: Plane, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningPage(plane) as running:
        url, port = running.url, running.server.port
        tab.go(f"{url}#/service/shop/cart")
        tab.until(f"{READY} === 6")
        tab.eval("window.same = true")
    tab.shows("the stream is gone", "[role=alert]")
    tab.until("document.documentElement.classList.contains('stale')")
    assert tab.eval(READY) == 6, "what was known stays"
    with RunningPage(plane, port=port):
        tab.shows("the whole URL is printed by 'sliceplane ui'", "[role=alert]")
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: url.split("/")[3])
    with RunningPage(plane, port=port):
        tab.until(
            "!document.querySelector('[role=alert]') && "
            "!document.documentElement.classList.contains('stale')"
        )
        assert tab.eval("window.same"), "without being loaded anew"
        tab.send("Page.navigate", url="about:blank")
        tab.until("location.href === 'about:blank'")
    assert all("Failed to load resource" in fault for fault in tab.faults), tab.faults
    tab.faults.clear()


def test_the_scheme_follows_the_system_and_the_switch_stays_in_the_url(
    page: RunningPage, tab: Tab
) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    tab.media(dark=True)
    tab.go(page.url)
    tab.shows("Services", ".sums")
    dark = tab.eval(background)
    tab.press("d")
    tab.until("location.hash.includes('scheme=light')")
    light = tab.until(f"{background} !== '{dark}' && {background}")
    tab.eval("document.querySelector('nav a[href*=zones]').click()")
    tab.until("location.hash === '#/zones?scheme=light'")
    tab.press("d")
    tab.until(f"{background} === '{dark}'")
    assert light != dark


def test_everything_is_reached_with_the_keyboard(page: RunningPage, tab: Tab) -> None:
    tab.go(page.url)
    tab.shows("Services", ".sums")
    tab.press("2")
    tab.until("document.querySelectorAll('#services .rows [role=row]').length === 3")
    tab.press("/")
    tab.write("shop/ sea")
    tab.eval("document.activeElement.select()")
    tab.write("search")
    tab.until("document.querySelectorAll('#services .rows [role=row]').length === 1")
    assert "q=search" in tab.eval("location.hash")
    tab.press("Escape")
    tab.until("document.activeElement.id === 'services'")
    tab.press("/")
    tab.eval("document.activeElement.select()")
    tab.write("shop")
    tab.press("Escape")
    tab.until("document.querySelectorAll('#services .rows [role=row]').length === 2")
    tab.press("ArrowDown")
    active = "document.getElementById(document.getElementById('services').getAttribute('aria-activedescendant'))"
    tab.until(f"{active}.innerText.includes('cart')")
    tab.press("Home")
    tab.until(f"{active}.innerText.includes('search')")
    tab.press("ArrowDown")
    tab.until(f"{active}.innerText.includes('cart')")
    tab.press("Enter")
    tab.until("location.hash === '#/service/shop/cart'")
    tab.shows("6 endpoints")
    tab.press("Escape")
    tab.until("location.hash === '#/services'")
    tab.press("?")
    tab.until("document.querySelector('dialog[open]')")
    tab.press("Escape")
    tab.until("!document.querySelector('dialog')")
    tab.press("p")
    tab.shows("paused", ".freshness")
    tab.press("p")
    tab.until("!document.querySelector('.freshness').innerText.includes('paused')")
    tab.press("Tab")
    assert tab.eval("document.activeElement.matches(':focus-visible')")


def test_320_pixels_are_wide_enough(page: RunningPage, tab: Tab) -> None:
    tab.resize(320, 640)
    tab.go(page.url)
    for view in VIEWS:
        show(tab, view)
        assert tab.eval("document.documentElement.scrollWidth") <= 320, view


def test_a_view_that_is_not_there_says_so(page: RunningPage, tab: Tab) -> None:
    """It was the first view, or an empty one."""
    tab.go(f"{page.url}#/nosuch/x")
    for place in ("nosuch/x", "constructor", "service", "service/shop", "nodes/node-1"):
        tab.eval(f"location.hash = '#/{place}'")
        tab.shows(f"Nothing is at #/{place}.", "main")
    tab.eval("location.hash = '#/service/shop/nix'")
    tab.shows("no Service shop/nix", "section[aria-labelledby=h-explain]")
    assert tab.eval("!document.querySelector('.axes, .map, [role=grid]')"), (
        "and nothing else is shown of it"
    )


def test_the_foot_of_the_page_covers_tables(page: RunningPage, tab: Tab) -> None:
    """The head of a table was drawn over it."""
    tab.go(f"{page.url}#/service/shop/cart")
    tab.until("document.getElementById('slices')")
    box = "document.querySelector('footer').getBoundingClientRect()"
    head = "document.querySelector('#slices .heads').getBoundingClientRect()"
    tab.eval(f"scrollBy(0, {head}.top - {box}.top)")
    assert tab.eval(f"{head}.top < {box}.bottom && {head}.bottom > {box}.top"), (
        "they are in one place"
    )
    assert tab.eval(f"document.elementFromPoint(300, {box}.top + 8).closest('footer') !== null")


def test_hostile_names_are_text_wherever_they_are_shown(page: RunningPage, tab: Tab) -> None:
    """A server of ours refuses most of them; another one may not."""
    meta = [ObjectMeta(name=name, namespace=name, uid=name) for name in HOSTILE]
    services = [
        Service(
            metadata=item,
            spec=ServiceSpec(selector={item.name: item.name}, cluster_ip=item.name),
            status=ServiceStatus(
                conditions=(
                    ObservedCondition(type=REASON_RETAINED, status="True", message=item.name),
                )
            ),
        )
        for item in meta
    ]
    nodes = [
        Node(metadata=ObjectMeta(name=name, labels={"topology.kubernetes.io/zone": name}))
        for name in HOSTILE
    ]
    made = [
        EndpointSlice(
            metadata=ObjectMeta(
                name=name, namespace=name, labels={"kubernetes.io/service-name": name}
            ),
            address_type=name,
            endpoints=(
                SliceEndpoint(
                    addresses=(name,),
                    zone=name,
                    node_name=name,
                    target_ref=ObjectReference(name=name),
                ),
            ),
        )
        for name in HOSTILE
    ]

    def change(model: ClusterModel, *, gone: bool = False) -> None:
        for kind, objects in (("services", services), ("nodes", nodes)):
            changes: Any = [
                Change(kind, item, None) if gone else Change(kind, None, item) for item in objects
            ]
            getattr(model, f"on_{kind}")(changes)
        told = [
            Change("slices", item, None) if gone else Change("slices", None, item) for item in made
        ]
        model.on_slices(told, 0.0, is_news=True)

    page.change(change)
    try:
        tab.resize(900, 700)
        tab.go(page.url)
        tab.shows(HOSTILE[0], "section[aria-labelledby=h-guards]")
        tab.shows(HOSTILE[0], ".activity")
        for view in ("services", "zones", "nodes", "timeline", "trace", "what-if"):
            show(tab, view)
            text = tab.eval(
                "document.body.textContent + [...document.querySelectorAll('option')].map((o) => "
                "o.value)"
            )
            assert all(name in text for name in HOSTILE), view
            harmless(tab, view)
        for name in HOSTILE:
            path = tab.eval(
                f"`${{encodeURIComponent({name!r})}}/${{encodeURIComponent({name!r})}}`"
            )
            show(tab, f"service/{path}")
            tab.shows("1 endpoint")
            assert name in tab.eval("document.querySelector('#endpoints').textContent")
            harmless(tab, name)
    finally:
        page.change(lambda model: change(model, gone=True))


@pytest.mark.parametrize("width", [1280, 320])
def test_measured_demand_is_beside_the_endpoints(page: RunningPage, tab: Tab, width: int) -> None:
    annotations = {
        "service.kubernetes.io/topology-mode": "sliceplane.dev/Measured",
        "sliceplane.dev/measured-shares": "zone-a=48/64,zone-b=16/64",
    }
    hot = Service(metadata=ObjectMeta(name="hot", namespace="shop", annotations=annotations))
    endpoints = tuple(
        SliceEndpoint(
            addresses=(f"10.8.0.{at + 1}",),
            zone=f"zone-{'ab'[at % 2]}",
            hints=EndpointHints(for_zones=(ForZone(name=f"zone-{'ab'[at % 2]}"),)),
        )
        for at in range(4)
    )
    meta = ObjectMeta(name="hot-1", namespace="shop", labels={"kubernetes.io/service-name": "hot"})
    item = EndpointSlice(metadata=meta, address_type="IPv4", endpoints=endpoints)

    def change(model: ClusterModel, *, gone: bool = False) -> None:
        model.on_services([Change("services", hot if gone else None, None if gone else hot)])
        slices = Change("slices", item if gone else None, None if gone else item)
        model.on_slices([slices], 0.0, is_news=True)

    page.change(change)
    try:
        tab.resize(width, 700)
        tab.go(f"{page.url}#/zones/shop/hot")
        tab.shows("clients as measured")
        rows = tab.eval(
            "[...document.querySelectorAll('.matrix tfoot tr')].map((row) => "
            "[...row.children].map((cell) => cell.innerText.trim()))"
        )
        assert rows == [
            ["connections that start here", "75%", "25%", ""],
            ["endpoints ready", "2", "2", ""],
            ["load of one (1 is even)", "◆ 1.50", "0.50", ""],
        ]
        assert tab.eval("document.documentElement.scrollWidth") <= width
    finally:
        page.change(lambda model: change(model, gone=True))


def test_a_large_service_is_drawn_and_a_change_is_drawn_alone(page: RunningPage, tab: Tab) -> None:
    """What a change leaves on the canvas is what is drawn when everything is drawn anew."""

    def piece(states: dict[int, bool]) -> EndpointSlice:
        endpoints = tuple(
            SliceEndpoint(
                addresses=(f"10.9.{at // 250}.{at % 250}",),
                zone=f"zone-{at % 2}",
                node_name=f"n{at % 7}",
                conditions=EndpointConditions(ready=states.get(at, True)),
            )
            for at in range(600)
        )
        labels = {"kubernetes.io/service-name": "large"}
        return EndpointSlice(
            metadata=ObjectMeta(name="large", namespace="shop", labels=labels), endpoints=endpoints
        )

    before, after = piece({}), piece({7: False, 400: False})
    page.change(lambda model: model.on_slices([Change("slices", None, before)], 0.0, is_news=False))
    try:
        tab.go(f"{page.url}#/service/shop/large")
        tab.until("document.querySelectorAll('.map canvas').length === 2")
        tab.shows("no Service shop/large", "section[aria-labelledby=h-explain]")
        assert tab.eval("document.querySelectorAll('#endpoints .rows [role=row]').length") < 60, (
            "rows as they are needed"
        )
        whole = drawn(tab)
        page.change(
            lambda model: model.on_slices([Change("slices", before, after)], 0.0, is_news=True)
        )
        tab.shows("598", ".legend")
        changed = drawn(tab)
        assert all(one != other for one, other in zip(whole, changed, strict=True))
        tab.eval(in_scheme("dark"))
        assert all(one != other for one, other in zip(drawn(tab), changed, strict=True))
        tab.eval(in_scheme("light"))
        assert drawn(tab) == changed
        tab.eval(f"{in_scheme('dark')}.then(() => {in_scheme('light')})")
        assert drawn(tab) == changed, "dark is not wanted any more when its turn has come"
    finally:
        page.change(
            lambda model: model.on_slices([Change("slices", after, None)], 0.0, is_news=True)
        )


def drawn(tab: Tab) -> Any:
    """Each canvas, once what the page wants is drawn: each frame draws a piece, and the last ones
    drew none.
    """
    return tab.eval(
        "(async () => { const all = [...document.querySelectorAll('.map canvas')]; let last = '';"
        "for (let still = 0; still < 4; still++) { await new Promise(requestAnimationFrame);"
        "const now = all.map((canvas) => canvas.toDataURL()); if (`${now}` !== `${last}`) still = "
        "0; last = now }"
        "return last })()"
    )


def in_scheme(name: str) -> str:
    """A promise that ends when the page is in this scheme, before the next frame."""
    return (
        "(async () => "
        f"{{ history.replaceState(null, '', `${{location.hash.split('?')[0]}}?scheme={name}`);"
        f"dispatchEvent(new Event('hashchange'));"
        f"while (document.documentElement.dataset.scheme !== '{name}') await null; await null }})()"
    )


def harmless(tab: Tab, where: str) -> None:
    assert tab.eval(
        "window.pwned === undefined && !document.querySelector('main img, main script')"
    ), where
    assert tab.eval("document.documentElement.scrollWidth") <= 900, where


def show(tab: Tab, view: str) -> None:
    """Returns when the view is there whole: nothing is being asked any more."""
    name = view.split("/")[0].split("?")[0]
    tab.eval(f"location.hash = '#/{view}'")
    tab.until(
        "!document.querySelector('main .quiet')?.innerText.endsWith(' …') && "
        f"location.hash.includes('{name}')"
    )
    tab.until(
        "![...document.querySelectorAll('main p')].some((line) => line.innerText.endsWith(' …'))"
    )


def test_axe_finds_nothing_in_any_view_in_either_scheme(page: RunningPage, tab: Tab) -> None:
    tab.send("Page.setBypassCSP", enabled=True)
    tab.go(page.url)
    tab.shows("Services", ".sums")
    tab.eval(AXE.read_text())
    for scheme in ("light", "dark"):
        for view in VIEWS:
            show(tab, f"{view}{'&' if '?' in view else '?'}scheme={scheme}")
            assert violations(tab) == [], f"{view}, {scheme}"
            assert tab.eval("getComputedStyle(document.documentElement).colorScheme") == scheme


def test_an_api_server_that_goes_away_and_comes_back(
    plane: Plane, page: RunningPage, tab: Tab
) -> None:
    tab.go(f"{page.url}#/service/shop/cart")
    tab.until(f"{READY} === 6")
    with plane.faults.outage():
        tab.shows("not reached", ".trouble")
        tab.until("document.documentElement.classList.contains('stale')")
        tab.shows("the cluster is not heard of", ".freshness")
        assert tab.eval(READY) == 6, "what was known stays"
    tab.until(
        "!document.querySelector('.trouble') && "
        "!document.documentElement.classList.contains('stale')"
    )
    plane.apply(deployment("cart", 5, image="web:2"), namespace="shop")
    tab.until(f"{READY} === 5")
    plane.apply(deployment("cart", 6, image="web:2"), namespace="shop")


def test_what_one_may_not_see_is_named_and_so_is_a_token_that_expired(
    plane: Plane, tab: Tab, tmp_path: Path
) -> None:
    connection = connection_with(plane, reader_of(plane, "shop"), tmp_path, "shop")
    with RunningPage(plane, connection=connection) as running:
        tab.go(f"{running.url}#/services")
        tab.shows("you may not list services in all namespaces; this is namespace shop")
        tab.shows("you may not list nodes")
        tab.until("document.querySelectorAll('#services .rows [role=row]').length === 2")
        tab.eval("location.hash = '#/nodes'")
        tab.shows("leases", "main .trouble")
        tab.eval("location.hash = '#/service/default/kubernetes'")
        tab.shows("you may not list services", "main .trouble")
        assert "nothing is wrong" not in tab.eval("document.body.innerText")
        plane.advance(3 * 3600)
        plane.faults.cut_watches()
        tab.shows("refused", ".trouble[role=alert] .error")
        tab.until("document.documentElement.classList.contains('stale')")
        tab.send("Page.navigate", url="about:blank")
        tab.until("location.href === 'about:blank'")
