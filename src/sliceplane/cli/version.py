"""``sliceplane version``: what is installed here, and which Kubernetes it is like."""

from __future__ import annotations

import json
import platform

import click

from sliceplane.cli.options import Command
from sliceplane.cli.process import show


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


@click.command("version", cls=Command)
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True,
    help="A text for people, or one JSON document.")  # fmt: skip
def command(*, output: str) -> None:
    """Tell the versions of this program, of the Kubernetes API that it serves, and of Python."""
    from sliceplane.api.gates import NEWEST

    told = {
        "sliceplane": installed(),
        "kubernetes": ".".join(str(number) for number in NEWEST),
        "python": platform.python_version(),
    }
    show(json.dumps(told, indent=2) if output == "json" else "\n".join(f"{name:<11} {told[name]}" for name in told))
