"""The flags of every long-running command that say what is logged, and how."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import msgspec

from sliceplane.cli.flags import choice, switch, with_options


class Logs(msgspec.Struct, frozen=True):
    """The values of the three log flags."""

    level: str = "info"
    form: str = "text"
    colour: bool = True

    @property
    def settings(self) -> tuple[str, str, bool]:
        """Level, format, and whether there are colours."""
        # https://no-color.org: set, and not empty
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return self.level, self.form, self.colour and not plain

    def begin(self) -> None:
        """Before the first line."""
        from sliceplane.kit.io.logs.output import configure

        level, form, colour = self.settings
        configure(level, form, colour=colour)


_log_options = with_options(
    choice(
        "--log-level",
        "The least that is logged, to stderr.",
        ("debug", "info", "warning", "error"),
        "info",
    ),
    choice(
        "--log-format",
        "logfmt, with colours on a terminal; or one JSON object a line.",
        ("text", "json"),
        "text",
    ),
    switch("--no-color", "No colours in a log on a terminal; so does NO_COLOR=1."),
)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--log-level``, ``--log-format`` and ``--no-color``; the command gets them as ``logs``, a
    ``Logs``.
    """

    @wraps(command)
    def with_logs(
        *arguments: Any, log_level: str, log_format: str, no_color: bool, **flags: Any
    ) -> Any:
        return command(*arguments, logs=Logs(log_level, log_format, not no_color), **flags)

    return _log_options(with_logs)
