"""``sliceplane guard``: mass removals that controllers suspend, by conditions of Services, and
their release.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sliceplane.cli.answers import BAD, Output, fail
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import switch
from sliceplane.cli.options import CommandGroup
from sliceplane.cli.process import print_line

if TYPE_CHECKING:
    from sliceplane.diagnose.io.guarding import RetainedService
    from sliceplane.watch.io.base import Client


@click.group(
    "guard",
    cls=CommandGroup,
    examples=[
        ("which removals are suspended", "sliceplane guard status"),
        ("the Pods of a Service are gone for good", "sliceplane guard release web -n shop"),
    ],
)
def command() -> None:
    """Show or release removals of endpoints that are suspended because no Pod or agent reported
    that it ends.
    """


@cluster_command(
    "status",
    parent=command,
    scope="all",
    short_help="List Services whose endpoints are retained.",
    examples=[
        ("in all namespaces", "sliceplane guard status"),
    ],
)
def status(*, cluster: TargetCluster, output: Output) -> None:
    """List Services whose endpoints are retained, since when and until when.

    The endpoints are of Pods that are missing, or of agents (sliceplane agent) that stopped
    reporting. Reads the conditions of Services (one list), on any cluster.

    Exit code 0: no removal is suspended; 1: some are; 2: cannot tell, stderr has the reason.
    """
    from sliceplane.diagnose.io.guarding import read_retained
    from sliceplane.kit.columns import table

    async def work(client: Client, _: str) -> tuple[RetainedService, ...]:
        return await read_retained(client, cluster.namespace)

    retained = cluster.query(work)

    def text(width: int | None) -> str:
        rows = [(row.service, row.since, row.message) for row in retained]
        lines = table(("SERVICE", "SINCE", "RETAINED"), rows, width=width)
        return "\n".join(lines) if rows else "no removal is suspended"

    output.show(lambda: {"held": [row.as_document() for row in retained]}, text)
    if retained:
        raise SystemExit(BAD)


@cluster_command(
    "release",
    parent=command,
    scope="namespace",
    output=False,
    short_help="Release suspended removals of Services.",
    examples=[
        ("of one Service", "sliceplane guard release web -n shop"),
        ("of all of a namespace", "sliceplane guard release --all -n shop"),
    ],
)
@click.argument("names", nargs=-1, metavar="[SERVICE]...")
@switch("--all everything", "All Services of the namespace with suspended removals.")
def release(*, cluster: TargetCluster, names: tuple[str, ...], everything: bool) -> None:
    """Release the suspended removals of SERVICEs, now.

    Writes the current time into the annotation sliceplane.dev/mass-removal-release (for agents that
    stopped reporting, agent.sliceplane.dev/release): removals suspended before it are applied, the
    next mass removal is suspended again. Needs the right to patch Services.
    """
    from sliceplane.diagnose.io.guarding import read_retained, release_retained

    if bool(names) == everything:
        raise click.UsageError("name Services, or use --all")

    async def work(client: Client, namespace: str) -> tuple[str, ...]:
        chosen = names
        if everything:
            rows = await read_retained(client, namespace)
            chosen = tuple(dict.fromkeys(row.service.partition("/")[2] for row in rows))
        await release_retained(client, namespace, chosen, time.time())
        return chosen

    released = cluster.query(work, exit_code=1)
    if not released:
        fail("no removal is suspended there")
    print_line(f"released: {', '.join(released)}")
