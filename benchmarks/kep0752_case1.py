"""KEP-0752's case 1 in reality: a service of 20,000 endpoints appears before 5,000 node proxies.

5,000 TLS watchers, 200 EndpointSlices of 100 endpoints created as fast as the server takes them:
1,000,000 events, 25.6 GB of JSON. The time is from the first write until the last watcher has its
last event, so on a small machine it includes the watchers' own reading, which runs beside the
server.
"""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import UPSTREAM, Result, main, note
from benchmarks.tools.fleet import Fleet
from benchmarks.tools.objects import NAMESPACE, PER_SLICE, namespace_document, slice_document
from benchmarks.tools.process import PlaneProcess, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

WATCHERS = 5_000
SLICES = 200
SMALL_WATCHERS = 50
SMALL_SLICES = 10
WAIT_MAX_S = 180.0
#: what the watchers and the server need besides: files, and memory of the client processes
SPARE_FILES = 100
BUDGET_S = 20.0
BUDGET_MIB = 250.0
UPSTREAM_S = 53.0
UPSTREAM_MIB = 840.0
UPSTREAM_CPU_US = 59.0


def impossible(watchers: int) -> str:
    """Why this machine cannot do it; "" if it can."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < watchers + SPARE_FILES:
        return f"{watchers:,} connections need as many files, and the hard limit is {hard:,}"
    available = next(
        int(line.split()[1]) // 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    if available < 1024 + watchers // 2:
        return f"{available} MiB of memory are available, about {1024 + watchers // 2} are needed"
    return ""


async def create(client: HttpClient, slices: int) -> None:
    """One after the other, as a controller writes the slices of one service."""
    for number in range(slices):
        pods = range(number * PER_SLICE, (number + 1) * PER_SLICE)
        await client.create(
            EndpointSlices, NAMESPACE, encode(slice_document(f"web-{number:05d}", "web", pods))
        )


async def measure(watchers: int, slices: int) -> list[Result]:
    with scratch() as name, PlaneProcess(Path(name), command="apiserver") as server:
        folder = Path(name)
        client = HttpClient(load(server.kubeconfig))
        try:
            await client.create(Namespaces, "", encode(namespace_document()))
            since = (await client.list(EndpointSlices)).resource_version
            with ExitStack() as stack:
                fleet = stack.enter_context(Fleet(server.kubeconfig, watchers, since, folder))
                fleet.expect(slices)
                cpu = server.cpu_s()
                began = time.monotonic()
                await create(client, slices)
                delivery = await asyncio.to_thread(fleet.delivered, WAIT_MAX_S)
                cpu = server.cpu_s() - cpu
                wall = delivery.at - began
                memory = server.rss_mib(peak=True)
        finally:
            await client.close()
    events = watchers * slices
    size = (
        f"{watchers:,} TLS watchers, {slices} slices, {events:,} events, "
        f"{delivery.size / 1e9:.1f} GB"
    )
    full = watchers == WATCHERS
    peer = UPSTREAM if full else ""
    return [
        Result(
            name="20,000 endpoints appear, until all have them"
            if full
            else "slices appear, until all have them",
            size=size,
            value=wall,
            unit="s",
            budget=BUDGET_S if full else None,
            peer=peer,
            peer_value=UPSTREAM_S if full else None,
        ),
        Result(
            name="  server memory, peak",
            size=size,
            value=memory,
            unit="MiB",
            budget=BUDGET_MIB if full else None,
            peer=peer,
            peer_value=UPSTREAM_MIB if full else None,
        ),
        Result(
            name="  server CPU for each delivered event",
            size=size,
            value=cpu / events * 1e6,
            unit="us",
            peer=peer,
            peer_value=UPSTREAM_CPU_US if full else None,
        ),
    ]


def run(small: bool = False) -> list[Result]:
    watchers, slices = (SMALL_WATCHERS, SMALL_SLICES) if small else (WATCHERS, SLICES)
    reason = impossible(watchers)
    if reason:
        note(f"case 1 was not run: {reason}")
        return []
    return asyncio.run(measure(watchers, slices))


if __name__ == "__main__":
    main(run)
