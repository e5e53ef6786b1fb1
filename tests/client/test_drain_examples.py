"""``client.drain``, and the examples for FastAPI and gRPC: each goes on serving until no node sends
to it any more.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import httpx
import pytest
import uvicorn
from tests.consume.drain.paper import Paper, paper_node
from tests.waiting import PATIENCE_S, eventually

from sliceplane.client import HttpClient, StatusError, connect, drain
from sliceplane.testing import Plane

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        yield made


@asynccontextmanager
async def shop(plane: Plane, name: str) -> AsyncIterator[tuple[HttpClient, Paper]]:
    """A Service of two Pods, NAME-1 and NAME-2, on a node with a kernel of paper."""
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{number}", "labels": {"app": name}},
            "spec": {"nodeName": "n-1", "containers": [{"name": "web", "image": "web"}]},
            "status": {
                "podIP": f"10.5.0.{number}",
                "podIPs": [{"ip": f"10.5.0.{number}"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for number in (1, 2)
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    }
    conditions = [
        {"type": "Ready", "status": "True"}
    ]  # of a Node that is not, no first word is waited for
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n-1"},
        "status": {"conditions": conditions},
    }
    await asyncio.to_thread(plane.apply, [node, service, *pods])
    await plane.until(lambda: len([each for each in plane.endpoints(name) if each.ready]) == 2)
    async with connect(plane.kubeconfig) as client, paper_node(client, "n-1", beat_s=0.2) as paper:
        yield client, paper


def example(name: str, plane: Plane, monkeypatch: pytest.MonkeyPatch, pod: str) -> ModuleType:
    """The example as it is, but that its cluster is *plane* and it is *pod*."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "connect", partial(connect, plane.kubeconfig))
    monkeypatch.setenv("POD", f"default/{pod}")
    return module


def ready(plane: Plane, name: str) -> set[str]:
    return {endpoint.pod for endpoint in plane.endpoints(name) if endpoint.ready}


async def test_the_block_begins_when_it_is_proven(plane: Plane) -> None:
    async with shop(plane, "plain") as (client, _):
        async with drain(client, "default/plain-1", timeout=PATIENCE_S) as answer:
            assert answer.outcome == "drained"
            assert ready(plane, "plain") == {"plain-2"}
        with pytest.raises(StatusError, match="not found"):
            await drain(client, "default/plain-9").__aenter__()
        with pytest.raises(ValueError, match="no namespace/name"):
            await drain(client, "plain-1").__aenter__()


async def test_the_block_begins_when_the_time_is_over_and_says_so(plane: Plane) -> None:
    async with shop(plane, "slow") as (client, paper):
        async with drain(client, "default/slow-1", timeout=PATIENCE_S) as answer:
            assert answer.outcome == "drained", "the node tells"
        paper.open.clear()
        async with drain(client, "default/slow-2", timeout=0.5) as answer:
            assert answer.outcome == "time over"
        paper.open.set()


async def test_fastapi_serves_until_no_node_sends(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("fastapi_drain", plane, monkeypatch, "fast-1")
    async with shop(plane, "fast") as (_, paper):
        server = module.LeavingServer(uvicorn.Config(module.app, port=0, log_level="warning"))
        serving = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/readyz")).status_code == 200
            paper.open.clear()
            server.handle_exit(signal.SIGTERM, None)
            await eventually(lambda: ready(plane, "fast") == {"fast-2"})
            assert (await http.get("/readyz")).status_code == 503
            assert (await http.get("/")).json() == "hello", "its node still sends"
            paper.open.set()
        async with asyncio.timeout(PATIENCE_S):
            await serving


async def test_grpc_serves_until_no_node_sends(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("grpc_drain", plane, monkeypatch, "call-1")
    async with shop(plane, "call") as (_, paper):
        server = grpc.aio.server()
        methods: Any = {"Echo": grpc.unary_unary_rpc_method_handler(module.echo)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("example.Echo", methods),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        leave = asyncio.Event()
        serving = asyncio.create_task(module.serve(server, leave))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/example.Echo/Echo")
            assert await call(b"a", wait_for_ready=True) == b"a"
            paper.open.clear()
            leave.set()
            await eventually(lambda: ready(plane, "call") == {"call-2"})
            assert await call(b"b") == b"b", "its node still sends"
            paper.open.set()
            async with asyncio.timeout(PATIENCE_S):
                assert await serving == "drained"
