"""Metrics of a node proxy, under kube-proxy's names, labels and buckets
(``pkg/proxy/metrics/metrics.go``), and its recording: the changes that it received, and its writes
into the kernel.

A replay skips node proxies, since it covers controllers only; ``recorder show`` and the export
include them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sliceplane.api.meta import Object
from sliceplane.kit.ip import Family
from sliceplane.kit.ip import Family as IPFamily
from sliceplane.kit.metrics import Count, Histogram, Labelled, Metrics, exponential_buckets
from sliceplane.watch.cache import Change

if TYPE_CHECKING:
    from sliceplane.watch.io.flight import FlightConfig
    from sliceplane.watch.recorder.recorder import Recorder

SYNC_BUCKETS: Final = exponential_buckets(0.001, 2, 15)
#: upstream's buckets, including the useless 0, so that series of both can be added
PROGRAMMING_BUCKETS: Final = (
    0.0,
    0.25,
    0.5,
    *map(float, range(1, 60)),
    *map(float, range(60, 120, 5)),
    *map(float, range(120, 301, 30)),
)


class ProxyMetrics(Metrics):
    """Owned by one ``NodeProxy``.  A series appears with its first observation."""

    def __init__(
        self, mode: str = "nftables", writes_by_transport: Mapping[str, int] | None = None
    ) -> None:
        """*mode*: of ``--proxy-mode``; some counters have it in their names. *writes_by_transport*:
        ``RulesBackend.writes_by_transport``, read at a scrape.
        """
        super().__init__()
        self._conntrack = self._seconds(
            "conntrack_reconciler_sync_duration_seconds",
            "How long a look for stale UDP flows took.",
        )
        self._full = self._seconds(
            "sync_full_proxy_rules_duration_seconds", "How long writes of the whole table took."
        )
        self._partial = self._seconds(
            "sync_partial_proxy_rules_duration_seconds", "How long writes of changes took."
        )
        self._sync = self._seconds("sync_proxy_rules_duration_seconds", "How long writes took.")
        self._programming = self._seconds(
            "network_programming_duration_seconds",
            "From a change of a Pod or Service until the rules have it.",
            PROGRAMMING_BUCKETS,
        )
        self._deleted = self._by_family(
            "conntrack_reconciler_deleted_entries_total", "Stale UDP flows forgotten.", counts=True
        )
        self._queued = self._by_family(
            "sync_proxy_rules_last_queued_timestamp_seconds", "When a write was last wanted."
        )
        self._last = self._by_family(
            "sync_proxy_rules_last_timestamp_seconds", "When a write last succeeded."
        )
        self._failures, self._partial_failures = self._of_failures(mode)
        self._without_local = self.gauges(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports whose Local policy finds no endpoint here, though there are some "
            "elsewhere.",
            "ip_family",
            "traffic_policy",
        )
        self._declare_changes()
        self._unserved = self.gauges(
            "sliceplane_proxy_services_not_fully_served",
            "Services that ask for addresses or node ports that are another's, or for more than "
            "the bounds.",
            "ip_family",
        )
        self._restored = self.counters(
            "sliceplane_proxy_rules_put_back_total",
            "Times that our rules were gone from the kernel and were written anew.",
            "ip_family",
        )
        self.computed(
            "counter",
            "sliceplane_proxy_writes_total",
            "Writes that the kernel took.",
            lambda: [((way,), count) for way, count in sorted((writes_by_transport or {}).items())],
            "way",
        )
        self._health = {
            page: self.counters(f"kubeproxy_proxy_{page}_total", f"Answers of /{page}.", "code")
            for page in ("healthz", "livez")
        }

    def _declare_changes(self) -> None:
        changes = "kubeproxy_sync_proxy_rules"
        self._endpoint_changes = self.counter(
            f"{changes}_endpoint_changes_total", "Changes of endpoints."
        )
        self._service_changes = self.counter(
            f"{changes}_service_changes_total", "Changes of Services."
        )
        self._endpoints_pending = self.gauge(
            f"{changes}_endpoint_changes_pending", "Changes of endpoints not taken up."
        )
        self._services_pending = self.gauge(
            f"{changes}_service_changes_pending", "Changes of Services not taken up."
        )

    def _seconds(
        self, name: str, text: str, bounds: tuple[float, ...] = SYNC_BUCKETS
    ) -> Labelled[Histogram]:
        return self.histograms(f"kubeproxy_{name}", text, bounds, "ip_family")

    def _by_family(self, name: str, text: str, *, counts: bool = False) -> Labelled[Count]:
        return (self.counters if counts else self.gauges)(f"kubeproxy_{name}", text, "ip_family")

    def _of_failures(self, mode: str) -> tuple[Labelled[Count], Labelled[Count] | None]:
        """Declares refused writes, and refused writes of changes, which upstream counts for
        iptables.
        """
        prefix = "sync_proxy_rules"
        refused = "Writes that the kernel refused."
        if mode == "nftables":
            return self._by_family(
                f"{prefix}_nftables_sync_failures_total", refused, counts=True
            ), None
        return self._by_family(
            f"{prefix}_iptables_restore_failures_total", refused, counts=True
        ), self._by_family(
            f"{prefix}_iptables_partial_restore_failures_total",
            "Writes of changes that the kernel refused.",
            counts=True,
        )

    def on_endpoint_change(self) -> None:
        self._endpoint_changes.value += 1
        self._endpoints_pending.value += 1

    def on_service_change(self) -> None:
        self._service_changes.value += 1
        self._services_pending.value += 1

    def on_started(self, family: IPFamily, pending_since: float | None) -> None:
        """Notes that a write begins with all changes so far; *pending_since*: the time of the oldest
        one that needs it.
        """
        if pending_since is not None:
            self._queued.of(family).value = pending_since
        self._endpoints_pending.value = 0
        self._services_pending.value = 0

    def on_write(self, family: IPFamily, seconds: float, *, full: bool, failed: bool) -> None:
        self._sync.of(family).observe(seconds)
        (self._full if full else self._partial).of(family).observe(seconds)
        if failed:
            self._failures.of(family).value += 1
            if not full and self._partial_failures is not None:
                self._partial_failures.of(family).value += 1

    def on_written(
        self,
        family: IPFamily,
        now: float,
        latencies: tuple[float, ...],
        without_local: tuple[int, int],
        unserved: int,
    ) -> None:
        """Notes that the kernel has applied all changes: *latencies* of those of this write.
        *unserved*: number of Services that do not get all that they request.
        """
        self._last.of(family).value = now
        self._restored.of(family)  # from the first write on, so that an increase from 0 is visible
        for seconds in latencies:
            self._programming.of(family).observe(seconds)
        for policy, count in zip(("internal", "external"), without_local, strict=True):
            self._without_local.of(family, policy).value = count
        self._unserved.of(family).value = unserved

    def on_restored(self, family: IPFamily, times: int) -> None:
        """Sets the number of times that missing rules were restored."""
        self._restored.of(family).value = times

    def on_conntrack(self, family: IPFamily, seconds: float, deleted: int) -> None:
        self._conntrack.of(family).observe(seconds)
        self._deleted.of(family).value += deleted

    def on_health_request(self, page: str, code: int) -> None:
        """Counts an answer of *page*, which is "healthz" or "livez"."""
        self._health[page].of(str(code)).value += 1


#: components in recordings: of received changes, and of writes
COMPONENT: Final = "node-proxy"
KERNEL: Final = "kernel"


class ProxyRecord:
    """Records the changes and writes of one node proxy; does nothing without a *recorder*, and then
    does not load its module.
    """

    def __init__(self, recorder: Recorder | None = None, began: float = 0.0) -> None:
        self._recorder = recorder
        if recorder is not None:
            from sliceplane.watch.recorder.entries import quantized
            from sliceplane.watch.recorder.recorder import begin_record

            self._quantized = quantized
            self._session = begin_record(recorder, COMPONENT, quantized(began))

    def change(self, change: Change[Object], now: float) -> None:
        if self._recorder is not None:
            self._session.change(change, self._quantized(now))

    def written(self, family: Family, commands: int, now: float, *, full: bool) -> None:
        whole = ", the whole table" if full else ""
        self._mark(f"{family}: {commands} commands{whole}", now)

    def refused(self, family: Family, why: str, now: float) -> None:
        self._mark(f"{family}: refused: {why}", now)

    def _mark(self, text: str, now: float) -> None:
        if self._recorder is not None:
            self._recorder.mark(KERNEL, text, self._quantized(now))
            self._recorder.encode()


@asynccontextmanager
async def recording(
    config: FlightConfig, clock: Callable[[], float], unhealthy: Callable[[], str]
) -> AsyncIterator[Recorder | None]:
    """Runs the recorder of a node proxy in a separate process while the context lasts."""
    if not config.size_bytes:
        yield None
        return
    from sliceplane.watch.io.flight import FlightRecorder, default_folder

    flight = FlightRecorder(
        COMPONENT, config.size_bytes, config.folder or default_folder(), clock, unhealthy
    )
    flying = asyncio.create_task(flight.run(), name="flight recorder")
    try:
        yield flight.recorder
    finally:
        flying.cancel()
        await asyncio.gather(flying, return_exceptions=True)
