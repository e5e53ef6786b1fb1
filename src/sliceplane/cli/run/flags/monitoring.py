"""Health pages and metrics of a command that is no API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from sliceplane.cli.flags import option, with_options
from sliceplane.cli.values import LISTEN

if TYPE_CHECKING:
    from sliceplane.kit.io.pages import PageMaker
    from sliceplane.kit.metrics import Family

Source = Callable[[], "tuple[Family, ...]"]


monitoring_options = with_options(
    option(
        "--healthz-bind-address",
        "Serve /healthz, /livez and /readyz there.  [default: off]",
        type=LISTEN,
    ),
    option(
        "--metrics-bind-address",
        "Serve /metrics there, and the health pages too.  [default: off]",
        type=LISTEN,
    ),
)


async def serve_monitoring(
    stack: AsyncExitStack,
    flags: dict[str, Any],
    pages: Mapping[str, PageMaker],
    sources: Sequence[Source],
    staleness_s: Callable[[], float],
) -> None:
    """Until *stack* ends.  Raises ``kit.io.pages.PageError``."""
    from sliceplane.controllers.io.monitoring import metrics_page
    from sliceplane.kit.io.pages import serve_pages

    health = flags["healthz_bind_address"]
    metrics = flags["metrics_bind_address"]
    all_pages = {**pages, "/metrics": metrics_page(sources, staleness_s)}
    served = {health: pages} if health is not None else {}
    if metrics is not None:
        served[metrics] = all_pages
    for listen, served_pages in served.items():
        await stack.enter_async_context(serve_pages(served_pages, *listen))
