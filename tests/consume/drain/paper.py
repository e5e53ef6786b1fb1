"""Node proxies whose kernel is paper: the production proxy and its reports, and a back end that
only believes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.fakes.node_proxies import make_proxy

from sliceplane.consume.flow_counts import FlowTarget
from sliceplane.consume.io.reporting import report_progress
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.node.io.options import ProxyTiming
from sliceplane.node.nft.table import NftPlane
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.reflect import loop_clock


class Paper(Nftables):
    """``open``: transactions wait while it is clear. ``connections`` by address are established."""

    def __init__(self) -> None:
        super().__init__(NftRunner(netns=""))
        self.open = asyncio.Event()
        self.open.set()
        self.connections: dict[str, int] = {}
        #: how often they were counted
        self.counted = 0

    async def count(self, targets: Sequence[FlowTarget]) -> dict[FlowTarget, int]:
        self.counted += 1
        return {target: self.connections.get(target.address, 0) for target in targets}

    async def probe(self) -> None:
        pass

    async def prepare(self, plane: NftPlane) -> None:
        pass

    async def write(self, plane: NftPlane, transaction: object) -> None:
        await self.open.wait()

    async def holds(self, plane: NftPlane) -> bool:
        return True

    def disturbed(self) -> bool:
        return False


@asynccontextmanager
async def paper_node(
    client: Client,
    name: str,
    families: tuple[Family, ...] = ("IPv4",),
    *,
    beat_s: float = 10.0,
    counts: bool = False,
) -> AsyncIterator[Paper]:
    """It follows the server of *client* and reports, from its first Lease on. *counts*: connections,
    too.
    """
    backend = Paper()
    clock: Callable[[], float] = loop_clock(time.time())
    proxy = make_proxy(
        name,
        backend,
        families=families,
        clock=clock,
        count_flows=backend.count if counts else None,
        timing=ProxyTiming(lease_changed_period_s=beat_s),
    )
    rng = Rng(len(name))
    tasks = [
        asyncio.create_task(proxy.follow(client, rng)),
        asyncio.create_task(report_progress(client, proxy, rng.fork(), clock)),
    ]
    try:
        yield backend
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
