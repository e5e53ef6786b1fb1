"""Common parts of all storage: committers as a server uses them, errors at the start, reports,
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Labels, Metrics, exponential_buckets
from sliceplane.server.store.mvcc import Store

T = TypeVar("T")

#: etcd's buckets of its fsync
_FSYNC_BUCKETS = exponential_buckets(0.001, 2, 14)
_DATABASE_FILES = ("", "-wal")


_log = get_logger("plane")


class StorageError(Exception):
    """Opening or reading failed.  The text is one sentence for a person that names the file; the
    file is untouched.
    """


class Durability(Protocol):
    """A committer, as far as requests need it."""

    async def write(self, step: Callable[[], T], revision_of: Callable[[T], int]) -> T:
        """Runs *step*, possibly several times, and returns what it returned last when that is
        durable and published. Raises what *step* raises, and a 500 ``StatusError`` if it never will
        be durable.
        """

    async def current(self) -> None:
        """Returns when memory is as new as storage was at the call.  Raises the 504
        ``StatusError``.
        """

    @property
    def staleness_s(self) -> float:
        """Seconds since memory was last known to be as new as storage; 0 if no other server writes
        to that.
        """


class AnyCommitter(Durability, Protocol):
    """A committer, as the server has it: ``start``, then requests and ``tick``, then ``close``."""

    @property
    def failing(self) -> str | None:
        """The reason why storage does not work; ``None``: it does."""

    @property
    def metrics(self) -> Metrics: ...

    def start(self) -> None: ...

    def tick(self, now: float) -> None:
        """Time passes: history that is old enough is compacted."""

    async def close(self) -> None: ...


def health_of(committer: AnyCommitter) -> str:
    """Returns the problem of storage, and the age of memory that follows from it; "" if there is
    none.
    """
    if committer.failing is None:
        return ""
    age_s = committer.staleness_s
    return (
        f"{committer.failing}; memory was last known to be current {age_s:.0f} s ago"
        if age_s
        else committer.failing
    )


class TroubleLog:
    """Logs what an operator must know about storage, one sentence each."""

    def report(self, sentence: str) -> None:
        _log.error("storage", problem=sentence)

    def report_mended(self, sentence: str) -> None:
        """A problem that was reported is over, so no alarm is due."""
        _log.info("storage is well again", news=sentence)


class CommitMetrics(Metrics):
    """Owned by a committer, which says what was committed and how old memory is."""

    def __init__(self, commits: Callable[[], int], staleness_s: Callable[[], float]) -> None:
        super().__init__()
        self.batch_seconds = self.histogram(
            "sliceplane_storage_commit_duration_seconds",
            "Time to make a batch of commits durable, its fsync included.",
            _FSYNC_BUCKETS,
        )
        self.failures = self.counter(
            "sliceplane_storage_failures_total", "Batches that were not stored."
        )
        self.computed("counter", "sliceplane_storage_commits_total", "Durable commits.", commits)
        self.computed(
            "gauge",
            "sliceplane_storage_staleness_seconds",
            "How long ago memory was last known to be as new as storage.",
            staleness_s,
        )


def store_metrics(store: Store, database: Path | None, spare_bytes: Callable[[], int]) -> Metrics:
    """*database* ``None``: the state is in no file of this machine.  *spare_bytes*: free pages of
    the database.
    """
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
    add(
        "gauge",
        "apiserver_storage_size_bytes",
        "Size of the database on disk.",
        size,
        "storage_cluster_id",
    )
    add(
        "gauge",
        "sliceplane_storage_spare_bytes",
        "Free pages of the database when last inspected.",
        lambda: [] if database is None else [((), spare_bytes())],
    )
    counted = store.object_bytes
    add(
        "gauge",
        "sliceplane_object_bytes",
        "Bytes of the newest versions of all objects.",
        lambda: counted.total,
    )
    add(
        "gauge",
        "sliceplane_object_bytes_max",
        "The bound of them (--quota-backend-bytes).",
        lambda: counted.most,
    )
    add(
        "counter",
        "sliceplane_refused_object_bytes_total",
        "Writes for which the share of their namespace had no room.",
        lambda: counted.refused,
    )
    add(
        "gauge",
        "apiserver_storage_revision",
        "The newest durable revision.",
        lambda: store.revision,
    )
    add(
        "gauge",
        "sliceplane_storage_compacted_revision",
        "What is older is forgotten.",
        lambda: store.compacted,
    )
    return metrics
