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

The metrics address has ``/metrics``, ``/proxyMode`` and a ``/healthz`` that says that the process lives.  Where it is
a loopback address it also has, for ``sliceplane drift``, ``/versions/endpointslices`` and ``/versions/services`` (what
the caches hold) and ``/rules`` (where the kernel is not as the proxy believes): these pages tell names of Services, and
``/rules`` costs a listing of the table.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from sliceplane.api.codec import encode
from sliceplane.api.scheme import Resource
from sliceplane.kit.metrics import merged
from sliceplane.proxy.progress import FOLLOWED
from sliceplane.shell.node.health import ProxyHealth, health_document
from sliceplane.shell.node.kernel.backend import KernelError
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

    def versions(self, resource: str) -> dict[str, dict[str, str]]: ...

    async def differences(self) -> tuple[str, ...]: ...


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


def look_pages(proxy: Proxy) -> dict[str, PageMaker]:
    """For ``sliceplane drift``: for ``shell.process.pages.serve_pages``, at a loopback address only."""

    async def rules() -> Page:
        try:
            document = {"differences": await proxy.differences()}
        except KernelError as error:
            return Page(encode({"problem": str(error)}) + b"\n", healthy=False, content_type="application/json")
        return Page(encode(document) + b"\n", content_type="application/json")

    def versions(resource: Resource) -> Page:
        return Page(encode(proxy.versions(resource.key)) + b"\n", content_type="application/json")

    return {
        "/rules": rules,
        **{f"/versions/{resource.plural}": partial(versions, resource) for resource in FOLLOWED},
    }
