"""What ``/metrics`` shows, counted in plain dictionaries so that nothing has to be imported to count.

Names, labels and buckets are upstream's where upstream has the thing, so that dashboards and alerts made for
Kubernetes work; what is ours alone is called ``sliceplane_...``.  ``prometheus_client`` is loaded by the first scrape;
it only renders.

Counting costs a request two dictionary look-ups and a watch two additions for each write, whatever the number of
events in it.  Nobody can make series by inventing names: labels are of what is served (see ``labels``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sliceplane.kit.samples import Histogram
from sliceplane.shell.process.prometheus import Families, Source, expose, rows_of

#: upstream's buckets of apiserver_request_duration_seconds
REQUEST_SECONDS_BUCKETS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
)  # fmt: skip
#: etcd's buckets of its fsync
FSYNC_SECONDS_BUCKETS = tuple(0.001 * 2**power for power in range(14))

Labels = Mapping[str, str]
#: of one moment: labels and value, in the order in which they are shown
Samples = Iterable[tuple[Labels, float]]


class RequestKey(NamedTuple):
    """The labels of a request, but for its code."""

    verb: str
    dry_run: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    scope: str = ""


class WatchTraffic:
    """What was sent to the watches of one resource.  Streams add to it."""

    __slots__ = ("events", "sent_bytes")

    def __init__(self) -> None:
        self.events = 0
        self.sent_bytes = 0


@dataclass(frozen=True, slots=True)
class _Reading:
    """A family whose samples are read at scrape time."""

    kind: Literal["gauge", "counter"]
    help: str
    read: Callable[[], Samples]


class Metrics:
    """Counters of one server.  Owned by the server; callbacks are read at scrape time."""

    def __init__(self) -> None:
        self._requests: dict[tuple[RequestKey, int], int] = {}
        self._latencies: dict[RequestKey, Histogram] = {}
        self._running: dict[RequestKey, int] = {}
        self._traffic: dict[tuple[str, str, str], WatchTraffic] = {}
        self._counters: dict[str, tuple[str, int]] = {}
        self._readings: dict[str, _Reading] = {}
        self._histograms: dict[str, tuple[str, Histogram]] = {}
        self._sources: list[Source] = []

    def observe(self, key: RequestKey, code: int, seconds: float) -> None:
        """Count one answered request; long-running ones (watches) call it when they end."""
        counted = (key, code)
        self._requests[counted] = self._requests.get(counted, 0) + 1
        if key.verb == "WATCH":
            return
        found = self._latencies.get(key)
        if found is None:
            found = self._latencies[key] = Histogram(REQUEST_SECONDS_BUCKETS)
        found.observe(seconds)

    def on_stream(self, key: RequestKey, change: int) -> None:
        """A watch began (+1) or ended (-1)."""
        self._running[key] = self._running.get(key, 0) + change

    def traffic(self, group: str, version: str, resource: str) -> WatchTraffic:
        """The counter that streams of this resource add to."""
        return self._traffic.setdefault((group, version, resource), WatchTraffic())

    def histogram(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        found = Histogram(bounds)
        self._histograms[name] = (help_text, found)
        return found

    def count(self, name: str, help_text: str, amount: int = 1) -> None:
        self._counters[name] = (help_text, self._counters.get(name, ("", 0))[1] + amount)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._readings[name] = _Reading("gauge", help_text, lambda: (({}, read()),))

    def gauges(self, name: str, help_text: str, read: Callable[[], Samples]) -> None:
        """A family with labels; every sample has the same ones."""
        self._readings[name] = _Reading("gauge", help_text, read)

    def counter(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Something that is counted elsewhere; *name* without ``_total``."""
        self._readings[name] = _Reading("counter", help_text, lambda: (({}, read()),))

    def source(self, read: Source) -> None:
        """*read* gives figures that somebody else counts; their names must be nobody else's."""
        self._sources.append(read)

    def render(self, accept: str = "") -> tuple[bytes, bytes]:
        """The exposition that *accept* asks for, text or OpenMetrics, and its content type."""
        return expose((self, Families(self._sources)), accept)

    def collect(self) -> Iterator[Any]:
        """``prometheus_client``'s collector protocol; sorted, so that equal states render equally."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        yield from self._collect_requests()
        for name, (help_text, count) in sorted(self._counters.items()):
            yield CounterMetricFamily(name, help_text, value=count)
        for name, (help_text, histogram) in sorted(self._histograms.items()):
            family = HistogramMetricFamily(name, help_text)
            found = histogram.read()
            family.add_metric((), rows_of(found), found.total)
            yield family
        for name, reading in sorted(self._readings.items()):
            samples = tuple(reading.read())
            labels = tuple(samples[0][0]) if samples else ()
            made: Any = (CounterMetricFamily if reading.kind == "counter" else GaugeMetricFamily)(
                name, reading.help, labels=labels
            )
            for values, number in samples:
                made.add_metric(tuple(values.values()), number)
            yield made

    def _collect_requests(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = (*RequestKey._fields, "component")
        requests = CounterMetricFamily("apiserver_request_total", "Answered requests.", labels=(*labels, "code"))
        for (key, code), number in sorted(self._requests.items()):
            requests.add_metric((*key, "apiserver", str(code)), number)
        yield requests
        latencies = HistogramMetricFamily(
            "apiserver_request_duration_seconds",
            "Time from the request's head to its answer; watches are left out.",
            labels=labels,
        )
        for key, histogram in sorted(self._latencies.items()):
            found = histogram.read()
            latencies.add_metric((*key, "apiserver"), rows_of(found), found.total)
        yield latencies
        running = GaugeMetricFamily(
            "apiserver_longrunning_requests",
            "Watch requests being answered.",
            labels=tuple(label for label in labels if label != "dry_run"),
        )
        for key, streams in sorted(self._running.items()):
            running.add_metric((key.verb, *key[2:], "apiserver"), streams)
        yield running
        identity = ("group", "version", "resource")
        events = CounterMetricFamily("apiserver_watch_events_total", "Events sent to watch clients.", labels=identity)
        sent = CounterMetricFamily(
            "sliceplane_watch_sent_bytes_total", "Of events, written to connections before encryption.", labels=identity
        )
        for of, traffic in sorted(self._traffic.items()):
            events.add_metric(of, traffic.events)
            sent.add_metric(of, traffic.sent_bytes)
        yield events
        yield sent
