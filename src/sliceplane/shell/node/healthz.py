"""The node proxy's pages: is what the kernel has as new as what there is? (upstream: ``pkg/proxy/healthcheck/``)

``/healthz`` and ``/livez`` answer 200, or 503 with the ``reasons``, each a sentence: the kernel refused the last write,
a change has been waiting for longer than twice the sync period, or the API server does not answer, so that what we have
missed is unknown.  The last is asked when the page is, so an answer is never older than about a second.  A proxy that
cannot write rules is unhealthy even though its process is fine: everything else would keep a load balancer sending
traffic to stale endpoints.

``/healthz`` alone is 503, too, while the Node is about to go (``nodeEligible`` false): load balancers shall look
elsewhere, but that is no reason to restart the proxy.  For the same reason ``/livez`` stays 200 where all that is wrong
is a right or an API that is missing (403, 404): its body says so.

``warnings`` are what happened lately and is mended, such as rules that another program deleted; they turn nothing red.

The metrics address has ``/metrics``, ``/proxyMode`` and a ``/healthz`` that says that the process lives.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from sliceplane.api.codec import encode
from sliceplane.kit.metrics import merged
from sliceplane.shell.node.health import ProxyHealth, health_document
from sliceplane.shell.node.metrics import ProxyMetrics
from sliceplane.shell.process.door import door
from sliceplane.shell.process.pages import Page, PageMaker


class Proxy(Protocol):
    """What is needed of ``node_proxy.NodeProxy``."""

    mode: str

    @property
    def metrics(self) -> ProxyMetrics: ...

    def health(self) -> ProxyHealth: ...

    def unanswered(self) -> Awaitable[str]: ...

    def refused(self) -> str: ...


def health_pages(proxy: Proxy, clock: Callable[[], float] = time.time) -> dict[str, PageMaker]:
    """For ``shell.process.pages.serve_pages``."""

    async def page(name: str) -> Page:
        unanswered = await proxy.unanswered()
        health = proxy.health()
        document = health_document(health, clock(), unanswered)
        good = document["healthy"]
        if name == "healthz":
            document["nodeEligible"] = not health.node_leaving
            good = good and not health.node_leaving
        elif unanswered and unanswered == proxy.refused():
            good = health.healthy
        proxy.metrics.on_health_asked(name, 200 if good else 503)
        return Page(encode(document) + b"\n", good, "application/json")

    return {"/healthz": lambda: page("healthz"), "/livez": lambda: page("livez")}


def metrics_pages(proxy: Proxy) -> dict[str, PageMaker]:
    """For ``shell.process.pages.serve_pages``, at the metrics address."""

    def metrics() -> Page:
        from sliceplane.shell.process.pages import expose  # here: the first scrape loads the library

        body, content_type = expose(merged(proxy.metrics.families(), door.metrics.families()))
        return Page(body, content_type=content_type.decode())

    return {
        "/metrics": metrics,
        "/healthz": lambda: Page(b"ok"),
        "/proxyMode": lambda: Page(proxy.mode.encode()),
    }
