"""One client of one large Service: its first sync, what an endpoint costs in memory, what a change
costs.

The client is in a process of its own and follows our API server over TLS; slices hold 100 endpoints
each. Beside ``EndpointView`` runs the usual loop with the official client: list in pages, watch,
typed models, an index by Pod. A change is one endpoint of one slice that turns ready or not; its
cost is processor time of the client, from bytes to the next pick.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result, main
from benchmarks.tools.objects import NAMESPACE, namespace_document, slice_document
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api import codec
from sliceplane.client import EndpointSlices, HttpClient, Namespaces, connect

SERVICE = "large"
PER_SLICE = 100
SIZES = (1_000, 100_000)
SMALL_SIZES = (300,)
CHANGES = 300
WRITERS = 8
START_S = 180.0


@dataclass(frozen=True)
class Figures:
    sync_s: float
    bytes_each: float
    change_s: float


def document(number: int, *, unready: int = -1) -> bytes:
    """The slice *number*, in which the endpoint *unready* is not ready."""
    made = slice_document(
        f"large-{number:05}", SERVICE, range(number * PER_SLICE, (number + 1) * PER_SLICE)
    )
    if unready >= 0:
        made["endpoints"][unready]["conditions"]["ready"] = False
    return codec.encode(made)


async def fill(client: HttpClient, slices: int) -> None:
    await client.create(Namespaces, "", codec.encode(namespace_document()))
    numbers = iter(range(slices))

    async def write() -> None:
        for number in numbers:
            await client.create(EndpointSlices, NAMESPACE, document(number))

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def change(client: HttpClient, slices: int, count: int) -> None:
    """*count* changes of one endpoint each; no endpoint twice in a row."""
    for number in range(count):
        at = number * 7919 % slices
        await client.update(
            EndpointSlices, NAMESPACE, f"large-{at:05}", document(at, unready=number % PER_SLICE)
        )


async def measure(
    who: str, folder: Path, kubeconfig: Path, client: HttpClient, endpoints: int
) -> Figures:
    slices = endpoints // PER_SLICE
    # One change makes one endpoint unready and the one of the time before ready again; each slice
    # once is simplest.
    changes = min(CHANGES, slices)
    command = (
        sys.executable,
        "-m",
        "benchmarks.tools.view_clients",
        who,
        str(kubeconfig),
        NAMESPACE,
        SERVICE,
    )
    with Process(*command, str(changes), log=folder / f"{who}.log") as process:
        word, seconds, size, endpoints_held = (
            await asyncio.to_thread(process.line, START_S)
        ).split()
        assert (word, int(endpoints_held)) == ("synced", endpoints), (
            f"{who} found {endpoints_held} endpoints of {endpoints}"
        )
        assert await asyncio.to_thread(process.line, START_S) == "following"
        await asyncio.sleep(0.5)  # until its watch is open
        await change(client, slices, changes)
        spent = float((await asyncio.to_thread(process.line, START_S)).split()[1])
    for number in range(changes):
        at = number * 7919 % slices
        await client.update(EndpointSlices, NAMESPACE, f"large-{at:05}", document(at))
    return Figures(float(seconds), int(size) / endpoints, spent / changes)


async def compare(endpoints: int) -> list[Result]:
    with scratch() as scratched:
        folder = Path(scratched)
        with PlaneProcess(folder, "--data-dir", "memory:", command="apiserver") as plane:
            async with connect(plane.kubeconfig) as client:
                await fill(client, endpoints // PER_SLICE)
                mine = await measure("ours", folder, plane.kubeconfig, client, endpoints)
                theirs = await measure("official", folder, plane.kubeconfig, client, endpoints)
    peer = f"kubernetes {importlib.metadata.version('kubernetes')}"
    size = f"{endpoints:,} endpoints"
    rows = (
        ("first sync of a view", mine.sync_s, theirs.sync_s, "s"),
        ("memory for an endpoint", mine.bytes_each, theirs.bytes_each, "bytes"),
        ("one endpoint changes, processor time", mine.change_s * 1e3, theirs.change_s * 1e3, "ms"),
    )
    return [
        Result(name=name, size=size, value=value, unit=unit, peer=peer, peer_value=peer_value)
        for name, value, peer_value, unit in rows
    ]


def run(small: bool = False) -> list[Result]:
    return [row for size in (SMALL_SIZES if small else SIZES) for row in asyncio.run(compare(size))]


if __name__ == "__main__":
    main(run)
