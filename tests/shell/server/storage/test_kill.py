"""kill -9 at random moments: every acknowledged write is there afterwards, whole and in order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.figures import tell

from sliceplane.kit.rng import Rng
from sliceplane.shell.server.storage.sqlite import SqliteBackend
from sliceplane.store.types import EventType, Key

WRITER = Path(__file__).parent / "crash_writer.py"
#: for each kill, of the time after the first acknowledgement
RUN_S_MAX = 0.25


class Round:
    """One life of the writing process."""

    def __init__(self, path: Path, seed: int, run_s: float) -> None:
        self.acknowledged: list[tuple[str, str, int, str]] = []
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(path), str(seed)],
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
        self.acknowledged = [msgspec.json.decode(line, type=tuple[str, str, int, str]) for line in lines]


def verify(path: Path, rounds: list[Round], kit: Any) -> int:
    """Open the file as a server would; returns its revision."""
    backend = SqliteBackend.open(path)
    store = kit.restore(backend)
    backend.close()
    history = {event.revision: event for event in store.events_since(store.compacted, "pods")}
    newest: dict[str, tuple[str, int, str]] = {}
    for life in rounds:
        for kind, name, revision, body in life.acknowledged:
            assert revision <= store.revision, f"{kind} {name} at {revision} is lost, newest is {store.revision}"
            if revision > store.compacted:
                event = history[revision]
                assert event.record.key == Key("pods", "ns", name)
                assert event.record.body.decode() == body
                assert (event.type is EventType.DELETED) == (kind == "delete")
            if name not in newest or newest[name][1] < revision:
                newest[name] = (kind, revision, body)
    for name, (kind, revision, body) in newest.items():
        found = store.get(Key("pods", "ns", name))
        if found is not None and found.revision == revision:
            assert (kind, found.body.decode()) == ("put", body)
        else:
            # Overwritten or deleted by a later write that was not acknowledged any more, or deleted as said.
            later = [event for event in history.values() if event.record.key.name == name and event.revision > revision]
            assert later or kind == "delete", f"{kind} {name} at {revision}: found {found}"
    return store.revision


def run(path: Path, kills: int, seed: int, kit: Any) -> None:
    rng = Rng(seed)
    rounds: list[Round] = []
    revision = 1
    for life in range(kills):
        rounds.append(Round(path, seed * 1000 + life, rng.uniform(0.0, RUN_S_MAX)))
        assert rounds[-1].acknowledged
        newest = verify(path, rounds, kit)
        assert newest > revision, "it went on where it was"
        revision = newest


def test_five_kills(sqlite_path, kit):
    started = time.monotonic()
    run(sqlite_path, 5, 1, kit)
    assert time.monotonic() - started < 150, "far from the limit of a test"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_kills(sqlite_path, kit):
    run(sqlite_path, 1000, 2, kit)
    tell("1,000 kills of the storage, no acknowledged write lost")
