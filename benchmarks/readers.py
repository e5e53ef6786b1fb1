"""``--readers``: what one event, and one write, cost each process of a server.

One EndpointSlice of 26 kB changes, a write at a time, until every TLS watcher has the event. Servers
without readers, with two and with four of them take turns. Clients need cores, too, so that a
machine with few of them shows no rate: the figures are processor time, of the busiest process of
each server and of all of them, and for writes also the time that they took.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Result, main
from benchmarks.relay import WARM_UP_ROUNDS, Writes
from benchmarks.tools.fleet import Fleet
from benchmarks.tools.objects import NAMESPACE, PER_SLICE, namespace_document, slice_document
from benchmarks.tools.process import PlaneProcess, cpu_s_of, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Namespaces
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

WATCHERS = 500
TURNS = 3
ROUNDS = 10
#: a connection each, and of each turn
WRITERS = 8
WRITES = 400
SMALL = (10, 1, 3, 16)
READERS = (0, 2, 4)
NAMES = (
    *("CPU an event, busiest process", "CPU an event, all processes"),
    *("CPU a write, busiest process", "CPU a write, all processes"),
    *("CPU a write, the server itself", "time a write"),
)
#: beside one process
BUDGETS = {
    NAMES[0]: {2: 0.6, 4: 0.35},
    NAMES[1]: {2: 1.15, 4: 1.15},
    NAMES[5]: {2: 1 / 0.9, 4: 1 / 0.9},
}


class Served:
    """A server, its processes, and what they have spent."""

    def __init__(self, server: PlaneProcess, client: HttpClient, folder: Path) -> None:
        self.server = server
        self.client = client
        self.folder = folder
        self.writes = Writes(client)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        self._pids = [server.process.pid, *map(int, children.read_text().split())]
        #: milliseconds an event, and a write, in the order of ``NAMES``
        self.events: list[tuple[float, ...]] = []
        self.written: list[tuple[float, ...]] = []

    def spent_s(self) -> list[float]:
        return [cpu_s_of(pid) for pid in self._pids]

    async def send_events(self, watchers: int, count: int) -> None:
        since = (await self.client.list(EndpointSlices)).resource_version
        with Fleet(self.server.kubeconfig, watchers, since, self.folder) as fleet:
            await self.writes.seconds_to(fleet, WARM_UP_ROUNDS)
            before = self.spent_s()
            await self.writes.seconds_to(fleet, count)
            self.events.append(_spent_ms(before, self.spent_s(), count)[:2])

    async def write(self, turn: int, count: int) -> None:
        async def work(writer: int) -> None:
            for number in range(count // WRITERS):
                name = f"c-{turn}-{writer}-{number}"
                document = {"metadata": {"name": name}, "data": {"a": "b" * 100}}
                await self.client.create(ConfigMaps, NAMESPACE, encode(document))

        before, began = self.spent_s(), time.monotonic()
        await asyncio.gather(*map(work, range(WRITERS)))
        took_ms = (time.monotonic() - began) / count * 1e3
        self.written.append((*_spent_ms(before, self.spent_s(), count), took_ms))

    def medians(self) -> list[float]:
        """In the order of ``NAMES``."""
        columns = (*zip(*self.events, strict=True), *zip(*self.written, strict=True))
        return [statistics.median(column) for column in columns]


def _spent_ms(before: list[float], after: list[float], count: int) -> tuple[float, ...]:
    """Returns milliseconds of the busiest process, of all, and of the server itself."""
    spent = [(new - old) / count * 1e3 for new, old in zip(after, before, strict=True)]
    return max(spent), sum(spent), spent[0]


async def measure(watchers: int, turns: int, count: int, writes: int) -> list[Result]:
    async with AsyncExitStack() as stack:
        served: dict[int, Served] = {}
        for readers in READERS:
            folder = Path(stack.enter_context(scratch()))
            flags = ("--readers", str(readers)) if readers else ()
            server = stack.enter_context(PlaneProcess(folder, *flags, command="apiserver"))
            client = await stack.enter_async_context(HttpClient(load(server.kubeconfig)))
            await client.create(Namespaces, "", encode(namespace_document()))
            document = slice_document("web-1", "web", range(PER_SLICE))
            await client.create(EndpointSlices, NAMESPACE, encode(document))
            served[readers] = Served(server, client, folder)
        for turn in range(turns):
            for one in served.values():
                await one.send_events(watchers, count)
            for one in served.values():
                await one.write(turn, writes)
    medians = {readers: one.medians() for readers, one in served.items()}
    alone = medians[0]
    results = []
    for readers, values in medians.items():
        names = dict(zip(NAMES, values, strict=True))
        for number, (name, value) in enumerate(names.items()):
            size = f"{watchers:,} TLS watchers" if number < 2 else f"{WRITERS} writers"
            result = Result(name=name, size=f"{size}, {readers} readers", value=value, unit="ms")
            if readers:
                result = replace(result, peer="one process", peer_value=alone[number])
            results.append(result)
            if readers and name in BUDGETS:
                ratio = value / alone[number]
                budget = BUDGETS[name][readers]
                results.append(replace(result, value=ratio, unit="x", peer_value=1, budget=budget))
    return results


def run(small: bool = False) -> list[Result]:
    sizes = SMALL if small else (WATCHERS, TURNS, ROUNDS, WRITES)
    return asyncio.run(measure(*sizes))


if __name__ == "__main__":
    main(run)
