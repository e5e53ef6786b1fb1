"""The node proxy's pages, which report if the kernel's rules are up to date. Upstream:
``pkg/proxy/healthcheck/``.

``/healthz`` and ``/livez`` answer 200, or 503 with the ``reasons``, each a sentence: the kernel
refused the last write, a change has been waiting for longer than twice the sync period, or the API
server does not answer, so that changes may be missing. The page's request causes the query of the API
server, so an answer is at most about a second old. A proxy that cannot write rules is unhealthy even
though its process works: otherwise a load balancer would continue to send traffic to stale
endpoints.

``/healthz`` alone is also 503 while the Node is about to be deleted (``nodeEligible`` false): load
balancers should use other nodes, but the proxy needs no restart. For the same reason ``/livez`` stays
200 if the only problem is a missing right or API (403, 404); its body has the reason.

``warnings`` are recent problems that are repaired, such as rules that another program deleted; they
do not change the status.

The metrics address has ``/metrics``, ``/proxyMode`` and a ``/healthz`` that answers while the process
runs. A loopback address also has pages for ``sliceplane drift``: ``/versions/endpointslices`` and
``/versions/services`` (versions in the caches) and ``/rules`` (differences between the kernel and the
expected rules). These pages have names of Services, and ``/rules`` costs a listing of the table.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.scheme import Resource
from sliceplane.consume.progress import FOLLOWED
from sliceplane.kit.io.door import door
from sliceplane.kit.io.pages import Page, PageMaker
from sliceplane.kit.ip import Family
from sliceplane.kit.metrics import Metrics, merged
from sliceplane.kit.times import format_micro_time
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.metrics import ProxyMetrics
from sliceplane.node.io.options import HEALTH_TIMEOUT_S
from sliceplane.node.schedule import Freshness


class ProxyHealth(msgspec.Struct, frozen=True):
    """The proxy's health, for /healthz and metrics. ``healthy``: the kernel applied the last write of
    every family, and no change has been waiting for longer than ``timeout_s``; if not, ``reasons``
    has one sentence for each problem.

    ``input_staleness_s`` is the age of the oldest cache, since it was last known to be current
    (``None``: unknown). It is reported but does not count here: while the API server is unreachable,
    the earlier rules are the best available. ``NodeProxy.unanswered`` reports it.
    """

    healthy: bool
    synced: bool
    families: tuple[tuple[Family, Freshness], ...]
    input_staleness_s: float | None = None
    reasons: tuple[str, ...] = ()
    #: a load balancer should send no new connections here: the Node is about to be deleted
    node_terminating: bool = False
    #: twice the period of checks of the rules
    timeout_s: float = HEALTH_TIMEOUT_S
    #: recent problems that an administrator should investigate, although they are repaired
    warnings: tuple[str, ...] = ()

    @property
    def last_success(self) -> float | None:
        """Returns the time of the last successful write of any family."""
        times = [
            freshness.last_success
            for _, freshness in self.families
            if freshness.last_success is not None
        ]
        return max(times, default=None)


def health_document(health: ProxyHealth, now: float, unanswered: str = "") -> dict[str, Any]:
    """Returns the body: RFC 3339 times, ``null`` for times that are unknown; ages in seconds."""
    reasons = [*health.reasons, *([unanswered] if unanswered else [])]
    return {
        "lastUpdated": _time(health.last_success),
        "currentTime": format_micro_time(now),
        "healthy": health.healthy and not unanswered,
        "reasons": reasons,
        "warnings": list(health.warnings),
        "synced": health.synced,
        "inputStalenessSeconds": _seconds(health.input_staleness_s),
        "status": {
            family: _family(freshness, now, health.timeout_s)
            for family, freshness in health.families
        },
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
    """Returns the age, or ``None`` for infinity, which JSON does not have."""
    return None if age_s is None or math.isinf(age_s) else round(age_s, 3)


def _time(moment: float | None) -> str | None:
    return None if moment is None else format_micro_time(moment)


class Proxy(Protocol):
    """The part of ``node_proxy.NodeProxy`` that the health page uses."""

    mode: str

    @property
    def metrics(self) -> ProxyMetrics: ...

    def health(self) -> ProxyHealth: ...

    def unanswered(self) -> Awaitable[str]: ...

    def refused(self) -> str: ...

    def versions(self, resource: str) -> dict[str, dict[str, str]]: ...

    async def differences(self) -> tuple[str, ...]: ...


def health_pages(proxy: Proxy, clock: Callable[[], float] = time.time) -> dict[str, PageMaker]:
    """Returns the health pages, for ``kit.io.pages.serve_pages``."""

    async def page(name: str) -> Page:
        unanswered = await proxy.unanswered()
        health = proxy.health()
        document = health_document(health, clock(), unanswered)
        good = document["healthy"]
        if name == "healthz":
            document["nodeEligible"] = not health.node_terminating
            good = good and not health.node_terminating
        elif unanswered and unanswered == proxy.refused():
            good = health.healthy
        proxy.metrics.on_health_request(name, 200 if good else 503)
        return Page(encode(document) + b"\n", good, "application/json")

    return {"/healthz": lambda: page("healthz"), "/livez": lambda: page("livez")}


def metrics_pages(proxy: Proxy, more: Iterable[Metrics] = ()) -> dict[str, PageMaker]:
    """Returns the pages of the metrics address, for ``kit.io.pages.serve_pages``; *more*: other
    metrics of the process.
    """

    def metrics() -> Page:
        from sliceplane.kit.io.pages import expose  # here: the first scrape loads the library

        body, content_type = expose(
            merged(*(of.families() for of in (proxy.metrics, door.metrics, *more)))
        )
        return Page(body, content_type=content_type.decode())

    return {
        "/metrics": metrics,
        "/healthz": lambda: Page(b"ok"),
        "/proxyMode": lambda: Page(proxy.mode.encode()),
    }


def drift_pages(proxy: Proxy) -> dict[str, PageMaker]:
    """Returns the pages for ``sliceplane drift``, for ``kit.io.pages.serve_pages`` at a loopback
    address only.
    """

    async def rules() -> Page:
        try:
            document = {"differences": await proxy.differences()}
        except KernelError as error:
            return Page(
                encode({"problem": str(error)}) + b"\n",
                healthy=False,
                content_type="application/json",
            )
        return Page(encode(document) + b"\n", content_type="application/json")

    def versions(resource: Resource) -> Page:
        return Page(encode(proxy.versions(resource.key)) + b"\n", content_type="application/json")

    return {
        "/rules": rules,
        **{f"/versions/{resource.plural}": partial(versions, resource) for resource in FOLLOWED},
    }
