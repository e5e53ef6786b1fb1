"""Processes under measurement: started and stopped in order, their CPU time and memory read from
the kernel.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
START_S = 60.0
STOP_S = 20.0
#: of linux/posix-timers.h
_CPUCLOCK_SCHED = 2


def child_environment() -> dict[str, str]:
    """As a user's process has it: byte code is cached, or every start would compile everything."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def cpu_s_of(pid: int) -> float:
    """User and system time of a process and its threads: to the nanosecond, where /proc counts
    ticks of 10 ms. The clock's number is as clock_getcpuclockid(3) makes it of the process's.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


class Process:
    """A child whose standard output is a sequence of lines that the benchmark waits for.

    Use as a context manager; leaving it ends the child (SIGTERM, then SIGKILL). *log*: where
    standard error goes; *environment*: what differs from ours.
    """

    def __init__(self, *command: str, log: Path | None = None, **environment: str) -> None:
        self._log = log
        self._buffer = b""
        with ExitStack() as stack:
            errors = subprocess.DEVNULL if log is None else stack.enter_context(log.open("ab"))
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=child_environment() | environment,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def line(self, timeout_s: float = START_S) -> str:
        """The next line of standard output.  Raises ``RuntimeError`` with the end of the log if
        there is none.
        """
        output = self.process.stdout
        assert output is not None, "standard output is a pipe"
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([output], [], [], timeout_s)
            data = os.read(output.fileno(), 65536) if readable else b""
            if not data:
                said = (
                    self._log.read_text().strip().splitlines()[-5:] if self._log is not None else []
                )
                what = "ended" if readable else f"said nothing for {timeout_s:.0f} s"
                raise RuntimeError(f"{self.process.args!r} {what}: {' | '.join(said)}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None, "standard input is a pipe"
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def cpu_s(self) -> float:
        """User and system time so far, of the process and all of its threads."""
        return cpu_s_of(self.process.pid)

    def rss_mib(self, *, peak: bool = False) -> float:
        wanted = "VmHWM:" if peak else "VmRSS:"
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(wanted):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"process {self.process.pid} has no {wanted}")


class PlaneProcess(Process):
    """``sliceplane up`` (or another serving command) on a free port of 127.0.0.1, ready to
    answer.
    """

    def __init__(self, folder: Path, *flags: str, command: str = "up") -> None:
        data = ("--data-dir", str(folder / "data")) if "--data-dir" not in flags else ()
        super().__init__(
            *(
                sys.executable,
                "-m",
                "sliceplane",
                command,
                "--secure-port",
                "0",
                "--log-level",
                "warning",
            ),
            *data,
            *flags,
            log=folder / "plane.log",
        )
        try:
            line = self.line()
        except BaseException:
            self.stop()
            raise
        assert line.startswith("ready https://"), f"sliceplane {command} said {line!r}"
        self.url = line.split()[1]
        self.kubeconfig = Path(line.partition("kubeconfig=")[2])


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder on the disk for what a benchmark's processes write; a context manager."""
    return tempfile.TemporaryDirectory(prefix="sliceplane-bench-")
