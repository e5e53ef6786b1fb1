"""The node proxy's health page: is what the kernel has as new as what we were told? (reference A11)

``/healthz`` and ``/livez`` answer 200, or 503 when a change has been waiting for longer than
``HEALTH_TIMEOUT_S``; the body says when each family was last written and what is waiting.  A proxy that cannot
write rules is unhealthy even though its process is fine: everything else would keep a load balancer sending
traffic to stale endpoints.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sliceplane.api.codec import encode
from sliceplane.kit.times import format_micro_time
from sliceplane.proxy.schedule import Freshness
from sliceplane.shell.node_proxy import HEALTH_TIMEOUT_S, ProxyHealth


class HealthPageError(Exception):
    """The page cannot be served; the text is a sentence for a person."""


def health_document(health: ProxyHealth, now: float) -> dict[str, Any]:
    """The body: RFC 3339 times, ``null`` for what never happened; ages in seconds."""
    return {
        "lastUpdated": _time(health.last_success),
        "currentTime": format_micro_time(now),
        "healthy": health.healthy,
        "synced": health.synced,
        "inputStalenessSeconds": _seconds(health.input_staleness_s),
        "status": {family: _family(freshness, now) for family, freshness in health.families},
    }


def _family(freshness: Freshness, now: float) -> dict[str, Any]:
    staleness_s = freshness.staleness_s(now)
    return {
        "lastUpdated": _time(freshness.last_success),
        "healthy": staleness_s <= HEALTH_TIMEOUT_S,
        "stalenessSeconds": round(staleness_s, 3),
        "failures": freshness.failures,
    }


def _seconds(age_s: float | None) -> float | None:
    """JSON has no infinity: what never was current has no age."""
    return None if age_s is None or math.isinf(age_s) else round(age_s, 3)


def _time(moment: float | None) -> str | None:
    return None if moment is None else format_micro_time(moment)


@asynccontextmanager
async def serve_health(
    health: Callable[[], ProxyHealth], address: str, port: int, *, clock: Callable[[], float] = time.time
) -> AsyncIterator[int]:
    """Serves the page while the context lasts; yields the port (0 picks a free one).  Raises ``HealthPageError``."""
    from aiohttp import web  # here: half of all starts do not want the page

    async def answer(_request: web.Request) -> web.Response:
        found = health()
        return web.Response(
            status=200 if found.healthy else 503,
            body=encode(health_document(found, clock())) + b"\n",
            content_type="application/json",
            headers={"X-Content-Type-Options": "nosniff"},
        )

    app = web.Application()
    app.router.add_get("/healthz", answer)
    app.router.add_get("/livez", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        try:
            await site.start()
        except OSError as error:
            raise HealthPageError(
                f"cannot serve /healthz on {address} port {port}: {os.strerror(error.errno or 0)}"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
