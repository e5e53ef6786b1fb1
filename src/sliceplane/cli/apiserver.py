"""``sliceplane apiserver``: the API server alone, with upstream's flag names."""

from __future__ import annotations

from typing import Any

import click

from sliceplane.cli.logs import Logs
from sliceplane.cli.options import Command
from sliceplane.cli.serving import gates_of, plane_config, serve, serving_options


@click.command("apiserver", cls=Command)
@serving_options
def command(*, logs: Logs, **flags: Any) -> None:
    """Run the API server alone.

    Prints one line, "ready URL kubeconfig=PATH", when it answers; stops cleanly on SIGINT and SIGTERM.
    """
    gates = gates_of(flags["feature_gates"], flags["emulated_version"])
    serve(lambda: plane_config(flags, gates), lambda: (), logs=logs, ui=flags["ui"])
