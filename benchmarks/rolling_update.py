"""A rolling update of 20,000 Pods: what the EndpointSlice controller writes, sends and burns
(KEP-0752, same heading).

The server is the embedded one, the controllers are ``sliceplane controllers`` in a process of their
own, so that their processor time can be read. ``SURGE`` Pods are replaced at a time, each as a
kubelet and a Deployment would do it: a new Pod appears, turns ready, its predecessor is told to go
(terminating), then it is gone. A watcher counts the slice events and their bytes, which every node
of the cluster would get too. Run once with each batch period.

The KEP reckons with one write for each Pod. Four changes make up to four writes if each is written
by itself; writes that come while one of the Service is under way share the next one.

The last rows are a controller that dies in the middle and comes back (on virtual time, so that the
numbers are the same on every machine): Pods went on changing meanwhile; what it writes is compared
with the least possible, the slices that hold something outdated plus those that the remaining
newcomers need.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result, main
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.objects import (
    NAMESPACE,
    PODS_PER_NODE,
    namespace_document,
    node_document,
    node_name,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    service_document,
)
from benchmarks.tools.process import PlaneProcess, Process, scratch
from benchmarks.tools.restart import restart_in_the_middle
from sliceplane.api.codec import decode, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

PODS = 20_000
SMALL_PODS = 60
#: Pods that are replaced at the same time
SURGE = 100
SMALL_SURGE = 10
BATCH_PERIODS = ("0s", "500ms")
SETTLE_MAX_S = 120.0
NOW = b'{"gracePeriodSeconds":0}'


@dataclass(slots=True)
class Traffic:
    """What one watcher of EndpointSlices got."""

    events: int = 0
    size: int = 0


def cluster(pods: int) -> Iterator[Wanted]:
    yield Namespaces, "", namespace_document(), None
    for number in range((pods + PODS_PER_NODE - 1) // PODS_PER_NODE):
        yield Nodes, "", node_document(number), None
    yield Services, NAMESPACE, service_document(), None
    for number in range(pods):
        yield Pods, NAMESPACE, pod_document(number), pod_status(pod_ip(number), ready=True)


async def count(client: HttpClient, since: str, traffic: Traffic) -> None:
    async with client.watch(
        EndpointSlices, namespace=NAMESPACE, resource_version=since, bookmarks=False
    ) as stream:
        async for message in stream:
            traffic.events += 1
            traffic.size += len(message.body)


async def replace_pod(client: HttpClient, old: int, new: int) -> None:
    node = node_name(old // PODS_PER_NODE)
    await client.create(Pods, NAMESPACE, encode(pod_document(new, node=node)))
    status = encode(pod_status(pod_ip(new), ready=True, turn=old))
    await client.patch(
        Pods, NAMESPACE, pod_name(new), status, patch_type="merge", subresource="status"
    )
    await client.delete(Pods, NAMESPACE, pod_name(old))
    await client.delete(Pods, NAMESPACE, pod_name(old), NOW)


async def roll(client: HttpClient, pods: int, surge: int) -> None:
    numbers = iter(range(pods))

    async def lane() -> None:
        for number in numbers:
            await replace_pod(client, number, pods + number)

    await asyncio.gather(*(lane() for _ in range(surge)))


async def addresses(client: HttpClient) -> list[str]:
    page = await client.list(EndpointSlices, namespace=NAMESPACE)
    slices = [decode(item, EndpointSlice) for item in page.items]
    return sorted(endpoint.addresses[0] for slice_ in slices for endpoint in slice_.endpoints or ())


async def until_settled(client: HttpClient, expected: list[str]) -> None:
    async with asyncio.timeout(SETTLE_MAX_S):
        while await addresses(client) != expected:
            await asyncio.sleep(0.2)


async def measure(folder: Path, pods: int, surge: int, batch: str) -> list[Result]:
    traffic = Traffic()
    async with AsyncExitStack() as stack:
        server = stack.enter_context(PlaneProcess(folder, command="apiserver"))
        client = HttpClient(load(server.kubeconfig))
        stack.push_async_callback(client.close)
        controllers = stack.enter_context(
            Process(
                *(
                    sys.executable,
                    "-m",
                    "sliceplane",
                    "controllers",
                    "--kubeconfig",
                    str(server.kubeconfig),
                ),
                *(
                    "--controllers=endpointslice-controller",
                    "--leader-elect=false",
                    "--log-level",
                    "error",
                ),
                "--kube-api-qps=0",
                *("--endpointslice-updates-batch-period", batch),
                log=folder / "controllers.log",
            )
        )
        assert controllers.line() == "ready leading", "the controllers' caches are filled"
        await until_settled(client, sorted(map(pod_ip, range(pods))))
        since = (await client.list(EndpointSlices, namespace=NAMESPACE)).resource_version
        counting = asyncio.create_task(count(client, since, traffic))
        before = controllers.cpu_s()
        await roll(client, pods, surge)
        await until_settled(client, sorted(map(pod_ip, range(pods, 2 * pods))))
        await asyncio.sleep(2.0)
        cpu = controllers.cpu_s() - before
        counting.cancel()
        with suppress(asyncio.CancelledError):
            await counting
    size = f"{pods:,} Pods, {surge} at a time, batch {batch}"
    return [
        Result(
            name="slice writes for each Pod",
            size=size,
            value=traffic.events / pods,
            unit="writes",
            peer="KEP-0752",
            peer_value=1.0,
        ),
        Result(
            name="  bytes to each watcher, for each Pod",
            size=size,
            value=traffic.size / pods / 1e3,
            unit="kB",
            peer="KEP-0752",
            peer_value=10.0,
        ),
        Result(
            name="  controllers' CPU for each Pod", size=size, value=cpu / pods * 1e3, unit="ms"
        ),
    ]


async def measure_all(pods: int, surge: int, periods: tuple[str, ...]) -> list[Result]:
    results = []
    for period in periods:
        with scratch() as name:
            await populate(Path(name) / "data", cluster(pods))
            results += await measure(Path(name), pods, surge, period)
    return results


def run(small: bool = False) -> list[Result]:
    if small:
        return [
            *asyncio.run(measure_all(SMALL_PODS, SMALL_SURGE, ("0s",))),
            *restart_in_the_middle(30),
        ]
    return [*asyncio.run(measure_all(PODS, SURGE, BATCH_PERIODS)), *restart_in_the_middle(2_000)]


if __name__ == "__main__":
    main(run)
