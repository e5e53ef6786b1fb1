"""The node proxy inside an embedded plane (``sliceplane up --proxy``), as a service of its process.

It follows the plane through an in-process client and writes the same rules as ``sliceplane proxy`` would; like it,
it leaves them when it stops.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from sliceplane.api.gates import Gates
from sliceplane.kit.rng import Rng
from sliceplane.proxy.configuration.settings import ProxySettings
from sliceplane.shell.node.kernel.backend import KernelError
from sliceplane.shell.node.kernel.sysctls import SysctlError
from sliceplane.shell.node.setup import running_proxy
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
        self._running = AsyncExitStack()

    async def start(self, context: ServiceContext) -> None:
        """Raises ``StartError`` where the kernel's rules cannot be written; nothing is then left behind."""
        proxy_runs = running_proxy(
            self._node,
            self._settings,
            context.client(f"system:node-proxy:{self._node}", "sliceplane"),
            netns=self._netns,
            gates=self._gates,
            clock=loop_clock(context.clock()),
            rng=Rng(int.from_bytes(os.urandom(8), "big")),
            recorder=None if context.flight is None else context.flight.recorder,
        )
        try:
            proxy, _ = await self._running.enter_async_context(proxy_runs)
        except (KernelError, SysctlError, PageError) as error:
            raise StartError(f"--proxy: {error}") from error
        context.add_check("proxy", lambda: "; ".join(proxy.health().reasons))

    async def drain(self) -> None:
        """The node keeps its proxy to the end."""

    async def stop(self) -> None:
        await self._running.aclose()
