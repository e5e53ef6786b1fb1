"""Health of Services for load balancers: one small HTTP server per health port (upstream:
``pkg/proxy/healthcheck/service_health.go``).

A load balancer asks each node "have you endpoints of this Service?" at the Service's healthCheckNodePort; 200 is yes.
Any path and method will do.  The two IP families answer apart, each with its own count, so a load balancer hears of the
endpoints that it can reach.  They listen where node ports are, in the network namespace of the rules.

``serviceProxyHealthy`` says whether the rules are as they should be.  That the API server is away does not count here:
the rules of before are the best there are, and a load balancer that is sent away from every node at once has no node
left.

``door`` bounds what a connection may cost; the ports themselves take at most a quarter of the descriptors a family.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sliceplane.kit.ip import Family
from sliceplane.proxy.aftermath import HealthCheck
from sliceplane.proxy.model import ServiceKey
from sliceplane.shell.node.kernel.netns import Listen, listening_in
from sliceplane.shell.process import descriptors
from sliceplane.shell.process.door import Door, GuardedPort, door
from sliceplane.shell.process.log import get_logger

if TYPE_CHECKING:
    from aiohttp import web

_ANY: dict[Family, str] = {"IPv4": "0.0.0.0", "IPv6": "::"}  # load balancers are elsewhere

#: of the process's descriptors that the ports of one family may take: Services are made by tenants
_SHARE_OF_DESCRIPTORS = 4

#: of the Event on the Service, and of the line in the log
FAILED = "FailedToStartServiceHealthcheck"

_log = get_logger("service-health")


class ServiceHealth:
    """The servers of one IP family.  One caller at a time."""

    def __init__(
        self,
        family: Family,
        healthy: Callable[[], bool],
        on_failed: Callable[[ServiceKey, str], None] | None = None,
        listen: Listen = listening_in(""),  # noqa: B008  # a function without state
        guard: Door = door,
    ) -> None:
        """*on_failed* is told, once, of a Service whose port cannot be had, and why.  *listen* opens sockets."""
        self._listen = listen
        self._guard = guard
        self._family: Family = family
        self._healthy = healthy
        self._on_failed = on_failed
        self._checks: dict[ServiceKey, HealthCheck] = {}
        self._servers: dict[ServiceKey, tuple[int, tuple[str, ...], GuardedPort]] = {}
        self._failed: set[ServiceKey] = set()

    async def update(self, checks: Mapping[ServiceKey, HealthCheck], addresses: tuple[str, ...] | None) -> None:
        """Serve exactly *checks*, at *addresses* (``None``: everywhere).  A port that cannot be had is told once and
        tried again at every call."""
        self._checks = dict(checks)
        hosts = (_ANY[self._family],) if addresses is None else addresses
        for key in sorted(self._servers):
            port, served, served_by = self._servers[key]
            if key not in checks or (checks[key].port, hosts) != (port, served):
                del self._servers[key]
                await served_by.close()
        for key in sorted(checks.keys() - self._servers.keys()):
            await self._open(key, checks[key].port, hosts)
        self._failed &= checks.keys()

    async def close(self) -> None:
        await self.update({}, None)

    async def _open(self, key: ServiceKey, port: int, hosts: tuple[str, ...]) -> None:
        async def answer(_: web.BaseRequest) -> web.Response:
            return self._answer(key)

        served = GuardedPort(answer, self._guard)
        try:
            if (len(self._servers) + 1) * len(hosts) > descriptors.limit() // _SHARE_OF_DESCRIPTORS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            for host in hosts:
                await served.listen(await self._listen(host, port))
        except OSError as error:
            await served.close()  # all or none
            descriptors.tell(error, f"health check port {port}")
            if key not in self._failed:
                self._failed.add(key)
                why = os.strerror(error.errno or 0)
                _log.warning(FAILED, service=str(key), port=port, family=self._family, error=why)
                if self._on_failed is not None:
                    self._on_failed(key, f"node cannot serve health checks on port {port} ({self._family}): {why}")
            return
        except asyncio.CancelledError:
            await served.close()
            raise
        self._failed.discard(key)
        self._servers[key] = (port, hosts, served)

    def _answer(self, key: ServiceKey) -> web.Response:
        from aiohttp import web

        check = self._checks.get(key)
        count, healthy = check.local_endpoints if check is not None else 0, self._healthy()
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
