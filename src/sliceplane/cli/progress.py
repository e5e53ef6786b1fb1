"""Reports on stderr what a command does meanwhile, from its second second on.

On a terminal one line is written over. Elsewhere, in a log say, there are lines only of a command
that waits for others (``plain``), so that it is never silent for more than two seconds.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Final

import click

from sliceplane.kit.terminal_text import printable

FIRST_S: Final = 2.0
_AGAIN_S: Final = 0.2
_PLAIN_S: Final = 1.5


class ProgressLine:
    """Called often, with what is being done.  As a context it takes its line away in the end."""

    def __init__(self, *, plain: bool = False) -> None:
        self._began = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        first_s = _PLAIN_S if plain else FIRST_S
        self._next = self._began + first_s if plain or self._is_terminal else float("inf")
        self._text = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Takes the line away, before another one is printed."""
        if self._text:
            click.echo(f"\r{'':{len(self._text)}}\r", nl=False, err=True)
            self._text = ""

    def __call__(self, action: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        text = f"{now - self._began:.0f} s: {printable(action)}"
        if not self._is_terminal:
            self._next = now + _PLAIN_S
            click.echo(text, err=True)
            return
        self._next = now + _AGAIN_S
        text = text[
            : shutil.get_terminal_size().columns - 1
        ]  # a line that wraps cannot be written over
        click.echo(f"\r{text:{len(self._text)}}", nl=False, err=True)
        self._text = text
