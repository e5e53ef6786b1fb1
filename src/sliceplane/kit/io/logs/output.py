"""Writes structured log lines to stderr; ``log.Logger`` imports this module with its first line.

The import of structlog takes a quarter of a second, more than the rest of a start, so the first
written line imports it, too.

**A line never blocks its caller.** Lines for a file go through a queue to a thread
(``line_writer``), so a pipe without a reader, a terminal stopped with ^S, a full disk or a slow
network file system costs lines, but never blocks the event loop. Lost lines are counted, and
reported by the next written line. ``logs.lines`` defines the format of a line.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
from collections.abc import MutableMapping
from functools import cache
from typing import Any

from sliceplane.kit.io import log
from sliceplane.kit.io.logs import lines as log_lines
from sliceplane.kit.io.logs.line_writer import LineWriter
from sliceplane.kit.metrics import Metrics

QUEUE_BYTES_MAX = 1024 * 1024
#: seconds for queued lines at the end of the process
EXIT_S_MAX = 1.0

_json = False
_colour = False


def configure(level: str, form: str = "text", *, colour: bool = False) -> None:
    """Sets the least severe written level and the format (one of ``logs.lines.FORMATS``), and
    routes log records of libraries through the same queue: by themselves they would write to stderr
    and block. With *colour*, text on a terminal has colours. Call it once, before the first line.
    """
    global _json, _colour  # settings of the process, from its command line
    _json, _colour = form == "json", colour
    log._level = log.LEVELS[level]
    root = logging.getLogger()
    if not any(isinstance(handler, _Bridge) for handler in root.handlers):
        root.addHandler(_Bridge(logging.WARNING))


class _Bridge(logging.Handler):
    """Converts standard log records, for example of asyncio and aiohttp, to our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        exc_info = record.exc_info[1] if record.exc_info else None
        values = {} if exc_info is None else {"exc_info": exc_info}
        getattr(log.get_logger(record.name), level)(record.getMessage(), **values)


class _Stderr:
    """The current ``sys.stderr`` at each line: test runners and shells replace it.

    A line that cannot be written (the disk is full, the reader of a pipe has ended or is blocked)
    is lost, and never an error of the caller, which may be reporting the full disk.
    """

    def __init__(self) -> None:
        self.begin()
        #: lines that were lost before they reached a file
        self._lost_here = 0
        #: number of lost lines that were reported
        self._lost_reported = 0
        #: True if the last line was written without its newline
        self._torn = False

    def begin(self) -> None:
        """Creates the queue and the thread of this process: a fork has neither (foreign programs
        that use our client).
        """
        self._writer = LineWriter("log", self._write_lines, bytes_max=QUEUE_BYTES_MAX)

    @property
    def lost(self) -> int:
        """The number of lines lost since the process began."""
        return self._lost_here + self._writer.lost

    def write(self, text: str) -> int:
        line = text if _json else log_lines.fit_text(text)
        descriptor = _descriptor()
        if descriptor is not None:
            if _colour and not _json and os.isatty(descriptor):
                line = log_lines.painted(line)
            self._writer.put(line.encode(errors="backslashreplace"))
            return len(text)
        # Not a file: the replacement of a test runner.
        try:
            sys.stderr.write(line)
        except (OSError, ValueError, AttributeError):
            self._lost_here += 1
        return len(text)

    def flush(self) -> None:
        """Does nothing: the thread writes all lines."""

    def drain(self, timeout_s: float) -> bool:
        """Waits until all lines are written, at most *timeout_s*; returns True if they are."""
        return self._writer.flush(timeout_s)

    def _write_lines(self, lines: list[bytes]) -> int:
        """Writes lines in the writer's thread; returns the number of lost ones."""
        lost = self.lost
        if lost > self._lost_reported:
            notice = _plainly(
                "warning",
                "log",
                "lines were lost: stderr took no more",
                {"lines": lost - self._lost_reported},
            )
            if self._write_line(notice.encode()):
                self._lost_reported = lost
        return sum([not self._write_line(line) for line in lines])

    def _write_line(self, line: bytes) -> bool:
        """Writes *line*; returns True if all of it was taken."""
        fd = _descriptor()
        if fd is None:
            return False
        rest = memoryview(b"\n" + line if self._torn else line)
        try:
            while rest:
                try:
                    rest = rest[os.write(fd, rest) :]
                    self._torn = True
                except BlockingIOError:
                    # The parent program made the descriptor non-blocking.
                    poller = select.poll()
                    poller.register(fd, select.POLLOUT)
                    poller.poll()
        except OSError:
            return False
        self._torn = False
        return True


def _descriptor() -> int | None:
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _plainly(level: str, component: str, event: str, values: dict[str, Any]) -> str:
    """Returns a line, with its newline, without using a library."""
    line = {
        "timestamp": log_lines.now(),
        "level": level,
        "component": component,
        "event": event,
        **values,
    }
    return (log_lines.as_json(line) if _json else log_lines.plain_text(line)) + "\n"


_stderr = _Stderr()
os.register_at_fork(after_in_child=_stderr.begin)


def lost_lines() -> int:
    """Returns the number of lines that stderr did not accept since the process began."""
    return _stderr.lost


metrics = Metrics()
metrics.computed(
    "gauge", "sliceplane_log_lost_lines", "Log lines that stderr did not take in time.", lost_lines
)


def drain(timeout_s: float) -> bool:
    """Waits until every line so far is written, at most *timeout_s*; returns True if it is."""
    return _stderr.drain(timeout_s)


@cache
def _root() -> Any:
    import structlog

    atexit.register(drain, EXIT_S_MAX)
    return structlog.wrap_logger(
        structlog.WriteLogger(_stderr),  # type: ignore[arg-type]  # all that it uses of a file is there
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _rendered(structlog.processors.LogfmtRenderer(key_order=list(log_lines.KEYS))),
        ],
        cache_logger_on_first_use=True,
    )


def _rendered(as_text: Any) -> Any:
    """Renders a line in the format that is configured when it is written; the last processor."""

    def render(logger: Any, name: str, values: MutableMapping[str, Any]) -> str:
        if not _json:
            return str(as_text(logger, name, values))
        first = {key: values.pop(key) for key in log_lines.KEYS if key in values}
        return log_lines.as_json({**first, **values})

    return render


def write(level: str, component: str, event: str, values: dict[str, Any]) -> None:
    """Writes one line of any level."""
    try:
        write_line = getattr(_root(), level)
    except (OSError, ImportError) as error:
        # There is no descriptor left to import the library with, which must be reported first.
        texts = {name: str(value) for name, value in values.items()}
        _stderr.write(_plainly(level, component, event, {**texts, "plain": str(error)}))
        return
    write_line(event, component=component, **values)
