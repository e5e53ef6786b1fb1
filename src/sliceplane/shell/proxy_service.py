"""The node proxy inside an embedded plane (``sliceplane up --proxy``), as a service of its process.

It follows the plane through an in-process client and writes the same rules as ``sliceplane proxy`` would; like it,
it leaves them when it stops.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from sliceplane.api.gates import Gates
from sliceplane.kit.rng import Rng
from sliceplane.registry.types import User
from sliceplane.shell.backend import KernelError
from sliceplane.shell.client.inprocess import InProcessClient
from sliceplane.shell.conntrack import Conntrack
from sliceplane.shell.nft_backend import Nftables
from sliceplane.shell.nft_runner import NftRunner
from sliceplane.shell.node_proxy import NodeProxy, available_families
from sliceplane.shell.proxy_report import report_progress
from sliceplane.shell.reflect import loop_clock
from sliceplane.shell.start_error import StartError

if TYPE_CHECKING:
    from sliceplane.shell.plane import Plane


class ProxyService:
    """A ``shell.plane.Service``.  *netns* "": the namespace that the plane itself is in."""

    name = "proxy"

    def __init__(self, node: str, netns: str = "", gates: Gates | None = None) -> None:
        self._node = node
        self._netns = netns
        self._gates = gates
        self._backend = Nftables(NftRunner(netns=netns))
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, plane: Plane) -> None:
        """Raises ``StartError`` where the kernel's rules cannot be written; nothing is then left behind."""
        try:
            await self._backend.probe()
        except KernelError as error:
            raise StartError(f"--proxy: {error}") from error
        user = User(name=f"system:node-proxy:{self._node}", groups=("system:masters",))
        client = InProcessClient(
            plane.registry, plane.committer, plane.hub, arm=plane.ticker.arm, clock=plane.clock, user=user
        )
        clock = loop_clock(plane.clock())
        proxy = NodeProxy(
            self._node,
            self._backend,
            families=available_families(),
            gates=self._gates,
            flows=Conntrack(netns=self._netns),
            clock=clock,
        )
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        self._tasks = [asyncio.create_task(proxy.follow(client, rng), name="node proxy")]
        if proxy.reads_slices:
            telling = report_progress(client, proxy, rng.fork(), clock)
            self._tasks.append(asyncio.create_task(telling, name="node proxy's progress"))
        plane.health.add("proxy", lambda: "; ".join(proxy.health().reasons))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
