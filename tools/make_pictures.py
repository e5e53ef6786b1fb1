"""Writes ``docs/images/ui-*.webp``: the web UI in Chromium, of a plane in memory with what the
pictures tell.

``PYTHONPATH=src:. .venv/bin/python tools/make_pictures.py`` needs Chromium. Names of Pods and times
differ from run to run, so no test compares the files; look at them after a change of the page.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from PIL import Image
from tests.ui.browser import Browser, Tab
from tests.ui.cluster import RunningPage, deployment, proxy_lease, service, slices
from tests.waiting import until

from sliceplane.testing import Plane

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
NODES: Final = [f"node-{number}" for number in range(1, 13)]
BEHIND: Final = NODES[-1]
Document = dict[str, Any]
COLOURS: Final = 256
#: of these, colours that are kept as they are: those with the most pixels
EXACT: Final = 160


def write_picture(screenshot: Path, path: Path) -> None:
    """Writes a PNG as a lossless WebP file of 256 colours, a quarter of the bytes.

    The commonest colours (backgrounds, text, borders) stay exact, so that areas keep their shade;
    the others, edges of letters, are taken from a median cut.
    """
    picture = Image.open(screenshot).convert("RGB")
    counted = picture.getcolors(picture.width * picture.height) or []
    exact = [colour for _, colour in sorted(counted, reverse=True)[:EXACT]]
    rest = picture.quantize(COLOURS - len(exact), Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in exact for part in colour] + rest)  # type: ignore[attr-defined]
    reduced = picture.quantize(palette=palette, dither=Image.Dither.NONE).convert("RGB")
    reduced.save(path, lossless=True, quality=100, method=6)


def objects() -> dict[str, list[Document]]:
    """Objects by namespace: Services that work, and one of each fault that *Now* shows."""
    shop = ["api", "cart", "pay", "web"]
    replicas = {"cart": 96, "api": 24, "pay": 12, "web": 4}
    zonal = {"trafficDistribution": "PreferSameZone"}
    return {
        "shop": [
            *(deployment(name, replicas[name]) for name in shop),
            *(service(name, **(zonal if name == "cart" else {})) for name in shop),
            deployment("search", 6),
            service("search", selector={"app": "serach"}),
        ],
        "data": [
            deployment("mail", 3),
            {
                **service("mail"),
                "spec": {
                    "selector": {"app": "mail"},
                    "ports": [{"port": 25, "targetPort": "smtp"}],
                },
            },
            deployment("reports", 0),
            service("reports"),
        ],
    }


def stage(plane: Plane) -> tuple[list[tuple[str, str]], int]:
    """Creates the objects; returns what the last node still believes when the others are up to
    date.
    """
    for namespace, made in objects().items():
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        plane.apply(made, namespace=namespace)
    until(lambda: len(plane.endpoints("cart", namespace="shop")), lambda count: count == 96)
    old = slices(plane)
    plane.apply(deployment("web", 5), namespace="shop")
    until(lambda: len(plane.endpoints("web", namespace="shop")), lambda count: count == 5)
    return old


class Studio:
    """Takes pictures of a page while the node proxies report as they do: one of them holds what was
    so before.
    """

    def __init__(self, plane: Plane, url: str, behind: tuple[list[tuple[str, str]], int]) -> None:
        self._plane = plane
        self._url = url
        self._behind = behind

    def _report(self) -> None:
        leases = [proxy_lease(node, self._plane) for node in NODES if node != BEHIND]
        known, revision = self._behind
        self._plane.apply(
            [*leases, proxy_lease(BEHIND, self._plane, told=known, revision=revision)]
        )

    def shoot(self, tab: Tab, view: str, name: str, texts: list[str]) -> None:
        """Writes the picture when the view shows *texts*."""
        tab.go(f"{self._url}#/{view}")

        def missing() -> list[str]:
            self._report()
            seen = tab.text()
            return [text for text in texts if text not in seen] + ["an answer"] * (
                "running the controllers" in seen
            )

        until(missing, lambda found: not found)
        with tempfile.NamedTemporaryFile(suffix=".png") as screenshot:
            tab.screenshot(Path(screenshot.name))
            write_picture(Path(screenshot.name), IMAGES / f"ui-{name}.webp")


def main() -> None:
    with (
        Plane(nodes=12, zones=("zone-a", "zone-b", "zone-c"), termination=60.0) as plane,
        RunningPage(plane) as page,
        Browser() as browser,
    ):
        studio = Studio(plane, page.url, stage(plane))
        light = browser.tab(width=1280, height=760)
        studio.shoot(light, "now", "now", ["B1", "T2", "B7", "11 of 12 nodes in step", "1 behind"])
        studio.shoot(light, "service/shop/search", "explain", ["B1", "serach"])
        studio.shoot(
            light,
            "what-if/shop/api?set=traffic-distribution%3DPreferSameZone",
            "what-if",
            ["zone-c"],
        )
        plane.apply(deployment("cart", 96, image="web:2"), namespace="shop")
        dark = browser.tab(width=1280, height=960, dark=True)
        studio.shoot(
            dark, "service/shop/cart?client=node/node-4", "service", ["evenly", "terminating"]
        )
    print("written:", *sorted(path.name for path in IMAGES.glob("ui-*.webp")))


if __name__ == "__main__":
    main()
