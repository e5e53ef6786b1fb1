"""The kinds of options that commands are made of, each with what the help shows of it.

An option is declared by its names (flags, then maybe the parameter, with blanks between them), its
help text and its default. The help shows the default unless it is empty or the text names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sliceplane.cli.values import DURATION, SwitchType

_C = TypeVar("_C", bound=Callable[..., Any])

FILE: Final = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)


def with_options(*options: Callable[[_C], _C]) -> Callable[[_C], _C]:
    """Returns a decorator that gives a command *options*, which its help shows in this order."""

    def decorate(command: _C) -> _C:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def option(names: str, summary: str, default: Any = None, **more: Any) -> Callable[[_C], _C]:
    """An option with one value, of the type that *more* names, or a text."""
    shows_default = default not in (None, "", ()) and "[default" not in summary
    return click.option(
        *names.split(), default=default, help=summary, **{"show_default": shows_default, **more}
    )


def string(
    names: str, metavar: str, summary: str, default: Any = "", **more: Any
) -> Callable[[_C], _C]:
    """A text; *metavar*: its form."""
    return option(names, summary, default, metavar=metavar, **more)


def strings(
    names: str, metavar: str, summary: str, default: Sequence[str] = (), **more: Any
) -> Callable[[_C], _C]:
    """The same, any number of times."""
    return option(names, summary, default, metavar=metavar, multiple=True, **more)


def switch(names: str, summary: str, **more: Any) -> Callable[[_C], _C]:
    """An option without a value, which is off."""
    return click.option(*names.split(), is_flag=True, help=summary, **more)


def boolean(names: str, summary: str, default: bool | None) -> Callable[[_C], _C]:
    """``--name``, ``--name true`` or ``--name false``."""
    return option(names, summary, default, type=SwitchType(), is_flag=False, flag_value=True)


def duration(
    names: str, summary: str, default: str | None = None, **more: Any
) -> Callable[[_C], _C]:
    """A duration as Go writes it; the command gets seconds."""
    return option(names, summary, default, type=DURATION, **more)


def number(
    names: str,
    summary: str,
    default: int | None = None,
    *,
    least: int | None = None,
    most: int | None = None,
) -> Callable[[_C], _C]:
    """A whole number from *least* to *most*."""
    is_bounded = least is not None or most is not None
    type_ = click.IntRange(least, most) if is_bounded else click.INT
    return option(names, summary, default, type=type_)


def port(names: str, summary: str, default: int = 0) -> Callable[[_C], _C]:
    """A port of TCP or UDP; 0 where one may be picked."""
    return number(names, summary, default, least=0, most=65535)


def choice(
    names: str, summary: str, values: Sequence[str], default: Any = None, **more: Any
) -> Callable[[_C], _C]:
    """One of *values*."""
    return option(names, summary, default, type=click.Choice(values), **more)
