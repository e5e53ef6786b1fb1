"""``sliceplane agent status|drain|undrain|pass``: what an agent on this machine is asked over its
socket.
"""

from __future__ import annotations

from typing import Any

import click

from sliceplane.cli.answers import BAD, NO_ANSWER, Output, output_option, screen_width, show
from sliceplane.cli.cluster import attempt
from sliceplane.cli.flags import string, switch
from sliceplane.cli.options import Command

_name = click.argument("name", required=False, default="", metavar="[AGENT]")


def _ask(name: str, **question: Any) -> dict[str, Any]:
    import asyncio

    from sliceplane.agent.io.control import NoAgent, ask, only_agent

    async def work() -> dict[str, Any]:
        return await ask(name or await only_agent(), question)

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
    said = []
    for entry in answer["registrations"]:
        ports = ",".join(
            f"{name}={port}" if name else str(port) for name, port in entry["ports"].items()
        )
        state = entry["state"] if entry["stored"] else f"{entry['state']}, not stored"
        service = f"{entry['namespace']}/{entry['service']}"
        rows.append((service, ",".join(entry["addresses"]), ports, state))
        said += [f"{service}: {entry['problem']}"] if entry["problem"] else []
        for check in entry["checks"]:
            word = {True: "passes", False: "fails", None: "has not said yet"}[check["passing"]]
            said.append(
                f"{service}: {check['check']} {word}{': ' if check['saw'] else ''}{check['saw']}"
            )
    listed = table(("SERVICE", "ADDRESS", "PORTS", "STATE"), rows, width=width)
    return "\n".join((head, lease, "", *listed, *notes(said, width)))


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
    answer = _ask(name, verb="status")
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
    show(_text(_ask(name, verb="drain"), screen_width()), exit_code=NO_ANSWER)


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
    show(_text(_ask(name, verb="undrain"), screen_width()), exit_code=NO_ANSWER)


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
    _ask(name, verb="fail" if failed else "pass", text=text)
