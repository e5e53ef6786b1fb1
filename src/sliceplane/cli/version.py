"""``sliceplane version``: what is installed here, and which Kubernetes it is like."""

from __future__ import annotations

import platform

import click

from sliceplane import __version__
from sliceplane.cli.answers import Output, output_option
from sliceplane.cli.options import Command
from sliceplane.kit.columns import table


@click.command("version", cls=Command, examples=[("for a program", "sliceplane version -o json")])
@output_option
def command(*, output: Output) -> None:
    """Tell the versions of this program, of the Kubernetes API that it serves, and of Python."""
    from sliceplane.api.gates import NEWEST

    versions = {
        "sliceplane": __version__,
        "kubernetes": ".".join(str(number) for number in NEWEST),
        "python": platform.python_version(),
    }
    output.show(lambda: versions, lambda _: "\n".join(table((), list(versions.items()))))
