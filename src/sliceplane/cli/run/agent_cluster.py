"""``sliceplane agent grant`` and ``list``: what a cluster knows of agents, and what it lets them
do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import BAD, NO_ANSWER, Output, fail, note, show
from sliceplane.cli.cluster import TargetCluster, attempt, cluster_command
from sliceplane.cli.flags import FILE, choice, duration, option, strings, switch

if TYPE_CHECKING:
    from sliceplane.agent.io.listing import ListedAgent
    from sliceplane.api.meta import Document
    from sliceplane.watch.io.base import Client


@cluster_command(
    "grant",
    scope="namespace",
    output=False,
    short_help="Print or apply a least-rights account for an agent.",
    examples=[
        ("see what it may do", "sliceplane agent grant vm-1 --service web --cidr 192.0.2.0/24"),
        (
            "make it, and a kubeconfig to copy to the machine",
            "sliceplane agent grant vm-1 --service web --apply --out vm-1.kubeconfig",
        ),
    ],
)
@click.argument("name", metavar="AGENT")
@strings(
    "--service services",
    "NAME",
    "It may serve; repeatable.",
    required=True,
)
@strings("--cidr cidrs", "CIDR", "Its addresses must be of these networks.")
@switch("--see-nodes", "It may ask whether nodes have followed its drain.")
@choice(
    "--policy",
    "With ValidatingAdmissionPolicies for its slices and its Lease; auto: if the server "
    "has that kind.",
    ("auto", "always", "never"),
    "auto",
)
@switch("--apply applies", "Apply it, and print a kubeconfig instead.")
@option(
    "--out out",
    "With --apply: write the kubeconfig to this new file, which only you can read.",
    type=FILE,
)
@switch("--overwrite", "With --out: replace a file of that name.")
@duration("--duration duration_s", "Of the kubeconfig's token; servers may shorten it.", "8760h")
def grant(*, cluster: TargetCluster, name: str, out: Path | None, **flags: Any) -> None:
    """Print what an account for the agent AGENT needs: rights for its own Lease, its own slices and
    its Services.

    With --apply the documents are applied, and a kubeconfig with a token of that account is
    printed, or written to --out: for the machine on which 'sliceplane agent' is to run.
    """
    from sliceplane.agent.io.granting import NO_POLICY, Grant, NoGrant, apply_grant, serves_policies
    from sliceplane.agent.io.own_files import readers_of_output

    if out is not None and not flags["applies"]:
        raise click.UsageError("--out is for --apply: without it no kubeconfig is made")
    connection = attempt(cluster.connect)
    space = cluster.namespace or connection.namespace
    wanted = Grant(name, space, flags["services"], flags["cidrs"], flags["see_nodes"])
    attempt(lambda: wanted.documents(with_policies=False), NoGrant, exit_code=64)
    with_policies = flags["policy"] == "always"
    remark = ""
    if flags["policy"] == "auto":
        with_policies = cluster.ask(lambda client, _: serves_policies(client), exit_code=1)
        remark = "" if with_policies else NO_POLICY
    if not flags["applies"]:
        show(_printed(wanted.documents(with_policies=with_policies), remark), exit_code=NO_ANSWER)
        return
    if remark:
        note(f"Note: {remark}")

    async def work(client: Client, _: str) -> str:
        return await apply_grant(
            client, connection, wanted, flags["duration_s"], with_policies=with_policies
        )

    def make() -> str:
        return cluster.ask(work, NoGrant, exit_code=1)

    if out is None:
        problem = readers_of_output(1)
        if problem:
            note(f"Warning: {problem}; write it with --out FILE, or run umask 077 first")
        show(make().rstrip(), exit_code=NO_ANSWER)
        return
    _write(out, make, overwrite=flags["overwrite"])
    note(f"{out}: the kubeconfig of agent {name}")


def _write(out: Path, make: Callable[[], str], *, overwrite: bool) -> None:
    """The file is there before a token is asked for: a token that cannot be kept would be lost."""
    from sliceplane.agent.io.own_files import new_own

    try:
        with new_own(out, overwrite=overwrite) as file:
            file.write(make().encode())
    except FileExistsError:
        fail(f"{out} is there already; replace it with --overwrite")
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}")


def _printed(documents: tuple[Document, ...], remark: str) -> str:
    import yaml

    text: str = yaml.safe_dump_all(documents, sort_keys=False).rstrip()
    return f"# {remark}\n{text}" if remark else text


@cluster_command(
    "list",
    scope="namespace",
    short_help="List agents and their endpoints, as the cluster knows them.",
    examples=[
        ("every agent of the cluster", "sliceplane agent list -A"),
    ],
)
@switch("-A --all-namespaces", "Those of all namespaces.")
def list_agents(*, cluster: TargetCluster, all_namespaces: bool, output: Output) -> None:
    """List agents and their endpoints, as the cluster knows them, and why an endpoint is not ready.

    RENEWED is the age of the last renewal by the agent's own clock.

    Exit code 0: all are ready; 1: one is not, or no port of its Service leads to it; 2: cannot
    tell.
    """
    import time

    from sliceplane.agent.io.listing import list_of
    from sliceplane.kit.columns import notes, table

    async def work(client: Client, namespace: str) -> tuple[ListedAgent, ...]:
        return await list_of(client, "" if all_namespaces else namespace, time.time())

    rows = cluster.ask(work)

    def text(width: int | None) -> str:
        if not rows:
            return "no agent is registered"
        heads = ("AGENT", "SERVICE", "ADDRESS", "STATE", "RENEWED")
        reasons = [row.reason for row in rows if row.reason]
        return "\n".join(
            (*table(heads, [row.cells() for row in rows], width=width), *notes(reasons, width))
        )

    output.show(lambda: {"agents": [row.as_document() for row in rows]}, text)
    if any(row.state != "passing" or row.why for row in rows):
        raise SystemExit(BAD)
