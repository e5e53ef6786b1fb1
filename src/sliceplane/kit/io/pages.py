"""Read-only HTTP pages for health and metrics of a command that serves nothing else; and metrics in
Prometheus' formats.

Clients are anonymous and may be hostile: ``door`` bounds the cost of a connection.
``prometheus_client``, which only renders ``kit.metrics``, is imported by the first scrape.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from sliceplane.kit.io.door import Door, GuardedPort, door
from sliceplane.kit.io.identity import in_use
from sliceplane.kit.metrics import Distribution, Family

#: the library requires counter names to end in _total; some of upstream's do not, and are exposed
#: as untyped
_BARE_COUNTER = re.compile(rb"(# TYPE \w+) untyped")


class PageError(Exception):
    """The pages cannot be served; the text is a sentence for the user."""


class Page(msgspec.Struct, frozen=True):
    """One answer."""

    body: bytes
    healthy: bool = True
    content_type: str = "text/plain"


PageMaker = Callable[[], Page | Awaitable[Page]]


def follower_pages(
    stopping: Callable[[], bool],
    listed: Callable[[], bool],
    missing: str = "no list of Services yet",
) -> dict[str, PageMaker]:
    """Returns the health pages of a program that answers from its caches: it stays ready while the
    API server is away, as cached data is better than none.
    """

    def live() -> Page:
        return Page(b"ok\n")

    def ready() -> Page:
        if stopping():
            return Page(b"it stops\n", healthy=False)
        return Page(b"ok\n") if listed() else Page(f"{missing}\n".encode(), healthy=False)

    return {"/healthz": live, "/livez": live, "/readyz": ready}


@asynccontextmanager
async def serve_pages(
    pages: Mapping[str, PageMaker], address: str, port: int, port_door: Door = door
) -> AsyncIterator[int]:
    """Serves *pages* by path while the context lasts; yields the port (0 picks a free one).  Raises
    ``PageError``.
    """
    from aiohttp import web  # imported here: half of all starts do not serve the pages

    async def answer(request: web.BaseRequest) -> web.Response:
        make = pages.get(request.path)
        if make is None:
            return web.Response(status=404, text="404 page not found\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        result = make()
        page = result if isinstance(result, Page) else await result
        return web.Response(
            status=200 if page.healthy else 503,
            body=page.body,
            headers={"Content-Type": page.content_type, "X-Content-Type-Options": "nosniff"},
        )

    served = GuardedPort(answer, port_door)
    try:
        try:
            listening = await served.listen_at(address, port)
        except OSError as error:
            what = f"{', '.join(pages)} on {address} port {port}"
            reason = in_use(os.strerror(error.errno or 0), address, port)
            raise PageError(f"cannot serve {what}: {reason}") from error
        yield listening
    finally:
        await served.close()


def expose(families: Iterable[Family], accept: str = "") -> tuple[bytes, bytes]:
    """Returns *families* and metrics of the process in the format that *accept* requests, text or
    OpenMetrics, with its content type.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.process_collector import ProcessCollector

    registry = CollectorRegistry()
    registry.register(_Collected([_metric_of(family) for family in families]))
    ProcessCollector(registry=registry)
    generate, content_type = choose_encoder(accept)
    return _BARE_COUNTER.sub(rb"\1 counter", generate(registry)), content_type.encode()


class _Collected:
    """The library's protocol of a collector."""

    def __init__(self, metrics: list[Any]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Any]:
        return self._metrics


def _metric_of(family: Family) -> Any:
    """A family in the library's terms."""
    from prometheus_client.core import HistogramMetricFamily, Metric

    if family.kind != "histogram":
        whole = family.kind != "counter" or family.name.endswith("_total")
        metric = Metric(
            family.name.removesuffix("_total") if whole else family.name,
            family.help,
            family.kind if whole else "untyped",
        )
        for sample in family.samples:
            assert not isinstance(sample.value, Distribution), f"{family.name} is a {family.kind}"
            metric.add_sample(
                family.name, dict(zip(family.labels, sample.labels, strict=True)), sample.value
            )
        return metric
    histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for sample in family.samples:
        assert isinstance(sample.value, Distribution), f"{family.name} is a histogram"
        histogram.add_metric(sample.labels, _rows_of(sample.value), sample.value.total)
    return histogram


def _rows_of(distribution: Distribution) -> list[tuple[str, int]]:
    """Yields cumulative counts by upper bound."""
    rows = []
    running = 0
    for bound, count in zip(
        (*map(repr, distribution.bounds), "+Inf"), distribution.counts, strict=True
    ):
        running += count
        rows.append((bound, running))
    return rows
