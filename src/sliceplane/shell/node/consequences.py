"""What a node proxy does when the kernel has a write: tells figures, opens and closes health ports, forgets UDP flows.

``proxy.aftermath`` says what there is to tell.  Health ports follow within the write's own task: a load balancer
never hears of more than the rules have.  Flows are looked at by a task of their own: the next write must not wait
for a listing of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from sliceplane.kit.ip import Family
from sliceplane.proxy.conntrack import Expected
from sliceplane.proxy.model import ServiceKey
from sliceplane.proxy.plane import AnyNodePlane
from sliceplane.shell.node.kernel.conntrack import ConntrackError
from sliceplane.shell.node.kernel.netns import Listen
from sliceplane.shell.node.metrics import ProxyMetrics
from sliceplane.shell.node.service_health import ServiceHealth
from sliceplane.shell.node.timing import FLOWS_RETRY_S
from sliceplane.shell.process.log import get_logger

_log = get_logger("node-proxy")


class FlowForgetter(Protocol):
    """What is needed of ``conntrack.Conntrack``."""

    async def reconcile(self, family: Family, expected: Expected) -> int: ...


class Consequences:
    """Of one IP family's writes.  *flows* forgets stale UDP flows (``None``: they are left)."""

    def __init__(
        self,
        plane: AnyNodePlane,
        metrics: ProxyMetrics,
        flows: FlowForgetter | None,
        *,
        healthy: Callable[[], bool],
        on_port_failed: Callable[[ServiceKey, str], None],
        listen: Listen,
        clock: Callable[[], float],
        flows_retry_s: float = FLOWS_RETRY_S,
    ) -> None:
        self._plane = plane
        self._metrics = metrics
        self._flows = flows
        self._flows_retry_s = flows_retry_s
        self._clock = clock
        self._health = ServiceHealth(plane.family, healthy, on_port_failed, listen)
        self._changed = asyncio.Event()
        self._all_flows = False

    async def on_written(self, *, full: bool) -> None:
        """The kernel has what the plane has."""
        plane = self._plane
        aftermath = self._plane.aftermath
        self._metrics.on_written(plane.family, self._clock(), aftermath.take_latencies(), aftermath.without_local)
        if self._flows is None:
            aftermath.take_udp()
            aftermath.take_udp_gone()
        self._all_flows = self._all_flows or full
        self._changed.set()
        await self._health.update(aftermath.health_checks, plane.node_port_addresses)

    async def run(self) -> None:
        """Forgets UDP flows to endpoints that are gone, until cancelled: after each write those of the Services that
        changed, after a full one all; all too where a port went, whose address may be another Service's as well."""
        plane = self._plane
        aftermath = self._plane.aftermath
        complained = ""
        while self._flows is not None:
            await self._changed.wait()
            self._changed.clear()
            services, gone = aftermath.take_udp(), aftermath.take_udp_gone()
            if self._all_flows or gone:
                self._all_flows = False
                services = aftermath.udp_services()
            if not services and not gone:
                continue
            expected = plane.expected_flows(services, gone)
            started = self._clock()
            try:
                forgotten = await self._flows.reconcile(plane.family, expected)
            except ConntrackError as error:
                if str(error) != complained:
                    complained = str(error)
                    _log.error("stale UDP flows not forgotten", family=plane.family, error=complained)
                aftermath.put_back_udp(services, gone)
                await asyncio.sleep(self._flows_retry_s)
                self._changed.set()
                continue
            complained = ""
            self._metrics.on_conntrack(plane.family, self._clock() - started, forgotten)

    async def close(self) -> None:
        await self._health.close()
