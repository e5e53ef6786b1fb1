"""Watch fan-out: one EndpointSlice of 25 KB changes, thousands of TLS watchers get the event.

The server is one process, ``sliceplane apiserver``; the watchers are another one. Measured is the
processor time of the server for each event that it delivers, TLS included, and how many it delivers
a second. Each round writes once and waits until everybody has the event, so no two events of one
watcher can share a write to its socket: this is the price of an event that comes alone.

The floor: bare servers that write the same bytes to as many watchers by hand
(``tools.floor_server``), in turns with ours.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from operator import truediv
from pathlib import Path

from benchmarks.harness import UPSTREAM, Result, main
from benchmarks.tools.fleet import Fleet
from benchmarks.tools.objects import NAMESPACE, PER_SLICE, namespace_document, slice_document
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

WATCHERS = 2_000
#: the servers take turns of so many rounds
TURNS = 10
ROUNDS = 10
SMALL_WATCHERS = 20
SMALL_ROUNDS = 5
WARM_UP_ROUNDS = 5
ROUND_MAX_S = 30.0
#: of what the bare server takes whose TLS is done as ours is
BUDGET_SHARE = 1.15
UPSTREAM_CPU_US = 54.0
UPSTREAM_RATE = 20_000.0
#: bare servers, and what the table calls them
FLOORS = {"loop": "bare HTTP, TLS by the loop", "socket": "bare HTTP, TLS on the socket"}


class Bare:
    """A server that does nothing else (``tools.floor_server``), and its watchers."""

    def __init__(
        self, stack: ExitStack, how: str, server: PlaneProcess, stored: bytes, watchers: int
    ) -> None:
        pki = server.kubeconfig.parent / "pki"
        folder = server.kubeconfig.parent / f"bare-{how}"
        folder.mkdir()
        event = folder / "event"
        event.write_bytes(b'{"type":"MODIFIED","object":' + stored.rstrip() + b"}\n")
        files = (pki / "apiserver.crt", pki / "apiserver.key", event)
        command = (sys.executable, "-m", "benchmarks.tools.floor_server", how, *map(str, files))
        self._process = stack.enter_context(Process(*command, log=folder / "log"))
        port = self._process.line().split()[1]
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            server.kubeconfig.read_text().replace(server.url, f"https://127.0.0.1:{port}")
        )
        self._fleet = stack.enter_context(Fleet(kubeconfig, watchers, "0", folder))

    async def rounds(self, count: int) -> float:
        """Seconds of processor time."""
        began = self._process.cpu_s()
        for _ in range(count):
            self._fleet.expect(1)
            self._process.say("event")
            await asyncio.to_thread(self._fleet.delivered, ROUND_MAX_S)
        return self._process.cpu_s() - began


class Ours:
    """``sliceplane apiserver``, and its watchers."""

    def __init__(self, server: PlaneProcess, client: HttpClient, fleet: Fleet) -> None:
        self.wall_s = 0.0
        self._server = server
        self._client = client
        self._fleet = fleet
        self._document = slice_document("web-1", "web", range(PER_SLICE))
        self._round = 0

    async def rounds(self, count: int) -> float:
        """Write and wait: seconds of processor time."""
        cpu, began = self._server.cpu_s(), time.monotonic()
        for _ in range(count):
            # Every round differs from the one before; the size stays.
            self._document["endpoints"][0]["zone"] = f"zone-{self._round % 2}"
            self._round += 1
            self._fleet.expect(1)
            await self._client.update(EndpointSlices, NAMESPACE, "web-1", encode(self._document))
            await asyncio.to_thread(self._fleet.delivered, ROUND_MAX_S)
        self.wall_s += time.monotonic() - began
        return self._server.cpu_s() - cpu


async def measure(watchers: int, turns: int, count: int) -> list[Result]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        server = stack.enter_context(PlaneProcess(folder, command="apiserver"))
        client = await stack.enter_async_context(HttpClient(load(server.kubeconfig)))
        await client.create(Namespaces, "", encode(namespace_document()))
        await client.create(
            EndpointSlices, NAMESPACE, encode(slice_document("web-1", "web", range(PER_SLICE)))
        )
        stored = await client.get(EndpointSlices, NAMESPACE, "web-1")
        since = (await client.list(EndpointSlices)).resource_version
        ours = Ours(
            server, client, stack.enter_context(Fleet(server.kubeconfig, watchers, since, folder))
        )
        bare = {
            how: Bare(stack.enter_context(ExitStack()), how, server, stored, watchers)
            for how in FLOORS
        }
        servers: dict[str, Ours | Bare] = {"": ours, **bare}
        for each in servers.values():
            await each.rounds(WARM_UP_ROUNDS)
        ours.wall_s = 0.0
        spent: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(turns):
            for name, each in servers.items():
                spent[name].append(await each.rounds(count) / watchers / count * 1e6)
        memory = server.rss_mib()
    cpu, *floors = (statistics.median(found) for found in spent.values())
    what = f"{watchers:,} TLS watchers, {len(stored) / 1000:.1f} kB"
    # Each turn is compared with its neighbour, as the machine's pace changes.
    share = statistics.median(map(truediv, spent[""], spent["socket"]))
    full = watchers == WATCHERS
    return [
        Result(
            name="server CPU for each delivered event",
            size=what,
            value=cpu,
            unit="us",
            peer=UPSTREAM,
            peer_value=UPSTREAM_CPU_US,
        ),
        *(
            Result(name="  the same", size=what, value=cpu, unit="us", peer=told, peer_value=floor)
            for told, floor in zip(FLOORS.values(), floors, strict=True)
        ),
        Result(
            name="  as a multiple of the bare server's on the socket",
            size=what,
            value=share,
            unit="x",
            budget=BUDGET_SHARE if full else None,
        ),
        Result(
            name="events delivered, one write at a time",
            size=what,
            value=watchers * turns * count / ours.wall_s,
            unit="1/s",
            peer=UPSTREAM,
            peer_value=UPSTREAM_RATE,
        ),
        Result(name="server memory", size=what, value=memory, unit="MiB"),
    ]


def run(small: bool = False) -> list[Result]:
    if small:
        return asyncio.run(measure(SMALL_WATCHERS, 1, SMALL_ROUNDS))
    return asyncio.run(measure(WATCHERS, TURNS, ROUNDS))


if __name__ == "__main__":
    main(run)
