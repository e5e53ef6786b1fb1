"""Writes structured log lines to stderr; ``log.Logger`` loads this module with its first line.

Loading structlog takes a quarter of a second, more than the whole rest of a start, so the first
line that is written loads it, too.

**A line holds no caller up.**  Lines for a file go through a queue to a thread (``line_writer``),
so a pipe without a reader, a terminal stopped with ^S, a full disk or a slow network file system
costs lines, never a moment of the event loop. What is lost is counted, and reported by the next
line that is taken. What a line looks like is the matter of ``logs.lines``.
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
#: what is still waiting at the end of the process may take so long
EXIT_S_MAX = 1.0

_json = False
_colour = False


def configure(level: str, form: str = "text", *, colour: bool = False) -> None:
    """Choose the least severe level that is written and the form of lines (one of
    ``logs.lines.FORMATS``), and have what libraries log written the same way: by themselves they
    would write to stderr at once, and wait for it. With *colour*, text on a terminal has colours.
    Call once, before the first line.
    """
    global _json, _colour  # settings of the process, made by its command line
    _json, _colour = form == "json", colour
    log._level = log.LEVELS[level]
    root = logging.getLogger()
    if not any(isinstance(handler, _Bridge) for handler in root.handlers):
        root.addHandler(_Bridge(logging.WARNING))


class _Bridge(logging.Handler):
    """Standard log records, of asyncio and aiohttp for example, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        exc_info = record.exc_info[1] if record.exc_info else None
        values = {} if exc_info is None else {"exc_info": exc_info}
        getattr(log.get_logger(record.name), level)(record.getMessage(), **values)


class _Stderr:
    """Whatever ``sys.stderr`` is at the time of a line: test runners and shells replace it.

    A line that cannot be written (the disk is full, the reader of a pipe is gone or asleep) is
    lost, and never an error of the caller, least of all of the one that reports that the disk is
    full.
    """

    def __init__(self) -> None:
        self.begin()
        #: lines that no file was asked to take
        self._lost_here = 0
        #: of those that are lost, the ones that a line has reported
        self._lost_reported = 0
        #: the last line that was written has no end
        self._torn = False

    def begin(self) -> None:
        """With a queue and a thread of this process: a fork has neither (programs of others that
        use our client).
        """
        self._writer = LineWriter("log", self._write_lines, bytes_max=QUEUE_BYTES_MAX)

    @property
    def lost(self) -> int:
        """Lines that were lost since the process began."""
        return self._lost_here + self._writer.lost

    def write(self, text: str) -> int:
        line = text if _json else log_lines.fit_text(text)
        descriptor = _descriptor()
        if descriptor is not None:
            if _colour and not _json and os.isatty(descriptor):
                line = log_lines.painted(line)
            self._writer.put(line.encode(errors="backslashreplace"))
            return len(text)
        # Not a file: what a test runner put there.
        try:
            sys.stderr.write(line)
        except (OSError, ValueError, AttributeError):
            self._lost_here += 1
        return len(text)

    def flush(self) -> None:
        """Lines leave by themselves."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until all has been written, for *timeout_s* at most; whether that came about."""
        return self._writer.flush(timeout_s)

    def _write_lines(self, lines: list[bytes]) -> int:
        """In the writer's thread; how many were not taken."""
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
                    # The program that started us made it so.
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
    """A line, with its end, that no library is needed for."""
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
    """How many lines stderr did not take since the process began."""
    return _stderr.lost


metrics = Metrics()
metrics.computed(
    "gauge", "sliceplane_log_lost_lines", "Log lines that stderr did not take in time.", lost_lines
)


def drain(timeout_s: float) -> bool:
    """Wait until every line so far has been written, for *timeout_s* at most; whether that came
    about.
    """
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
    """The last processor: by the form that is chosen when a line is written."""

    def render(logger: Any, name: str, values: MutableMapping[str, Any]) -> str:
        if not _json:
            return str(as_text(logger, name, values))
        first = {key: values.pop(key) for key in log_lines.KEYS if key in values}
        return log_lines.as_json({**first, **values})

    return render


def write(level: str, component: str, event: str, values: dict[str, Any]) -> None:
    """Writes one line, of whatever level."""
    try:
        write_line = getattr(_root(), level)
    except (OSError, ImportError) as error:
        # Not a descriptor left to read the library with, which is worth saying above all.
        texts = {name: str(value) for name, value in values.items()}
        _stderr.write(_plainly(level, component, event, {**texts, "plain": str(error)}))
        return
    write_line(event, component=component, **values)
