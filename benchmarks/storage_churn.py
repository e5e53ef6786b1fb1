"""SQLite under churn: many writes over 100,000 objects; file, memory and latency over time, and the
restart.

The production store, committer and retention, every commit on disk, and the tick of the server that
compacts. Bodies are small (300 bytes) so that the writes count, not their bytes. ``--writes
10000000`` is the long run, ``--plot FILE`` draws it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result, finish, percentile
from benchmarks.storage import Storage, build
from benchmarks.tools.process import scratch
from sliceplane.server.store.types import Key, Record

OBJECTS = 100_000
WRITERS = 256
WRITES = 500_000
SMALL_WRITES = 2_000
SMALL_OBJECTS = 500
BODY_BYTES = 300
#: as the server's
TICK_S = 1.0
#: one row of the record for so many writes
ROWS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """``*_ms``: of the commits since the row before."""

    writes: int
    seconds: float
    file_mb: float
    memory_mb: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class Churn:
    """Owned by one run."""

    def __init__(self, path: Path, writes: int, objects: int) -> None:
        self._path = path
        self._storage = Storage(path)
        self._objects = objects
        self._numbers = iter(range(writes))
        self._every = max(1, writes // ROWS)
        self._window = array("d")
        self._done = 0
        self._began = 0.0
        self.rows: list[Row] = []

    async def run(self) -> None:
        storage = self._storage
        storage.committer.start()
        ticking = asyncio.create_task(self._tick())
        self._began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WRITERS):
                    group.create_task(self._write())
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await storage.committer.close()

    async def _tick(self) -> None:
        while True:
            self._storage.committer.tick(time.monotonic())
            await asyncio.sleep(TICK_S)

    async def _write(self) -> None:
        store = self._storage.store
        committer = self._storage.committer
        for number in self._numbers:
            # Steps of a large odd number: neighbours in time are no neighbours in the file.
            key = Key("pods", "bench", f"pod-{number * 7919 % self._objects:06d}")
            began = time.perf_counter()
            record = store.stage_put(key, lambda revision, key=key: self._build(key, revision))
            await committer.durable(record.revision)
            self._window.append(time.perf_counter() - began)
            self._done += 1
            if self._done % self._every == 0:
                self._note()

    def _build(self, key: Key, revision: int) -> Record:
        previous = self._storage.store.latest(key)
        return build(
            key, revision, BODY_BYTES, created=revision if previous is None else previous.created
        )

    def _note(self) -> None:
        window = self._window
        self._window = array("d")
        self.rows.append(
            Row(
                writes=self._done,
                seconds=time.perf_counter() - self._began,
                file_mb=_size(self._path) / 1e6,
                memory_mb=_resident_bytes() / 1e6,
                p50_ms=percentile(window, 50) * 1e3,
                p99_ms=percentile(window, 99) * 1e3,
                max_ms=max(window) * 1e3,
            )
        )


def _size(path: Path) -> int:
    """With the log beside it."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def restart(path: Path) -> float:
    began = time.perf_counter()
    storage = Storage(path)
    spent = time.perf_counter() - began
    asyncio.run(storage.committer.close())
    return spent


def results(rows: Sequence[Row], objects: int, restarted: float) -> list[Result]:
    """Of the second half: by then every object was written and history is as long as it gets."""
    steady = rows[len(rows) // 2 :]
    first = steady[0]
    last = rows[-1]
    size = f"{last.writes:,} writes, {objects:,} keys"
    rate = (last.writes - first.writes) / (last.seconds - first.seconds) if len(steady) > 1 else 0.0

    def result(name: str, value: float, unit: str) -> Result:
        return Result(name=name, size=size, value=value, unit=unit)

    return [
        result("durable writes", rate, "1/s"),
        result("  one write, median", percentile([row.p50_ms for row in steady], 50), "ms"),
        result(
            "  one write, p99 (median of its windows)",
            percentile([row.p99_ms for row in steady], 50),
            "ms",
        ),
        result("  one write, longest of all", max(row.max_ms for row in rows), "ms"),
        result("file, largest", max(row.file_mb for row in rows), "MB"),
        result("file, at the end", last.file_mb, "MB"),
        result("memory, half way", first.memory_mb, "MB"),
        result("memory, at the end", last.memory_mb, "MB"),
        result("restart", restarted, "s"),
    ]


def plot(rows: Sequence[Row], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, sharex=True, figsize=(9, 8), layout="constrained")
    writes = [row.writes / 1e6 for row in rows]
    for name, values in (
        ("median", [row.p50_ms for row in rows]),
        ("p99", [row.p99_ms for row in rows]),
        ("longest", [row.max_ms for row in rows]),
    ):
        axes[0].plot(writes, values, label=name)
    axes[0].set(ylabel="one durable write, ms", yscale="log")
    axes[0].legend(loc="upper right")
    axes[1].plot(writes, [row.file_mb for row in rows])
    axes[1].set(ylabel="file and its log, MB", ylim=(0, None))
    axes[2].plot(writes, [row.memory_mb for row in rows])
    axes[2].set(ylabel="resident memory, MB", xlabel="writes, millions", ylim=(0, None))
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def measure(writes: int, objects: int, picture: Path | None = None) -> list[Result]:
    with scratch() as name:
        path = Path(name) / "churn.db"
        churn = Churn(path, writes, objects)
        asyncio.run(churn.run())
        rows = churn.rows
        del churn
        restarted = restart(path)
    if picture is not None:
        plot(rows, picture)
    return results(rows, objects, restarted)


def run(small: bool = False) -> list[Result]:
    return measure(SMALL_WRITES, SMALL_OBJECTS) if small else measure(WRITES, OBJECTS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--small", action="store_true", help="the smallest size that still runs everything"
    )
    parser.add_argument("--writes", type=int, default=WRITES)
    parser.add_argument("--plot", type=Path, default=None, metavar="FILE")
    arguments = parser.parse_args()
    measured = (
        run(small=True) if arguments.small else measure(arguments.writes, OBJECTS, arguments.plot)
    )
    finish(measured, as_json=arguments.json)


if __name__ == "__main__":
    main()
