"""What a command does meanwhile, on stderr: for work of more than two seconds, and never in the answer's way."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

FIRST_S: Final = 2.0
#: on a terminal a line is written over; a log gets one now and then
_TERMINAL_S: Final = 0.2
_LOG_S: Final = 10.0


class WorkTold:
    """Called often, with what is being done.  As a context it takes its line away in the end."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + FIRST_S
        self._shown = ""

    def __enter__(self) -> WorkTold:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._shown:
            click.echo(f"\r{'':{len(self._shown)}}\r", nl=False, err=True)

    def __call__(self, doing: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_TERMINAL_S if self._terminal else _LOG_S)
        text = f"{now - self._began:.0f} s: {doing}"
        if self._terminal:
            click.echo(f"\r{text:{len(self._shown)}}", nl=False, err=True)
        else:
            click.echo(text, err=True)
        self._shown = text
