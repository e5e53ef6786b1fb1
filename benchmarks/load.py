"""Load: 200 clients for a minute, all verbs mixed, on slices, Services, Pods and Leases; no request
may fail.

Each client sends a request every 0.2 s over a connection that it keeps, so the server gets about a
thousand requests a second, and a third of them write. Clients are processes of their own
(``tools.load_clients``). Printed are latencies as clients see them, the server's processor time for
a request, and its memory in the last third against the first.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Result, main, percentile
from benchmarks.tools.load_clients import VERBS
from benchmarks.tools.objects import PER_SLICE, namespace_document, slice_document
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

CLIENTS = 200
SECONDS = 60.0
PROCESSES = 2
SMALL_CLIENTS = 20
SMALL_S = 1.5
#: slices that are there all the time, to be listed in pages
SLICES = 100
SAMPLE_S = 1.0
#: short, so that history reaches its steady size within the run
HISTORY_KEEP = "5s"


async def prepare(kubeconfig: Path) -> None:
    client = HttpClient(load(kubeconfig))
    try:
        await client.create(Namespaces, "", encode(namespace_document()))
        for number in range(SLICES):
            document = slice_document(
                f"web-{number}", "web", range(number * PER_SLICE, number * PER_SLICE + 20)
            )
            await client.create(EndpointSlices, document["metadata"]["namespace"], encode(document))
    finally:
        await client.close()


def drive(
    server: PlaneProcess, folder: Path, clients: int, seconds: float
) -> tuple[list[dict], list[float], float]:
    """What each process of clients says, the server's memory once a second (MiB), and its processor
    seconds.
    """
    count = clients // PROCESSES
    with ExitStack() as stack:
        fleets = [
            stack.enter_context(
                Process(
                    *(
                        sys.executable,
                        "-m",
                        "benchmarks.tools.load_clients",
                        str(server.kubeconfig),
                    ),
                    *(str(number * count), str(count), str(seconds)),
                    log=folder / "clients.log",
                )
            )
            for number in range(PROCESSES)
        ]
        for fleet in fleets:
            assert fleet.line() == "open"
        cpu = server.cpu_s()
        until = time.monotonic() + seconds
        memory = []
        for fleet in fleets:
            fleet.say("go")
        while time.monotonic() < until:
            time.sleep(SAMPLE_S)
            memory.append(server.rss_mib())
        said = [json.loads(fleet.line()) for fleet in fleets]
        return said, memory, server.cpu_s() - cpu


def run(small: bool = False) -> list[Result]:
    clients, seconds = (SMALL_CLIENTS, SMALL_S) if small else (CLIENTS, SECONDS)
    with (
        scratch() as name,
        PlaneProcess(Path(name), "--history-keep", HISTORY_KEEP, command="apiserver") as server,
    ):
        asyncio.run(prepare(server.kubeconfig))
        said, memory, cpu = drive(server, Path(name), clients, seconds)
    latencies: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    for process in said:
        errors.update(process["errors"])
        for verb, results in process["latencies"].items():
            latencies[verb] += results
    if errors:
        raise SystemExit(f"{errors.total()} requests failed: {errors.most_common(5)}")
    requests = sum(map(len, latencies.values()))
    what = f"{clients} clients, {seconds:.0f} s"
    third = max(1, len(memory) // 3)
    growth = statistics.mean(memory[-third:]) - statistics.mean(memory[:third])
    results = [
        Result(name="requests, none failed", size=what, value=requests / seconds, unit="1/s"),
        Result(name="server CPU for a request", size=what, value=cpu / requests * 1e6, unit="us"),
        Result(name="server memory", size=what, value=memory[-1], unit="MiB"),
        Result(name="memory, last third less first", size=what, value=max(0.0, growth), unit="MiB"),
    ]
    for verb in VERBS:
        for percent in (50, 99):
            if latencies[verb]:
                value = percentile(latencies[verb], percent) * 1e3
                results.append(
                    Result(
                        name=f"{verb}, p{percent}",
                        size=f"{len(latencies[verb]):,}",
                        value=value,
                        unit="ms",
                    )
                )
    return results


if __name__ == "__main__":
    main(run)
