"""``sliceplane controllers --shadow``: its flags, what it prints, and its exit code."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from contextlib import AsyncExitStack
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, note, screen_width
from sliceplane.cli.cluster import limited_client
from sliceplane.cli.flags import duration, option, switch, with_options
from sliceplane.cli.process import begin_service, print_line, print_ready, run, work_until

if TYPE_CHECKING:
    from sliceplane.controllers.endpointslice import EndpointSliceConfig
    from sliceplane.diagnose.shadow.io.hosting import ShadowRun
    from sliceplane.diagnose.shadow.ledger import DifferenceLedger, News
    from sliceplane.diagnose.shadow.report import ShadowSummary
    from sliceplane.watch.io.connection import Connection

#: rows that a terminal shows while it goes on; the rest is counted
TABLE_ROWS_MAX = 30
_CLEAR = "\x1b[H\x1b[2J"


shadow_options = with_options(
    switch("--shadow", "Write nothing: report where EndpointSlices differ from ours."),
    duration("--shadow-grace", "How long a difference must last to be reported.", "30s"),
    option(
        "--shadow-output",
        "JSON lines of what appears and goes away; - for stdout.",
        type=click.Path(allow_dash=True, path_type=Path),
        metavar="FILE",
    ),
)


def check_shadow_flags(chosen: str, flags: dict[str, Any], *, cleanup: bool) -> None:
    """Raises ``click.UsageError``."""
    if not flags["shadow"]:
        if flags["shadow_output"] is not None:
            raise click.UsageError("--shadow-output is for --shadow")
        return
    if cleanup:
        raise click.UsageError("--shadow writes nothing, and --cleanup only writes")
    if chosen not in ("*", "endpointslice-controller", "endpointslice"):
        raise click.UsageError(
            "--shadow compares what endpointslice-controller writes, no other controller"
        )


class Printed:
    """A ``diagnose.shadow.io.hosting.ShadowOutput``. A picture on a terminal, lines elsewhere;
    and *json_lines*. *table_only*: a run that ends by itself prints only a table at its end, so
    that people read each difference once.

    A JSON line that cannot be written (a full disk) is lost, which is logged once; watching goes
    on. ``lost`` counts these lines.
    """

    def __init__(
        self, json_lines: FileIO | None, *, to_stdout: bool, table_only: bool = False
    ) -> None:
        self._json = json_lines
        self._torn = False
        self.lost = 0
        self._quiet = to_stdout
        self._live = sys.stdout.isatty() and not to_stdout
        self._table_only = table_only
        self._reported_no_controller = False
        self._picture = ""

    @property
    def plain(self) -> bool:
        """True if differences are printed as lines on stdout."""
        return not (self._live or self._quiet or self._table_only)

    def news(self, news: tuple[News, ...]) -> None:
        from sliceplane.diagnose.shadow.report import json_line, line

        for change in news:
            self.json(json_line(change))
            if self.plain:
                print_line(line(change))

    def json(self, line: bytes) -> None:
        if self._json is None:
            return
        # Unbuffered: what did not fit shall not come later, in the middle of something else.
        whole = (b"\n" if self._torn else b"") + line + b"\n"
        try:
            written = self._json.write(whole)
            if written < len(whole):
                self._torn = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                from sliceplane.kit.io.log import get_logger

                get_logger("cli").error("cannot write to --shadow-output", problem=error.strerror)
        else:
            self._torn = False

    def on_state(self, ledger: DifferenceLedger, summary: ShadowSummary, now: float) -> None:
        from sliceplane.diagnose.shadow.report import NO_CONTROLLER

        if self.plain and summary.lacks_controller and not self._reported_no_controller:
            self._reported_no_controller = True
            print_line(NO_CONTROLLER)
        if not self._live:
            return
        picture = f"{summary.text}\n\n{_table(ledger, now, TABLE_ROWS_MAX)}"
        if picture != self._picture:
            self._picture = picture
            print_line(picture, control=_CLEAR)

    def end(
        self, ledger: DifferenceLedger, summary: ShadowSummary, now: float, *, complete: bool
    ) -> None:
        """The last words."""
        from sliceplane.diagnose.shadow.report import json_summary

        self.json(json_summary(summary, now))
        if self._quiet:
            return
        is_printed = self._live or self._table_only
        differences = _table(ledger, now) if is_printed else ""
        if differences:
            print_line(differences, control=_CLEAR if self._live else "")
        print_line(summary.text if complete else f"NOT everything was compared: {summary.text}")


def _table(ledger: DifferenceLedger, now: float, rows_max: int | None = None) -> str:
    from sliceplane.api.findings.finding import rank
    from sliceplane.api.findings.text import rows
    from sliceplane.diagnose.shadow.report import findings

    return "\n".join(
        rows(sorted(findings(ledger.standing(), now), key=rank), screen_width(), rows_max)
    )


def run_shadow(
    connection: Connection,
    config: EndpointSliceConfig,
    flags: dict[str, Any],
    single_run_timeout_s: float | None,
) -> int:
    """Runs the comparison and returns the exit code.  *single_run_timeout_s*: the bound of one
    comparison of everything, after which the run ends; ``None``: it ends at a signal.
    """
    target: Path | None = flags["shadow_output"]
    to_stdout = str(target) == "-"
    try:
        lines = None if target is None else _opened(target, to_stdout=to_stdout)
    except OSError as error:
        note(f"Error: --shadow-output {target}: {error.strerror}")
        return NO_ANSWER
    try:
        output = Printed(lines, to_stdout=to_stdout, table_only=single_run_timeout_s is not None)
        code = run(_run(connection, config, flags, output, single_run_timeout_s))
        if not output.lost:
            return code
        note(f"Error: --shadow-output {target}: {output.lost} lines could not be written")
        return NO_ANSWER
    finally:
        if lines is not None and not to_stdout:
            lines.close()


def _opened(target: Path, *, to_stdout: bool) -> FileIO:
    return FileIO(1, "w", closefd=False) if to_stdout else FileIO(target, "a")


async def _run(
    connection: Connection,
    config: EndpointSliceConfig,
    flags: dict[str, Any],
    output: Printed,
    single_run_timeout_s: float | None,
) -> int:
    from sliceplane.cli.run.flags.monitoring import serve_monitoring
    from sliceplane.diagnose.shadow.io.hosting import ShadowRun
    from sliceplane.watch.io.hosting.informers import check_readable

    stop = begin_service()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(limited_client(connection, flags, read_only=True))
        run = ShadowRun(client, config, grace_s=flags["shadow_grace"])
        stack.push_async_callback(run.close)
        await serve_monitoring(
            stack, flags, run.pages(), (run.samples, client.metrics.families), run.staleness_s
        )
        if single_run_timeout_s is not None:
            await check_readable(client, run.watches)
        run.start()
        working = asyncio.create_task(
            _follow(run, output)
            if single_run_timeout_s is None
            else run.wait_until_compared(output, single_run_timeout_s)
        )
        await work_until(stop, working)
        # That a signal cancelled the work is no failure.
        complete = single_run_timeout_s is None if working.cancelled() else bool(working.result())
        summary = run.summary()
        output.end(run.ledger, summary, run.now(), complete=complete)
        if single_run_timeout_s is None:
            return GOOD
        if not complete:
            return NO_ANSWER
        return BAD if summary.differences else GOOD


async def _follow(run: ShadowRun, output: Printed) -> bool:
    """Until cancelled."""
    await run.wait_synced()
    if output.plain:
        print_ready("shadow")
    await run.follow(output)
    return True
