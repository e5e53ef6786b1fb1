"""``sliceplane release``: adopted Services move back to a cluster's own controllers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sliceplane.cli.answers import Output
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import duration, switch
from sliceplane.cli.moves.adopt import run_moves, service_names
from sliceplane.cli.object_names import kind_and_name

if TYPE_CHECKING:
    from sliceplane.watch.io.base import Client


@cluster_command(
    "release",
    scope="namespace",
    is_bounded=False,
    examples=[
        ("one Service", "sliceplane release service web -n shop"),
        ("every adopted Service of the cluster, before an uninstall", "sliceplane release --all"),
    ],
)
@click.argument(
    "what", nargs=-1, metavar="[service NAME...]", shell_complete=kind_and_name("service")
)
@switch("--all everything", "Every adopted Service: of all namespaces, or of that of -n.")
@duration("--timeout", "Give up on a Service after this time.", "60s")
def command(
    *,
    cluster: TargetCluster,
    what: tuple[str, ...],
    everything: bool,
    timeout: float,
    output: Output,
) -> None:
    """Move adopted Services back to a cluster's own controllers.

    Puts the selector of the annotation sliceplane.dev/selector back into spec.selector, waits until
    upstream's EndpointSlices have every ready endpoint of ours, and then removes the annotation; our
    controllers delete their slices. If no controllers of ours run, the command deletes them. A
    command that was killed is completed by the same command.

    Needs the rights to patch Services and to delete EndpointSlices.

    Exit code 0: all moved; 1: some did not, with the reason; 2: no answer.
    """
    if bool(what) == everything:
        raise click.UsageError("name what moves: service NAME..., or --all")
    names = service_names(what) if what else ()

    async def keys(client: Client, namespace: str) -> Sequence[str]:
        from sliceplane.diagnose.io.adopting import list_adopted

        if not everything:
            return [f"{namespace}/{name}" for name in names]
        return [service.metadata.key for service in await list_adopted(client, cluster.namespace)]

    run_moves(cluster, output, "release", timeout, keys)
