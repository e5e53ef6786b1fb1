"""``sliceplane explain``: why does this Service, Pod, Node or zone not do what one expects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Output
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import EXISTING_FILE, option, string, switch
from sliceplane.cli.object_names import kind_and_name

if TYPE_CHECKING:
    from sliceplane.api.findings.finding import Finding
    from sliceplane.diagnose.explain.question import (
        ClientReference,
        ExplainQuestion,
        Explanation,
        QuestionKind,
    )
    from sliceplane.watch.io.base import Client

#: what kubectl's users write for the kinds
_KINDS = {
    "service": "service",
    "services": "service",
    "svc": "service",
    "pod": "pod",
    "pods": "pod",
    "po": "pod",
    "node": "node",
    "nodes": "node",
    "no": "node",
    "zone": "zone",
}


@cluster_command(
    "explain",
    scope="namespace",
    examples=[
        ("a Service that does not answer", "sliceplane explain service cart -n shop"),
        (
            "seen from one client",
            "sliceplane explain service cart -n shop --port 8080 --from pod/web-7d8f-x",
        ),
        ("what is wrong with a Node", "sliceplane explain node node-4"),
        (
            "on the node itself, its kernel included",
            "sudo sliceplane explain service cart -n shop --kernel",
        ),
    ],
)
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="service|pod|node|zone NAME",
    shell_complete=kind_and_name("service", "pod", "node", "zone"),
)
@string("--port", "PORT", "The port that clients dial, by number or by name.")
@option(
    "--protocol",
    "The protocol of the connection.",
    type=click.Choice(("TCP", "UDP", "SCTP"), case_sensitive=False),
)
@string(
    "--from client",
    "pod/[NAMESPACE/]NAME|node/NAME|zone/NAME|ADDRESS",
    "Location of the client: a Pod (by default of the same namespace), or an address outside.",
)
@switch("--kernel", "This machine is a node: check its kernel, too (root).")
@switch("--probe", "Try a TCP connection from here to each ready endpoint, too (1 s at most).")
@option(
    "--shadow",
    "Include the findings of 'controllers --shadow --shadow-output FILE'.",
    type=EXISTING_FILE,
)
def command(*, cluster: TargetCluster, what: tuple[str, ...], output: Output, **flags: Any) -> None:
    """Explain why this does not work: find the first broken link from the name to the endpoint.

    Follows a connection's path (name, Service, selector, Pod, port, slice, hints, nodes, policies)
    and names the cause with the field that shows it, its writer, the effect, and a command that
    mends it. Read-only, on any cluster, with the rights of the user; reports what it could not
    read.

    Exit code 0: nothing is wrong; 1: a cause was found; 2: cannot tell (something could not be
    read, or is too young to judge), the output or stderr says why.
    """
    from sliceplane.diagnose.explain.question import ExplainQuestion
    from sliceplane.diagnose.explain.text import as_text

    path: Path | None = flags["shadow"]
    shadow_findings: Iterable[Finding] = ()
    if path is not None:
        from sliceplane.diagnose.shadow.report import findings_of_lines
        from sliceplane.kit.io.files import opened_lines

        try:
            with opened_lines(path) as lines:
                shadow_findings = list(findings_of_lines(lines))
        except OSError as error:
            raise click.BadParameter(
                f"{path}: {error.strerror}", param_hint="'--shadow'"
            ) from error
    kind, name = _kind_and_name(what)
    namespace_in_name, _, bare = name.rpartition("/")

    async def work(client: Client, namespace: str) -> Explanation:
        where = namespace_in_name or namespace
        question = ExplainQuestion(
            kind,
            bare,
            where if kind in ("service", "pod") else "",
            flags["port"],
            flags["protocol"] or "",
            _parse_client(flags["client"], where),
        )
        return await explained(
            client, question, kernel=flags["kernel"], probe=flags["probe"], shadow=shadow_findings
        )

    finish(cluster.query(work), output, as_text)


async def explained(
    client: Client,
    question: ExplainQuestion,
    *,
    kernel: bool = False,
    probe: bool = False,
    shadow: Iterable[Finding] = (),
) -> Explanation:
    import time

    from sliceplane.diagnose.io.explaining import explain

    if not kernel:
        return await explain(client, question, time.time, probe=probe, shadow=shadow)
    from sliceplane.diagnose.io.kernel import RECHECK_DELAY_S, read_kernel

    first = await explain(
        client, question, time.time, await read_kernel(), probe=probe, shadow=shadow
    )
    if not any(finding.code == "N5" for finding in first.findings):
        return first
    await asyncio.sleep(RECHECK_DELAY_S)  # what a second look does not find was a change under way
    return await explain(
        client, question, time.time, await read_kernel(), probe=probe, shadow=shadow
    )


def finish(
    explanation: Explanation,
    output: Output,
    as_text: Callable[[Explanation, int | None], str],
) -> None:
    """Print it, and end with its exit code."""
    output.show(explanation.as_document, lambda width: as_text(explanation, width))
    if explanation.cause is not None:
        raise SystemExit(BAD)
    raise SystemExit(NO_ANSWER if explanation.is_blind or explanation.too_young else GOOD)


def _kind_and_name(what: tuple[str, ...]) -> tuple[QuestionKind, str]:
    """``service cart``, ``service/cart``, ``svc shop/cart``."""
    kind, _, name = "/".join(what).partition("/")
    if kind not in _KINDS or not name or name.count("/") > 1:
        raise click.UsageError(
            "name what to explain: service NAME, pod NAME, node NAME or zone NAME"
        )
    return cast("QuestionKind", _KINDS[kind]), name


def _parse_client(text: str, namespace: str) -> ClientReference | None:
    from sliceplane.diagnose.explain.question import ClientReference
    from sliceplane.kit.ip import parse_strict

    if not text:
        return None
    if parse_strict(text) is not None:
        return ClientReference("address", text)
    kind, _, name = text.partition("/")
    client_kind = _KINDS.get(kind)
    if client_kind in (None, "service") or not name:
        raise click.UsageError(
            f"--from {text}: use pod/NAME, node/NAME, zone/NAME or an IP address"
        )
    if client_kind != "pod":
        return ClientReference(cast("Any", client_kind), name)
    client_namespace, _, pod = name.rpartition("/")
    return ClientReference("pod", pod, client_namespace or namespace)
