"""Bugs of node proxies that users have met, each as what must hold instead."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import Iterator

import pytest
from tests.fakes.node_proxies import make_proxy
from tests.figures import tell
from tests.nft.machine import NODE, Machine, make_slice, service
from tests.proxy.test_slicecache import make

from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Nodes, ServiceCIDRs, Services
from sliceplane.consume.slicecache import SliceCache
from sliceplane.node.io.kernel.nft_backend import Nftables
from sliceplane.node.nft.objects import DynamicSetContents, TableRef, Transaction
from sliceplane.watch.cache import Change

MILLION = 1_000_000


class ListingKernel:
    """Counts who looks."""

    def __init__(self) -> None:
        self.writes = 0
        self.looks: list[str] = []

    async def run(self, text: str) -> None:
        self.writes += 1

    async def write(self, transaction: Transaction) -> bool:
        await self.run(transaction.render())
        return False

    async def dynamic_sets(self, table: TableRef) -> DynamicSetContents:
        self.looks.append(f"memory of {table}")
        return {}

    async def tables(self) -> frozenset[TableRef]:
        self.looks.append("tables")
        return frozenset()


async def test_kubernetes_139513_a_change_lists_nothing_of_the_kernel() -> None:
    """Upstream lists the whole table for every sync, also one with affinity sets; ours writes and
    does not look.
    """
    kernel = ListingKernel()
    proxy = make_proxy(NODE, Nftables(kernel), families=("IPv4",))
    task = asyncio.create_task(proxy.run())
    try:
        sticky = service(sessionAffinity="ClientIP")
        proxy.on_change(Change(Services.key, None, sticky))
        for resource in (Services, EndpointSlices, Nodes, ServiceCIDRs):
            proxy.on_synced(resource.key)
        await proxy.wait_ready()
        kernel.looks.clear()
        old: EndpointSlice | None = None
        for version in range(1, 21):
            writes, new = kernel.writes, make_slice([f"10.0.0.{version}"], version=version)
            proxy.on_change(Change(EndpointSlices.key, old, new))
            old = new
            async with asyncio.timeout(60):
                while kernel.writes == writes:
                    await asyncio.sleep(0)
        assert kernel.looks == []
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def churned(events: int, seed: int) -> Iterator[tuple[str, EndpointSlice | None]]:
    """Slices that come, change, move between Services and go; none is left at the end."""
    rng = random.Random(seed)
    prepared = [
        make(
            f"s{number}",
            [f"10.0.{number}.{end}"],
            service=f"svc{(number + move) % 40}",
            version=str(end),
        )
        for number in range(100)
        for end in (1, 2)
        for move in (0, 1)
    ]
    there: set[str] = set()
    for _ in range(events):
        each = rng.choice(prepared)
        gone = rng.random() < 0.4
        (there.discard if gone else there.add)(each.metadata.key)
        yield each.metadata.key, None if gone else each
    for key in sorted(there):
        yield key, None


def test_kubernetes_128928_churn_leaves_no_slice_behind() -> None:
    cache = SliceCache("IPv4", NODE)
    for number, (key, new) in enumerate(churned(20_000, 1)):
        cache.on_slice(key, new)
        if number % 2000 == 0:
            cache.check()
    cache.check()
    assert (cache.services(), cache._service_of, cache._slices) == ((), {}, {})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kubernetes_128928_a_million_events_cost_no_memory() -> None:
    """The whole plane of a node: after a million events it holds as many objects as after a
    thousand.
    """

    def held(machine: Machine) -> int:
        machine.sync()
        machine.now += 5
        machine.sync()
        gc.collect()
        return sum(sys.getsizeof(each) for each in gc.get_objects())

    machine = Machine()
    for number in range(40):
        machine.put(service(f"svc{number}", number + 1))
    for key, new in churned(1000, 1):
        machine.plane.on_slice(new or make(key.partition("/")[2]), new, machine.now)
    before = held(machine)
    for number, (key, new) in enumerate(churned(MILLION, 2)):
        machine.plane.on_slice(new or make(key.partition("/")[2]), new, machine.now)
        if number % 1000 == 0:
            machine.sync()
            machine.now += 1
    after = held(machine)
    machine.plane.check()
    tell(f"{MILLION:,} events, {after - before:,} bytes more")
    assert after < before + 100_000, f"{after - before:,} bytes more"
