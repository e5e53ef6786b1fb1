"""What the forwarder counts, under the names of CoreDNS's plugins cache, forward and hosts, so that
dashboards work.

Ours besides: replies that were passed over because they answer something else.
"""

from __future__ import annotations

from typing import Final, Literal

from sliceplane.kit.metrics import Metrics, exponential_buckets

Shelf = Literal["denial", "success"]
SHELVES: Final[tuple[Shelf, ...]] = ("denial", "success")
#: label "proxy_name"
PROXY: Final = "forward"
#: labels "zones" and "view"
_REST: Final = (".", "")


class ForwardCounts:
    """Owned by one forwarder; its cache and its upstreams count here."""

    def __init__(self, server: str) -> None:
        self.metrics = metrics = Metrics()
        self._labels = (server, *_REST)
        plain = ("server", "zones", "view")
        self.requests = metrics.counters(
            "coredns_cache_requests_total", "Questions that the cache was asked.", *plain
        ).of(*self._labels)
        self.misses = metrics.counters(
            "coredns_cache_misses_total", "Questions that the cache could not answer.", *plain
        ).of(*self._labels)
        self.stale = metrics.counters(
            "coredns_cache_served_stale_total",
            "Answers that were given out after their time.",
            *plain,
        ).of(*self._labels)
        typed = ("server", "type", "zones", "view")
        hits = metrics.counters(
            "coredns_cache_hits_total", "Questions that the cache answered.", *typed
        )
        evictions = metrics.counters(
            "coredns_cache_evictions_total", "Answers that gave place to others.", *typed
        )
        entries = metrics.gauges("coredns_cache_entries", "Answers in the cache.", *typed)
        self.hits = {shelf: hits.of(server, shelf, *_REST) for shelf in SHELVES}
        self.evictions = {shelf: evictions.of(server, shelf, *_REST) for shelf in SHELVES}
        self.entries = {shelf: entries.of(server, shelf, *_REST) for shelf in SHELVES}
        self.rejects = metrics.counter(
            "coredns_forward_max_concurrent_rejects_total",
            "Questions refused because too many were under way.",
        )
        self.broken = metrics.counter(
            "coredns_forward_healthcheck_broken_total",
            "Questions asked although every upstream was taken for dead.",
        )
        self.durations = metrics.histograms(
            "coredns_proxy_request_duration_seconds",
            "Time until an upstream answered.",
            exponential_buckets(0.00025, 2, 16),
            "proxy_name",
            "to",
            "rcode",
        )
        self.probe_failures = metrics.counters(
            "coredns_proxy_healthcheck_failures_total",
            "Probes that an upstream did not answer.",
            "proxy_name",
            "to",
        )
        self.hosts = metrics.gauge("coredns_hosts_entries", "Names of the hosts table.")
        self.ignored = metrics.counters(
            "sliceplane_dns_forward_ignored_total",
            "Replies, or parts of them, that did not answer what was asked.",
            "reason",
        )
