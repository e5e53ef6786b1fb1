"""etcd in trouble that is not plain absence: what clients are told, and whether health says the
truth meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.replicated.chaos_plane import ChaosPlane
from tests.replicated.members import cluster, make
from tests.replicated.proxies import Link
from tests.replicated.relay import Relay
from tests.replicated.servers import Server, servers
from tests.waiting import PATIENCE_S, eventually

from sliceplane.api.errors import StatusError
from sliceplane.server.io.storage.committing import TroubleLog


@contextlib.contextmanager
def elsewhere() -> Iterator[Callable[[Coroutine[Any, Any, Any]], asyncio.Future[Any]]]:
    """Runs coroutines in another thread's loop: a server that starts keeps its own, and what is
    between it and etcd must go on.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(coroutine, loop)
        )
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.asynccontextmanager
async def three_members(folder: Path) -> AsyncIterator[tuple[ChaosPlane, list[Link]]]:
    """With every link between them in hand, and one to each for a server."""
    plane = ChaosPlane(folder, servers=0)
    links: list[Link] = []
    with elsewhere() as run:
        try:
            await run(plane.start())
            for member in plane.members:
                links.append(Link(member.port))
                await run(links[-1].start())
            yield plane, links
        finally:
            for link in links:
                await run(link.close())
            await run(plane.close())


def urls(links: list[Link]) -> list[str]:
    return [f"http://127.0.0.1:{link.port}" for link in links]


async def until_failing(server: Server, failing: bool, seconds: float = PATIENCE_S) -> float:
    began = time.monotonic()
    await eventually(
        lambda: server.committer.failing,
        lambda problem: (problem is not None) is failing,
        within_s=seconds,
    )
    return time.monotonic() - began


async def test_a_member_that_is_cut_off_from_the_others_is_left(tmp_path: Path) -> None:
    """It answers the server, which is all that the server can see."""
    async with three_members(tmp_path) as (plane, links), servers(1, *urls(links)) as (one,):
        await one.put("a", "1")
        alone = links[
            [link.port for link in links].index(int(one.backend.client.current.rpartition(":")[2]))
        ]
        plane.isolate(links.index(alone), from_servers=False)
        async with asyncio.timeout(PATIENCE_S):
            await one.put("a", "2")
            assert await one.get("a") == "2"
        assert one.backend.client.current.rpartition(":")[2] != str(alone.port)
        assert one.committer.failing is None


async def test_a_server_that_reaches_only_a_member_without_a_majority_says_so(
    tmp_path: Path,
) -> None:
    async with three_members(tmp_path) as (plane, links), servers(1, *urls(links)) as (one,):
        await one.put("a", "1")
        for link in links[1:]:
            link.cut = True
        plane.isolate(0, from_servers=False)
        await until_failing(one, True)
        with pytest.raises(StatusError) as read:
            await one.get("a")
        assert read.value.code == 504
        with pytest.raises(StatusError) as write:
            await one.put("b", "1")
        assert write.value.code == 503
        await eventually(lambda: one.committer.unready)
        assert one.committer.staleness_s > 9
        for link in links:
            link.cut = False
        for peers in plane.peer_links:
            peers.cut = False
            peers.cut_from.clear()
        await until_failing(one, False)
        assert await one.get("a") == "1"
        await one.put("b", "2")
        assert one.committer.unready == ""


class Slow(Relay):
    """Every byte comes ``delay_s`` late, both ways together."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self._target = target
        self.delay_s = 0.0

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        back, there = await asyncio.open_connection("127.0.0.1", self._target)
        pumps = [
            asyncio.create_task(self._late(reader, there)),
            asyncio.create_task(self._late(back, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.transport.abort()
            for each in pumps:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _late(self, source: StreamReader, sink: StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def give() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - time.monotonic())
                sink.write(data)

        giving = asyncio.create_task(give())
        try:
            while data := await source.read(65536):
                queue.put_nowait((time.monotonic() + self.delay_s / 2, data))
        finally:
            giving.cancel()


async def test_an_etcd_that_needs_two_seconds_is_as_good_as_away_and_is_told_so(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, 1) as (member,), elsewhere() as run:
        slow = Slow(member.port)
        await run(slow.start())
        try:
            async with servers(1, f"http://127.0.0.1:{slow.port}") as (one,):
                await one.put("a", "1")
                slow.delay_s = 0.5
                began = time.monotonic()
                await one.put("a", "2")
                assert await one.get("a") == "2"
                assert time.monotonic() - began > 0.9
                assert one.committer.failing is None, "slow, and all is well"
                slow.delay_s = 2.5
                await until_failing(one, True)
                with pytest.raises(StatusError) as read:
                    await one.get("a")
                assert read.value.code == 504
                slow.delay_s = 0.0
                await until_failing(one, False)
                assert await one.get("a") == "2"
                await one.put("a", "3")
                assert await one.get("a") == "3"
        finally:
            await run(slow.close())


async def test_health_is_red_as_long_as_a_full_etcd_takes_no_writes(tmp_path: Path) -> None:
    """Reads go on, and their answers say nothing about writes."""
    (member,) = make(tmp_path, 1)
    member.flags = ("--quota-backend-bytes", str(4 * 1024 * 1024))
    member.start()
    try:
        await asyncio.to_thread(member.wait_ready)
        async with servers(1, member.url, compaction_interval_s=0) as (one,):

            async def fill() -> None:
                for number in range(40):
                    await one.put(f"large-{number % 4}", f"{number}" * 200_000)

            with pytest.raises(StatusError, match="database space exceeded") as refused:
                await fill()
            assert refused.value.code == 500
            for _ in range(15):
                assert await one.get("large-0")
                assert one.committer.failing is not None
                assert "database space exceeded" in one.committer.failing
                await asyncio.sleep(0.1)
            huge = len(one.reports)
            with pytest.raises(StatusError, match="database space exceeded"):
                await one.put("small", "x")
            assert len(one.reports) == huge, "one line is enough"
    finally:
        member.kill()


async def test_an_etcd_that_comes_back_is_no_error_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is called for ``level=error`` shall not be called for a recovery."""
    (member,) = make(tmp_path, 1)
    member.start()
    try:
        await asyncio.to_thread(member.wait_ready)
        async with servers(1, member.url) as (one,):
            await one.put("a", "1")
            member.kill()
            await until_failing(one, failing=True)
            problems = list(one.reports)
            assert problems
            member.start()
            await asyncio.to_thread(member.wait_ready)
            await until_failing(one, failing=False)
            await one.put("a", "2")
            assert one.mended[0] == "etcd answers again"
            assert not [each for each in one.reports if "answers again" in each]
    finally:
        member.kill()
    TroubleLog().report_mended("etcd answers again")
    TroubleLog().report("etcd: gone")
    good, bad = capsys.readouterr().err.splitlines()[-2:]
    assert "level=info" in good
    assert "etcd answers again" in good
    assert "level=error" in bad
