"""``sliceplane conformance``: what a consumer of EndpointSlices makes of legal but nasty
histories.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import BAD, NO_ANSWER, Output, fail, output_option
from sliceplane.cli.flags import FOLDER, duration, option, string, strings, switch
from sliceplane.cli.options import Command
from sliceplane.cli.process import require
from sliceplane.cli.progress import ProgressLine

if TYPE_CHECKING:
    from sliceplane.lab.conformance.consumers.consumer import JudgedConsumer
    from sliceplane.lab.conformance.steps import Case
    from sliceplane.lab.conformance.verdict import CaseVerdict, ConsumerReport


@click.command(
    "conformance",
    cls=Command,
    examples=[
        ("the cases", "sliceplane conformance --list"),
        ("our own client and name server", "sliceplane conformance --run view"),
        (
            "a program of yours (it prints JSON lists)",
            "sliceplane conformance --run 'program:python router.py'",
        ),
        ("CoreDNS", "sliceplane conformance --run 'name-server:coredns -dns.port {port}'"),
    ],
)
@switch("--list only_list", "List the cases, and the public bugs they stand for.")
@string(
    "--run consumer",
    "CONSUMER",
    "Judge 'view', 'dns', 'proxy', 'program:COMMAND', 'name-server:COMMAND' or "
    "'node-proxy:COMMAND'.",
)
@string("--name", "NAME", "What the report calls the consumer.")
@strings("--case cases", "NAME", "This case alone. May be repeated.")
@string(
    "--claims",
    "hints,fallback,local",
    "What a program or name server honours beyond ready endpoints.",
)
@string(
    "--unable",
    "large,families,unnamed-port",
    "What a program cannot tell: such cases are not asked.",
)
@duration("--patience", "Time for a consumer of others to believe what is right.", "30s")
@switch("--shrink", "After a failure look for the shortest history that fails.")
@option("--report", "Write the report there, as Markdown and as JSON.", type=FOLDER, metavar="DIR")
@output_option
def command(
    *,
    only_list: bool,
    consumer: str,
    cases: tuple[str, ...],
    report: Path | None,
    shrink: bool,
    output: Output,
    **flags: Any,
) -> None:
    """Tell legal but nasty histories of a Service to any software that follows it, and compare what
    it believes.

    A server in memory plays each history: endpoints that move, ghosts, hints half there, 410 Gone
    in the middle. The consumer is a real client of it. A history that breaks it is told, and with
    --shrink made short before.

    A program is started for each case with KUBECONFIG, SLICEPLANE_NAMESPACE, SLICEPLANE_SERVICE,
    SLICEPLANE_PORT and SLICEPLANE_FAMILY in its environment; it prints a JSON list of
    "ADDRESS:PORT" on a line of its own whenever its endpoints change. A name server finds
    KUBECONFIG, listens on the {port} of its command, and is asked for SRV records. A node proxy
    runs as root in a network namespace of its own, with {kubeconfig} and {node} in its command, and
    its rules of nftables or iptables are read.

    Exit code 1: a case failed; 2: the consumer could not be asked, or told nothing.
    """
    chosen = _chosen(cases)
    if only_list or not consumer:
        output.show(lambda: [_case_document(case) for case in chosen], lambda _: _listed(chosen))
        return
    require("uvicorn", "uvloop")
    judgement = _judged(_consumer(consumer, **flags), chosen, shrink=shrink)
    if report is not None:
        _write(report, judgement)
    output.show(judgement.document, lambda _: judgement.text())
    sys.exit(BAD if judgement.failed else 0)


def _chosen(names: tuple[str, ...]) -> tuple[Case, ...]:
    from sliceplane.lab.conformance.cases import BY_NAME, CASES

    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise click.UsageError(
            f"there is no case {unknown[0]!r}: 'sliceplane conformance --list' names them"
        )
    return tuple(BY_NAME[name] for name in names) or CASES


def _consumer(text: str, *, name: str, claims: str, unable: str, patience: float) -> JudgedConsumer:
    """Raises ``UsageError``."""
    from sliceplane.lab.conformance.consumers.name_server import NameServerConsumer
    from sliceplane.lab.conformance.consumers.node_proxy import NodeProxyConsumer
    from sliceplane.lab.conformance.consumers.program import ProgramConsumer
    from sliceplane.lab.conformance.consumers.view import ViewConsumer

    claimed: Any = _choices("--claims", claims, ("hints", "fallback", "local"))
    kind, _, program = text.partition(":")
    try:
        match kind:
            case "view" if not program:
                return ViewConsumer()
            case "dns" if not program:
                ours = (
                    f"{sys.executable} -m sliceplane dns --listen 127.0.0.1:{{port}} "
                    "--zone-answers=false"
                )
                return NameServerConsumer(
                    ours, name=name or "dns", claims=claimed, patience_s=patience
                )
            case "proxy" if not program:
                ours = (
                    f"{sys.executable} -m sliceplane proxy --hostname-override {{node}} "
                    "--conntrack-max-per-core 0"
                )
                return NodeProxyConsumer(ours, name=name or "proxy", patience_s=patience)
            case "node-proxy":
                return NodeProxyConsumer(program, name=name, patience_s=patience)
            case "program":
                missing: Any = _choices("--unable", unable, ("large", "families", "unnamed-port"))
                return ProgramConsumer(
                    program, name=name, claims=claimed, unable=missing, patience_s=patience
                )
            case "name-server":
                return NameServerConsumer(program, name=name, claims=claimed, patience_s=patience)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    allowed = "view, dns, proxy, program:COMMAND, name-server:COMMAND or node-proxy:COMMAND"
    raise click.UsageError(f"no consumer {text!r}: it is {allowed}")


def _choices(option: str, text: str, allowed: tuple[str, ...]) -> frozenset[str]:
    chosen = frozenset(item for item in text.split(",") if item)
    for item in sorted(chosen):
        if item not in allowed:
            raise click.UsageError(f"{option} {item}: it is one of {', '.join(allowed)}")
    return chosen


def _judged(consumer: JudgedConsumer, cases: tuple[Case, ...], *, shrink: bool) -> ConsumerReport:
    """Ends the command with a sentence where the consumer cannot be run."""
    import asyncio
    import signal

    from sliceplane.kit.io.start_error import StartError
    from sliceplane.lab.conformance.stage import SilentConsumer, run
    from sliceplane.lab.conformance.verdict import ConsumerReport

    verdicts: list[CaseVerdict] = []
    with ProgressLine() as report_progress:

        def on_verdict(verdict: CaseVerdict) -> None:
            verdicts.append(verdict)
            report_progress(
                f"{len(verdicts)} of {len(cases)} cases, the last was {verdict.case.name}"
            )

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None, "asyncio.run makes one"
            # What runs for a case, programs and a network namespace, ends with it.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            await run(consumer, cases, on_verdict, shrink=shrink)

        try:
            asyncio.run(work())
        except (asyncio.CancelledError, KeyboardInterrupt):
            fail("interrupted", NO_ANSWER)
        except (OSError, SilentConsumer, StartError, TimeoutError) as error:
            fail(f"{consumer.name} cannot be asked: {error or 'it does not answer'}", NO_ANSWER)
    return ConsumerReport(consumer.name, consumer.claims, tuple(verdicts))


def _write(folder: Path, report: ConsumerReport) -> None:
    import json

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{report.consumer}.md").write_text(report.markdown(), encoding="utf-8")
        (folder / f"{report.consumer}.json").write_text(
            json.dumps(report.document(), indent=2) + "\n", encoding="utf-8"
        )
    except OSError as error:
        fail(f"the report cannot be written to {folder}: {error.strerror or error}", NO_ANSWER)


def _case_document(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "title": case.title,
        "cites": list(case.cites),
        "needs": sorted(case.needs),
    }


def _listed(cases: tuple[Case, ...]) -> str:
    lines = []
    for case in cases:
        lines += [case.name, f"    {case.title}", f"    {', '.join(case.cites)}"]
    return "\n".join([*lines, f"{len(cases)} cases"])
