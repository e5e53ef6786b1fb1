"""``sliceplane simulate``: the control plane on virtual time, under faults, from one seed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane import __version__
from sliceplane.cli.answers import note, screen_width, show
from sliceplane.cli.flags import EXISTING_FILE, FILE, choice, duration, number, option, switch
from sliceplane.cli.lab.scale import scale as run_scale
from sliceplane.cli.lab.scale import scale_options
from sliceplane.cli.options import Command
from sliceplane.cli.values import ParsedType
from sliceplane.kit.columns import table

if TYPE_CHECKING:
    from sliceplane.lab.sim.simulation import Adoption, Options, RunVerdict

#: more processes than that do not help
JOBS_MAX = 256


def _faults(text: str) -> dict[str, float]:
    from sliceplane.lab.sim.faults import parse_faults

    return parse_faults(text)


def _controllers(text: str) -> tuple[str, ...]:
    from sliceplane.lab.sim.roster import parse_controllers

    return parse_controllers(text)


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    if not dash or not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
        raise ValueError(f"{text!r} is no range of seeds such as 1-500")
    return range(int(first), int(last) + 1)


@click.command(
    "simulate",
    cls=Command,
    examples=[
        ("one run under faults", "sliceplane simulate --seed 7 --faults heavy"),
        (
            "look for a seed that breaks an invariant",
            "sliceplane simulate --seeds 1-500 --jobs 2 --until-failure",
        ),
        (
            "what 1,000 nodes cost",
            "sliceplane simulate --scale --nodes 1000 --pods 20000 --services 1000",
        ),
        (
            "the same behind two levels of relays",
            "sliceplane simulate --scale --nodes 1000 --relays 8 --levels 2",
        ),
    ],
)
@number("--seed", "Everything follows from it.", 1, least=0)
@option(
    "--seeds",
    "Run all of these seeds, a line each, instead of --seed.",
    type=ParsedType("A-B", _seeds),
)
@switch(
    "--until-failure", "Go on with the next seed until one fails (with --seeds: stop at the first)."
)
@number(
    "--steps",
    "Actions of the workload; every 25 of them faults stop and all invariants are checked.",
    100,
    least=0,
    most=10000000,
)
@duration("--duration", "Make no more steps after so much virtual time.")
@option(
    "--faults",
    "none, light, normal, heavy, or NAME=WEIGHT,... where a weight is the probability "
    "at one opportunity; a level may come first: light,crash=0.2. --list-faults tells "
    "the names.",
    "normal",
    type=ParsedType("FAULTS", _faults),
)
@option(
    "--controllers",
    "Which controllers run, with commas. Without kubelet there are no Deployments.",
    "all",
    type=ParsedType("NAMES", _controllers),
)
@option(
    "--trace",
    "Write one line for each event to this file (-: standard output).",
    type=click.Path(dir_okay=False, allow_dash=True),
)
@option("--record", "Record what controllers are told, for 'sliceplane recorder'.", type=FILE)
@option(
    "--from file",
    "Begin with the objects that were there when this recording ended ('sliceplane "
    "recorder save').",
    type=EXISTING_FILE,
)
@switch("--shrink", "After a failure look for the fewest steps that fail.")
@choice(
    "--workload",
    "What people do, and with which flags controllers run (drawn from the seed). "
    "classic: without hints by annotation and heuristic, subsets, defragmentation, "
    "elections, chance owners and tight quotas, as in old seeds.",
    ["full", "classic"],
    "full",
)
@number("--jobs", "Processes for --seeds.", 1, least=1, most=JOBS_MAX)
@switch("--list-faults", "List the faults with their weights at level normal, and exit.")
@scale_options
def command(
    *,
    seed: int,
    seeds: range | None,
    until_failure: bool,
    steps: int,
    duration: float | None,
    faults: dict[str, float],
    controllers: tuple[str, ...],
    trace: str | None,
    record: Path | None,
    file: Path | None,
    shrink: bool,
    workload: str,
    jobs: int,
    list_faults: bool,
    scale: bool,
    **sizes: Any,
) -> None:
    """Run the production store, informers and controllers on virtual time, under faults, from one
    seed.

    The same seed makes the same run, byte for byte: the digest of its trace is printed. Exit code
    0: every invariant held; 1: one was broken, and the output ends with the line that replays it;
    2: the command line is wrong.
    """
    if list_faults:
        _list_faults()
        return
    if scale:
        run_scale(seed, sizes)
    if (trace is not None or record is not None) and (seeds is not None or until_failure):
        raise click.UsageError("--trace and --record are about one run: give --seed alone")
    from sliceplane.lab.sim.report import report, summary
    from sliceplane.lab.sim.roster import all_controllers
    from sliceplane.lab.sim.simulation import Options

    chosen = all_controllers(workload) if controllers == all_controllers("full") else controllers

    adoption = None if file is None else _adopted(file)

    def options(of: int) -> Options:
        return Options(
            seed=of,
            steps=steps,
            duration_s=duration,
            faults=faults,
            controllers=chosen,
            workload=workload,
            adoption=adoption,
        )

    if seeds is None and not until_failure:
        verdict = _traced(options(seed), trace, record)
        if shrink and verdict.violation is not None:
            verdict = _shrunk(verdict)
        if trace == "-":  # then the report is for people all the same
            note(report(verdict))
        else:
            show(report(verdict))
        sys.exit(verdict.violation is not None)
    failed: list[int] = []
    for verdict in _run_all(
        map(options, seeds if seeds is not None else _from(seed)), jobs, stop=until_failure
    ):
        show(summary(verdict))
        if verdict.violation is not None:
            failed.append(verdict.options.seed)
            show(report(_shrunk(verdict) if shrink else verdict))
    if failed:
        show(f"{len(failed)} seeds failed: {' '.join(map(str, failed))}")
    sys.exit(bool(failed))


def _adopted(file: Path) -> Adoption:
    """Ends the command where nothing can be made of *file*."""
    from sliceplane.cli.query.recorder import making_sense, read
    from sliceplane.lab.sim.recording import adopt

    recording = read(file)
    if recording.problem:
        note(f"Note: {recording.problem}")
    with making_sense(file):
        return adopt(recording, str(file))


def _list_faults() -> None:
    from sliceplane.lab.sim.faults import KINDS

    rows = [(name, f"{kind.weight:g}", kind.per, kind.what) for name, kind in KINDS.items()]
    show("\n".join(table(("NAME", "WEIGHT", "PER", "WHAT"), rows, width=screen_width())))


def _from(seed: int) -> Iterator[int]:
    while True:
        yield seed
        seed += 1


def _run(options: Options) -> RunVerdict:
    from msgspec.structs import replace

    from sliceplane.lab.sim.simulation import Simulation

    verdict = Simulation(options).run()
    if verdict.violation is not None:
        # a traceback does not travel between processes
        verdict = replace(verdict, violation=replace(verdict.violation, cause=None))
    return verdict


def _traced(options: Options, path: str | None, record: Path | None) -> RunVerdict:
    from sliceplane.lab.sim.recording import lines, make_recorder
    from sliceplane.lab.sim.simulation import Simulation

    recorder = None if record is None else make_recorder()
    with ExitStack() as stack:
        sink: Callable[[str], object] | None = None
        if path == "-":
            sink = sys.stdout.write
        elif path is not None:
            try:
                sink = stack.enter_context(Path(path).open("w", encoding="utf-8")).write
            except OSError as error:
                raise click.UsageError(f"--trace: {path}: {error.strerror}") from error
        simulation = Simulation(options, sink, recorder)
        verdict = simulation.run()
    if recorder is not None and record is not None:
        from sliceplane.watch.io.flight import write_file

        try:
            write_file(record, lines(recorder, options, simulation.setup, __version__))
        except OSError as error:
            raise click.UsageError(f"--record: {record}: {error.strerror}") from error
    return verdict


def _shrunk(verdict: RunVerdict) -> RunVerdict:
    from sliceplane.lab.sim.report import shrink

    note(f"seed {verdict.options.seed} fails after {verdict.steps} steps; looking for fewer")
    return shrink(verdict)


def _run_all(runs: Iterator[Options], jobs: int, *, stop: bool) -> Iterator[RunVerdict]:
    """Yields the verdicts of all runs, in order; with *stop* until the first that fails."""
    if jobs == 1:
        for options in runs:
            verdict = _run(options)
            yield verdict
            if stop and verdict.violation is not None:
                return
        return
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing import get_context

    from sliceplane.kit.io.process.lifeline import end_with_pool

    spawn = get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=spawn, initializer=end_with_pool, initargs=(os.getpid(),)
    ) as pool:
        waiting: list[Future[RunVerdict]] = []
        for options in runs:
            waiting.append(pool.submit(_run, options))
            if len(waiting) < 2 * jobs:
                continue
            verdict = waiting.pop(0).result()
            yield verdict
            if stop and verdict.violation is not None:
                break
        else:
            yield from (future.result() for future in waiting)
            return
        for future in waiting:
            future.cancel()
