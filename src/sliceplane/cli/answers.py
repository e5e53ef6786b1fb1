"""How commands that tell something print it: a text for people, or one document for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import click

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
