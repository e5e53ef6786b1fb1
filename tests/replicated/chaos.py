"""Kills, pauses and partitions of three etcd members and two API servers, under writers and
watchers on both.

``python -m tests.replicated.chaos --seconds 1800`` prints what was done, what was seen, and every
violation (``history``); it exits with 1 if there is any. The same seed does the same things, at
times that the machine decides.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import operator
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from tests.figures import tell
from tests.replicated.chaos_clients import (
    CONFIG_MAPS,
    SILENT_SECONDS_MAX,
    Collection,
    Watcher,
    Writer,
)
from tests.replicated.chaos_plane import ChaosPlane
from tests.replicated.history import Truth, Version, check
from tests.replicated.nemesis import Fault, Nemesis
from tests.waiting import eventually

from sliceplane.api.scheme import ConfigMaps
from sliceplane.server.io.storage.etcd.backend import EtcdBackend
from sliceplane.server.store.batches import FeedItem, Group
from sliceplane.server.store.types import EventType

NAMES = ["k0", "k1", "k2", "k3"]
WRITERS_PER_SERVER = 3
WATCHERS = 4


@dataclass
class Report:
    seconds: float
    faults: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    events: int = 0
    streams: int = 0
    segments: int = 0
    batches: int = 0
    writers_of_batches: int = 0
    longest_pause_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    #: the ends of the servers' logs
    logs: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.operations.items()))
        return [
            f"faults in {self.seconds:.0f} s: {shown}",
            (
                f"operations: {done}; longest time without an acknowledged write: "
                f"{self.longest_pause_s:.1f} s"
            ),
            f"log: {self.batches} batches by {self.writers_of_batches} lives of servers",
            f"watches: {self.events} events over {self.streams} streams, {self.segments} lists",
            f"violations: {len(self.violations)}",
            *self.violations[:50],
        ]


class Recorder:
    """The log, read live and straight from etcd, so that compaction hides nothing."""

    def __init__(self, plane: ChaosPlane) -> None:
        self._backend = EtcdBackend(plane.etcd)
        self.groups: list[Group] = []
        self.gaps: list[str] = []

    def start(self) -> None:
        snapshot = self._backend.snapshot()
        self.first = snapshot.loaded.revision
        self._backend.follow(snapshot.read_at, self._on_items, self.gaps.append)

    def _on_items(self, items: list[FeedItem]) -> None:
        self.groups.extend(item for item in items if isinstance(item, Group))

    def head_revision(self) -> int:
        return self._backend.snapshot(history=False).loaded.revision

    @property
    def reached(self) -> int:
        return next(
            (group.rows[-1].record.revision for group in reversed(self.groups) if group.rows),
            self.first,
        )

    def truth(self) -> Truth:
        batches = []
        for group in self.groups:
            rows = [row for row in group.rows if row.record.key.resource == ConfigMaps.storage_key]
            batches.append([_version(row) for row in rows if row.record.key.namespace == "default"])
        truth = Truth(batches, self.first)
        truth.ends = {
            self.first,
            *(group.rows[-1].record.revision for group in self.groups if group.rows),
        }
        return truth

    def close(self) -> None:
        self._backend.close()


def _version(row: Any) -> Version:
    record = row.record
    value = "" if row.type is EventType.DELETED else json.loads(record.body)["data"]["value"]
    return Version(record.revision, row.type.value, record.key.name, value)


class EtcdNemesis(Nemesis):
    """Faults of members and servers."""

    def __init__(self, plane: ChaosPlane, seed: int, counts: Counter[str]) -> None:
        super().__init__(plane, seed, counts)
        self._plane: ChaosPlane = plane

    def faults(self) -> list[Fault]:
        return [
            self._kill_member,
            self._pause_member,
            self._isolate_member,
            self._kill_server,
            self._pause_server,
            self._cut_server,
            self._deafen_server,
            self._kill_majority,
            self._pause_majority,
        ]

    def _some_members(self, count: int) -> list[int]:
        return self._random.sample(range(len(self._plane.members)), count)

    async def _kill_member(self) -> None:
        (number,) = self._some_members(1)
        self._plane.members[number].kill()
        await self._while()

    async def _pause_member(self) -> None:
        await self._paused(1)

    async def _pause_majority(self) -> None:
        await self._paused(2)

    async def _paused(self, count: int) -> None:
        for number in self._some_members(count):
            if self._plane.members[number].process is not None:
                self._plane.members[number].pause()
        await self._while()

    async def _kill_majority(self) -> None:
        for number in self._some_members(2):
            self._plane.members[number].kill()
        await self._while(0.2, 2.0)

    async def _isolate_member(self) -> None:
        (number,) = self._some_members(1)
        self._plane.isolate(number, from_servers=self._random.random() < 0.5)
        await self._while()

    async def _kill_server(self) -> None:
        self._random.choice(self._plane.servers).kill()
        await self._while(0.1, 1.0)

    async def _pause_server(self) -> None:
        self._random.choice(self._plane.servers).send(signal.SIGSTOP)
        await self._while()

    async def _cut_server(self) -> None:
        """One server cannot reach some members, maybe none."""
        links = self._random.choice(self._plane.servers).links
        for link in self._random.sample(links, self._random.randint(1, len(links))):
            link.cut = True
        await self._while()

    async def _deafen_server(self) -> None:
        """What one server asks of etcd is done, and it does not hear of it."""
        for link in self._random.choice(self._plane.servers).links:
            link.deaf = True
        await self._while()


async def play(
    folder: Path, *, seconds: float, seed: int, updates: int = 20, events: int = 40
) -> Report:
    """Plays and judges: for *seconds*, until every kind of fault was there, and until clients met
    enough of it.

    A slow machine needs longer for the acknowledged *updates* and the *events* without which a
    verdict means little.
    """
    report = Report(seconds)
    plane = ChaosPlane(folder)
    try:
        await plane.start()
        recorder = Recorder(plane)
        await asyncio.to_thread(recorder.start)
        connector = aiohttp.TCPConnector(ssl=plane.tls(), limit=0, force_close=False)
        timeout = aiohttp.ClientTimeout(total=SILENT_SECONDS_MAX)
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                # A request that is sent again behind our back would be two.
                session._retry_connection = False
                await _story(plane, recorder, session, report, seed, (updates, events))
        finally:
            await asyncio.to_thread(recorder.close)
            for server in plane.servers:
                report.logs.append(
                    server.folder.with_suffix(".log").read_text(errors="replace")[-3000:]
                )
    finally:
        await plane.close()
    return report


async def _story(
    plane: ChaosPlane,
    recorder: Recorder,
    session: aiohttp.ClientSession,
    report: Report,
    seed: int,
    least: tuple[int, int],
) -> None:
    urls = [server.url for server in plane.servers]
    ends = time.monotonic() + report.seconds
    nemesis = EtcdNemesis(plane, seed, report.faults)

    def over() -> bool:
        met = (_updates(writers), _events(watchers))
        return time.monotonic() >= ends and nemesis.rounds > 0 and all(map(operator.gt, met, least))

    writers = [
        Writer(
            f"c{index}{number}",
            session,
            url,
            urls[index - 1],
            NAMES,
            seed * 100 + index * 10 + number,
        )
        for index, url in enumerate(urls)
        for number in range(WRITERS_PER_SERVER)
    ]
    watchers = [
        Watcher(f"w{number}", session, urls, seed * 100 + number) for number in range(WATCHERS)
    ]
    watching = [asyncio.create_task(watcher.run()) for watcher in watchers]
    work: list[Awaitable[None]] = [writer.run(over) for writer in writers]
    try:
        await asyncio.gather(*work, nemesis.run(over))
        await plane.heal()
        final = await last_write(session, urls)
        with contextlib.suppress(AssertionError):  # told below
            await eventually(
                lambda: min(recorder.reached, *(each.reached for each in watchers)),
                lambda reached: reached >= final,
            )
        for watcher in watchers:
            if watcher.reached < final:
                report.violations.append(
                    f"watch {watcher.name} never got to {final}, it is at {watcher.reached}"
                )
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    _judge(recorder, writers, watchers, report)


async def last_write(
    session: aiohttp.ClientSession, urls: list[str], collection: Collection = CONFIG_MAPS
) -> int:
    """All servers take writes again; returns the revision of the last."""
    revision = 0
    for number, url in enumerate(urls):
        document = collection.document({"generateName": f"last{number}-"}, f"last{number}")

        async def written(url: str = url, document: dict[str, Any] = document) -> int:
            async with session.post(url + collection.path, json=document) as response:
                answer = json.loads(await response.read())
            assert response.status == 201, answer
            return int(answer["metadata"]["resourceVersion"])

        ignoring = (aiohttp.ClientError, TimeoutError, OSError, AssertionError)
        revision = max(revision, await eventually(written, ignoring=ignoring))
    return revision


def _updates(writers: list[Writer]) -> int:
    return sum(
        each.verb == "update" and each.outcome == "ok"
        for writer in writers
        for each in writer.history
    )


def _events(watchers: list[Watcher]) -> int:
    return sum(len(segment.events) for watcher in watchers for segment in watcher.segments)


def _judge(
    recorder: Recorder, writers: list[Writer], watchers: list[Watcher], report: Report
) -> None:
    operations = [operation for writer in writers for operation in writer.history]
    segments = [segment for watcher in watchers for segment in watcher.segments]
    report.violations += recorder.gaps
    report.violations += check(recorder.truth(), operations, segments)
    for operation in operations:
        report.operations[f"{operation.verb} {operation.outcome}"] += 1
    report.events = _events(watchers)
    report.segments = len(segments)
    report.streams = sum(watcher.streams for watcher in watchers)
    report.batches = len(recorder.groups)
    report.writers_of_batches = len({group.name.server for group in recorder.groups})
    acknowledged = sorted(
        each.end for each in operations if each.outcome == "ok" and each.verb != "read"
    )
    report.longest_pause_s = max(
        (later - sooner for sooner, later in pairwise(acknowledged)), default=0.0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sliceplane-chaos-") as folder:
        print(f"seed {arguments.seed}, {arguments.seconds:g} s", flush=True)
        report = asyncio.run(play(Path(folder), seconds=arguments.seconds, seed=arguments.seed))
    print(*report.lines(), sep="\n")
    tell("; ".join(report.lines()[:5]))
    if report.violations:
        print(*report.logs, sep="\n")
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
