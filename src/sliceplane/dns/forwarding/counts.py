"""Metrics of the forwarder, under the names of CoreDNS's plugins cache, forward and hosts, so that
its dashboards work.

One metric is our own: ignored replies, which do not match their query.
"""

from __future__ import annotations

from typing import Final, Literal

from sliceplane.kit.metrics import Count, Labelled, Metrics, exponential_buckets

Shelf = Literal["denial", "success"]
SHELVES: Final[tuple[Shelf, ...]] = ("denial", "success")
#: label "proxy_name"
PROXY: Final = "forward"
_LABELS: Final = ("zones", "view")
_REST: Final = (".", "")


class ForwardCounts:
    """The counters of one forwarder, its cache and its upstreams.  Owned by the forwarder."""

    def __init__(self, server: str) -> None:
        self.metrics = metrics = Metrics()

        def count(name: str, text: str) -> Count:
            family = metrics.counters(f"coredns_cache_{name}_total", text, "server", *_LABELS)
            return family.of(server, *_REST)

        def by_shelf(family: Labelled[Count]) -> dict[Shelf, Count]:
            return {shelf: family.of(server, shelf, *_REST) for shelf in SHELVES}

        self.requests = count("requests", "Questions that the cache was asked.")
        self.misses = count("misses", "Questions that the cache could not answer.")
        self.stale = count("served_stale", "Answers that were given out after their time.")
        typed = ("server", "type", *_LABELS)
        self.hits = by_shelf(
            metrics.counters(
                "coredns_cache_hits_total", "Questions that the cache answered.", *typed
            )
        )
        self.evictions = by_shelf(
            metrics.counters(
                "coredns_cache_evictions_total", "Answers that gave place to others.", *typed
            )
        )
        self.entries = by_shelf(
            metrics.gauges("coredns_cache_entries", "Answers in the cache.", *typed)
        )
        self._count_upstreams(metrics)

    def _count_upstreams(self, metrics: Metrics) -> None:
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
