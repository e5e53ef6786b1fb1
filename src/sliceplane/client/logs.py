"""What informers tell, through the standard library's ``logging``: a library does not print."""

from __future__ import annotations

import logging
from typing import Any

_logger = logging.getLogger("sliceplane.client")


class StandardLog:
    """See ``shell.transport.reflect.Log``.  Values follow the event as ``name=value``."""

    def info(self, event: str, **values: Any) -> None:
        self._write(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._write(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        self._write(logging.ERROR, event, values)

    @staticmethod
    def _write(level: int, event: str, values: dict[str, Any]) -> None:
        if _logger.isEnabledFor(level):
            failure = values.pop("exc_info", None)
            told = " ".join(f"{name}={value}" for name, value in values.items())
            _logger.log(level, "%s %s", event, told, exc_info=failure)
