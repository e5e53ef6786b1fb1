"""``sliceplane agent grant`` and ``list``: what a cluster knows of agents, and what it lets them do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import BAD, NO_ANSWER, Form, note, output_option, rendered, screen_width, show
from sliceplane.cli.cluster import ask, attempt, cluster_options, connect
from sliceplane.cli.options import Command
from sliceplane.cli.values import DurationType

if TYPE_CHECKING:
    from sliceplane.shell.agent.listing import ListedAgent
    from sliceplane.shell.transport.base import Client


@click.command("grant", cls=Command, short_help="Print or apply a least-rights account for an agent.", examples=[
    ("look at what it may do", "sliceplane agent grant vm-1 --service web --cidr 192.0.2.0/24"),
    ("make it, and a kubeconfig to copy to the machine",
     "sliceplane agent grant vm-1 --service web --apply > vm-1.kubeconfig"),
])  # fmt: skip
@click.argument("name", metavar="AGENT")
@click.option("--service", "services", multiple=True, required=True, metavar="NAME", help="It may serve; repeatable.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="[default: the kubeconfig's]")
@click.option("--cidr", "cidrs", multiple=True, metavar="CIDR", help="Its addresses must be of these networks.")
@click.option("--see-nodes", is_flag=True, help="It may ask whether nodes have followed its drain.")
@click.option("--apply", "applies", is_flag=True, help="Apply it, and print a kubeconfig instead.")
@click.option("--duration", "duration_s", type=DurationType(), default="8760h", show_default=True,
    help="Of the kubeconfig's token; servers may shorten it.")  # fmt: skip
@cluster_options
def grant(*, name: str, kubeconfig: Path | None, context: str | None, **flags: Any) -> None:
    """Print what an account for the agent AGENT needs: rights for its own Lease, its own slices and its Services.

    With --apply the documents are applied, and a kubeconfig with a token of that account is printed: for the machine on
    which 'sliceplane agent' is to run.
    """
    from sliceplane.shell.agent.granting import Grant, NoGrant, apply_grant

    connection = attempt(lambda: connect(kubeconfig, context))
    space = flags["namespace"] or connection.namespace
    wanted = Grant(name, space, flags["services"], flags["cidrs"], flags["see_nodes"])
    documents = attempt(wanted.documents, NoGrant, exit_code=64)
    if not flags["applies"]:
        import yaml

        show(yaml.safe_dump_all(documents, sort_keys=False).rstrip(), exit_code=NO_ANSWER)
        return

    async def work(client: Client, _: str) -> tuple[str, tuple[str, ...]]:
        return await apply_grant(client, connection, wanted, flags["duration_s"])

    made, notes = ask(kubeconfig, context, work, NoGrant)
    for remark in notes:
        note(f"Note: {remark}")
    show(made.rstrip(), exit_code=NO_ANSWER)


@click.command("list", cls=Command, short_help="List agents and their endpoints, as the cluster knows them.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="[default: the kubeconfig's]")
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
@output_option
@cluster_options
def list_agents(
    *, namespace: str, all_namespaces: bool, output: Form, kubeconfig: Path | None, context: str | None
) -> None:
    """List agents and their endpoints, as the cluster knows them, and why an endpoint is not ready.

    RENEWED is the age of the last renewal by the agent's own clock.

    Exit code 0: all are ready; 1: one is not; 2: cannot tell.
    """
    import time

    from sliceplane.kit.columns import notes, table
    from sliceplane.shell.agent.listing import list_of

    async def work(client: Client, default: str) -> tuple[ListedAgent, ...]:
        return await list_of(client, "" if all_namespaces else namespace or default, time.time())

    rows = ask(kubeconfig, context, work, exit_code=NO_ANSWER)

    def text() -> str:
        if not rows:
            return "no agent is registered"
        width = screen_width()
        heads = ("AGENT", "SERVICE", "ADDRESS", "STATE", "RENEWED")
        reasons = [row.reason for row in rows if row.reason]
        return "\n".join((*table(heads, [row.cells() for row in rows], width=width), *notes(reasons, width)))

    show(rendered(output, lambda: {"agents": [row.as_document() for row in rows]}, text), exit_code=NO_ANSWER)
    if any(row.state != "passing" for row in rows):
        raise SystemExit(BAD)
