"""``sliceplane drain``: take Pods out of their Services, and know when no node sends to them any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Form, output_option, rendered, screen_width, show
from sliceplane.cli.cluster import ask, cluster_options, namespace_option
from sliceplane.cli.object_names import kind_and_name
from sliceplane.cli.options import Command

if TYPE_CHECKING:
    from sliceplane.drain.answer import DrainAnswer
    from sliceplane.shell.tools.drain_targets import TargetKind
    from sliceplane.shell.transport.base import Client

_KINDS: Final = {
    "pod": "pod", "pods": "pod", "po": "pod",
    "deployment": "deployment", "deployments": "deployment", "deploy": "deployment",
    "node": "node", "nodes": "node", "no": "node",
}  # fmt: skip


@click.command("drain", cls=Command, examples=[
    ("a Pod, which is deleted when no node sends to it any more", "sliceplane drain pod web-7d8f-x --delete"),
    ("only watch one that terminates already", "sliceplane drain pod web-7d8f-x --wait-only"),
    ("all that a Node serves; nodes of another proxy are let go after a minute",
     "sliceplane drain node node-4 --unknown after=60s"),
])  # fmt: skip
@click.argument("what", nargs=-1, required=True, metavar="pod|deployment|node NAME",
    shell_complete=kind_and_name("pod", "deployment", "node"))  # fmt: skip
@namespace_option()
@click.option("--timeout", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
    help="Wait so long at most.")  # fmt: skip
@click.option("--unknown", default="wait", show_default=True, metavar="wait|fail|after=60s",
    help="What to do about Ready nodes that tell nothing.")  # fmt: skip
@click.option("--forget", type=click.FloatRange(min=0), default=300.0, show_default=True, metavar="SECONDS",
    help="A proxy that stopped reporting is waited for so long.")  # fmt: skip
@click.option("--delete", is_flag=True, help="Delete the Pods when they are drained.")
@click.option("--wait-only", is_flag=True, help="Do not take them out of their Services: something else does.")
@output_option
@cluster_options
def command(*, what: tuple[str, ...], unknown: str, output: Form, **flags: Any) -> None:
    """Take Pods out of their Services, and wait until no node's kernel sends new connections to them.

    Marks each Pod (annotation sliceplane.dev/drain, and its readiness gate sliceplane.dev/serving if it has one),
    follows its EndpointSlices of every manager and family until none says ready, and asks the node proxies whether
    their kernels hold that. A node that does not tell is unknown, never done. Open connections end when the
    application ends them.
    Works on any cluster with node proxies of Sliceplane; says what could not be looked at.

    Exit code 0: proven; 1: the time is over, the output names who is missing; 2: cannot know.
    """
    from sliceplane.drain.answer import as_text
    from sliceplane.drain.barrier import parse_policy
    from sliceplane.findings.text import fact
    from sliceplane.kit.terminal_text import printable
    from sliceplane.shell.tools.drain_targets import NoTarget
    from sliceplane.shell.tools.draining import DrainOptions

    kind, name = _kind_and_name(what)
    try:
        policy = parse_policy(unknown)
    except ValueError as error:
        raise click.UsageError(f"--unknown: {error}") from error
    options = DrainOptions(
        timeout_s=flags["timeout"],
        unknown=policy,
        delete=flags["delete"],
        mark=not flags["wait_only"],
        forget_s=flags["forget"],
    )

    async def work(client: Client, namespace: str) -> DrainAnswer:
        space, _, bare = name.rpartition("/")
        return await drained(client, kind, space or flags["namespace"] or namespace, bare, options)

    answer = ask(flags["kubeconfig"], flags["context"], work, NoTarget, exit_code=NO_ANSWER, once=False)
    width = screen_width()

    def text() -> str:
        return "\n".join(line for head, said in as_text(answer) for line in (printable(head), *fact("", said, width)))

    show(rendered(output, answer.as_document, text), exit_code=NO_ANSWER)
    raise SystemExit({"drained": GOOD, "time over": BAD, "cannot know": NO_ANSWER}[answer.outcome])


async def drained(client: Client, kind: TargetKind, namespace: str, name: str, options: Any) -> DrainAnswer:
    import os
    import time

    from sliceplane.kit.rng import Rng
    from sliceplane.shell.tools.drain_targets import find_pods
    from sliceplane.shell.tools.draining import drain_pods
    from sliceplane.shell.transport.bounds import question
    from sliceplane.shell.transport.reflect import loop_clock

    async with question():
        pods = await find_pods(client, kind, namespace, name)
    rng = Rng(int.from_bytes(os.urandom(8)))
    return await drain_pods(client, pods, f"{kind} {name}", options, clock=loop_clock(time.time()), rng=rng)


def _kind_and_name(what: tuple[str, ...]) -> tuple[TargetKind, str]:
    """``pod web``, ``pod/web``, ``po shop/web``."""
    kind, _, name = "/".join(what).partition("/")
    if kind not in _KINDS or not name or name.count("/") > 1:
        raise click.UsageError("say what is to be drained: pod NAME, deployment NAME or node NAME")
    return cast("TargetKind", _KINDS[kind]), name
