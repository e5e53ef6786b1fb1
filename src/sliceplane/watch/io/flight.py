"""The flight recorder of a process: its size, its files, and what makes it save by itself.

A file is written under a temporary name, brought to disk, and renamed: whatever has a name that
ends in ``.recording`` was written whole. The newest ``FILES_KEPT`` are kept. What saves by itself:
health that turns red, a bug's traceback, a trigger of another part (``Recorder.trigger``); at most
once in ``QUIET_S``, because faults come in crowds. SIGUSR1 saves each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from sliceplane import __version__
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.times import format_time
from sliceplane.watch.recorder.file import Header, write_lines
from sliceplane.watch.recorder.recorder import Recorder

#: of a plane, and of controllers without one
SIZE_MIB: Final = 64
QUIET_S: Final = 600.0
FILES_KEPT: Final = 10
SUFFIX: Final = ".recording"
#: of an API server: what its recorder keeps
PATH: Final = "/sliceplane/recording"
_CHECK_PERIOD_S: Final = 1.0
#: steps of a checkpoint between two checks, so that a save has few of them to write in one go
_CHECKPOINT_STEPS: Final = 50
_SLUG_MAX: Final = 40

_log = get_logger("recorder")


class FlightConfig(msgspec.Struct, frozen=True):
    """``folder`` ``None``: where the process keeps its data.  ``size_bytes`` 0: nothing is
    recorded.
    """

    size_bytes: int = SIZE_MIB << 20
    folder: Path | None = None


class FlightRecorder:
    """Made inside a running loop; ``run`` is one task, until cancelled.

    *unhealthy* tells why the process is not well, "" if it is.
    """

    def __init__(
        self,
        component: str,
        size_bytes: int,
        folder: Path,
        clock: Callable[[], float],
        unhealthy: Callable[[], str],
    ) -> None:
        self.recorder = Recorder(size_bytes, os.urandom(16), clock())
        #: what a replay needs to make the same controllers
        self.settings: dict[str, Any] = {}
        self._component = component
        self._folder = folder
        self._clock = clock
        self._unhealthy = unhealthy
        self._was_unhealthy = True  # a process that starts is not ready, which is no incident
        self._saved_at: float | None = None
        self._is_save_requested = False
        self.metrics = metrics = Metrics()
        ring = self.recorder.ring
        metrics.computed(
            "gauge",
            "sliceplane_recorder_bytes",
            "Bytes that are kept.",
            lambda: [((), ring.size_bytes)],
        )
        metrics.computed(
            "counter",
            "sliceplane_recorder_entries_total",
            "Entries recorded.",
            lambda: [((), ring.entries + ring.forgotten)],
        )
        self._files = metrics.counters(
            "sliceplane_recorder_saves_total", "Recordings saved, by result.", "result"
        )
        for result in ("saved", "failed"):
            self._files.of(result)  # an increase is seen of a series that is there before it

    # -- saving

    def lines(self, reason: str) -> Iterator[bytes]:
        """Yields the lines of a file of everything that is kept now; also in another thread."""
        segments = self.recorder.segments()
        saved = self._clock()
        forgotten = self.recorder.ring.forgotten
        authority = self.recorder.redactor.token(self.settings.get("authority", ""))

        def encoded_lines() -> Iterator[bytes]:
            header = Header(
                program=__version__,
                component=self._component,
                host=socket.gethostname(),
                saved=saved,
                reason=reason,
                settings={**self.settings, "authority": authority},
                entries=sum(segment.entries for segment in segments),
                forgotten=forgotten,
            )
            yield from write_lines(header, segments)

        return encoded_lines()

    async def save(self, reason: str) -> Path | None:
        """The file; ``None`` where it cannot be written, which the log tells."""
        moment = format_time(self._clock()).replace(":", "").replace("-", "")
        slug = re.sub(r"[^a-z0-9]+", "-", reason.lower()).strip("-")[:_SLUG_MAX].strip("-")
        path = self._folder / f"{self._component}-{moment}-{slug}{SUFFIX}"
        lines = self.lines(reason)
        try:
            await asyncio.to_thread(_write, path, lines)
        except OSError as error:
            self._files.of("failed").value += 1
            _log.error(
                "a recording was not saved",
                file=str(path),
                reason=reason,
                error=error.strerror or str(error),
            )
            return None
        self._files.of("saved").value += 1
        _log.warning("a recording was saved", file=str(path), reason=reason)
        return path

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(
            ValueError, RuntimeError
        ):  # not the main thread: without the signal, then
            loop.add_signal_handler(signal.SIGUSR1, self._request_save)
        try:
            while True:
                await asyncio.sleep(_CHECK_PERIOD_S)
                for _ in range(_CHECKPOINT_STEPS):
                    if not self.recorder.go_on_with_checkpoint():
                        break
                    await asyncio.sleep(0)
                reason = self.take_save_reason()
                if reason:
                    await self.save(reason)
        finally:
            with contextlib.suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(signal.SIGUSR1)

    def _request_save(self) -> None:
        self._is_save_requested = True

    def take_save_reason(self) -> str:
        """Returns why to save a recording now, or "", and forgets the request."""
        if self._is_save_requested:
            self._is_save_requested = False
            return "SIGUSR1"
        problem = self._unhealthy()
        turned = problem and not self._was_unhealthy
        self._was_unhealthy = bool(problem)
        reason = self.recorder.take_trigger() or (f"health: {problem}" if turned else "")
        now = self._clock()
        if not reason or (self._saved_at is not None and now - self._saved_at < QUIET_S):
            return ""
        self._saved_at = now
        return reason


def _write(path: Path, lines: Iterable[bytes]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, lines)
    kept = sorted(path.parent.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
    for file in kept[:-FILES_KEPT]:
        file.unlink(missing_ok=True)
    for part in path.parent.glob(f".*{SUFFIX}.*"):
        if not Path("/proc", part.suffix[1:]).exists():  # its writer was killed
            part.unlink(missing_ok=True)


def write_file(path: Path, lines: Iterable[bytes]) -> int:
    """All of it under this name, on disk, or nothing.  Gives its bytes.  Raises ``OSError``."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            size = sum(file.write(line) for line in lines)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return size


def default_folder() -> Path:
    """Returns the folder of a process that has no data folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):
        return Path(state) / "sliceplane" / "recordings"
    try:
        return Path.home() / ".local" / "state" / "sliceplane" / "recordings"
    except RuntimeError:
        return Path("/var/tmp/sliceplane/recordings")
