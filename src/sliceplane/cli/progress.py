"""What a command does meanwhile: a line on stderr that is written over, for work of more than two seconds.

Only on a terminal: in a log, or in what a program reads, it would be in the answer's way.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from sliceplane.kit.terminal_text import printable

FIRST_S: Final = 2.0
_AGAIN_S: Final = 0.2


class WorkTold:
    """Called often, with what is being done.  As a context it takes its line away in the end."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = self._began + FIRST_S if sys.stderr.isatty() else float("inf")
        self._shown = ""

    def __enter__(self) -> WorkTold:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo(f"\r{'':{len(self._shown)}}\r", nl=False, err=True)

    def __call__(self, doing: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _AGAIN_S
        text = f"{now - self._began:.0f} s: {printable(doing)}"
        click.echo(f"\r{text:{len(self._shown)}}", nl=False, err=True)
        self._shown = text
