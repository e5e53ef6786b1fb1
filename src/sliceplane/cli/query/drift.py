"""``sliceplane drift``: compares what nodes have applied with the API server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Output
from sliceplane.cli.cluster import TargetCluster, cluster_command, show_read
from sliceplane.cli.flags import number, string, switch
from sliceplane.cli.object_names import names_of

if TYPE_CHECKING:
    from sliceplane.diagnose.drift.answer import Drift
    from sliceplane.watch.io.base import Client


@cluster_command(
    "drift",
    watch=True,
    examples=[
        ("all nodes", "sliceplane drift"),
        ("one of them, on itself, with its kernel", "sliceplane drift --node node-4 --deep"),
        (
            "which nodes lack the newest slices of a Service",
            "sliceplane drift --service shop/cart",
        ),
        (
            "an Envoy that follows xDS, by its admin pages",
            "sliceplane drift --envoy http://127.0.0.1:9901",
        ),
    ],
)
@string(
    "--node",
    "NAME",
    "Only this node, its proxy's own pages included.",
    shell_complete=names_of("nodes"),
)
@string("--service", "NAMESPACE/NAME", "Judge nodes by the slices of this Service alone.")
@switch(
    "--deep", "With --node: compare all rules of its kernel, by its proxy or, on the node, as root."
)
@number("--metrics-port", "The port of the proxies' metrics pages.", 10249, least=1, most=65535)
@string("--envoy", "URL", "Only this Envoy: compare its admin pages with the API for its location.")
def command(
    *,
    cluster: TargetCluster,
    node: str,
    service: str,
    watch: bool,
    deep: bool,
    metrics_port: int,
    envoy: str,
    output: Output,
) -> None:
    """Compare what each node has applied with the API server: how far it is behind, whether its cache
    lost an event, whether its kernel has the rules.

    Compares the Leases of node proxies (version and digest of each cache) with the server's objects
    at that version. Read-only (lists of Leases, Nodes, EndpointSlices and Services), on any cluster
    with node proxies of Sliceplane. Queries the pages of a proxy if they can be reached, which by
    default is on the node itself.

    With --envoy compares the clusters of one Envoy: endpoints that it lacks, and obsolete ones.
    Checks a difference twice before it reports it.

    Exit code 0: every node is in step; 1: something differs; 2: cannot tell (something could not be
    read, or a node is catching up with what was just written), the output or stderr says why.
    """
    from sliceplane.diagnose.drift.answer import as_text
    from sliceplane.diagnose.io.drifting import read_drift

    if envoy and (node or service or watch or deep):
        raise click.UsageError(
            "--envoy cannot be combined with --node, --service, --watch or --deep"
        )
    if envoy:
        _show_envoy(cluster, envoy, output)
    if deep and not node:
        raise click.UsageError("--deep is for one node: --node")
    if service and "/" not in service:
        raise click.UsageError("--service is NAMESPACE/NAME")

    def text(drift: Drift) -> str:
        return output.rendered(drift.as_document, lambda width: as_text(drift, width))

    async def read(client: Client) -> Drift:
        return await read_drift(
            client, time.time, node=node, service=service, deep=deep, port=metrics_port
        )

    drift = show_read(cluster, read, text, _states, watch=watch)
    if drift is not None and drift.differs:
        raise SystemExit(BAD)
    raise SystemExit(NO_ANSWER if drift is None or drift.is_blind else GOOD)


def _states(drift: Drift) -> object:
    """Returns the parts whose change prints a new answer: not the ages, which always change."""
    return [(row.node, row.state, row.cache, row.kernel) for row in drift.rows]


def _show_envoy(cluster: TargetCluster, admin: str, output: Output) -> NoReturn:
    from sliceplane.diagnose.drift.envoy import EnvoyDrift, NoAdminPages, as_text
    from sliceplane.diagnose.io.drifting import read_envoy_drift

    async def work(client: Client, _: str) -> EnvoyDrift:
        return await read_envoy_drift(client, admin)

    drift = cluster.query(work, NoAdminPages)
    output.show(drift.as_document, lambda _: as_text(drift))
    raise SystemExit(BAD if drift.differs else GOOD)
