"""Everything on ``/metrics`` that is read at scrape time: what the parts of a plane count anyway.

Upstream's names, where upstream has the thing (see ``apiserver.metrics``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sliceplane.api.gates import GATES, spec_at
from sliceplane.shell.process.version import build_labels
from sliceplane.shell.server.monitoring.metrics import Labels

if TYPE_CHECKING:
    from sliceplane.shell.server.plane import Plane
    from sliceplane.shell.server.requests.app import ApiServer

_SUFFIXES = ("", "-wal")


def add_gauges(plane: Plane, app: ApiServer) -> None:
    """Called once, while the plane starts; its listener does not exist yet."""
    _add_requests(plane, app)
    _add_connections(plane)
    _add_heavy(plane)
    _add_storage(plane)
    _add_watches(plane)
    _add_process(plane)


def _add_requests(plane: Plane, app: ApiServer) -> None:
    seats = app.in_flight.flows.seats
    plane.metrics.gauges(
        "apiserver_current_inflight_requests",
        "Requests that have a seat.",
        lambda: (
            ({"request_kind": "mutating"}, seats["write"].in_use),
            ({"request_kind": "readOnly"}, seats["read"].in_use),
        ),
    )
    gauge = plane.metrics.gauge
    plane.metrics.source(app.in_flight.families)
    gauge("apiserver_connections", "Open client connections.", lambda: plane.listener.connections)


def _add_connections(plane: Plane) -> None:
    gauge, counter = plane.metrics.gauge, plane.metrics.counter
    gauge(
        "sliceplane_unauthenticated_connections",
        "Open connections, handshakes included, on which nobody has authenticated.",
        lambda: len(plane.listener.newcomers),
    )
    gauge(
        "sliceplane_unauthenticated_bytes",
        "What connections on which nobody has authenticated are charged with, together.",
        lambda: plane.listener.newcomers.bytes,
    )
    counter(
        "sliceplane_dropped_unauthenticated_connections",
        "Connections on which nobody has authenticated, closed to make room.",
        lambda: plane.listener.newcomers.dropped,
    )
    counter(
        "sliceplane_refused_connections",
        "Connections closed at once: too many, or too few file descriptors.",
        lambda: plane.listener.refused_connections,
    )
    counter(
        "sliceplane_accept_failures",
        "How often the system refused to accept a connection, as without file descriptors.",
        lambda: plane.listener.accept_failures,
    )
    counter(
        "sliceplane_refused_heads",
        "Requests refused with 431: too many headers, or too large a head.",
        lambda: plane.listener.refused_heads,
    )


def _add_heavy(plane: Plane) -> None:
    metrics, heavy = plane.metrics, plane.heavy
    turns = heavy.turns
    metrics.gauge("sliceplane_heavy_running_requests", "Worked on outside of the event loop.", lambda: turns.running)
    metrics.gauge("sliceplane_heavy_waiting_requests", "Waiting for that.", lambda: turns.waiting)
    metrics.counter("sliceplane_heavy_requests", "Worked on outside of the event loop.", lambda: heavy.requests)
    metrics.counter("sliceplane_heavy_refused_requests", "Answered with 429: too many wait.", lambda: turns.refused)
    metrics.counter(
        "sliceplane_heavy_stale_attempts", "Worked out for nothing, since somebody else was first.", lambda: heavy.stale
    )
    metrics.counter(
        "sliceplane_heavy_worker_deaths", "Processes that ended in the middle of a request.", lambda: heavy.deaths
    )


def _add_storage(plane: Plane) -> None:
    metrics, store, committer = plane.metrics, plane.store, plane.committer

    def objects() -> Iterator[tuple[Labels, float]]:
        for key in sorted(store.resources()):
            plural, _, group = key.partition(".")
            yield {"group": group, "resource": plural}, store.count(key)

    metrics.gauges("apiserver_resource_objects", "Stored objects.", objects)
    metrics.gauges(
        "apiserver_storage_objects",
        "Stored objects, by plural.group; the older form of apiserver_resource_objects.",
        lambda: (({"resource": key}, store.count(key)) for key in sorted(store.resources())),
    )
    metrics.gauges("apiserver_storage_size_bytes", "Size of the database on disk.", lambda: _database_size(plane))
    metrics.gauge("apiserver_storage_revision", "The newest durable revision.", lambda: store.revision)
    metrics.gauge("sliceplane_storage_compacted_revision", "What is older is forgotten.", lambda: store.compacted)
    metrics.counter("sliceplane_storage_commits", "Durable commits.", lambda: committer.commits)
    metrics.gauge(
        "sliceplane_storage_staleness_seconds",
        "How long ago memory was last known to be as new as storage.",
        lambda: committer.staleness_s,
    )
    metrics.counter("sliceplane_storage_failures", "Batches that were not stored.", lambda: committer.failures)


def _database_size(plane: Plane) -> Iterator[tuple[Labels, float]]:
    """The file and its log; nothing for a plane that keeps nothing."""
    database = plane.data_dir.database
    if database is not None:
        files = [database.with_name(database.name + suffix) for suffix in _SUFFIXES]
        yield {"storage_cluster_id": "sliceplane"}, sum(file.stat().st_size for file in files if file.exists())


def _add_watches(plane: Plane) -> None:
    metrics, hub = plane.metrics, plane.hub
    metrics.gauge("apiserver_registered_watchers", "Open watches.", lambda: len(hub))
    metrics.counter("sliceplane_hub_published_events", "Durable events handed to the hub.", lambda: hub.published)
    metrics.counter("sliceplane_hub_delivered_events", "Events put into queues of watches.", lambda: hub.delivered)
    metrics.counter("sliceplane_hub_encoded_events", "Events encoded; watches share them.", lambda: hub.encoded)
    metrics.counter("sliceplane_hub_bookmarks", "Bookmarks put into queues of watches.", lambda: hub.bookmarked)
    metrics.counter(
        "sliceplane_hub_overflowed_watches", "Watches ended since they were too slow.", lambda: hub.overflowed
    )
    metrics.counter(
        "sliceplane_revoked_watches",
        "Watches ended since their token, account or rights were gone.",
        lambda: plane.revocation.revoked,
    )
    metrics.counter(
        "sliceplane_rbac_comparisons_given_up",
        "Writes of roles and bindings refused as their rules were too many to compare.",
        lambda: plane.registry.comparisons_given_up,
    )
    metrics.counter("sliceplane_hub_faults", "Events that could not be shown.", lambda: hub.faults)


def _add_process(plane: Plane) -> None:
    metrics, gates = plane.metrics, plane.config.gates

    def features() -> Iterator[tuple[Labels, float]]:
        for name in sorted(GATES):
            spec = spec_at(name, gates.release)
            if spec is not None:
                stage = "" if spec.stage == "GA" else spec.stage
                yield {"name": name, "stage": stage}, gates.enabled(name)

    def checks() -> Iterator[tuple[Labels, float]]:
        for endpoint in ("healthz", "livez", "readyz"):
            for name, why in plane.health.results(endpoint):
                yield {"name": name, "type": endpoint}, not why

    metrics.gauges("kubernetes_feature_enabled", "Feature gates: 1 is on.", features)
    metrics.gauges("kubernetes_healthcheck", "Health checks: 1 is well.", checks)
    metrics.gauges(
        "kubernetes_build_info", "What runs, as /version has it.", lambda: ((build_labels(gates.release), 1),)
    )
