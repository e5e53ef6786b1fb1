"""The examples: short, typed, of names that exist; the one for aiohttp runs while endpoints come
and go.

That all of them run is in ``test_examples_run``.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import aiohttp
import pytest
from aiohttp import web
from tests.client.conftest import Writer, endpoint
from tests.waiting import eventually

import sliceplane.client
from sliceplane.client import EndpointView, HttpClient

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
#: a Pod serves for so long after its endpoint was taken out of the slice
GRACE_S = 0.3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_compiles_and_names_what_exists(path: Path) -> None:
    tree = ast.parse(path.read_text())
    compile(tree, str(path), "exec")
    taken = [
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sliceplane")
        for name in node.names
    ]
    assert taken
    assert set(taken) <= set(sliceplane.client.__all__)
    assert len(path.read_text().splitlines()) < 125, "an example is short"


def test_they_are_typed() -> None:
    """As their readers would check them, with the packages' own annotations, strictly: ``make
    lint`` looks at all.
    """
    mypy = tomllib.loads((EXAMPLES[0].parents[1] / "pyproject.toml").read_text())["tool"]["mypy"]
    assert mypy["strict"]
    assert "examples" in mypy["mypy_path"].split(":")
    assert {path.stem for path in EXAMPLES} <= set(mypy["modules"])
    # nor is one of them let off
    let_off = {name for override in mypy["overrides"] for name in override["module"]}
    assert not let_off & {path.stem for path in EXAMPLES}


def load(name: str) -> ModuleType:
    (path,) = [path for path in EXAMPLES if path.stem == name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pods:
    """A forward proxy that stands for the network of Pods: ``10.1.0.N`` answers while N is
    alive.
    """

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.served: dict[str, int] = {}
        self.to_the_dead: list[str] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        host = request.url.host or ""
        if host not in self.alive:
            self.to_the_dead.append(host)
            return web.Response(status=502)
        self.served[host] = self.served.get(host, 0) + 1
        await asyncio.sleep(0.002)
        return web.Response(text=f"hello from {host}\n")


def two_each(counts: list[int]) -> bool:
    return all(count >= 2 for count in counts)


async def test_no_request_to_a_dead_address(client: HttpClient, writer: Writer) -> None:
    example, pods = load("aiohttp_client"), Pods()
    server = web.ServerRunner(web.Server(pods.handle))
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    proxy = f"http://127.0.0.1:{server.addresses[0][1]}"

    async def roll(first: int) -> None:
        """Four Pods from *first* on: those that come are alive before, those that go a little
        longer.
        """
        names = {f"10.1.0.{number}" for number in range(first, first + 4)}
        pods.alive |= names
        await writer.put("a", *(endpoint(number) for number in range(first, first + 4)))
        await eventually(
            lambda: {each.address for each in view.endpoints}, lambda shown: shown == names
        )
        answered = list(counts)
        # Who was on its way has an answer, and so has a request that was begun after the change.
        await eventually(
            lambda: [now - then for now, then in zip(counts, answered, strict=True)], two_each
        )
        pods.alive &= names

    async def ask(number: int) -> None:
        while not stop.is_set():
            assert (await example.get(session, picker, "/")).startswith("hello from 10.1.0.")
            counts[number] += 1

    counts: list[int] = []
    stop = asyncio.Event()
    async with (
        EndpointView(client, "web", writer.namespace, port="http") as view,
        aiohttp.ClientSession(proxy=proxy) as session,
    ):
        await roll(1)
        await view.wait_ready(60)
        picker = view.least_outstanding()
        counts.extend([0] * 8)
        asking = [asyncio.create_task(ask(number)) for number in range(8)]
        for first in range(2, 16):
            await roll(first)
        stop.set()
        await asyncio.gather(*asking)
    await server.cleanup()
    assert pods.to_the_dead == []
    assert sum(counts) == sum(pods.served.values()) > 200
    assert len(pods.served) == 18, "every Pod that ever lived was asked"
