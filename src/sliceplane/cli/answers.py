"""How commands that tell something end: a text for people or one document for programs, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Literal

import click

#: exit codes: the answer is as it should be; it is not (as of diff(1)); there is no answer, and stderr says why
GOOD: Final = 0
BAD: Final = 1
NO_ANSWER: Final = 2

Form = Literal["text", "json", "yaml"]

output_option = click.option(
    "-o", "--output", type=click.Choice(("text", "json", "yaml")), default="text", show_default=True,
    help="A text for people, or one document for programs.",
)  # fmt: skip


def rendered(form: Form, document: Callable[[], Any], text: Callable[[], str]) -> str:
    """The answer as *form* asks for.  Documents have the same members in the same order each time."""
    match form:
        case "text":
            return text()
        case "json":
            return json.dumps(document(), indent=2)
        case "yaml":
            import yaml

            dumped: str = yaml.safe_dump(document(), sort_keys=False, allow_unicode=True)
            return dumped.rstrip("\n")
