"""The node proxy inside an embedded plane (``sliceplane up --proxy``), as a service of its process.

It follows the plane through an in-process client and writes the same rules as ``sliceplane proxy`` would; like it,
it leaves them when it stops.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from sliceplane.kit.rng import Rng
from sliceplane.registry.types import User
from sliceplane.shell.client.inprocess import InProcessClient
from sliceplane.shell.nft_runner import NftError, NftRunner
from sliceplane.shell.node_proxy import NodeProxy, available_families
from sliceplane.shell.proxy_report import report_progress
from sliceplane.shell.reflect import loop_clock
from sliceplane.shell.start_error import StartError

if TYPE_CHECKING:
    from sliceplane.shell.plane import Plane


class ProxyService:
    """A ``shell.plane.Service``.  *netns* "": the namespace that the plane itself is in."""

    name = "proxy"

    def __init__(self, node: str, netns: str = "") -> None:
        self._node = node
        self._runner = NftRunner(netns=netns)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, plane: Plane) -> None:
        """Raises ``StartError`` where the kernel's rules cannot be written; nothing is then left behind."""
        try:
            await self._runner.probe()
        except NftError as error:
            raise StartError(f"--proxy: {error}") from error
        user = User(name=f"system:node-proxy:{self._node}", groups=("system:masters",))
        client = InProcessClient(
            plane.registry, plane.committer, plane.hub, arm=plane.ticker.arm, clock=plane.clock, user=user
        )
        clock = loop_clock(plane.clock())
        proxy = NodeProxy(self._node, self._runner, families=available_families(), clock=clock)
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        telling = report_progress(client, proxy, rng.fork(), clock)
        self._tasks = [
            asyncio.create_task(proxy.follow(client, rng), name="node proxy"),
            asyncio.create_task(telling, name="node proxy's progress"),
        ]
        plane.health.add("proxy", lambda: "" if proxy.health().healthy else "rules are older than they should be")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
