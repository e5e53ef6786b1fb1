"""kill -9 at random moments: every acknowledged write is there afterwards, whole and in order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.figures import tell

from sliceplane.kit.rng import Rng
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.types import EventType, Key

WRITER = Path(__file__).parent / "crash_writer.py"
#: for each kill, of the time after the first acknowledgement
RUN_S_MAX = 0.25
#: of history: so few that compactions are hit by kills as well
EVENTS_MAX = 2000
#: after each kill all that these said is looked at, and of older lives the newest of each name
LIVES_LOOKED_AT = 3


class Round:
    """One life of the writing process."""

    def __init__(self, path: Path, seed: int, run_s: float) -> None:
        self.acknowledged: list[tuple[str, str, int, str]] = []
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(path), str(seed), str(EVENTS_MAX)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": ":".join(sys.path)},
            bufsize=0,  # what readline would hold back is lost to communicate
        )
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        timer = threading.Timer(run_s, process.kill)
        timer.start()
        try:
            output, errors = process.communicate(timeout=120)
        finally:
            timer.cancel()
            timer.join()
            process.kill()
        assert process.returncode == -9, errors.decode()
        # The last line may be cut; what was not printed whole was not acknowledged.
        lines = (first + output).split(b"\n")[:-1]
        self.acknowledged = [
            msgspec.json.decode(line, type=tuple[str, str, int, str]) for line in lines
        ]


class Promises:
    """What was acknowledged: the newest of each name, and every write of the last lives."""

    def __init__(self) -> None:
        self.newest: dict[str, tuple[str, int, str]] = {}
        self.recent: deque[Round] = deque(maxlen=LIVES_LOOKED_AT)

    def add(self, life: Round) -> None:
        self.recent.append(life)
        for acknowledged in life.acknowledged:
            self._promise(*acknowledged)

    def _promise(self, kind: str, name: str, revision: int, body: str) -> None:
        if name not in self.newest or self.newest[name][1] < revision:
            self.newest[name] = (kind, revision, body)

    def verify(self, path: Path, kit: Any) -> int:
        """Open the file as a server would; returns its revision."""
        backend = SqliteBackend.open(path)
        store = kit.restore(backend)
        backend.close()
        history = {event.revision: event for event in store.events_since(store.compacted, "pods")}
        assert len(history) < 2 * EVENTS_MAX, (
            "a kill may come between a batch and its compaction, and no more"
        )
        last = {event.record.key.name: revision for revision, event in sorted(history.items())}
        for life in self.recent:
            for kind, name, revision, body in life.acknowledged:
                assert revision <= store.revision, (
                    f"{kind} {name} at {revision} is lost, newest is {store.revision}"
                )
                if revision > store.compacted:
                    event = history[revision]
                    assert event.record.key == Key("pods", "ns", name)
                    assert event.record.body.decode() == body
                    assert (event.type is EventType.DELETED) == (kind == "delete")
        for name, (kind, revision, body) in self.newest.items():
            found = store.get(Key("pods", "ns", name))
            if found is not None and found.revision == revision:
                assert (kind, found.body.decode()) == ("put", body)
            else:
                # Overwritten or deleted by a later write that was not acknowledged any more, or
                # deleted as said.
                assert last.get(name, 0) > revision or kind == "delete", (
                    f"{kind} {name} at {revision}: found {found}"
                )
        for revision, event in sorted(history.items()):
            # Stored without an acknowledgement: what was there once stays, too, when its history is
            # gone.
            kind = "delete" if event.type is EventType.DELETED else "put"
            self._promise(kind, event.record.key.name, revision, event.record.body.decode())
        return store.revision


def run(path: Path, kills: int, seed: int, kit: Any) -> int:
    """The number of acknowledged writes."""
    rng = Rng(seed)
    promises = Promises()
    revision, acknowledged = 1, 0
    for life in range(kills):
        ended = Round(path, seed * 1000 + life, rng.uniform(0.0, RUN_S_MAX))
        assert ended.acknowledged
        acknowledged += len(ended.acknowledged)
        promises.add(ended)
        newest = promises.verify(path, kit)
        assert newest > revision, "it went on where it was"
        revision = newest
    return acknowledged


def test_five_kills(sqlite_path, kit):
    started = time.monotonic()
    run(sqlite_path, 5, 1, kit)
    assert time.monotonic() - started < 150, "far from the limit of a test"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_thousand_kills(sqlite_path, kit):
    acknowledged = run(sqlite_path, 1000, 2, kit)
    tell(f"1,000 kills of the storage, none of {acknowledged:,} acknowledged writes lost")
