"""Foreign programs that must not outlive this process: their process groups are ended when it is
gone.

A program that we did not write cannot be asked to end with its parent, and what it starts even
less. So a small process stands by (``python -I orphans.py``, standard library alone), is told by a
pipe which groups there are, and at the end of the pipe ends those that are left: SIGTERM, and
SIGKILL for what remains after a time of each. It is started with the first group, and costs nothing
for each program after that.

A group is known by its first process's id and start time (``proc_pid_stat(5)``): an id that means
another process by then is left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.02


class _Standby:
    """The pipe to the process that stands by.  Of one event loop's thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: dict[int, str] = {}

    def add(self, pid: int, grace_s: float) -> None:
        self._groups[pid] = f"{pid} {start_of(pid)} {grace_s}\n"
        self._send(self._groups[pid])

    def remove(self, pid: int) -> None:
        if self._groups.pop(pid, None) is not None and self._process is not None:
            self._send(f"{pid}\n")

    def _send(self, line: str) -> None:
        """A process that stands by no more has a successor, which is told of every group."""
        assert len(line) < 512, "a write to a pipe of so much is whole or not at all (PIPE_BUF)"
        if self._process is not None and self._process.stdin is not None:
            try:
                os.write(self._process.stdin.fileno(), line.encode())
                return
            except OSError:
                self.close()
        with contextlib.suppress(
            OSError
        ):  # no process can be had: programs are ended by their parent alone
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", *_own_program()),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._process.stdin is not None, "it is a pipe"
            os.write(self._process.stdin.fileno(), "".join(self._groups.values()).encode())

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


_standby: Final = _Standby()
atexit.register(_standby.close)


def _own_program() -> tuple[str, ...]:
    """The arguments with which an interpreter runs this module: its file, or its text if the file
    is in an archive.
    """
    if Path(__file__).exists():
        return (__file__,)
    return ("-c", str(__spec__.loader.get_source(__name__)))  # type: ignore[union-attr]  # zipimporter has it


@contextlib.contextmanager
def ended_with_us(pid: int, grace_s: float = 0.0) -> Iterator[None]:
    """The group of *pid*, which leads it, does not outlive this process within the block;
    *grace_s*: its time between SIGTERM and SIGKILL. What ends it otherwise is the caller's matter.
    """
    _standby.add(pid, grace_s)
    try:
        yield
    finally:
        _standby.remove(pid)


def start_of(pid: int) -> str:
    """When a process began, in clock ticks; "-" if it has ended, or if the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "-"


def stand_by() -> None:
    """The process itself: reads lines until its parent is gone, and ends what is left then."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, tuple[str, float]] = {}
    for line in sys.stdin:
        pid, *rest = line.split()
        if rest:
            groups[int(pid)] = (rest[0], float(rest[1]))
        else:
            groups.pop(int(pid), None)
    began = time.monotonic()
    remaining = {
        pid: grace_s
        for pid, (start, grace_s) in groups.items()
        if _signal(pid, start, signal.SIGTERM)
    }
    while remaining:
        for pid, grace_s in tuple(remaining.items()):
            over = time.monotonic() - began >= grace_s
            if not _signal(pid, groups[pid][0], signal.SIGKILL if over else 0) or over:
                del remaining[pid]
        time.sleep(_POLL_S)


def _signal(pid: int, start: str, number: int) -> bool:
    """False: there is no such group any more."""
    if start_of(pid) not in (start, "-"):
        return False
    try:
        os.killpg(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    stand_by()
