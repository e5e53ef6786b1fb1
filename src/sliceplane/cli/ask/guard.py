"""``sliceplane guard``: mass removals that controllers hold, seen by conditions of Services, and
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
from sliceplane.cli.process import say

if TYPE_CHECKING:
    from sliceplane.diagnose.io.guarding import RetainedService
    from sliceplane.watch.io.base import Client


@click.group(
    "guard",
    cls=CommandGroup,
    examples=[
        ("is anything held?", "sliceplane guard status"),
        ("the Pods of a Service are gone for good", "sliceplane guard release web -n shop"),
    ],
)
def command() -> None:
    """Show which removals of endpoints are held because no Pod or agent said that it goes, and let
    them go.
    """


@cluster_command(
    "status",
    parent=command,
    scope="all",
    short_help="Say which Services have endpoints that are held.",
    examples=[
        ("in all namespaces", "sliceplane guard status"),
    ],
)
def status(*, cluster: TargetCluster, output: Output) -> None:
    """Say which Services have endpoints that are held, since when and until when.

    Endpoints of Pods that are missing, and of agents (sliceplane agent) that fell silent. Reads the
    conditions of Services (one list), on any cluster.

    Exit code 0: nothing is held; 1: something is; 2: cannot tell, stderr says why.
    """
    from sliceplane.diagnose.io.guarding import read_retained
    from sliceplane.kit.columns import table

    async def work(client: Client, _: str) -> tuple[RetainedService, ...]:
        return await read_retained(client, cluster.namespace)

    held = cluster.ask(work)

    def text(width: int | None) -> str:
        rows = [(row.service, row.since, row.message) for row in held]
        lines = table(("SERVICE", "SINCE", "HELD"), rows, width=width)
        return "\n".join(lines) if rows else "nothing is held"

    output.show(lambda: {"held": [row.as_document() for row in held]}, text)
    if held:
        raise SystemExit(BAD)


@cluster_command(
    "release",
    parent=command,
    scope="namespace",
    output=False,
    short_help="Let go what is held of Services.",
    examples=[
        ("of one Service", "sliceplane guard release web -n shop"),
        ("of all of a namespace", "sliceplane guard release --all -n shop"),
    ],
)
@click.argument("names", nargs=-1, metavar="[SERVICE]...")
@switch("--all everything", "All Services of the namespace that hold something.")
def release(*, cluster: TargetCluster, names: tuple[str, ...], everything: bool) -> None:
    """Let go what is held of SERVICEs, now.

    Writes the annotation sliceplane.dev/mass-removal-release with the time of now (for agents that
    fell silent, agent.sliceplane.dev/release): holds that began before are over, the next mass
    removal is held again. Needs the right to patch Services.
    """
    from sliceplane.diagnose.io.guarding import read_retained, release_retained

    if bool(names) == everything:
        raise click.UsageError("name Services, or say --all")

    async def work(client: Client, namespace: str) -> tuple[str, ...]:
        chosen = names
        if everything:
            rows = await read_retained(client, namespace)
            chosen = tuple(dict.fromkeys(row.service.partition("/")[2] for row in rows))
        await release_retained(client, namespace, chosen, time.time())
        return chosen

    released = cluster.ask(work, exit_code=1)
    if not released:
        fail("nothing is held there")
    say(f"released: {', '.join(released)}")
