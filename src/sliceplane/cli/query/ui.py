"""``sliceplane ui``: the page of a cluster, in a browser on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sliceplane.cli.cluster import TargetCluster, attempt, cluster_options
from sliceplane.cli.flags import port, string
from sliceplane.cli.options import Command

if TYPE_CHECKING:
    from sliceplane.watch.io.connection import Connection


@click.command(
    "ui",
    cls=Command,
    examples=[
        ("the cluster of the kubeconfig", "sliceplane ui"),
        (
            "one namespace of another one, always at the same port",
            "sliceplane ui --context staging -n shop --port 8901",
        ),
    ],
)
@string(
    "-n --namespace",
    "NAME",
    "Only what is in it.  [default: all namespaces, or the kubeconfig's where one may "
    "not list all]",
)
@port("--port", "Of 127.0.0.1.  [default: a free one]")
@cluster_options
def command(*, cluster: TargetCluster, namespace: str, port: int) -> None:
    """A page of the cluster: findings, Services with their endpoints by zone and node, nodes and
    how far they are, all of it live.

    Prints "ready URL"; the URL has a secret and leads to this machine only. The page has the rights
    of the kubeconfig, sends the cluster nothing but GET, loads nothing from elsewhere, and ends
    with this command (Ctrl-C).

    Exit code 0: it was stopped; 1: it could not start, stderr says why.
    """
    from sliceplane.cli.process import run

    attempt(lambda: run(_serve(cluster.connect(), namespace, port), spare=True), OSError)


async def _serve(connection: Connection, namespace: str, port: int) -> None:
    import asyncio

    from sliceplane.cli.process import on_stop_signal, print_ready
    from sliceplane.cli.query.ui_what_if import predict_service
    from sliceplane.diagnose.page.io.server import page

    stopped = asyncio.Event()
    on_stop_signal(stopped.set)
    async with page(connection, namespace, port, predict_service) as page_server:
        print_ready(page_server.url)
        await stopped.wait()
