"""What storage tells monitoring, whichever back end there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from sliceplane.kit.metrics import Labels, Metrics, exponential_buckets
from sliceplane.store.mvcc import Store

#: etcd's buckets of its fsync
_FSYNC_BUCKETS = exponential_buckets(0.001, 2, 14)
_DATABASE_FILES = ("", "-wal")


class CommitMetrics(Metrics):
    """Owned by a committer, which says what was committed and how old memory is."""

    def __init__(self, commits: Callable[[], int], staleness_s: Callable[[], float]) -> None:
        super().__init__()
        self.batch_seconds = self.histogram(
            "sliceplane_storage_commit_duration_seconds",
            "Time to make a batch of commits durable, its fsync included.",
            _FSYNC_BUCKETS,
        )
        self.failures = self.counter("sliceplane_storage_failures_total", "Batches that were not stored.")
        self.computed("counter", "sliceplane_storage_commits_total", "Durable commits.", commits)
        self.computed(
            "gauge",
            "sliceplane_storage_staleness_seconds",
            "How long ago memory was last known to be as new as storage.",
            staleness_s,
        )


def store_metrics(store: Store, database: Path | None) -> Metrics:
    """*database* ``None``: the state is in no file of this machine."""
    metrics = Metrics()
    add = metrics.computed

    def objects() -> Iterator[tuple[Labels, float]]:
        for resource in sorted(store.resources()):
            plural, _, group = resource.partition(".")
            yield (group, plural), store.count(resource)

    def size() -> Iterator[tuple[Labels, float]]:
        if database is not None:
            files = [database.with_name(database.name + suffix) for suffix in _DATABASE_FILES]
            yield ("sliceplane",), sum(file.stat().st_size for file in files if file.exists())

    add("gauge", "apiserver_resource_objects", "Stored objects.", objects, "group", "resource")
    add(
        "gauge",
        "apiserver_storage_objects",
        "Stored objects, by plural.group; the older form of apiserver_resource_objects.",
        lambda: [((resource,), store.count(resource)) for resource in sorted(store.resources())],
        "resource",
    )
    add("gauge", "apiserver_storage_size_bytes", "Size of the database on disk.", size, "storage_cluster_id")
    add("gauge", "apiserver_storage_revision", "The newest durable revision.", lambda: store.revision)
    add("gauge", "sliceplane_storage_compacted_revision", "What is older is forgotten.", lambda: store.compacted)
    return metrics
