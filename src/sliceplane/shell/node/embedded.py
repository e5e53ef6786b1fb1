"""The node proxy inside an embedded plane (``sliceplane up --proxy``), as a service of its process.

It follows the plane through an in-process client and writes the same rules as ``sliceplane proxy`` would; like it,
it leaves them when it stops.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from sliceplane.api.gates import Gates
from sliceplane.kit.rng import Rng
from sliceplane.proxy.configuration.settings import ProxySettings
from sliceplane.shell.node.kernel.backend import KernelError
from sliceplane.shell.node.kernel.modes import backend_of
from sliceplane.shell.node.kernel.presence import present
from sliceplane.shell.node.kernel.sysctls import SysctlError
from sliceplane.shell.node.report import report_progress
from sliceplane.shell.node.setup import make_proxy, mode_of, prepare, serving
from sliceplane.shell.process.pages import PageError
from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.transport.reflect import loop_clock
from sliceplane.shell.transport.service import ServiceContext


class ProxyService:
    """A ``shell.transport.service.PlaneService``.  *netns* "": the namespace that the plane itself is in."""

    name = "proxy"

    def __init__(
        self, node: str, netns: str = "", gates: Gates | None = None, settings: ProxySettings | None = None
    ) -> None:
        """*settings* ``None``: no pages, and what belongs to the whole machine is left as it is."""
        self._node = node
        self._netns = netns
        self._gates = gates or Gates()
        self._settings = settings or ProxySettings()
        self._backend = backend_of(mode_of(self._settings), netns)
        self._pages = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, context: ServiceContext) -> None:
        """Raises ``StartError`` where the kernel's rules cannot be written; nothing is then left behind."""
        try:
            await self._pages.enter_async_context(present(mode_of(self._settings), self._netns))
            await prepare(self._backend, self._settings, self._netns)
        except (KernelError, SysctlError) as error:
            raise StartError(f"--proxy: {error}") from error
        client = context.client(f"system:node-proxy:{self._node}", "sliceplane")
        clock = loop_clock(context.clock())
        proxy = make_proxy(self._node, self._backend, self._settings, netns=self._netns, gates=self._gates, clock=clock)
        try:
            await self._pages.enter_async_context(serving(proxy, self._settings))
        except PageError as error:
            raise StartError(f"--proxy: {error}") from error
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        self._tasks = [asyncio.create_task(proxy.follow(client, rng), name="node proxy")]
        if proxy.reads_slices:
            telling = report_progress(client, proxy, rng.fork(), clock)
            self._tasks.append(asyncio.create_task(telling, name="node proxy's progress"))
        context.add_check("proxy", lambda: "; ".join(proxy.health().reasons))

    async def drain(self) -> None:
        """The node keeps its proxy to the end."""

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pages.aclose()
