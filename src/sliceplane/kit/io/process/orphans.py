"""Foreign programs that must not outlive this process: their process groups are ended when it has
ended.

A foreign program, and its children, do not end with their parent by themselves. So a small standby
process (``python -I orphans.py``, standard library only) receives the groups through a pipe, and
ends the remaining ones at the end of the pipe: by SIGTERM, and by SIGKILL after the grace of each.
It is started with the first group; further programs cost nothing.

A group is identified by the id and start time of its first process (``proc_pid_stat(5)``): a reused
id is ignored.
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
    """The pipe to the standby process. Owned by one event loop's thread."""

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
        """Sends a line; if the standby process has ended, starts a new one and sends every group."""
        assert len(line) < 512, "a write to a pipe of so much is whole or not at all (PIPE_BUF)"
        if self._process is not None and self._process.stdin is not None:
            try:
                os.write(self._process.stdin.fileno(), line.encode())
                return
            except OSError:
                self.close()
        with contextlib.suppress(
            OSError
        ):  # no process can be started: only their parent ends programs
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
    """Returns the arguments with which an interpreter runs this module: its file, or its source if
    the file is in an archive.
    """
    if Path(__file__).exists():
        return (__file__,)
    return ("-c", str(__spec__.loader.get_source(__name__)))  # type: ignore[union-attr]  # zipimporter has it


@contextlib.contextmanager
def ended_with_us(pid: int, grace_s: float = 0.0) -> Iterator[None]:
    """Ensures within the block that the group led by *pid* does not outlive this process;
    *grace_s*: seconds between SIGTERM and SIGKILL. The caller is responsible for its normal end.
    """
    _standby.add(pid, grace_s)
    try:
        yield
    finally:
        _standby.remove(pid)


def start_of(pid: int) -> str:
    """Returns the start time of a process in clock ticks; "-" if it has ended, or if the system
    does not report it.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "-"


def stand_by() -> None:
    """Runs the standby process: reads lines until its parent has ended, and ends the remaining
    groups.
    """
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
    """Signals a group; returns False if it does not exist any more."""
    if start_of(pid) not in (start, "-"):
        return False
    try:
        os.killpg(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    stand_by()
