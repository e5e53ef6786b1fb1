"""What a node proxy counts, under upstream's names, labels and buckets (reference A12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sliceplane.kit.ip import Family as IPFamily
from sliceplane.kit.samples import Distribution, Family, Histogram, Sample, exponential_buckets

PREFIX: Final = "kubeproxy_"
SYNC_BUCKETS: Final = exponential_buckets(0.001, 2, 15)
#: upstream's, its needless 0 included, so that series of both can be added
PROGRAMMING_BUCKETS: Final = (
    0.0, 0.25, 0.5, *map(float, range(1, 60)), *map(float, range(60, 120, 5)), *map(float, range(120, 301, 30)),
)  # fmt: skip

_Histograms = dict[str, Histogram]


class ProxySamples:
    """Owned by one ``NodeProxy``.  A series appears with its first observation."""

    def __init__(self, mode: str = "nftables", ways: Mapping[str, int] | None = None) -> None:
        """*mode*: of ``--proxy-mode``; the names of some counters have it.  *ways*: ``Backend.ways``, to be read when
        it is asked."""
        self._mode = mode
        self._ways = {} if ways is None else ways
        self._sync: _Histograms = {}
        self._full: _Histograms = {}
        self._partial: _Histograms = {}
        self._programming: _Histograms = {}
        self._conntrack: _Histograms = {}
        self._deleted: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._partial_failures: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        self._without_local: dict[tuple[str, str], int] = {}
        self._unserved: dict[str, int] = {}
        self._put_back: dict[str, int] = {}
        self._health: dict[tuple[str, int], int] = {}
        self.endpoint_changes = self.service_changes = 0
        self.endpoint_changes_pending = self.service_changes_pending = 0

    def on_endpoint_change(self) -> None:
        self.endpoint_changes += 1
        self.endpoint_changes_pending += 1

    def on_service_change(self) -> None:
        self.service_changes += 1
        self.service_changes_pending += 1

    def on_queued(self, family: IPFamily, now: float) -> None:
        """A write is wanted."""
        self._queued[family] = now

    def on_taken(self) -> None:
        """A write has taken up all changes so far."""
        self.endpoint_changes_pending = self.service_changes_pending = 0

    def on_write(self, family: IPFamily, seconds: float, *, full: bool, failed: bool) -> None:
        for histograms in (self._sync, self._full if full else self._partial):
            _observe(histograms, family, SYNC_BUCKETS, seconds)
        if failed:
            self._failures[family] = self._failures.get(family, 0) + 1
            if not full:
                self._partial_failures[family] = self._partial_failures.get(family, 0) + 1

    def on_written(
        self, family: IPFamily, now: float, latencies: tuple[float, ...], without_local: tuple[int, int]
    ) -> None:
        """The kernel has all there is: *latencies* of what it did not have before, the gauges as they are now."""
        self._last[family] = now
        for seconds in latencies:
            _observe(self._programming, family, PROGRAMMING_BUCKETS, seconds)
        for policy, count in zip(("internal", "external"), without_local, strict=True):
            self._without_local[family, policy] = count

    def on_claims(self, family: IPFamily, unserved: int) -> None:
        """How many Services do not get all that they ask for."""
        self._unserved[family] = unserved

    def on_put_back(self, family: IPFamily, times: int) -> None:
        """How often rules that were gone were written anew, until now."""
        self._put_back[family] = times

    def on_conntrack(self, family: IPFamily, seconds: float, deleted: int) -> None:
        _observe(self._conntrack, family, SYNC_BUCKETS, seconds)
        self._deleted[family] = self._deleted.get(family, 0) + deleted

    def on_health_asked(self, page: str, code: int) -> None:
        """*page* is "healthz" or "livez"."""
        self._health[page, code] = self._health.get((page, code), 0) + 1

    def families(self) -> tuple[Family, ...]:
        """Sorted by name."""
        histograms = (
            ("conntrack_reconciler_sync_duration_seconds", "How long a look for stale UDP flows took.",
             self._conntrack),
            ("network_programming_duration_seconds", "From a change of a Pod or Service until the rules have it.",
             self._programming),
            ("sync_full_proxy_rules_duration_seconds", "How long writes of the whole table took.", self._full),
            ("sync_partial_proxy_rules_duration_seconds", "How long writes of changes took.", self._partial),
            ("sync_proxy_rules_duration_seconds", "How long writes took.", self._sync),
        )  # fmt: skip
        made = [
            Family(PREFIX + name, "histogram", text, ("ip_family",), _samples({k: h.read() for k, h in found.items()}))
            for name, text, found in histograms
        ]
        for name, kind, text, values in (
            ("conntrack_reconciler_deleted_entries_total", "counter", "Stale UDP flows forgotten.", self._deleted),
            ("sync_proxy_rules_last_queued_timestamp_seconds", "gauge", "When a write was last wanted.", self._queued),
            ("sync_proxy_rules_last_timestamp_seconds", "gauge", "When a write last succeeded.", self._last),
            *self._failure_counters(),
        ):  # fmt: skip
            made.append(Family(PREFIX + name, kind, text, ("ip_family",), _samples(values)))  # type: ignore[arg-type]
        for name, kind, text, value in (
            ("sync_proxy_rules_endpoint_changes_pending", "gauge", "Changes of endpoints not taken up.",
             self.endpoint_changes_pending),
            ("sync_proxy_rules_endpoint_changes_total", "counter", "Changes of endpoints.", self.endpoint_changes),
            ("sync_proxy_rules_service_changes_pending", "gauge", "Changes of Services not taken up.",
             self.service_changes_pending),
            ("sync_proxy_rules_service_changes_total", "counter", "Changes of Services.", self.service_changes),
        ):  # fmt: skip
            made.append(Family(PREFIX + name, kind, text, (), (Sample((), value),)))  # type: ignore[arg-type]
        policies = tuple(Sample(key, value) for key, value in sorted(self._without_local.items()))
        made.append(
            Family(
                f"{PREFIX}sync_proxy_rules_no_local_endpoints_total",
                "gauge",
                "Service ports whose Local policy finds no endpoint here, though there are some elsewhere.",
                ("ip_family", "traffic_policy"),
                policies,
            )
        )
        made.append(
            Family(
                "sliceplane_proxy_services_not_fully_served",
                "gauge",
                "Services that ask for addresses or node ports that are another's, or for more than the bounds.",
                ("ip_family",),
                _samples(self._unserved),
            )
        )
        # from the first write on, so that a rise from 0 can be seen
        put_back = {family: self._put_back.get(family, 0) for family in self._last}
        made.append(
            Family(
                "sliceplane_proxy_rules_put_back_total",
                "counter",
                "Times that our rules were gone from the kernel and were written anew.",
                ("ip_family",),
                _samples(put_back),
            )
        )
        ways = tuple(Sample((way,), count) for way, count in sorted(self._ways.items()))
        made.append(Family("sliceplane_proxy_writes_total", "counter", "Writes that the kernel took.", ("way",), ways))
        for page in ("healthz", "livez"):
            codes = tuple(
                Sample((str(code),), count) for (of, code), count in sorted(self._health.items()) if of == page
            )
            made.append(Family(f"{PREFIX}proxy_{page}_total", "counter", f"Answers of /{page}.", ("code",), codes))
        return tuple(sorted(made, key=lambda family: family.name))

    def _failure_counters(self) -> tuple[tuple[str, str, str, Mapping[str, float]], ...]:
        refused = "Writes that the kernel refused."
        if self._mode == "nftables":
            return (("sync_proxy_rules_nftables_sync_failures_total", "counter", refused, self._failures),)
        partial = "Writes of changes that the kernel refused."
        return (
            ("sync_proxy_rules_iptables_restore_failures_total", "counter", refused, self._failures),
            ("sync_proxy_rules_iptables_partial_restore_failures_total", "counter", partial, self._partial_failures),
        )


def _observe(histograms: _Histograms, family: IPFamily, bounds: tuple[float, ...], value: float) -> None:
    histogram = histograms.get(family)
    if histogram is None:
        histogram = histograms[family] = Histogram(bounds)
    histogram.observe(value)


def _samples(values: Mapping[str, float | Distribution]) -> tuple[Sample, ...]:
    return tuple(Sample((family,), values[family]) for family in sorted(values))
