"""The door of the page: who is answered, and what is said beside each answer."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
from tests.ui.cluster import service
from tests.waiting import eventually
from tools.vendor_page import PACKAGES, REPLACED

from sliceplane.diagnose.page.io import server, viewer
from sliceplane.diagnose.page.io.questions import WHAT_IFS_MAX
from sliceplane.diagnose.page.io.server import PageServer, page
from sliceplane.diagnose.page.io.static_files import StaticFiles
from sliceplane.diagnose.page.io.viewer import Tab
from sliceplane.testing import Plane
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

SAME = {"Sec-Fetch-Site": "same-origin"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; "
    "trusted-types 'none'"
)
#: of the files as tools/vendor_page.py takes them
VENDORED = {
    "preact.js": "bdcbd9abdf2c77c5c45326eab42191e949222d479d0d5f69467387a77040cb55",
    "hooks.js": "e862ab2973aa6455eaa0f77c5d832d2157d6be59a17c8ba546550a575b58c6b4",
    "htm.js": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
}


#: an engine's answer waits for it
GATE = threading.Event()


async def held(_: HttpClient, namespace: str, name: str, settings: Sequence[str]) -> object:
    await asyncio.to_thread(GATE.wait)
    return [namespace, name, *settings]


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane(controllers=False) as running:
        yield running


@pytest.fixture
async def made(plane: Plane) -> AsyncIterator[PageServer]:
    async with page(from_file(plane.kubeconfig), "", 0, held) as running:
        yield running


async def test_who_is_refused(made: PageServer) -> None:
    base = f"http://127.0.0.1:{made.port}"
    cases = [
        ("GET", made.url, {}, 200),
        ("GET", made.url, {"Sec-Fetch-Site": "none"}, 200),
        ("GET", made.url, {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", made.url, {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", made.url, {"Host": f"localhost:{made.port}"}, 421),
        ("GET", made.url, {"Host": "127.0.0.1"}, 421),
        ("GET", made.url, {"Host": f"rebound.example:{made.port}"}, 421),
        ("POST", made.url, {}, 405),
        ("OPTIONS", f"{made.url}v1/stream?view=now", {"Origin": "https://evil.example"}, 405),
        ("GET", f"{base}/", {}, 404),
        ("GET", f"{base}/wrong/", {}, 404),
        ("GET", f"{base}/{made.secret}", {}, 404),
        ("GET", f"{made.url}v1/stream?view=now", {}, 403),
        ("GET", f"{made.url}v1/stream?view=now", {"Sec-Fetch-Site": "none"}, 403),
        ("GET", f"{made.url}v1/stream?view=secrets", SAME, 400),
        ("GET", f"{made.url}v1/stream?view=service&service=a", SAME, 400),
        ("GET", f"{made.url}v1/stream?view=timeline&since=1y", SAME, 400),
        ("GET", f"{made.url}v1/stream?view=service&service={'n' * 700}", SAME, 400),
        ("GET", f"{made.url}v1/trace?from=a&to=b&protocol=icmp", SAME, 400),
        ("GET", f"{made.url}v1/what-if?service=n/web&set=a=b", {}, 403),
        ("GET", f"{made.url}v1/what-if?service=web&set=a=b", SAME, 400),
        ("GET", f"{made.url}v1/what-if?service=n/web/x&set=a=b", SAME, 400),
        ("GET", f"{made.url}../../etc/passwd", SAME, 404),
        ("GET", f"{made.url}v1/nothing", SAME, 404),
    ]
    async with aiohttp.ClientSession() as session:
        for method, url, headers, status in cases:
            async with session.request(method, url, headers=headers) as response:
                assert response.status == status, (method, url, headers)
                assert response.headers["Content-Security-Policy"] == POLICY
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
                assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert response.headers["Cache-Control"] == "no-store"
                assert not [name for name in response.headers if name.startswith("Access-Control")]
                assert "Set-Cookie" not in response.headers


async def test_files_are_immutable_under_their_digest_and_the_shell_has_no_data(
    made: PageServer,
) -> None:
    static = StaticFiles()
    async with aiohttp.ClientSession() as session:
        async with session.get(made.url) as response:
            text = await response.text()
        assert f'src="{static.digest}/main.js"' in text
        assert "<script>" not in text
        assert "style=" not in text
        for name, content in static.files.items():
            async with session.get(f"{made.url}{static.digest}/{name}", headers=SAME) as response:
                assert (response.status, await response.read()) == (200, content)
                assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        async with session.get(f"{made.url}{'0' * 16}/main.js", headers=SAME) as response:
            assert response.status == 404


async def test_a_stream_says_who_it_is_then_the_view_then_beats(made: PageServer) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{made.url}v1/stream?view=services", headers=SAME) as response,
    ):
        lines = [json.loads(await response.content.readline()) for _ in range(3)]
        assert [line["type"] for line in lines] == ["hello", "view", "beat"]
        assert lines[0]["server"].startswith("https://127.0.0.1:")
        assert (lines[1]["command"], lines[1]["tables"]["services"]["count"]) == (
            "sliceplane lint",
            1,
        )
        assert lines[2]["troubles"] == []
        assert lines[2]["at"] <= lines[2]["sent"]


async def test_a_tab_that_does_not_read_is_closed(
    made: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "SLOW_S", 0.05)
    monkeypatch.setattr(viewer, "HEARTBEAT_S", 0.001)
    many = [{"kind": "lost", "resource": "pods", "says": "x" * 100_000}]
    monkeypatch.setattr(made.viewer.live, "troubles", lambda: many)
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port, limit=1024)
    path = made.url.split("/", 3)[3]
    head = f"Host: 127.0.0.1:{made.port}\r\nSec-Fetch-Site: same-origin\r\n\r\n"
    writer.write(f"GET /{path}v1/stream?view=now HTTP/1.1\r\n{head}".encode())
    await reader.readexactly(1000)
    assert made.viewer.tabs == 1
    await eventually(lambda: made.viewer.tabs, lambda tabs: tabs == 0)
    writer.close()
    assert not made.viewer.hub._topics, "a view that no tab shows is forgotten"


async def test_all_tabs_of_a_view_are_told_the_same(
    plane: Plane, made: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "HEARTBEAT_S", 0.05)
    shown = made.viewer
    tabs = [
        tab for tab in (shown.open({"view": "services"}) for _ in range(20)) if isinstance(tab, Tab)
    ]
    assert len(tabs) == 20
    for tab in tabs:
        assert b'"type":"view"' in await tab.next()
    named = f"told-{uuid4().hex}"
    await asyncio.to_thread(
        plane.apply, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": named}}
    )
    await asyncio.to_thread(plane.apply, service("web"), namespace=named)
    messages: list[bytes] = []
    for tab in tabs:
        while named.encode() not in (message := await tab.next()):
            assert b'"type":"beat"' in message
        messages.append(message.splitlines()[0])
    assert len(set(messages)) == 1
    assert json.loads(messages[0])["type"] == "delta"
    for tab in tabs:
        tab.close()


async def test_more_tabs_than_are_served_are_told_so(
    made: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "TABS_MAX", 1)
    url = f"{made.url}v1/stream?view=now"
    async with aiohttp.ClientSession() as session, session.get(url, headers=SAME) as first:
        await first.content.readline()
        async with session.get(url, headers=SAME) as second:
            assert (second.status, await second.text()) == (
                503,
                "1 tabs are open, and that is the most\n",
            )


async def test_what_ifs_are_bounded_and_wait_for_none_of_the_streams(made: PageServer) -> None:
    GATE.clear()
    url = f"{made.url}v1/what-if?service=n/web&set=replicas%3D3%20rollout%3Dyes"

    async def asked() -> tuple[int, str]:
        async with session.get(url, headers=SAME) as response:
            return response.status, await response.text()

    async with aiohttp.ClientSession() as session:
        try:
            waiting = [asyncio.create_task(asked()) for _ in range(WHAT_IFS_MAX)]
            await eventually(
                lambda: made.viewer.questions._what_ifs, lambda number: number == WHAT_IFS_MAX
            )
            status, text = await asked()
            assert (status, text.partition(":")[0]) == (
                503,
                "3 questions of this kind are being worked out",
            )
            async with session.get(f"{made.url}v1/stream?view=what-if", headers=SAME) as response:
                assert json.loads(await response.content.readline())["type"] == "hello"
        finally:
            GATE.set()
        for status, text in await asyncio.gather(*waiting):
            assert (status, json.loads(text)["answer"]) == (
                200,
                ["n", "web", "replicas=3", "rollout=yes"],
            )
        assert (await asked())[0] == 200


def test_vendored_files_are_those_of_the_packages() -> None:
    """Digests of the files as the registry has them; ``tools/vendor_page.py`` checks those of the
    archives.
    """
    for package in PACKAGES:
        for name in package.files.values():
            content = (package.folder / name).read_bytes().replace(*reversed(REPLACED))
            if name in VENDORED:
                assert hashlib.sha256(content).hexdigest() == VENDORED[name], name
            assert b"http" not in content or name.endswith(
                (".LICENSE", "axe.min.js", "preact.js")
            ), name


def test_the_page_is_below_40_kilobytes() -> None:
    static = StaticFiles()
    sizes = {name: len(gzip.compress(content, 9)) for name, content in static.files.items()}
    assert sum(sizes.values()) + len(gzip.compress(static.index, 9)) < 40_000, sizes
    assert Path(server.__file__).parent.joinpath("static", "vendor", "preact.LICENSE").exists()
