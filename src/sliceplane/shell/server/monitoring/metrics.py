"""``/metrics`` of the server: what requests and watches count, and all that its parts tell.

Names, labels and buckets are upstream's where upstream has the thing, so that dashboards and alerts made for
Kubernetes work; what is ours alone is called ``sliceplane_...``.

Counting costs a request two dictionary look-ups and a watch two additions for each write, whatever the number of
events in it.  No client can make series by inventing names: labels are of what is served (see ``labels``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.gates import GATES, Gates, spec_at
from sliceplane.kit.metrics import Count, Labels, Metrics
from sliceplane.shell.process.pages import expose

#: upstream's buckets of apiserver_request_duration_seconds
_REQUEST_BUCKETS: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
)  # fmt: skip
_COMPONENT: Final = "apiserver"


class RequestKey(NamedTuple):
    """The labels of a request, but for its code."""

    verb: str
    dry_run: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    scope: str = ""


class WatchTraffic(NamedTuple):
    """What was sent to the watches of one resource.  Streams add to it."""

    events: Count
    sent_bytes: Count


class ServerMetrics(Metrics):
    """Owned by the server."""

    def __init__(self) -> None:
        super().__init__()
        labels = (*RequestKey._fields, "component")
        self._requests = self.counters("apiserver_request_total", "Answered requests.", *labels, "code")
        self._latencies = self.histograms(
            "apiserver_request_duration_seconds",
            "Time from the request's head to its answer; watches are left out.",
            _REQUEST_BUCKETS,
            *labels,
        )
        self._running = self.gauges(
            "apiserver_longrunning_requests",
            "Watch requests being answered.",
            *(label for label in labels if label != "dry_run"),
        )
        identity = ("group", "version", "resource")
        self._events = self.counters("apiserver_watch_events_total", "Events sent to watch clients.", *identity)
        self._sent = self.counters(
            "sliceplane_watch_sent_bytes_total", "Of events, written to connections before encryption.", *identity
        )

    def observe(self, key: RequestKey, code: int, seconds: float) -> None:
        """Count one answered request; long-running ones (watches) call it when they end."""
        self._requests.of(*key, _COMPONENT, str(code)).value += 1
        if key.verb != "WATCH":
            self._latencies.of(*key, _COMPONENT).observe(seconds)

    def on_stream(self, key: RequestKey, change: int) -> None:
        """A watch began (+1) or ended (-1)."""
        self._running.of(key.verb, *key[2:], _COMPONENT).value += change

    def traffic(self, group: str, version: str, resource: str) -> WatchTraffic:
        """The counters that streams of this resource add to."""
        return WatchTraffic(self._events.of(group, version, resource), self._sent.of(group, version, resource))

    def declare_gates(self, gates: Gates) -> None:
        """Upstream's gauge of feature gates."""
        specs = [(name, spec) for name in sorted(GATES) if (spec := spec_at(name, gates.release)) is not None]
        rows: list[tuple[Labels, float]] = [
            ((name, "" if spec.stage == "GA" else spec.stage), gates.enabled(name)) for name, spec in specs
        ]
        self.computed("gauge", "kubernetes_feature_enabled", "Feature gates: 1 is on.", lambda: rows, "name", "stage")

    def render(self, accept: str = "") -> tuple[bytes, bytes]:
        """The exposition that *accept* asks for, text or OpenMetrics, and its content type."""
        return expose(self.families(), accept)
