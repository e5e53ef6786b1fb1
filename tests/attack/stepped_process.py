"""Runs ``sliceplane`` and measures its loop: ``python -m tests.attack.stepped_process FILE
ARGUMENTS...``.

FILE has eight bytes, which an attack maps: the longest step of the loop since they were last zero,
in microseconds of the processor time of its thread, so that other programs on the machine do not
count. The loop is asyncio's own, whose steps can be timed, and which an agent without uvloop has.
"""

from __future__ import annotations

import mmap
import sys
import time
from asyncio import events
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP_BYTES = 8


def time_steps(on_step: Callable[[float], object]) -> None:
    """Call *on_step* with the seconds of processor time of each step of an asyncio loop of this
    process.
    """
    run = events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        on_step(time.thread_time() - began)

    events.Handle._run = timed  # type: ignore[attr-defined]


class LongestStep:
    """The attack's side: FILE, and the seconds that a process wrote there."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(STEP_BYTES))
        self.path = path
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), STEP_BYTES)

    def reset(self) -> None:
        self._mapped[:] = bytes(STEP_BYTES)

    @property
    def seconds(self) -> float:
        return int.from_bytes(self._mapped[:], "little") / 1e6


def main() -> None:
    with open(sys.argv[1], "r+b") as file:
        longest = mmap.mmap(file.fileno(), STEP_BYTES)

    def on_step(seconds: float) -> None:
        microseconds = int(seconds * 1e6)
        if microseconds > int.from_bytes(longest[:], "little"):
            longest[:] = microseconds.to_bytes(STEP_BYTES, "little")

    time_steps(on_step)
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    sys.argv = ["sliceplane", *sys.argv[2:]]
    from sliceplane.cli.entry import main as command

    command()


if __name__ == "__main__":
    main()
