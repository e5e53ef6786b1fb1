"""Storage: commits a second with many writers, what one writer waits, and a restart with 100,000
objects.

The production store, committer and SQLite back end with every commit on disk (fsync); no HTTP. The
disk is that of the temporary folder, so the first two say as much about it as about us: ``TMPDIR``
chooses another.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from benchmarks.harness import Result, main, percentile
from benchmarks.tools.process import scratch
from sliceplane.server.io.storage.committer import Committer
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record

WRITERS = 64
COMMITS = 20_000
SINGLE_COMMITS = 500
OBJECTS = 100_000
SMALL_COMMITS = 640
SMALL_SINGLE_COMMITS = 20
SMALL_OBJECTS = 1_000
#: about a Pod
BODY_BYTES = 2_000
LABELS = {"app": "web", "pod-template-hash": "7d4b9c6f5d"}


def build(key: Key, revision: int, size: int = BODY_BYTES, created: int = 0) -> Record:
    """*created*: 0 for a new object."""
    head = f'{{"kind":"Pod","metadata":{{"name":"{key.name}","resourceVersion":"{revision}"}},"fill":"'.encode()
    body = head + b"x" * (size - len(head) - 2) + b'"}'
    return Record(
        key=key,
        revision=revision,
        created=created or revision,
        uid=key.name,
        body=body,
        labels=LABELS,
        fields={},
    )


class Storage:
    """Store, hub, committer and file."""

    def __init__(self, path: Path) -> None:
        backend = SqliteBackend.open(path)
        loaded = backend.load()
        self.store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        self.committer = Committer(self.store, Hub(self.store), backend)

    async def put(self, name: str) -> None:
        key = Key("pods", "bench", name)
        record = self.store.stage_put(key, lambda revision: build(key, revision))
        await self.committer.durable(record.revision)


async def write(path: Path, commits: int, writers: int) -> tuple[list[float], float]:
    """Seconds of each commit, and of all of them; *writers* at a time."""
    storage = Storage(path)
    storage.committer.start()
    times: list[float] = []
    names = iter(range(commits))

    async def writer() -> None:
        for number in names:
            began = time.perf_counter()
            await storage.put(f"pod-{number:06d}")
            times.append(time.perf_counter() - began)

    started = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(writers)))
    wall = time.perf_counter() - started
    await storage.committer.close()
    return times, wall


def restart(path: Path) -> float:
    started = time.perf_counter()
    storage = Storage(path)
    spent = time.perf_counter() - started
    asyncio.run(storage.committer.close())
    return spent


def run(small: bool = False) -> list[Result]:
    commits, single, objects = (
        (SMALL_COMMITS, SMALL_SINGLE_COMMITS, SMALL_OBJECTS)
        if small
        else (COMMITS, SINGLE_COMMITS, OBJECTS)
    )
    with scratch() as name:
        folder = Path(name)
        one, _ = asyncio.run(write(folder / "one.db", single, 1))
        many, wall = asyncio.run(write(folder / "many.db", commits, WRITERS))
        asyncio.run(write(folder / "large.db", objects, 1_000))
        restarted = restart(folder / "large.db")
        size = (folder / "large.db").stat().st_size / 1e6
    body = f"{BODY_BYTES / 1000:g} kB objects"
    return [
        Result(name="commits", size=f"{WRITERS} writers, {body}", value=commits / wall, unit="1/s"),
        Result(
            name="  one commit, median",
            size=f"{WRITERS} writers",
            value=statistics.median(many) * 1e3,
            unit="ms",
        ),
        Result(
            name="  one commit, p99",
            size=f"{WRITERS} writers",
            value=percentile(many, 99) * 1e3,
            unit="ms",
        ),
        Result(
            name="one commit, median",
            size="1 writer",
            value=statistics.median(one) * 1e3,
            unit="ms",
        ),
        Result(name="  p99", size="1 writer", value=percentile(one, 99) * 1e3, unit="ms"),
        Result(
            name="restart, store ready",
            size=f"{objects:,} objects, {size:.0f} MB",
            value=restarted,
            unit="s",
        ),
    ]


if __name__ == "__main__":
    main(run)
