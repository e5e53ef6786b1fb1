"""Named loggers. ``logs.output``, which the first line imports, writes the lines."""

from __future__ import annotations

from typing import Any

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

#: level of the least severe lines that are written; ``logs.output.configure`` sets it
_level = LEVELS["info"]


class Logger:
    """A named logger. Events are constant sentences; variable parts are keyword values."""

    __slots__ = ("_component",)

    def __init__(self, component: str) -> None:
        self._component = component

    def _write(self, level: str, event: str, values: dict[str, Any]) -> None:
        if not self.writes(level):
            return
        try:
            from sliceplane.kit.io.logs import output as log_output
        except (OSError, ImportError):
            return  # there is no descriptor left to import it with; our programs import it at their start
        log_output.write(level, self._component, event, values)

    def writes(self, level: str) -> bool:
        """Returns True if lines of *level* are written: check it before collecting costly
        values.
        """
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
