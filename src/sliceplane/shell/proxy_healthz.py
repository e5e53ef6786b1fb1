"""The node proxy's health page: is what the kernel has as new as what we were told? (reference A11)

``/healthz`` and ``/livez`` answer 200, or 503 when a change has been waiting for longer than
``HEALTH_TIMEOUT_S``; the body says when each family was last written and what is waiting.  A proxy that cannot
write rules is unhealthy even though its process is fine: everything else would keep a load balancer sending
traffic to stale endpoints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from sliceplane.api.codec import encode
from sliceplane.kit.times import format_micro_time
from sliceplane.proxy.schedule import Freshness
from sliceplane.shell.node_proxy import HEALTH_TIMEOUT_S, ProxyHealth
from sliceplane.shell.pages import Page


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


def health_pages(
    health: Callable[[], ProxyHealth], clock: Callable[[], float] = time.time
) -> dict[str, Callable[[], Page]]:
    """For ``shell.pages.serve_pages``."""

    def page() -> Page:
        found = health()
        return Page(encode(health_document(found, clock())) + b"\n", found.healthy, "application/json")

    return {"/healthz": page, "/livez": page}
