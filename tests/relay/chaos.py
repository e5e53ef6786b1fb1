"""Kills, pauses and partitions of a server and of relays in two levels, under writers and watchers
on all of them; in the end the server goes back to an older copy of its database.

``python -m tests.relay.chaos --events 1000000`` plays rounds until watchers have seen so many
events. Each stream is judged by the validators of ``tests.replicated.history`` against what the
server itself tells; each event must be the server's line, byte for byte. Exit code: 1 after a
violation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from tests.figures import tell
from tests.relay.chaos_tree import ChaosTree
from tests.relay.relaying import ADMIN, IN_DEFAULT
from tests.replicated.chaos import last_write
from tests.replicated.chaos_clients import SILENT_SECONDS_MAX, Collection, Watcher, Writer
from tests.replicated.history import Operation, Segment, Truth, Version, check
from tests.replicated.nemesis import Fault, Nemesis
from tests.waiting import eventually

NAMES: Final = [f"web-{number}" for number in range(8)]
#: at the server, and at each relay
WRITERS: Final = 2
#: each at one relay, and as many that go from relay to relay
WATCHERS_EACH: Final = 3
#: a silent stream is given up after so long, and the relays' parents may be silent one by one
CAUGHT_UP_S: Final = 240.0
#: a list that the server has answered before it ended has arrived
ANSWERED_S: Final = 1.0


class Slices(Collection):
    """EndpointSlices with the value as a label, read by lists, which relays serve from memory."""

    path = IN_DEFAULT

    def document(self, metadata: dict[str, Any], value: str) -> dict[str, Any]:
        return {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {**metadata, "labels": {"value": value}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }

    def value(self, document: dict[str, Any]) -> str:
        return str(document["metadata"]["labels"]["value"])

    def read_path(self, name: str) -> str:
        return f"?fieldSelector=metadata.name%3D{name}"

    def read(self, code: int, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if code != 200:
            return code, answer
        items = answer["items"]
        return (200, items[0]) if items else (404, {"reason": "NotFound"})


SLICES: Final = Slices()


class StrictWatcher(Watcher):
    """Keeps each event's line, too."""

    def __init__(
        self, name: str, session: aiohttp.ClientSession, urls: list[str], seed: int
    ) -> None:
        super().__init__(name, session, urls, seed, SLICES)
        #: hashes of the lines by revision, of each segment
        self.lines: list[dict[int, int]] = []

    def _is_lost(self, code: int) -> bool:
        # 504: the version is in the server's future, as after it went back (Kubernetes' "too large
        # resource version").
        return code in (410, 504)

    async def _list(self, url: str) -> None:
        await super()._list(url)
        self.lines += [{} for _ in range(len(self.segments) - len(self.lines))]

    def _note(self, kind: str, shown: dict[str, Any], line: bytes) -> None:
        super()._note(kind, shown, line)
        if kind != "BOOKMARK":
            self.lines[-1][self.segments[-1].events[-1].revision] = hash(line)


class AllRevisions(set[int]):
    """Each write is a transaction of its own."""

    def __contains__(self, revision: object) -> bool:
        return True


@dataclass
class Report:
    faults: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    events: int = 0
    streams: int = 0
    segments: int = 0
    violations: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.operations.items()))
        seen = f"{self.events} events over {self.streams} streams, {self.segments} lists"
        return [
            f"{seen}; rounds: {self.rounds}; violations: {len(self.violations)}",
            f"faults: {shown}",
            f"operations: {done}",
            *self.violations[:50],
        ]


class TreeNemesis(Nemesis):
    """Faults of the server, of relays, and of the ways between them."""

    def __init__(self, tree: ChaosTree, seed: int, counts: Counter[str]) -> None:
        super().__init__(tree, seed, counts)
        self._tree = tree

    def faults(self) -> list[Fault]:
        return [
            self._kill_server,
            self._pause_server,
            self._kill_relay,
            self._kill_level,
            self._pause_relay,
            self._cut_way,
            self._deafen_way,
        ]

    async def _kill_server(self) -> None:
        self._tree.root.kill()
        await self._while(0.1, 1.0)

    async def _pause_server(self) -> None:
        self._tree.root.send(signal.SIGSTOP)
        await self._while()

    async def _kill_relay(self) -> None:
        self._random.choice(list(self._tree.relays.values())).kill()
        await self._while(0.1, 1.0)

    async def _kill_level(self) -> None:
        """Both parents of a relay at once."""
        for name in ("east", "west"):
            self._tree.relays[name].kill()
        await self._while(0.1, 1.0)

    async def _pause_relay(self) -> None:
        self._random.choice(list(self._tree.relays.values())).send(signal.SIGSTOP)
        await self._while()

    async def _cut_way(self) -> None:
        for link in self._random.choice(list(self._tree.relays.values())).links:
            link.cut = True
        await self._while()

    async def _deafen_way(self) -> None:
        """What a relay asks arrives, and it does not hear of it."""
        link = self._random.choice(self._random.choice(list(self._tree.relays.values())).links)
        link.deaf = True
        await self._while()


async def play(
    folder: Path, report: Report, *, seconds: float, seed: int, events: int = 40
) -> None:
    """One round: chaos for *seconds* at least, until every kind of fault was there and watchers saw
    *events*; the older copy; the same again, shorter.  Adds to *report*.
    """
    tree = ChaosTree(folder)
    report.rounds += 1
    try:
        await tree.start()
        connector = aiohttp.TCPConnector(ssl=tree.tls(), limit=0)
        timeout = aiohttp.ClientTimeout(total=SILENT_SECONDS_MAX)
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=headers
        ) as session:
            # A request that is sent again behind our back would be two.
            session._retry_connection = False
            await _story(tree, session, report, seconds, seed, events)
        if report.violations:
            report.logs += tree.logs()
    finally:
        await tree.close()


async def _story(
    tree: ChaosTree,
    session: aiohttp.ClientSession,
    report: Report,
    seconds: float,
    seed: int,
    events: int,
) -> None:
    relays = [relay.url for relay in tree.relays.values()]
    reference = StrictWatcher("reference", session, [tree.root.url], seed)
    sets = [[url] for url in relays] + [relays] * len(relays)
    watchers = [
        StrictWatcher(f"w{number}", session, urls, seed * 1000 + number)
        for number, urls in enumerate(sets * WATCHERS_EACH)
    ]
    everybody = [reference, *watchers]
    await last_write(session, [tree.root.url], SLICES)
    await tree.back_up()
    era = Era(tree, session, everybody, seed)
    watching = [asyncio.create_task(reference.run())]
    try:
        await eventually(lambda: reference.reached)
        watching += [asyncio.create_task(each.run()) for each in watchers]
        nemesis = TreeNemesis(tree, seed, report.faults)
        await era.play(nemesis, seconds, events, report)
        tree.root.kill()
        await asyncio.sleep(ANSWERED_S)
        later = Era(tree, session, everybody, seed + 500)
        await tree.restore()
        report.faults["older copy"] += 1
        await later.begin(report)
        await later.play(nemesis, seconds / 4, events // 4, report)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    report.streams += sum(watcher.streams for watcher in watchers)


class Era:
    """One history of the server, from now on: its writers, and what watchers list and see of it."""

    def __init__(
        self,
        tree: ChaosTree,
        session: aiohttp.ClientSession,
        everybody: Sequence[StrictWatcher],
        seed: int,
    ) -> None:
        self._tree = tree
        self._session = session
        self._reference, *self._watchers = everybody
        self._first = {each.name: len(each.segments) for each in everybody}
        urls = [tree.root.url, *(relay.url for relay in tree.relays.values())]
        self._writers = [
            Writer(
                f"c{seed}-{index}{number}",
                session,
                url,
                urls[index - 1],
                NAMES,
                seed * 100 + index * 10 + number,
                SLICES,
            )
            for index, url in enumerate(urls)
            for number in range(WRITERS)
        ]

    async def begin(self, report: Report) -> None:
        """Returns when each watcher has listed anew: its stream has ended, and was not resumed."""
        everybody = (self._reference, *self._watchers)
        with contextlib.suppress(AssertionError):  # told below
            await eventually(lambda: all(map(self._of_era, everybody)), within_s=CAUGHT_UP_S)
        report.violations += [
            f"watch {each.name} goes on at {each.reached}, as if the server had not gone back"
            for each in everybody
            if not self._of_era(each)
        ]

    async def play(self, nemesis: Nemesis, seconds: float, events: int, report: Report) -> None:
        ends = time.monotonic() + seconds
        rounds, before = nemesis.rounds, self._events()

        def over() -> bool:
            return (
                time.monotonic() >= ends
                and (nemesis.rounds > rounds)
                and self._events() - before >= events
            )

        work: list[Awaitable[None]] = [writer.run(over) for writer in self._writers]
        await asyncio.gather(*work, nemesis.run(over))
        await self._tree.heal()
        urls = [self._tree.root.url, *(relay.url for relay in self._tree.relays.values())]
        final = await last_write(self._session, urls, SLICES)
        everybody = [self._reference, *self._watchers]
        with contextlib.suppress(AssertionError):  # told below
            await eventually(
                lambda: all(each.reached >= final for each in everybody), within_s=CAUGHT_UP_S
            )
        report.violations += [
            f"watch {each.name} never got to {final}, it is at {each.reached}"
            for each in everybody
            if each.reached < final
        ]
        report.events += self._events() - before
        self._judge(report)

    def _events(self) -> int:
        return sum(len(segment.events) for each in self._watchers for segment in each.segments)

    def _of_era(self, watcher: StrictWatcher) -> list[Segment]:
        return watcher.segments[self._first[watcher.name] :]

    def _judge(self, report: Report) -> None:
        own = self._of_era(self._reference)
        if len(own) != 1:
            report.violations.append(f"the server has forgotten its own history: {len(own)} lists")
            return
        truth = _truth(own[0])
        operations = [operation for writer in self._writers for operation in writer.history]
        segments = [segment for each in self._watchers for segment in self._of_era(each)]
        report.violations += check(truth, operations, segments)
        lines = self._reference.lines[self._first[self._reference.name]]
        for each in self._watchers:
            for told in each.lines[self._first[each.name] :]:
                other = [revision for revision, line in told.items() if lines.get(revision) != line]
                if other:
                    report.violations.append(f"watch {each.name}: other bytes at {other[:5]}")
        report.segments += len(segments)
        for operation in operations:
            report.operations[_counted(operation)] += 1


def _counted(operation: Operation) -> str:
    return f"{operation.verb} {operation.outcome}"


def _truth(reference: Segment) -> Truth:
    """What the server told: the list that the reference began with, and each event."""
    state = sorted((revision, name, value) for name, (revision, value) in reference.state.items())
    told = [event for event in reference.events if event.type != "BOOKMARK"]
    listed = [Version(revision, "ADDED", name, value) for revision, name, value in state]
    truth = Truth([[version] for version in (*listed, *told)])
    truth.ends = AllRevisions()
    return truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60, help="of a round, at least")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    report, seed = Report(), arguments.seed
    while report.events < arguments.events and not report.violations:
        with tempfile.TemporaryDirectory(prefix="sliceplane-relays-") as folder:
            work = play(Path(folder), report, seconds=arguments.seconds, seed=seed)
            asyncio.run(work)
        print(f"seed {seed}: {report.lines()[0]}", flush=True)
        seed += 1
    print(*report.lines(), sep="\n")
    tell("; ".join(report.lines()[:3]))
    if report.violations:
        print(*report.logs, sep="\n")
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
