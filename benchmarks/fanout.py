"""Watch fan-out: one EndpointSlice of 25 KB changes, thousands of TLS watchers get the event.

The server is one process, ``sliceplane apiserver``; the watchers are another one.  Measured is the processor time
of the server for each event that it delivers, TLS included, and how many it delivers a second.  Each round writes
once and waits until everybody has the event, so no two events of one watcher can share a write to its socket: this is
the price of an event that comes alone.

The floor, in the same run: bare servers that write the same bytes to as many watchers by hand (``tools.floor_server``).
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from benchmarks.harness import UPSTREAM, Result, main
from benchmarks.tools.fleet import Fleet
from benchmarks.tools.objects import NAMESPACE, PER_SLICE, namespace_document, slice_document
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces
from sliceplane.shell.transport.http import HttpClient
from sliceplane.shell.transport.kubeconfig import load

WATCHERS = 2_000
ROUNDS = 100
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


async def rounds(client: HttpClient, fleet: Fleet, count: int, first: int) -> None:
    """Write and wait, *count* times."""
    document = slice_document("web-1", "web", range(PER_SLICE))
    for number in range(first, first + count):
        # Every round differs from the one before; the size stays.
        document["endpoints"][0]["zone"] = f"zone-{number % 2}"
        fleet.expect(1)
        await client.update(EndpointSlices, NAMESPACE, "web-1", encode(document))
        await asyncio.to_thread(fleet.delivered, ROUND_MAX_S)


async def measure(watchers: int, count: int) -> list[Result]:
    with scratch() as name:
        folder = Path(name)
        with PlaneProcess(folder, command="apiserver") as server:
            client = HttpClient(load(server.kubeconfig))
            try:
                await client.create(Namespaces, "", encode(namespace_document()))
                await client.create(EndpointSlices, NAMESPACE, encode(slice_document("web-1", "web", range(PER_SLICE))))
                stored = await client.get(EndpointSlices, NAMESPACE, "web-1")
                since = (await client.list(EndpointSlices)).resource_version
                with Fleet(server.kubeconfig, watchers, since, folder) as fleet:
                    await rounds(client, fleet, WARM_UP_ROUNDS, 0)
                    cpu = server.cpu_s()
                    began = time.monotonic()
                    await rounds(client, fleet, count, WARM_UP_ROUNDS)
                    cpu = server.cpu_s() - cpu
                    wall = time.monotonic() - began
                    memory = server.rss_mib()
            finally:
                await client.close()
        floors = {
            how: floor(how, server=server, stored=stored, watchers=watchers, count=count, folder=folder)
            for how in FLOORS
        }
    events = watchers * count
    what = f"{watchers:,} TLS watchers, {len(stored) / 1000:.1f} kB"
    full = watchers == WATCHERS
    return [
        Result(
            name="server CPU for each delivered event",
            size=what,
            value=cpu / events * 1e6,
            unit="us",
            budget=floors["socket"] * BUDGET_SHARE if full else None,
            peer=UPSTREAM,
            peer_value=UPSTREAM_CPU_US,
        ),
        *(
            Result(name="  the same", size=what, value=cpu / events * 1e6, unit="us", peer=told, peer_value=floors[how])
            for how, told in FLOORS.items()
        ),
        Result(
            name="events delivered, one write at a time",
            size=what,
            value=events / wall,
            unit="1/s",
            peer=UPSTREAM,
            peer_value=UPSTREAM_RATE,
        ),
        Result(name="server memory", size=what, value=memory, unit="MiB"),
    ]


def floor(how: str, *, server: PlaneProcess, stored: bytes, watchers: int, count: int, folder: Path) -> float:
    """Microseconds of processor time for each event of a server that does nothing else (``tools.floor_server``)."""
    event = folder / "event"
    event.write_bytes(b'{"type":"MODIFIED","object":' + stored.rstrip() + b"}\n")
    pki = server.kubeconfig.parent / "pki"
    command = (sys.executable, "-m", "benchmarks.tools.floor_server", how)
    with Process(*command, *map(str, (pki / "apiserver.crt", pki / "apiserver.key", event))) as bare:
        port = bare.line().split()[1]
        kubeconfig = folder / f"{how}.kubeconfig"
        kubeconfig.write_text(server.kubeconfig.read_text().replace(server.url, f"https://127.0.0.1:{port}"))
        with Fleet(kubeconfig, watchers, "0", folder) as fleet:
            for number in range(WARM_UP_ROUNDS + count):
                if number == WARM_UP_ROUNDS:
                    began = bare.cpu_s()
                fleet.expect(1)
                bare.say("event")
                fleet.delivered(ROUND_MAX_S)
            return (bare.cpu_s() - began) / watchers / count * 1e6


def run(small: bool = False) -> list[Result]:
    if small:
        return asyncio.run(measure(SMALL_WATCHERS, SMALL_ROUNDS))
    return asyncio.run(measure(WATCHERS, ROUNDS))


if __name__ == "__main__":
    main(run)
