"""Drains on three nodes that unmodified kube-proxy serves, each with the observer: after the answer no
node sends a SYN to the Pod, and no request fails.

``python -m tests.peers.test_drain_beside_kube_proxy PROGRAM DRAINS RATE`` prints the figures of both
modes, and rollouts with the barrier beside hooks that sleep.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.figures import tell
from tests.kernel.netns import Host
from tests.kernel.test_drain_packets import (
    NODES,
    Town,
    WithoutMemory,
    measure_drains,
    measure_rollout,
    town,
)
from tests.peers import kubernetes
from tests.peers.played_nodes import write_configuration

from sliceplane.client import HttpClient
from sliceplane.consume.io.reporting import report_progress
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.rng import Rng
from sliceplane.lab.conformance.consumers.node_proxy import forward_port
from sliceplane.node.io.observing.observer import Observer
from sliceplane.watch.io.reflect import loop_clock

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(1200)]


@asynccontextmanager
async def observed_town(
    program: str, mode: str, client_of: type[HttpClient] = HttpClient
) -> AsyncIterator[Town]:
    async with (
        town(first=len(NODES), client_of=client_of) as place,
        AsyncExitStack() as stack,
    ):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, host in enumerate(place.nodes):
            await stack.enter_async_context(_kube_proxy(program, mode, place, number, folder))
            await stack.enter_async_context(_observer(place, number, host))
        await asyncio.sleep(10.5)  # each reported once, and from then on only on request
        yield place


@asynccontextmanager
async def _kube_proxy(
    program: str, mode: str, place: Town, number: int, folder: Path
) -> AsyncIterator[None]:
    host, own = place.nodes[number], folder / NODES[number]
    port = urlsplit(place.client.server).port
    assert port is not None
    config = write_configuration(own, str(place.plane.kubeconfig), mode, NODES[number])
    command = (*host.place.command(), program, "--config", str(config))
    async with forward_port(host.netns, port):
        with kubernetes.started(own / "kube-proxy.log", *command):
            yield


@asynccontextmanager
async def _observer(place: Town, number: int, host: Host) -> AsyncIterator[None]:
    clock = loop_clock(time.time())
    observer = Observer(NODES[number], FAMILIES, clock=clock, netns=host.netns)
    tasks = [
        asyncio.create_task(observer.follow(place.client, Rng(number))),
        asyncio.create_task(report_progress(place.client, observer, Rng(number + 9), clock)),
    ]
    try:
        await observer.wait_ready()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
async def test_no_request_fails_and_no_syn_follows_the_answer(kube_proxy: str, mode: str) -> None:
    figures = await measure_drains(8, 150, HttpClient, partial(observed_town, kube_proxy, mode))
    tell(f"drains beside kube-proxy, {mode}: {figures}")
    assert (figures["failed"], figures["synAfterAnswer"]) == (0, 0), figures


async def main(program: str, count: int, rate: int) -> None:
    for mode in ("nftables", "iptables"):
        towns = partial(observed_town, program, mode)
        for client_of in (HttpClient, WithoutMemory):
            figures = await measure_drains(count, rate, client_of, towns)
            print(json.dumps({"mode": mode, **figures}), flush=True)
        for hook in (5.0, 30.0, None):
            rollout = await measure_rollout(hook, rate, towns)
            print(json.dumps({"mode": mode, **rollout}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
