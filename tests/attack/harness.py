"""What attacks have in common: a plane in a process of its own, and bystanders who measure what an
attack costs them.

An attack is a coroutine function that gets a scratch folder, starts what it attacks there, and
returns figures. A figure has a limit; one above it is a finding. What an attack sends is bounded in
count and time and goes to loopback, or to network namespaces that it makes and removes itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess, Process

from sliceplane.watch.io.kubeconfig import load

#: no step on the server's loop may be longer; a bystander also waits for the machine, which is
#: small and busy
STEP_SECONDS_MAX = 0.050
BYSTANDER_SECONDS_MAX = 1.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured; ``limit`` is the most that it may be, or the least."""

    what: str
    value: float
    unit: str
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Attack:
    """``name`` is given on the command line; ``story`` is one line about what the attacker has and
    does.
    """

    name: str
    story: str
    run: Callable[[Path], Awaitable[Sequence[Figure]]]


class Bystander:
    """An ordinary client that asks for a small object again and again, and keeps the longest wait
    and what failed.
    """

    def __init__(self) -> None:
        self.answers = 0
        self.failed = 0
        self.longest_s = 0.0

    def figures(self) -> tuple[Figure, ...]:
        return (
            Figure(
                "longest wait of a bystander", round(self.longest_s, 3), "s", BYSTANDER_SECONDS_MAX
            ),
            Figure("failed requests of a bystander", self.failed, "requests", 0),
        )


def admin_context(plane: PlaneProcess) -> ssl.SSLContext:
    """TLS with the administrator's certificate."""
    context = load(plane.kubeconfig).ssl_context
    assert context is not None, "a plane speaks TLS"
    return context


def anonymous_context() -> ssl.SSLContext:
    """TLS that shows nothing and believes everything."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def bystander(
    plane: PlaneProcess, path: str = "/api/v1/namespaces/default"
) -> AsyncIterator[Bystander]:
    """Asks on a connection of its own, as administrator, every 20 ms for as long as the block
    runs.
    """
    seen = Bystander()
    ending = asyncio.Event()

    async def ask(session: aiohttp.ClientSession) -> None:
        while not ending.is_set():
            began = time.monotonic()
            try:
                async with session.get(
                    plane.url + path, timeout=aiohttp.ClientTimeout(total=60)
                ) as answer:
                    await answer.read()
                    seen.failed += answer.status != 200
            except (aiohttp.ClientError, OSError, TimeoutError):
                seen.failed += 1
            seen.answers += 1
            seen.longest_s = max(seen.longest_s, time.monotonic() - began)
            await asyncio.sleep(_LOOK_S)

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=admin_context(plane))
    ) as session:
        asking = asyncio.create_task(ask(session))
        try:
            yield seen
        finally:
            ending.set()
            await asking


def alive(process: Process) -> Figure:
    """Whether what was attacked still runs."""
    return Figure("processes that ended", float(process.process.poll() is not None), "processes", 0)
