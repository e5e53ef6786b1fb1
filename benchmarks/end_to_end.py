"""From a kubelet's status patch to the EndpointSlice event in a watcher's hands, 20,000 endpoints
of one service.

The embedded plane as a user runs it: ``sliceplane up``, one process with server, storage on disk
and controllers. One client patches a Pod's status over HTTPS, another watches EndpointSlices over
HTTPS; the time runs from before the patch is sent until the event that carries the endpoint's new
condition has been read. So it has two commits on disk (the Pod's and the slice's) and everything
between.

Controller CPU is that of ``sliceplane controllers`` beside a server without any, which is how
upstream's figure came about: the cores, their informers' decoding, TLS and HTTP, but not the
server's part of a write. Classic Endpoints, which are written whole, have a row of their own; most
of what they cost is the server's, so another row is the embedded plane's CPU, all of it, where a
Service has as many Pods as its Endpoints hold at nearly their largest.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from benchmarks.harness import UPSTREAM, Result, main, percentile
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.objects import (
    NAMESPACE,
    PER_SLICE,
    PODS_PER_NODE,
    namespace_document,
    node_document,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    service_document,
)
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

PODS = 20_000
#: of a Service whose Endpoints hold them all
CLASSIC_PODS = 900
FLIPS = 200
CPU_FLIPS = 400
SMALL_PODS = 60
SMALL_FLIPS = 5
SMALL_CPU_FLIPS = 5
FLIP_MAX_S = 10.0
SETTLE_MAX_S = 120.0
#: between two flips: a flip meets an idle plane
PAUSE_S = 0.01
BUDGET_MS = 4.0
UPSTREAM_MS = 273.0
CPU_BUDGET_MS = 0.8
CLASSIC_BUDGET_MS = 4.0
UPSTREAM_CPU_MS = 338.0
STEP = 7919  # a prime: flips visit all slices


def cluster(pods: int) -> Iterator[Wanted]:
    yield Namespaces, "", namespace_document(), None
    for number in range((pods + PODS_PER_NODE - 1) // PODS_PER_NODE):
        yield Nodes, "", node_document(number), None
    yield Services, NAMESPACE, service_document(), None
    for number in range(pods):
        yield Pods, NAMESPACE, pod_document(number), pod_status(pod_ip(number), ready=True)


class Flipper:
    """Flips Pods one after the other, each the other way when its turn comes again."""

    def __init__(self, client: HttpClient, pods: int) -> None:
        self._client = client
        self._pods = pods
        self._turn = 0
        self._unready: set[int] = set()

    async def flip(self) -> tuple[bytes, float]:
        """Patches the next Pod; the bytes that its endpoint then begins with, and when the patch
        was sent.
        """
        self._turn += 1
        number = self._turn * STEP % self._pods
        ready = number in self._unready
        (self._unready.discard if ready else self._unready.add)(number)
        body = encode(pod_status(pod_ip(number), ready=ready, turn=self._turn))
        mark = f'{{"addresses":["{pod_ip(number)}"],"conditions":{{"ready":{"true" if ready else "false"}'.encode()
        started = time.perf_counter()
        await self._client.patch(
            Pods, NAMESPACE, pod_name(number), body, patch_type="strategic", subresource="status"
        )
        return mark, started


async def until_settled(client: HttpClient, pods: int) -> None:
    """Wait until every Pod is in a slice."""
    async with asyncio.timeout(SETTLE_MAX_S):
        while True:
            page = await client.list(EndpointSlices, namespace=NAMESPACE)
            if sum(item.count(b'"targetRef"') for item in page.items) == pods:
                return
            await asyncio.sleep(0.2)


async def delays(client: HttpClient, flipper: Flipper, flips: int) -> list[float]:
    """Seconds from each patch to its event."""
    events: asyncio.Queue[tuple[bytes, float]] = asyncio.Queue()

    async def watch(since: str) -> None:
        async with client.watch(
            EndpointSlices, namespace=NAMESPACE, resource_version=since
        ) as stream:
            async for message in stream:
                events.put_nowait((message.body, time.perf_counter()))

    since = (await client.list(EndpointSlices, namespace=NAMESPACE)).resource_version
    watching = asyncio.create_task(watch(since))
    latencies = []
    try:
        await asyncio.sleep(0.5)  # the watch opens, the plane comes to rest
        for _ in range(flips):
            mark, started = await flipper.flip()
            async with asyncio.timeout(FLIP_MAX_S):
                while True:
                    body, at = await events.get()
                    if mark in body:
                        break
            latencies.append(at - started)
            await asyncio.sleep(PAUSE_S)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return latencies


async def cpu_of_flips(process: Process, flipper: Flipper, flips: int) -> float:
    """Seconds of processor time for each flip."""
    await asyncio.sleep(1.5)  # what the flips before have left behind
    before = process.cpu_s()
    for _ in range(flips):
        await flipper.flip()
        await asyncio.sleep(PAUSE_S)
    await asyncio.sleep(1.5)
    return (process.cpu_s() - before) / flips


async def cpu_alone(folder: Path, pods: int, flips: int, names: str) -> float:
    """Seconds of processor time that ``sliceplane controllers`` of these *names* needs for each
    flip.
    """
    async with AsyncExitStack() as stack:
        server = stack.enter_context(PlaneProcess(folder, command="apiserver"))
        client = HttpClient(load(server.kubeconfig))
        stack.push_async_callback(client.close)
        flags = (
            "--controllers",
            names,
            "--leader-elect=false",
            "--log-level",
            "error",
            "--kube-api-qps=0",
        )
        command = (
            sys.executable,
            "-m",
            "sliceplane",
            "controllers",
            "--kubeconfig",
            str(server.kubeconfig),
            *flags,
        )
        controllers = stack.enter_context(Process(*command, log=folder / "controllers.log"))
        assert controllers.line() == "ready leading", "the controllers' caches are filled"
        await until_settled(client, pods)
        return await cpu_of_flips(controllers, Flipper(client, pods), flips)


async def plane_cpu(folder: Path, pods: int, flips: int) -> float:
    """Seconds of processor time that the embedded plane needs for each flip of one of so many
    *pods*.
    """
    await populate(folder / "data", cluster(pods))
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(PlaneProcess(folder))
        client = HttpClient(load(plane.kubeconfig))
        stack.push_async_callback(client.close)
        await until_settled(client, pods)
        flipper = Flipper(client, pods)
        await cpu_of_flips(plane, flipper, max(1, flips // 10))
        return await cpu_of_flips(plane, flipper, flips)


async def measure(pods: int, flips: int, cpu_flips: int, classic_pods: int) -> list[Result]:
    with scratch() as name:
        folder = Path(name)
        await populate(folder / "data", cluster(pods))
        for copy in ("alone", "every"):
            shutil.copytree(folder / "data", folder / copy / "data")
        async with AsyncExitStack() as stack:
            server = stack.enter_context(PlaneProcess(folder))
            client = HttpClient(load(server.kubeconfig))
            stack.push_async_callback(client.close)
            await until_settled(client, pods)
            flipper = Flipper(client, pods)
            await delays(client, flipper, max(1, flips // 10))
            times = await delays(client, flipper, flips)
            whole = await cpu_of_flips(server, flipper, cpu_flips)
        slices = await cpu_alone(folder / "alone", pods, cpu_flips, "endpointslice-controller")
        every = await cpu_alone(folder / "every", pods, cpu_flips, "*")
        classic = await plane_cpu(folder / "classic", classic_pods, cpu_flips)
    full = pods == PODS
    size = f"{pods:,} endpoints, {pods // PER_SLICE} slices"
    peer = UPSTREAM if full else ""
    return [
        Result(
            name="pod's status patched until the slice event, median",
            size=size,
            value=statistics.median(times) * 1e3,
            unit="ms",
            budget=BUDGET_MS if full else None,
            peer=peer,
            peer_value=UPSTREAM_MS if full else None,
        ),
        Result(name="  p99", size=size, value=percentile(times, 99) * 1e3, unit="ms"),
        Result(
            name="  EndpointSlice controller's CPU for each flip",
            size=size,
            value=slices * 1e3,
            unit="ms",
            budget=CPU_BUDGET_MS if full else None,
            peer=peer,
            peer_value=UPSTREAM_CPU_MS if full else None,
        ),
        Result(
            name="  with classic Endpoints and mirroring", size=size, value=every * 1e3, unit="ms"
        ),
        Result(
            name="  the embedded plane's CPU for each flip, all of it",
            size=size,
            value=whole * 1e3,
            unit="ms",
        ),
        Result(
            name="  the same, every Pod in the Endpoints",
            size=f"{classic_pods:,} endpoints",
            value=classic * 1e3,
            unit="ms",
            budget=CLASSIC_BUDGET_MS if full else None,
        ),
    ]


def run(small: bool = False) -> list[Result]:
    small_sizes = (SMALL_PODS, SMALL_FLIPS, SMALL_CPU_FLIPS, SMALL_PODS)
    return asyncio.run(measure(*small_sizes if small else (PODS, FLIPS, CPU_FLIPS, CLASSIC_PODS)))


if __name__ == "__main__":
    main(run)
