"""``/metrics`` of the server: counters of requests and watches, and the metrics of its parts.

Names, labels and buckets are upstream's where upstream has the thing, so that dashboards and alerts
made for Kubernetes work; what is ours alone is called ``sliceplane_...``.

Counting costs a request two dictionary look-ups and a watch two additions for each write, whatever
the number of events in it. Labels (``page_key``, ``resource_key``) come from the server's tables,
never from a client's text: an invented resource, method or page must not become a time series of
its own.

``LoopSteps`` measures which request blocked the event loop, and for how long: no step may keep it
from its other clients.

A *step* runs between two awaits. The steps of a request are timed by driving its coroutine
ourselves (``timed``), which costs two clock readings for each. A step that seems long because the
machine gave the processor to others is no fault of the request: the thread's processor time since
the last heartbeat is its upper bound. (That clock is a system call, too much for each step.)

Anything else that blocks the loop (commits, streams, background tasks, a blocking call, the
machine) shows as the *lag* of the heartbeat: its delay beyond ``HEARTBEAT_S``. The lag is a metric;
the log has only the work of our own thread.

A step that was longer than ``LONG_STEP_S`` is logged with the request's audit id, verb, user and
path; at most once in ``LOG_INTERVAL_S``, with their number.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from types import coroutine
from typing import Any, Final, NamedTuple

from sliceplane.api.gates import GATES, Gates, spec_at
from sliceplane.api.requests import PROGRESS_PATH
from sliceplane.api.scheme import BY_PATH, Resource
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.pages import expose
from sliceplane.kit.metrics import CALL_BUCKETS, Count, Family, Labels, Metrics, Sample, merged
from sliceplane.server.io.requests.request import ResourcePath

_COMPONENT: Final = "apiserver"
_VERBS = {
    "get": "GET",
    "list": "LIST",
    "watch": "WATCH",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETECOLLECTION",
}
_METHODS = {
    "GET": "GET",
    "HEAD": "GET",
    "POST": "POST",
    "PUT": "PUT",
    "PATCH": "PATCH",
    "DELETE": "DELETE",
}
_OTHER = "other"
_PAGES = frozenset(
    (
        "/",
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        PROGRESS_PATH,
        "/version",
    )
)
_APPLY = "application/apply-patch+yaml"


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
    """Counts of what was sent to the watches of one resource. Streams add to it."""

    events: Count
    sent_bytes: Count


class ServerMetrics(Metrics):
    """Owned by the server."""

    def __init__(self) -> None:
        super().__init__()
        #: families of other processes of this server, by the name of the process
        self.of_processes: Callable[[], Mapping[str, Iterable[Family]]] | None = None
        labels = (*RequestKey._fields, "component")
        self._requests = self.counters(
            "apiserver_request_total", "Answered requests.", *labels, "code"
        )
        self._latencies = self.histograms(
            "apiserver_request_duration_seconds",
            "Time from the request's head to its answer; watches are left out.",
            CALL_BUCKETS,
            *labels,
        )
        self._running = self.gauges(
            "apiserver_longrunning_requests",
            "Watch requests being answered.",
            *(label for label in labels if label != "dry_run"),
        )
        identity = ("group", "version", "resource")
        self._events = self.counters(
            "apiserver_watch_events_total", "Events sent to watch clients.", *identity
        )
        self._sent = self.counters(
            "sliceplane_watch_sent_bytes_total",
            "Of events, written to connections before encryption.",
            *identity,
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
        return WatchTraffic(
            self._events.of(group, version, resource), self._sent.of(group, version, resource)
        )

    def declare_gates(self, gates: Gates) -> None:
        """Upstream's gauge of feature gates."""
        specs = [
            (name, spec)
            for name in sorted(GATES)
            if (spec := spec_at(name, gates.release)) is not None
        ]
        rows: list[tuple[Labels, float]] = [
            ((name, "" if spec.stage == "GA" else spec.stage), gates.enabled(name))
            for name, spec in specs
        ]
        self.computed(
            "gauge",
            "kubernetes_feature_enabled",
            "Feature gates: 1 is on.",
            lambda: rows,
            "name",
            "stage",
        )

    def render(self, accept: str = "") -> tuple[bytes, bytes]:
        """The exposition that *accept* asks for, text or OpenMetrics, and its content type."""
        families = self.families()
        if self.of_processes is not None:
            by_process = {"server": families, **self.of_processes()}
            families = merged(*(labelled(*item) for item in by_process.items()))
        return expose(families, accept)


def labelled(process: str, families: Iterable[Family]) -> tuple[Family, ...]:
    """Returns *families* with the label ``process``."""
    return tuple(
        Family(
            family.name,
            family.kind,
            family.help,
            (*family.labels, "process"),
            tuple(Sample((*labels, process), value) for labels, value in family.samples),
        )
        for family in families
    )


def page_key(method: str, path: str) -> RequestKey:
    """A request for no resource: known pages have their path for a subresource, as upstream
    has it.
    """
    page = path if path in _PAGES else "/openapi/v3" if path.startswith("/openapi/v3/") else ""
    return RequestKey(_METHODS.get(method, _OTHER), subresource=page)


def resource_key(
    verb: str,
    path: ResourcePath,
    name: str,
    served: Collection[Resource],
    *,
    dry_run: bool,
    content_type: str,
) -> RequestKey:
    """*name* is the object's, also that of a list or watch that selects one by its name."""
    label = _VERBS.get(verb, _OTHER)
    if verb == "patch" and content_type.startswith(_APPLY):
        label = "APPLY"
    resource = BY_PATH.get((path.group, path.version, path.plural))
    if resource is None or resource not in served:
        return RequestKey(label)
    subresource = path.subresource if path.subresource in resource.subresources else ""
    scope = "resource" if name or verb == "create" else "namespace" if path.namespace else "cluster"
    return RequestKey(
        label, "All" if dry_run else "", path.group, path.version, path.plural, subresource, scope
    )


LONG_STEP_S: Final = 0.050
LOG_INTERVAL_S: Final = 10.0
HEARTBEAT_S: Final = 0.1
_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_log = get_logger("loop")


class LoopSteps:
    """Owned by the server; used in its loop."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        processor_clock: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._processor_clock = processor_clock
        self._clock = clock
        #: the thread's processor time at the last heartbeat; ``None``: there was none
        self._heartbeat_at: float | None = None
        self._steps = metrics.histogram(
            "sliceplane_event_loop_step_seconds",
            "How long one step of a request held the event loop.",
            _BUCKETS,
        )
        self._lag = metrics.histogram(
            "sliceplane_event_loop_lag_seconds",
            "How late the event loop came to what was due.",
            _BUCKETS,
        )
        #: since the last log line
        self._long_steps = 0
        self._longest = 0.0
        self._logged_at = float("-inf")

    @coroutine
    def timed(
        self, inner: Coroutine[Any, Any, None], log_fields: Callable[[], dict[str, object]]
    ) -> Generator[Any, Any, None]:
        """Drives *inner*, a request's coroutine, and times each of its steps.  *log_fields* is
        called after a long one.
        """
        clock = self._clock
        observe = self._steps.observe
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = clock()
            try:
                awaited = inner.send(sent) if thrown is None else inner.throw(thrown)
            except StopIteration:
                return
            finally:
                took = clock() - began
                if took > LONG_STEP_S:
                    took = self._own_share(took)
                    if took > LONG_STEP_S:
                        self.on_long_step(took, log_fields)
                observe(took)
            sent = thrown = None
            try:
                sent = yield awaited
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # a cancellation, for one: it is for the request
                thrown = error

    def _own_share(self, seconds: float) -> float:
        """The most of *seconds* in which the step itself can have been running."""
        return (
            seconds
            if self._heartbeat_at is None
            else min(seconds, self._processor_clock() - self._heartbeat_at)
        )

    def on_long_step(self, seconds: float, log_fields: Callable[[], dict[str, object]]) -> None:
        """Counts a step that blocked the loop, and logs it unless that was done just now."""
        self._long_steps += 1
        self._longest = max(self._longest, seconds)
        now = self._clock()
        if now - self._logged_at < LOG_INTERVAL_S:
            return
        _log.warning(
            "the event loop was held",
            milliseconds=round(seconds * 1000),
            longest=round(self._longest * 1000),
            times=self._long_steps,
            **log_fields(),
        )
        self._logged_at = now
        self._long_steps = 0
        self._longest = 0.0

    async def heartbeat(self, period_s: float = HEARTBEAT_S) -> None:
        """Runs as long as the server."""
        while True:
            self._heartbeat_at = self._processor_clock()
            due = self._clock() + period_s
            await asyncio.sleep(period_s)
            late = max(0.0, self._clock() - due)
            self._lag.observe(late)
            own = self._own_share(late)
            # Unless a request's step is what made this heartbeat late.
            if own > LONG_STEP_S and not self._long_steps and self._logged_at < due - period_s:
                self.on_long_step(own, lambda: {"by": "what is no request's step"})
