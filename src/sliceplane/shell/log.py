"""Structured logs on stderr; structlog is loaded by the first line that is written.

Loading structlog takes a quarter of a second, more than the whole rest of a start, so nobody imports it
at module level: ``get_logger`` hands out a proxy that binds on first use.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_level = LEVELS["info"]


def configure(level: str) -> None:
    """Choose the least severe level that is written.  Call once, before the first line."""
    global _level  # noqa: PLW0603  # one setting of the process, made by its command line
    _level = LEVELS[level]


class _Stderr:
    """Whatever ``sys.stderr`` is at the time of a line: test runners and shells replace it.

    A line that cannot be written (the disk is full, the reader of a pipe is gone) is lost, and never an error of
    whoever wanted to say something, least of all of what reports that the disk is full.
    """

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


@cache
def _root() -> Any:
    import structlog

    return structlog.wrap_logger(
        structlog.PrintLogger(_Stderr()),  # type: ignore[arg-type]  # all that it uses of a file is there
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
        if self.writes(level):
            getattr(_root(), level)(event, component=self._component, **values)

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
