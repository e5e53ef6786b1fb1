"""From a Pod's readiness to the next packet that the kernel routes to it, with 1,000 services on
the node.

Everything is real: ``sliceplane up --proxy`` with its storage on disk, writing into a network
namespace, and beside it, for comparison, ``up`` and ``sliceplane proxy`` as two processes; a
backend in another namespace, TCP connections from the node to a cluster IP. The service has one
Pod, which turns ready and unready; the time runs from before the status patch is sent until the
first connection is accepted. Connections are tried one after the other, half a millisecond apart.
Needs root.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from demo.net import Net

from benchmarks.harness import Result, main, note, percentile
from benchmarks.node_proxy import missing
from benchmarks.tools import prober
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.objects import (
    APP,
    NAMESPACE,
    namespace_document,
    node_document,
    node_name,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    service_document,
    slice_document,
)
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

SERVICES = 1_000
ENDPOINTS = 10
RUNS = 200
SMALL_SERVICES = 10
SMALL_RUNS = 3
WARM_UP_RUNS = 3
BUDGET_MS = 8.0
MEDIAN_BUDGET_MS = 4.0
REPORTED_MS = 6_800.0
#: the proxied node, and what other Pods are on
NODE_ADDRESS = "10.128.255.1/9"
#: between two changes, so that each meets an idle plane
PAUSE_S = 0.02
BACKEND = """
import socket
server = socket.create_server(("0.0.0.0", 8080), backlog=512)
print("ready", flush=True)
while True:
    server.accept()[0].close()
"""


def cluster(services: int) -> Iterator[Wanted]:
    """One service with a selector and one Pod, the others with slices of their own that do not
    change.
    """
    yield Namespaces, "", namespace_document(), None
    yield Nodes, "", node_document(0), None
    yield Services, NAMESPACE, service_document(), None
    for number in range(1, services):
        document = service_document(f"other-{number:05d}")
        del document["spec"]["selector"]
        yield Services, NAMESPACE, document, None
    for number in range(1, services):
        name = f"other-{number:05d}"
        pods = range(number * ENDPOINTS, (number + 1) * ENDPOINTS)
        yield EndpointSlices, NAMESPACE, slice_document(f"{name}-1", name, pods), None
    yield Pods, NAMESPACE, pod_document(0), pod_status(pod_ip(0), ready=False)


async def turn(client: HttpClient, probe: Process, number: int) -> float:
    """Ready, and unready again; seconds from the patch to the first connection."""

    async def patch(ready: bool) -> None:
        body = encode(pod_status(pod_ip(0), ready=ready, turn=2 * number + ready))
        await client.patch(
            Pods, NAMESPACE, pod_name(0), body, patch_type="strategic", subresource="status"
        )

    probe.say("up")
    began = time.monotonic()
    await patch(True)
    connected = float(await asyncio.to_thread(probe.line))
    await patch(False)
    probe.say("down")
    await asyncio.to_thread(probe.line)
    await asyncio.sleep(PAUSE_S)
    return connected - began


async def measure(services: int, runs: int, *, embedded: bool) -> list[float]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        await populate(folder / "data", cluster(services))
        net = stack.enter_context(Net("bench"))
        node = net.add_host("node", (NODE_ADDRESS,))
        pod = net.add_host("pod", (f"{pod_ip(0)}/9",))
        on_node = ("--hostname-override", node_name(0), "--netns", node.namespace)
        plane = stack.enter_context(
            PlaneProcess(folder, *(("--proxy", *on_node) if embedded else ()))
        )
        client = HttpClient(load(plane.kubeconfig))
        stack.push_async_callback(client.close)
        service = await client.get(Services, NAMESPACE, APP)
        address = service.partition(b'"clusterIP":"')[2].partition(b'"')[0].decode()
        backend = stack.enter_context(Process(*pod.command(sys.executable, "-c", BACKEND)))
        assert backend.line() == "ready"
        if not embedded:
            command = (
                sys.executable,
                "-m",
                "sliceplane",
                "proxy",
                "--kubeconfig",
                str(plane.kubeconfig),
                *on_node,
            )
            ready = stack.enter_context(Process(*command, log=folder / "proxy.log")).line()
            assert f"ipv4-services={services + 1}" in ready, ready  # and default/kubernetes
        probe = stack.enter_context(
            Process(
                *node.command(sys.executable, str(prober.__file__), address, "80"),
                log=folder / "prober.log",
            )
        )
        assert probe.line() == "ready"
        probe.say("down")
        await asyncio.to_thread(probe.line)
        times = [await turn(client, probe, number) for number in range(WARM_UP_RUNS + runs)]
        return times[WARM_UP_RUNS:]


def run(small: bool = False) -> list[Result]:
    lacking = missing()
    if lacking:
        note(f"packets were not measured; missing: {lacking}")
        return []
    services, runs = (SMALL_SERVICES, SMALL_RUNS) if small else (SERVICES, RUNS)
    size = f"{services:,} services, {runs} times"
    times = asyncio.run(measure(services, runs, embedded=True))
    apart = asyncio.run(measure(services, runs, embedded=False))

    def result(name: str, value: float, budget: float | None = None) -> Result:
        return Result(
            name=name, size=size, value=value * 1e3, unit="ms", budget=None if small else budget
        )

    return [
        Result(
            name="pod ready until the next packet is routed to it, p99",
            size=size,
            value=percentile(times, 99) * 1e3,
            unit="ms",
            budget=None if small else BUDGET_MS,
            peer="" if small else "upstream (reported, 100 nodes)",
            peer_value=None if small else REPORTED_MS,
        ),
        result("  median", statistics.median(times), MEDIAN_BUDGET_MS),
        result("  proxy as a process of its own, p99", percentile(apart, 99)),
        result("  median", statistics.median(apart)),
    ]


if __name__ == "__main__":
    main(run)
