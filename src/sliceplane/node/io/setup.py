"""Builds a node proxy from its settings and runs it, for ``sliceplane proxy`` and inside a plane.

The latter (``sliceplane up --proxy``) is a service of the plane's process: it follows the plane
through an in-process client and writes the same rules as ``sliceplane proxy`` would. Both retain the
rules when they stop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sliceplane.api.core import Pod
from sliceplane.api.gates import Gates
from sliceplane.consume.io.reporting import report_progress
from sliceplane.kit.io.interfaces import addresses_of
from sliceplane.kit.io.pages import PageError, PageMaker, serve_pages
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.rng import Rng
from sliceplane.node.configuration.settings import ProxySettings
from sliceplane.node.io.demand import count_connections
from sliceplane.node.io.drain_hook import DrainHook, local_pods
from sliceplane.node.io.healthz import drift_pages, health_pages, metrics_pages
from sliceplane.node.io.inputs import SharedConsumer
from sliceplane.node.io.kernel.backend import AnyBackend, KernelError
from sliceplane.node.io.kernel.conntrack import Conntrack
from sliceplane.node.io.kernel.modes import backend_of, exclusive_mode
from sliceplane.node.io.kernel.netns import listening_in
from sliceplane.node.io.kernel.sysctls import SysctlError, adjust_oom_score, tune_conntrack
from sliceplane.node.io.metrics import ProxyRecord, recording
from sliceplane.node.io.node_proxy import NodeProxy, available_families
from sliceplane.node.io.options import PROBE_TIMEOUT_S, HostAccess, ProxyConfig, ProxyTiming
from sliceplane.node.io.own_node import OwnNode
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.reflect import RunningInformer, loop_clock
from sliceplane.watch.io.service import ServiceContext

if TYPE_CHECKING:
    from sliceplane.watch.io.flight import FlightConfig
    from sliceplane.watch.recorder.recorder import Recorder


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


async def prepare(backend: AnyBackend, settings: ProxySettings, netns: str) -> None:
    """Checks the back end and writes sysctls, once, before all else.  Raises ``KernelError``,
    ``SysctlError``.
    """
    await backend.probe()
    await tune_conntrack(settings.conntrack, netns)
    if settings.oom_score_adj is not None:
        adjust_oom_score(settings.oom_score_adj)


@asynccontextmanager
async def running_proxy(
    node_name: str,
    settings: ProxySettings,
    client: Client,
    *,
    netns: str,
    gates: Gates,
    clock: Callable[[], float],
    rng: Rng,
    api_timeout_s: float = PROBE_TIMEOUT_S,
    reports_progress: bool = True,
    report_spread_s: float | None = None,
    flight: FlightConfig | None = None,
    recorder: Recorder | None = None,
    drain_port: int = 0,
    consumer: SharedConsumer | None = None,
) -> AsyncIterator[tuple[NodeProxy, asyncio.Task[None]]]:
    """Runs a proxy that follows the server of *client*, and serves its pages. Yields the proxy and
    its task; at the end the rules stay.

    *reports_progress*: the proxy keeps the Lease of this node; *report_spread_s*: see
    ``report_progress``. *flight*: the proxy has its own recorder; *recorder*: it uses this one.
    *drain_port*: the port for ``preStop`` hooks of local Pods; 0: none. *consumer* also receives the
    objects that the proxy reads; its metrics are on the proxy's page.

    Raises ``KernelError`` and ``SysctlError``, before any write, if the kernel lacks support, and
    ``PageError``.
    """
    backend = backend_of(settings.mode, netns)
    async with AsyncExitStack() as stack:
        if flight is not None:

            def unhealthy() -> str:
                return _problems(proxy)

            recorder = await stack.enter_async_context(recording(flight, clock, unhealthy))
        flows = Conntrack(netns=netns)
        proxy: NodeProxy = NodeProxy(
            _config(node_name, settings, gates, api_timeout_s),
            backend,
            HostAccess(
                flows, partial(addresses_of, netns), listening_in(netns), flows.count_translated
            ),
            record=ProxyRecord(recorder, clock()),
            consumer=consumer,
            clock=clock,
        )
        await stack.enter_async_context(exclusive_mode(settings.mode, netns))
        await prepare(backend, settings, netns)
        for listen, pages in _pages(proxy, settings, consumer):
            await stack.enter_async_context(serve_pages(pages, *listen))
        if drain_port:
            pods = local_pods(node_name, client, clock, rng.fork())
            await stack.enter_async_context(_drain_hook(pods, backend, drain_port, netns))
        following = await stack.enter_async_context(_task(proxy.follow(client, rng), "node proxy"))
        if reports_progress and proxy.reads_slices:
            reporting = report_progress(client, proxy, rng.fork(), clock, spread_s=report_spread_s)
            await stack.enter_async_context(_task(reporting, "node proxy's progress"))
            counting = count_connections(proxy.demand, proxy.progress, netns)
            await stack.enter_async_context(_task(counting, "node proxy's demand"))
        yield proxy, following


def _drain_hook(
    pods: RunningInformer[Pod], backend: AnyBackend, port: int, netns: str
) -> AbstractAsyncContextManager[None]:
    listen = listening_in(netns)
    families = available_families()
    hook = DrainHook(
        pods, backend, Conntrack(netns=netns), port=port, listen=listen, families=families
    )
    return hook.answering()


@asynccontextmanager
async def _task(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Runs *work* until the end of the context."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _config(
    node_name: str, settings: ProxySettings, gates: Gates, api_timeout_s: float
) -> ProxyConfig:
    return ProxyConfig(
        node_name,
        families=available_families(),
        min_period_s=settings.min_sync_period_s,
        rules=settings.rules,
        gates=gates,
        # unhealthy after two periods, as kube-proxy is
        timing=ProxyTiming(
            check_period_s=settings.sync_period_s,
            health_timeout_s=2 * settings.sync_period_s,
            probe_timeout_s=api_timeout_s,
        ),
        own_ports=tuple(
            listen[1]
            for listen in (settings.healthz, settings.metrics)
            if listen is not None and listen[1]
        ),
    )


def _pages(
    proxy: NodeProxy, settings: ProxySettings, consumer: SharedConsumer | None
) -> Iterator[tuple[tuple[str, int], dict[str, PageMaker]]]:
    """Yields addresses and the pages to serve there."""
    if settings.healthz is not None:
        yield settings.healthz, health_pages(proxy)
    if settings.metrics is not None:
        pages = metrics_pages(proxy, () if consumer is None else (consumer.metrics,))
        if is_loopback(settings.metrics[0]):
            pages |= drift_pages(proxy)
        yield settings.metrics, pages


def _problems(proxy: NodeProxy) -> str:
    return "; ".join(proxy.health().reasons)


class ProxyService:
    """A ``watch.io.service.PlaneService``.  *netns* "": the plane's own namespace."""

    name = "proxy"

    def __init__(
        self,
        node: str,
        netns: str = "",
        gates: Gates | None = None,
        settings: ProxySettings | None = None,
        *,
        drain_port: int = 0,
        registers: bool = False,
    ) -> None:
        """*settings* ``None``: no pages, and machine-wide settings are not changed. *registers*: the
        Node of this machine is created and maintained (``own_node``).
        """
        self._node = node
        self._netns = netns
        self._gates = gates or Gates()
        self._settings = settings or ProxySettings()
        self._drain_port = drain_port
        self._registers = registers
        self._running = AsyncExitStack()

    async def start(self, context: ServiceContext) -> None:
        """Starts the proxy.  Raises ``StartError`` if the kernel's rules cannot be written; then no
        residue remains.
        """
        client = context.client(f"system:node-proxy:{self._node}", "sliceplane")
        if self._registers:
            node = OwnNode(self._node, client, context.clock, self._netns)
            await self._running.enter_async_context(node.registered())
        proxy_runs = running_proxy(
            self._node,
            self._settings,
            client,
            netns=self._netns,
            gates=self._gates,
            clock=loop_clock(context.clock()),
            rng=Rng(int.from_bytes(os.urandom(8), "big")),
            recorder=None if context.flight is None else context.flight.recorder,
            drain_port=self._drain_port,
            report_spread_s=0.0,  # the server has only this one
        )
        try:
            proxy, _ = await self._running.enter_async_context(proxy_runs)
        except (KernelError, SysctlError, PageError) as error:
            raise StartError(f"--proxy: {error}") from error
        context.add_check("proxy", lambda: "; ".join(proxy.health().reasons))

    async def drain(self) -> None:
        """Does nothing: the node needs its proxy to the end."""

    async def stop(self) -> None:
        await self._running.aclose()
