"""``sliceplane apiserver``: the API server alone, with upstream's flag names."""

from __future__ import annotations

from typing import Any

import click

from sliceplane.cli.logs import Logs
from sliceplane.cli.options import Command
from sliceplane.cli.run.serving import gates_of, plane_config, serve, serving_options


@click.command(
    "apiserver",
    cls=Command,
    examples=[
        (
            "a server of its own folder, on a free port",
            "sliceplane apiserver --data-dir data --secure-port 0",
        ),
        (
            "one of several over an etcd cluster",
            "sliceplane apiserver --etcd https://10.0.0.1:2379,https://10.0.0.2:2379",
        ),
    ],
)
@serving_options
def command(*, logs: Logs, **flags: Any) -> None:
    """Run the API server alone.

    Prints one line, "ready URL kubeconfig=PATH", when it answers; stops cleanly on SIGINT and
    SIGTERM.
    """
    gates = gates_of(flags["feature_gates"], flags["emulated_version"])
    serve(lambda: plane_config(flags, gates), lambda: (), logs=logs, ui=flags["ui"])
