"""Structured logs on stderr; structlog is loaded by the first line that is written.

Loading structlog takes a quarter of a second, more than the whole rest of a start, so nobody imports it
at module level: ``get_logger`` hands out a proxy that binds on first use.

**Nobody waits for the reader of stderr.**  A pipe whose reader has stopped takes some 64 KiB and then blocks whoever
writes, which would be the event loop with all its clients.  So the pipe is asked first (poll(2)), and gets at most
``PIPE_BUF`` bytes at a time, which it then takes at once; lines that it has no room for are lost, counted, and told of
by the next line that it takes.
"""

from __future__ import annotations

import select
import sys
from functools import cache
from typing import Any

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_level = LEVELS["info"]


def configure(level: str) -> None:
    """Choose the least severe level that is written.  Call once, before the first line."""
    global _level  # noqa: PLW0603  # one setting of the process, made by its command line
    _level = LEVELS[level]


#: characters; in UTF-8 no more than PIPE_BUF (4,096 bytes), which a pipe with any room takes whole
_CHUNK_CHARACTERS = 1024


class _Stderr:
    """Whatever ``sys.stderr`` is at the time of a line: test runners and shells replace it.

    A line that cannot be written (the disk is full, the reader of a pipe is gone or asleep) is lost, and never an error
    of whoever wanted to say something, least of all of what reports that the disk is full.
    """

    def __init__(self) -> None:
        #: lines that were lost since the process began, and those of them that were told of
        self.lost = 0
        self._told = 0
        #: the last line that was written has no end
        self._torn = False

    def write(self, text: str) -> int:
        if self.lost > self._told:
            count, told = self.lost - self._told, self.lost
            notice = f'level=warning component=log event="lines were lost: stderr took no more" lines={count}\n'
            if self._write(notice):
                self._told = told
            else:
                self.lost += 1
                return len(text)
        if not self._write(text):
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Every chunk is flushed as it is written."""

    def _write(self, text: str) -> bool:
        """Whether all of it was taken."""
        if self._torn:
            text = f"\n{text}"
        for start in range(0, len(text), _CHUNK_CHARACTERS):
            try:
                if not _has_room(sys.stderr):
                    return False
                sys.stderr.write(text[start : start + _CHUNK_CHARACTERS])
                sys.stderr.flush()
            except (OSError, ValueError):
                return False
            self._torn = not text[: start + _CHUNK_CHARACTERS].endswith("\n")
        return True


def _has_room(stream: Any) -> bool:
    """Whether a small write returns at once.  Raises ``ValueError`` for a closed stream."""
    try:
        fd = stream.fileno()
    except (OSError, AttributeError):
        # Not a file: what a test runner put there.
        return True
    asked = select.poll()
    asked.register(fd, select.POLLOUT)
    return bool(asked.poll(0))


_stderr = _Stderr()


def lost_lines() -> int:
    """How many lines stderr did not take since the process began."""
    return _stderr.lost


@cache
def _root() -> Any:
    import structlog

    return structlog.wrap_logger(
        structlog.WriteLogger(_stderr),  # type: ignore[arg-type]  # all that it uses of a file is there
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "component", "event"]),
        ],
        cache_logger_on_first_use=True,
    )


class Logger:
    """A named logger.  Events are constant sentences; what varies goes into keyword values."""

    __slots__ = ("_component",)

    def __init__(self, component: str) -> None:
        self._component = component

    def _write(self, level: str, event: str, values: dict[str, Any]) -> None:
        if not self.writes(level):
            return
        try:
            write = getattr(_root(), level)
        except (OSError, ImportError) as error:
            # Not a descriptor left to read the library with, which is worth saying above all.
            told = " ".join(f"{name}={str(value)!r}" for name, value in values.items())
            _stderr.write(f'level={level} component={self._component} event="{event}" {told} plain="{error}"\n')
            return
        write(event, component=self._component, **values)

    def writes(self, level: str) -> bool:
        """Whether lines of *level* are written: ask before collecting what is costly."""
        return LEVELS[level] >= _level

    def debug(self, event: str, **values: Any) -> None:
        self._write("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        self._write("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._write("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """Pass ``exc_info=error`` to add the traceback."""
        self._write("error", event, values)


def get_logger(component: str) -> Logger:
    return Logger(component)
