"""Whether a node's rules are as they should be, at one moment: as values, and as the document of the health pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_micro_time
from sliceplane.proxy.schedule import Freshness
from sliceplane.shell.node.timing import HEALTH_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ProxyHealth:
    """For /healthz and metrics.  ``healthy``: the kernel took the last write of every family, and nothing has been
    waiting for longer than ``timeout_s``; if not, ``reasons`` say why, one sentence each.

    ``input_staleness_s`` is how long ago the oldest of our caches was last known to be current (``None``:
    unknown).  It is told but does not count here: while the API server is away, the rules of before are the best there
    are.  ``NodeProxy.unanswered`` is for those who want to know.
    """

    healthy: bool
    synced: bool
    families: tuple[tuple[Family, Freshness], ...]
    input_staleness_s: float | None = None
    reasons: tuple[str, ...] = ()
    #: a load balancer should send no new connections here: the Node is going
    node_leaving: bool = False
    #: twice the period at which rules are looked at
    timeout_s: float = HEALTH_TIMEOUT_S
    #: what happened lately that an administrator should look into, though all is well
    warnings: tuple[str, ...] = ()

    @property
    def last_success(self) -> float | None:
        """When the family that wrote last did so."""
        times = [freshness.last_success for _, freshness in self.families if freshness.last_success is not None]
        return max(times, default=None)


def health_document(health: ProxyHealth, now: float, unanswered: str = "") -> dict[str, Any]:
    """The body: RFC 3339 times, ``null`` for what never happened; ages in seconds."""
    reasons = [*health.reasons, *([unanswered] if unanswered else [])]
    return {
        "lastUpdated": _time(health.last_success),
        "currentTime": format_micro_time(now),
        "healthy": health.healthy and not unanswered,
        "reasons": reasons,
        "warnings": list(health.warnings),
        "synced": health.synced,
        "inputStalenessSeconds": _seconds(health.input_staleness_s),
        "status": {family: _family(freshness, now, health.timeout_s) for family, freshness in health.families},
    }


def _family(freshness: Freshness, now: float, timeout_s: float) -> dict[str, Any]:
    staleness_s = freshness.staleness_s(now)
    return {
        "lastUpdated": _time(freshness.last_success),
        "healthy": not freshness.failures and staleness_s <= timeout_s,
        "stalenessSeconds": round(staleness_s, 3),
        "failures": freshness.failures,
    }


def _seconds(age_s: float | None) -> float | None:
    """JSON has no infinity: what never was current has no age."""
    return None if age_s is None or math.isinf(age_s) else round(age_s, 3)


def _time(moment: float | None) -> str | None:
    return None if moment is None else format_micro_time(moment)
