"""``sliceplane agent status|drain|undrain|pass``, which the agent of this machine answers over its
socket, and ``grant`` and ``list``, which the cluster answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import (
    BAD,
    NO_ANSWER,
    Output,
    fail,
    note,
    output_option,
    screen_width,
    show,
)
from sliceplane.cli.cluster import TargetCluster, attempt, cluster_command
from sliceplane.cli.flags import FILE, choice, duration, option, string, strings, switch
from sliceplane.cli.options import Command

if TYPE_CHECKING:
    from sliceplane.agent.io.listing import ListedAgent
    from sliceplane.api.meta import Document
    from sliceplane.watch.io.base import Client

_name = click.argument("name", required=False, default="", metavar="[AGENT]")


def _query(name: str, **question: Any) -> dict[str, Any]:
    import asyncio

    from sliceplane.agent.io.control import NoAgent, only_agent, send_request

    async def work() -> dict[str, Any]:
        return await send_request(name or await only_agent(), question)

    return attempt(lambda: asyncio.run(work()), NoAgent, exit_code=NO_ANSWER)


def _text(answer: dict[str, Any], width: int | None) -> str:
    from sliceplane.kit.columns import notes, table

    ages = [f"{space} {age:g} s ago" for space, age in answer["renewedSecondsAgo"].items()]
    head = (
        f"agent {answer['agent']} ({answer['identity']}, process {answer['pid']}): "
        f"{answer['phase']}"
    )
    lease = f"Lease renewed: {', '.join(ages) or 'never yet'}"
    rows = []
    problems = []
    for entry in answer["registrations"]:
        ports = ",".join(
            f"{name}={port}" if name else str(port) for name, port in entry["ports"].items()
        )
        state = entry["state"] if entry["stored"] else f"{entry['state']}, not stored"
        service = f"{entry['namespace']}/{entry['service']}"
        rows.append((service, ",".join(entry["addresses"]), ports, state))
        problems += [f"{service}: {entry['problem']}"] if entry["problem"] else []
        for check in entry["checks"]:
            word = {True: "passes", False: "fails", None: "has not said yet"}[check["passing"]]
            problems.append(
                f"{service}: {check['check']} {word}{': ' if check['saw'] else ''}{check['saw']}"
            )
    listed = table(("SERVICE", "ADDRESS", "PORTS", "STATE"), rows, width=width)
    return "\n".join((head, lease, "", *listed, *notes(problems, width)))


@click.command(
    "status",
    cls=Command,
    short_help="Tell how the agent of this machine is.",
    examples=[
        ("the agent of this machine", "sliceplane agent status"),
    ],
)
@_name
@output_option
def status(*, name: str, output: Output) -> None:
    """Tell how the agent of this machine is: its Lease, its endpoints, and what its checks saw.

    Exit code 0: all endpoints are ready; 1: one is not; 2: no agent answers.
    """
    answer = _query(name, verb="status")
    output.show(lambda: answer, lambda width: _text(answer, width))
    if not all(
        entry["stored"] and entry["state"] == "passing" for entry in answer["registrations"]
    ):
        raise SystemExit(BAD)


@click.command(
    "drain",
    cls=Command,
    short_help="Take the endpoints of this machine out of their Services.",
    examples=[
        ("before the machine is patched", "sliceplane agent drain"),
    ],
)
@_name
def drain(*, name: str) -> None:
    """Take the endpoints of this machine out of their Services; the agent and the process go on.

    Nodes send no new connections then. 'sliceplane agent undrain' brings them back.
    """
    show(_text(_query(name, verb="drain"), screen_width()), exit_code=NO_ANSWER)


@click.command(
    "undrain",
    cls=Command,
    short_help="Bring them back.",
    examples=[
        ("after it", "sliceplane agent undrain"),
    ],
)
@_name
def undrain(*, name: str) -> None:
    """Bring the endpoints of this machine back."""
    show(_text(_query(name, verb="undrain"), screen_width()), exit_code=NO_ANSWER)


@click.command(
    "pass",
    cls=Command,
    short_help="Say that the process is well (--ttl).",
    examples=[
        ("from a program that checks itself", "sliceplane agent pass"),
    ],
)
@_name
@switch("--fail failed", "Say that it is not.")
@string("--text", "TEXT", "For people: what was seen.")
def pass_(*, name: str, failed: bool, text: str) -> None:
    """Say that the process is well, to an agent that was begun with --ttl."""
    _query(name, verb="fail" if failed else "pass", text=text)


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
    requested = Grant(name, space, flags["services"], flags["cidrs"], flags["see_nodes"])
    attempt(lambda: requested.documents(with_policies=False), NoGrant, exit_code=64)
    with_policies = flags["policy"] == "always"
    remark = ""
    if flags["policy"] == "auto":
        with_policies = cluster.query(lambda client, _: serves_policies(client), exit_code=1)
        remark = "" if with_policies else NO_POLICY
    if not flags["applies"]:
        show(
            _printed(requested.documents(with_policies=with_policies), remark), exit_code=NO_ANSWER
        )
        return
    if remark:
        note(f"Note: {remark}")

    async def work(client: Client, _: str) -> str:
        return await apply_grant(
            client, connection, requested, flags["duration_s"], with_policies=with_policies
        )

    def make() -> str:
        return cluster.query(work, NoGrant, exit_code=1)

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

    from sliceplane.agent.io.listing import list_agents
    from sliceplane.kit.columns import notes, table

    async def work(client: Client, namespace: str) -> tuple[ListedAgent, ...]:
        return await list_agents(client, "" if all_namespaces else namespace, time.time())

    rows = cluster.query(work)

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
