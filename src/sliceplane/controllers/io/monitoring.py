"""The metrics and health pages of a process whose controllers work against any cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sliceplane.controllers.io.freshness import complaint, stuck
from sliceplane.kit.io.door import door
from sliceplane.kit.io.pages import Page, PageMaker
from sliceplane.kit.metrics import Family, Metrics, Sample, Source
from sliceplane.watch.io.hosting.host import HostStatus
from sliceplane.watch.io.version import declare_build


def metrics_page(sources: Sequence[Source], staleness_s: Callable[[], float]) -> PageMaker:
    """Returns the metrics page. *sources* have no metric in common. *staleness_s* is that of the
    stalest cache; infinite: no sample.
    """

    metrics = Metrics()
    declare_build(metrics)
    for source in (*sources, door.metrics.families, lambda: (staleness_family(staleness_s()),)):
        metrics.include(source)

    def page() -> Page:
        from sliceplane.kit.io.pages import expose

        text, content_type = expose(metrics.families())
        return Page(text, content_type=content_type.decode())

    return page


def leader_family(name: str, leading: bool) -> Family:
    """Returns the gauge of client-go."""
    sample = Sample((name,), 1.0 if leading else 0.0)
    return Family(
        "leader_election_master_status",
        "gauge",
        "1: this instance has the Lease of that name.",
        ("name",),
        (sample,),
    )


def staleness_family(staleness_s: float) -> Family:
    """Returns the gauge, without a sample while a cache is not filled."""
    samples = (Sample((), staleness_s),) if math.isfinite(staleness_s) else ()
    return Family(
        "sliceplane_informer_staleness_seconds", "gauge", "Age of the stalest cache.", (), samples
    )


def health_pages(
    read: Callable[[], HostStatus | None], ready: Callable[[], Page]
) -> dict[str, PageMaker]:
    """Returns the health pages. *read* returns ``None`` while no controllers run; *ready* answers
    if the caches are healthy, or there are none.
    """

    def live() -> Page:
        """Fails if stale caches may be repaired by a restart; at first staleness is attributed to
        the server.
        """
        status = read()
        reason = "" if status is None else stuck(status)
        return Page(f"{reason}\n".encode(), healthy=False) if reason else Page(b"ok\n")

    def readiness() -> Page:
        status = read()
        reason = "" if status is None else complaint(status)
        return Page(f"{reason}\n".encode(), healthy=False) if reason else ready()

    return {"/healthz": live, "/livez": live, "/readyz": readiness}
