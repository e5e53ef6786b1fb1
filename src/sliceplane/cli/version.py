"""``sliceplane version``: what is installed here, and which Kubernetes it is like."""

from __future__ import annotations

import platform

import click

from sliceplane.cli.answers import Form, output_option, rendered, show
from sliceplane.cli.options import Command
from sliceplane.kit.columns import table


def installed() -> str:
    """The version of the package; of a source tree that runs without being installed, what its project says."""
    import tomllib
    from importlib import metadata
    from pathlib import Path

    try:
        return metadata.version("sliceplane")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[3] / "pyproject.toml"
    try:
        return f"{tomllib.loads(project.read_text())['project']['version']} (a source tree, not installed)"
    except (OSError, KeyError, ValueError):
        return "unknown (not installed)"


@click.command("version", cls=Command, examples=[("for a program", "sliceplane version -o json")])
@output_option
def command(*, output: Form) -> None:
    """Tell the versions of this program, of the Kubernetes API that it serves, and of Python."""
    from sliceplane.api.gates import NEWEST

    versions = {
        "sliceplane": installed(),
        "kubernetes": ".".join(str(number) for number in NEWEST),
        "python": platform.python_version(),
    }
    show(rendered(output, lambda: versions, lambda: "\n".join(table((), list(versions.items())))))
