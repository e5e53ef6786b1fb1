"""Actions of a node proxy after the kernel applied a write: it updates metrics, opens and closes
health ports, and removes UDP flows.

``node.post_sync`` has the facts to report. The task of the write updates the health ports, so a load
balancer never learns of more endpoints than the rules have. A separate task checks flows, so that
the next write does not wait for their listing.

**Health ports** are small HTTP servers, one per port (upstream:
``pkg/proxy/healthcheck/service_health.go``). A load balancer queries the Service's
healthCheckNodePort of each node; 200 means that the node has endpoints of the Service. Any path and
method is accepted. The two IP families answer separately, each with its own count, so a load
balancer learns of the endpoints that it can reach. The ports listen at the addresses of node ports,
in the network namespace of the rules.

``serviceProxyHealthy`` is true if the rules are up to date. An unreachable API server does not
matter here: the earlier rules are the best available, and if every node answered false, a load
balancer would have no node left. ``door`` bounds the cost of a connection; the ports take at most a
quarter of the descriptors in each family.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sliceplane.consume.model import ServiceKey
from sliceplane.kit.io.door import Door, GuardedPort, door
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.process import descriptors
from sliceplane.kit.ip import Family
from sliceplane.node.io.kernel.conntrack import ConntrackError
from sliceplane.node.io.kernel.netns import Listen, listening_in
from sliceplane.node.io.metrics import ProxyMetrics
from sliceplane.node.io.options import FLOWS_RETRY_S, HostAccess
from sliceplane.node.plane import AnyNodePlane
from sliceplane.node.post_sync import HealthCheck

#: pause after a pass over UDP flows, in multiples of its duration: a tenant that changes a Service
#: continuously must not keep the loop busy with a large table
FLOWS_REST = 4
FLOWS_REST_MAX_S = 30.0

_log = get_logger("node-proxy")


class SideEffects:
    """The side effects of one IP family's writes."""

    def __init__(
        self,
        plane: AnyNodePlane,
        metrics: ProxyMetrics,
        host: HostAccess,
        *,
        healthy: Callable[[], bool],
        on_port_failed: Callable[[ServiceKey, str], None],
        clock: Callable[[], float],
        flows_retry_s: float = FLOWS_RETRY_S,
    ) -> None:
        self._plane = plane
        self._metrics = metrics
        self._flows = host.flows
        self._flows_retry_s = flows_retry_s
        self._clock = clock
        self._health = ServiceHealth(
            plane.family, healthy, on_port_failed, host.listen, clock=clock
        )
        self._changed = asyncio.Event()
        self._all_flows = False

    async def on_written(self, *, full: bool) -> None:
        """Reports the effects of a write: the kernel has applied the plane's state."""
        plane = self._plane
        post_sync = plane.post_sync
        latencies = post_sync.take_latencies()
        unserved = len(plane.tracker.unserved)
        self._metrics.on_written(
            plane.family, self._clock(), latencies, post_sync.without_local, unserved
        )
        if self._flows is None:
            post_sync.take_udp()
            post_sync.take_removed_udp()
        self._all_flows = self._all_flows or full
        self._changed.set()
        await self._health.update(post_sync.health_checks, plane.node_port_addresses)

    async def run(self) -> None:
        """Deletes UDP flows to removed endpoints, until cancelled: after each write those of the
        changed Services. After a full write, or after the removal of a port, whose address may also
        belong to another Service, it checks all.
        """
        plane = self._plane
        post_sync = self._plane.post_sync
        complained = ""
        while self._flows is not None:
            await self._changed.wait()
            self._changed.clear()
            services = post_sync.take_udp()
            removed = post_sync.take_removed_udp()
            if self._all_flows or removed:
                self._all_flows = False
                services = post_sync.udp_services()
            if not services and not removed:
                continue
            expected = plane.tracker.expected_flows(services, removed)
            started = self._clock()
            try:
                forgotten = await self._flows.reconcile(plane.family, expected)
            except ConntrackError as error:
                if str(error) != complained:
                    complained = str(error)
                    _log.error(
                        "stale UDP flows not forgotten", family=plane.family, error=complained
                    )
                post_sync.return_udp(services, removed)
                await asyncio.sleep(self._flows_retry_s)
                self._changed.set()
                continue
            complained = ""
            seconds = self._clock() - started
            self._metrics.on_conntrack(plane.family, seconds, forgotten)
            await asyncio.sleep(min(seconds * FLOWS_REST, FLOWS_REST_MAX_S))

    @property
    def last_requests(self) -> dict[int, float]:
        return self._health.last_requests()

    async def close(self) -> None:
        await self._health.close()


def last_health_requests(families: Iterable[SideEffects]) -> dict[int, float]:
    """Returns the time of the last request to each health check port, or of its opening: a load
    balancer queries one family.
    """
    latest: dict[int, float] = {}
    for of_family in families:
        for port, at in of_family.last_requests.items():
            latest[port] = max(at, latest.get(port, at))
    return latest


if TYPE_CHECKING:
    from aiohttp import web

_ANY: dict[Family, str] = {"IPv4": "0.0.0.0", "IPv6": "::"}  # load balancers are elsewhere

#: the ports of one family take at most this fraction of the process's descriptors, since tenants
#: create Services
_SHARE_OF_DESCRIPTORS = 4

#: the reason of the Event on the Service, and the line in the log
FAILED = "FailedToStartServiceHealthcheck"

_health_log = get_logger("service-health")


class ServiceHealth:
    """The servers of one IP family.  One caller at a time."""

    def __init__(
        self,
        family: Family,
        healthy: Callable[[], bool],
        on_failed: Callable[[ServiceKey, str], None] | None = None,
        listen: Listen = listening_in(""),  # noqa: B008  # a function without state
        port_door: Door = door,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*on_failed* is called once for a Service whose port cannot be opened, with the reason.
        *listen* opens sockets.
        """
        self._listen = listen
        self._port_door = port_door
        self._family: Family = family
        self._healthy = healthy
        self._on_failed = on_failed
        self._checks: dict[ServiceKey, HealthCheck] = {}
        self._servers: dict[ServiceKey, tuple[int, tuple[str, ...], GuardedPort]] = {}
        self._failed: set[ServiceKey] = set()
        self._clock = clock
        #: time of the last request, or of the opening
        self._last_requests: dict[ServiceKey, float] = {}

    def last_requests(self) -> dict[int, float]:
        """Returns the times of the last requests by port."""
        return {
            port: self._last_requests[key] for key, (port, _, _) in sorted(self._servers.items())
        }

    async def update(
        self, checks: Mapping[ServiceKey, HealthCheck], addresses: tuple[str, ...] | None
    ) -> None:
        """Serves exactly *checks*, at *addresses* (``None``: all). A port that cannot be opened is
        reported once and retried at every call.
        """
        self._checks = dict(checks)
        hosts = (_ANY[self._family],) if addresses is None else addresses
        for key in sorted(self._servers):
            port, served, served_by = self._servers[key]
            if key not in checks or (checks[key].port, hosts) != (port, served):
                del self._servers[key], self._last_requests[key]
                await served_by.close()
        for key in sorted(checks.keys() - self._servers.keys()):
            await self._open(key, checks[key].port, hosts)
        self._failed &= checks.keys()

    async def close(self) -> None:
        await self.update({}, None)

    async def _open(self, key: ServiceKey, port: int, hosts: tuple[str, ...]) -> None:
        async def answer(_: web.BaseRequest) -> web.Response:
            return self._answer(key)

        served = GuardedPort(answer, self._port_door)
        try:
            if (len(self._servers) + 1) * len(hosts) > descriptors.limit() // _SHARE_OF_DESCRIPTORS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            for host in hosts:
                await served.listen(await self._listen(host, port))
        except OSError as error:
            await served.close()  # all or none
            descriptors.report(error, f"health check port {port}")
            if key not in self._failed:
                self._failed.add(key)
                why = os.strerror(error.errno or 0)
                _health_log.warning(
                    FAILED, service=str(key), port=port, family=self._family, error=why
                )
                if self._on_failed is not None:
                    self._on_failed(
                        key,
                        f"node cannot serve health checks on port {port} ({self._family}): {why}",
                    )
            return
        except asyncio.CancelledError:
            await served.close()
            raise
        self._failed.discard(key)
        self._servers[key] = (port, hosts, served)
        self._last_requests[key] = self._clock()

    def _answer(self, key: ServiceKey) -> web.Response:
        from aiohttp import web

        if key in self._last_requests:
            self._last_requests[key] = self._clock()
        check = self._checks.get(key)
        count = check.local_endpoints if check is not None else 0
        healthy = self._healthy()
        document = {
            "service": {"namespace": key.namespace, "name": key.name},
            "localEndpoints": count,
            "serviceProxyHealthy": healthy,
        }
        return web.Response(
            status=200 if count and healthy else 503,
            body=json.dumps(document, indent="\t").encode(),
            headers={
                "Content-Type": "application/json",
                "X-Content-Type-Options": "nosniff",
                "X-Load-Balancing-Endpoint-Weight": str(count),
            },
        )
