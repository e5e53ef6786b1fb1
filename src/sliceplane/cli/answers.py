"""How commands that tell something answer: a text for people or one document for programs, and an
exit code.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, NoReturn

import click

from sliceplane.cli.flags import choice
from sliceplane.kit.terminal_text import printable_lines

#: exit codes: the answer is as it should be; it is not (as of diff(1)); there is no answer, and
#: stderr says why
GOOD: Final = 0
BAD: Final = 1
NO_ANSWER: Final = 2

Form = Literal["text", "json", "yaml"]


class Output(NamedTuple):
    """The value of ``output_option``: how a command shows its answer."""

    form: Form

    def rendered(self, document: Callable[[], Any], text: Callable[[int | None], str]) -> str:
        """Returns the answer. Documents have the same members in the same order each time. *text*
        gets the columns that lines may have.
        """
        match self.form:
            case "text":
                return text(screen_width())
            case "json":
                return json.dumps(document(), indent=2)
            case "yaml":
                import yaml

                content = document()
                dumped: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
                if dumped != printable_lines(dumped):  # in quotes, a program reads the escapes back
                    dumped = yaml.safe_dump(content, sort_keys=False)
                return dumped.rstrip("\n")

    def show(self, document: Callable[[], Any], text: Callable[[int | None], str]) -> None:
        show(self.rendered(document, text), exit_code=NO_ANSWER)


output_option = choice(
    "-o --output",
    "A text for people, or one document for programs.",
    ("text", "json", "yaml"),
    "text",
    callback=lambda _ctx, _parameter, form: Output(form),
)


def screen_width() -> int | None:
    """Columns that lines may have: ``COLUMNS``, or those of the terminal; ``None``: a program reads
    them.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fail(sentence: str, exit_code: int = 1) -> NoReturn:
    """End the command with *sentence* on stderr."""
    note(f"Error: {sentence}")
    raise SystemExit(exit_code)


def note(text: str) -> None:
    """Prints *text* on stderr: an error, or a remark beside the answer."""
    click.echo(printable_lines(text), err=True)


def show(text: str, *, newline: bool = True, exit_code: int = 1) -> None:
    """Print *text*, which the command was run for: if it cannot be printed whole, the command
    failed. A reader that has read enough (``| head``) ends it without a word, as click does.
    """
    try:
        click.echo(printable_lines(text), nl=newline)
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        fail(f"cannot write to stdout: {(error.strerror or str(error)).lower()}", exit_code)


def discard_stdout() -> None:
    """Discards the buffer of standard output, which would fail again at the end of the process,
    with another exit code.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
