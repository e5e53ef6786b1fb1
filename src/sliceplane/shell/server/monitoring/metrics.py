"""``/metrics`` of the server: what requests and watches count, and all that its parts tell.

Names, labels and buckets are upstream's where upstream has the thing, so that dashboards and alerts made for
Kubernetes work; what is ours alone is called ``sliceplane_...``.

Counting costs a request two dictionary look-ups and a watch two additions for each write, whatever the number of
events in it.  Labels (``page_key``, ``resource_key``) are made of what the server knows, never of what a client says:
an invented resource, method or page must not become a time series of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from sliceplane.api.gates import GATES, Gates, spec_at
from sliceplane.api.scheme import BY_PATH, Resource
from sliceplane.kit.metrics import Count, Labels, Metrics
from sliceplane.shell.process.pages import expose
from sliceplane.shell.server.requests.paths import ResourcePath

#: upstream's buckets of apiserver_request_duration_seconds
_REQUEST_BUCKETS: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
)  # fmt: skip
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
_METHODS = {"GET": "GET", "HEAD": "GET", "POST": "POST", "PUT": "PUT", "PATCH": "PATCH", "DELETE": "DELETE"}
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
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
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


def page_key(method: str, path: str) -> RequestKey:
    """A request for no resource: known pages have their path for a subresource, as upstream has it."""
    page = path if path in _PAGES else "/openapi/v3" if path.startswith("/openapi/v3/") else ""
    return RequestKey(_METHODS.get(method, _OTHER), subresource=page)


def resource_key(
    verb: str, path: ResourcePath, name: str, served: Collection[Resource], *, dry_run: bool, content_type: str
) -> RequestKey:
    """*name* is the object's, also that of a list or watch that selects one by its name."""
    shown = _VERBS.get(verb, _OTHER)
    if verb == "patch" and content_type.startswith(_APPLY):
        shown = "APPLY"
    resource = BY_PATH.get((path.group, path.version, path.plural))
    if resource is None or resource not in served:
        return RequestKey(shown)
    subresource = path.subresource if path.subresource in resource.subresources else ""
    scope = "resource" if name or verb == "create" else "namespace" if path.namespace else "cluster"
    return RequestKey(shown, "All" if dry_run else "", path.group, path.version, path.plural, subresource, scope)
