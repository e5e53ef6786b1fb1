"""For tests whose Pods and Services have the addresses that the API gives them: a network of the
module's own, in which all of these are this machine's, a plane in it, and Pods that answer with
their address.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from benchmarks.tools.callers import HttpCaller, answered
from benchmarks.tools.loopback import private_loopback
from tests.peers import programs
from tests.server.serving import Server, run_plane
from tests.template_process import FRESH

from sliceplane.server.io.plane import PlaneConfig


@pytest.fixture(scope="module")
def fetched() -> None:
    """There is no way out of the network: what its tests fetch and build comes before.  A module
    may have its own.
    """
    programs.envoy()


@pytest.fixture(scope="module")
def network(fetched: None) -> Iterator[None]:
    """Programs are started here, and not by the template, which is in another network."""
    with pytest.MonkeyPatch.context() as patch, private_loopback():
        patch.setenv(FRESH, "1")
        yield


@pytest.fixture(scope="module")
def live(network: None) -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


class RunningPods:
    """``benchmarks.tools.pods``: HTTP at port 8080, gRPC at 9090 of every address."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, line: str) -> None:
        assert self._process.stdin is not None, "asked for"
        assert self._process.stdout is not None, "asked for"
        self._process.stdin.write(f"{line}\n".encode())
        assert await self._process.stdout.readline(), "the Pods have ended"


@pytest_asyncio.fixture
async def pods(network: None) -> AsyncIterator[RunningPods]:
    """One server for all addresses is running."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.tools.pods"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    running = RunningPods(process)
    await running.ask("start 0.0.0.0")
    yield running
    process.kill()
    await process.wait()


async def called(host: str, port: int, count: int = 8) -> set[str]:
    """Who answers HTTP there, each time on a connection of its own; "!" and why where nothing
    does.
    """
    seen = set()
    for _ in range(count):
        caller = HttpCaller(host, port)
        seen.add(await answered(caller.call))
        await caller.close()
    return seen
