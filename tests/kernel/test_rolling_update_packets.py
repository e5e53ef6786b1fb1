"""All backends of a Service are replaced under load, in both families at once; no request fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.figures import tell
from tests.kernel.cluster import VIP, Cluster, running, service
from tests.kernel.load import Load, Pods, load
from tests.kernel.netns import Host, Net
from tests.nft.machine import DYING, ep, make_slice

from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import Family

pytestmark = pytest.mark.kernel

RATE = 500.0  # requests a second, half of them in each family
REPLICAS = 4


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with Net("spr") as net:
        pods = net.add_host("pods", ip4="10.10.1.1/16", ip6="fd10::1:1/64")
        yield pods, net.add_host("client", ip4="10.10.0.1/16", ip6="fd10::1/64")


def slice_of(
    family: Family, ready: list[int], terminating: list[int], version: int
) -> EndpointSlice:
    address = Pods.ip4 if family == "IPv4" else Pods.ip6
    endpoints = [*(ep(address(n)) for n in ready), *(ep(address(n), **DYING) for n in terminating)]
    return make_slice(endpoints, version=version, kind=family)


class Deployment:
    """Pods that are replaced one after the other, whether the proxy keeps up or not; only the
    server of a Pod that goes stays until the rules do not lead to it any more, and until who was
    led to it is through (a preStop that is long enough).
    """

    def __init__(self, pods: Pods, cluster: Cluster) -> None:
        self._pods, self._cluster = pods, cluster
        self._loads: tuple[Load, ...] = ()
        self._ready: list[int] = []
        self._terminating: list[int] = []
        self._version = self._next = 0
        self._stopping: set[asyncio.Task[None]] = set()

    async def start_one(self) -> None:
        number, self._next = self._next, self._next + 1
        await asyncio.to_thread(self._pods.start, number)
        self._ready.append(number)
        self._publish()

    def delete_oldest(self) -> None:
        number = self._ready.pop(0)
        self._terminating.append(number)
        self._publish()
        self._stopping.add(asyncio.create_task(self._stop(number)))

    async def _stop(self, number: int) -> None:
        await self._cluster.written()
        for client in self._loads:
            await client.passed()
        await asyncio.to_thread(self._pods.stop, number)
        self._terminating.remove(number)
        self._publish()

    async def roll(self, *loads: Load) -> None:
        self._loads = loads
        for _ in range(len(self._ready)):
            await self.start_one()
            self.delete_oldest()
            for client in loads:
                await client.more()

    async def stopped(self) -> None:
        await asyncio.gather(*self._stopping)

    def _publish(self) -> None:
        self._version += 1
        for family in VIP:
            self._cluster.put(slice_of(family, self._ready, self._terminating, self._version))


async def roll(hosts: tuple[Host, Host], rolls: int) -> None:
    place, client = hosts
    pods = await asyncio.to_thread(Pods, place, range(REPLICAS * (rolls + 1)))
    async with running(client) as cluster:
        deployment = Deployment(pods, cluster)
        cluster.put(service())
        for _ in range(REPLICAS):
            await deployment.start_one()
        cluster.synced()
        await cluster.written()
        async with (
            load(client, VIP["IPv4"], RATE / 2) as first,
            load(client, VIP["IPv6"], RATE / 2) as second,
        ):
            for _ in range(rolls):
                await deployment.roll(first, second)
            await deployment.stopped()
            await first.more()
            await second.more()
            tallies = [await first.tally(), await second.tally()]
    for tally in tallies:
        tally.assert_none_failed()
    tell(
        f"0 of {sum(sum(tally.answers.values()) for tally in tallies):,} requests failed in "
        f"{rolls} updates"
    )
    for tally in tallies:
        assert len(tally.answers) > 0.7 * REPLICAS * (rolls + 1), (
            "those that nobody was led to are the exception"
        )


async def test_no_request_fails_while_all_backends_are_replaced(hosts: tuple[Host, Host]) -> None:
    await roll(hosts, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_no_request_fails_while_all_backends_are_replaced_a_hundred_times(
    hosts: tuple[Host, Host],
) -> None:
    await roll(hosts, 100)
