"""Random Services, slices and Nodes, whole planes over the real kernel: in the end the kernel holds
what the shadow says, rule by rule and element by element; and when all is gone nothing is left, in
the kernel or in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import figures as run_figures
from tests.kernel.listing import expected, listed
from tests.kernel.netns import Host, Net
from tests.nft.fake import FakeKernel
from tests.nft.random_world import FAMILIES, NODE, RULES, World, blocks, take_consequences, tell

from sliceplane.api.meta import Object
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.nft_backend import NftRunner
from sliceplane.node.nft.elements import RETIRE_AFTER_S
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.plane import NodePlaneConfig

pytestmark = pytest.mark.kernel

#: Python's blocks of memory, out of half a million or so, that a history may leave behind, however
#: long it is
BLOCKS_MAX = 10_000


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Net("spw") as net:
        yield net.add_host("kernel", ip4="10.10.0.1/16", ip6="fd10::1/64")


class Proxy:
    """Both families' planes over the kernel of *host*; every transaction must be taken."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.now = 0.0
        self.planes = [
            nft_plane(family, NodePlaneConfig(node_name=NODE, rules=RULES)) for family in FAMILIES
        ]
        self.transactions, self.nft_s = 0, 0.0
        self._runner = NftRunner(netns=host.netns)
        for plane in self.planes:
            plane.on_synced(0.0)

    def tell(self, old: Object | None, new: Object | None) -> None:
        for plane in self.planes:
            tell(plane, old, new, self.now)

    def sync(self) -> None:
        for plane in self.planes:
            while plane.schedule.due(self.now):
                transaction = plane.take_transaction(self.now)
                if transaction is None:
                    continue
                began = time.perf_counter()
                by_messages = asyncio.run(self._runner.write(transaction))
                self.nft_s += time.perf_counter() - began
                assert by_messages, "messages can say all that a plane has to say"
                self.transactions += 1
                plane.on_success(self.now)
            take_consequences(plane)

    def settle(self) -> None:
        for _ in range(3):
            self.sync()
            self.now += RETIRE_AFTER_S

    def compare(self) -> None:
        """The kernel against the shadow; packets have not made any elements here."""
        for plane in self.planes:
            kernel = FakeKernel()
            kernel.run(plane.rules.shadow())
            assert listed(self._host, plane.rules.table) == expected(
                kernel.tables[plane.rules.table], plane.rules.table.family
            )


@dataclass(frozen=True)
class Figures:
    events: int
    seconds: float
    nft_s: float
    transactions: int
    blocks: int  # more of Python's memory in use than before
    rss_mib: tuple[float, float]


def churn(host: Host, events: int, services: int, batch: int, compare_every: int) -> Figures:
    """*events* in batches of up to *batch*, and then everything goes."""
    proxy, world, rng = Proxy(host), World(Rng(7), services), Rng(8)
    proxy.tell(*world.event())
    for _ in range(services * 20):  # caches of whatever kind have seen all names
        proxy.tell(*world.event())
    _end(proxy, world)
    empty = [listed(host, plane.rules.table) for plane in proxy.planes]
    before, rss, began, done, syncs = blocks(), _rss_mib(), time.perf_counter(), 0, 0
    while done < events:
        for _ in range(min(events - done, 1 + rng.below(batch))):
            proxy.tell(*world.event())
            done += 1
        proxy.sync()
        syncs += 1
        proxy.now += rng.uniform(0.0, 1.0)
        if syncs % compare_every == 0:
            proxy.compare()
    proxy.settle()
    proxy.compare()
    for plane in proxy.planes:
        plane.check()
    seconds = time.perf_counter() - began
    _end(proxy, world)
    assert [listed(host, plane.rules.table) for plane in proxy.planes] == empty
    return Figures(
        done, seconds, proxy.nft_s, proxy.transactions, blocks() - before, (rss, _rss_mib())
    )


def _end(proxy: Proxy, world: World) -> None:
    for event in world.removals():
        proxy.tell(*event)
    proxy.settle()
    proxy.compare()
    for plane in proxy.planes:
        assert (len(plane.tracker.services()), plane.schedule.next_deadline()) == (0, None)


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def test_after_a_random_history_the_kernel_holds_what_the_shadow_says(host: Host) -> None:
    figures = churn(host, events=600, services=12, batch=40, compare_every=4)
    assert figures.blocks < BLOCKS_MAX, figures


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_events_leave_nothing_behind(host: Host) -> None:
    figures = churn(host, events=1_000_000, services=200, batch=5_000, compare_every=100)
    run_figures.tell(str(figures))
    assert figures.blocks < BLOCKS_MAX, figures
