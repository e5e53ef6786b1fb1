"""``sliceplane simulate --scale``: its options, and runs that grow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from sliceplane.cli.answers import screen_width, show
from sliceplane.cli.flags import duration, number, option, strings, switch, with_options

if TYPE_CHECKING:
    from sliceplane.lab.sim.scale.plan import Costs, ScalePlan
    from sliceplane.lab.sim.scale.run import ScaleOutcome

#: of the cluster, from run to run of --grow
_STEP: Final = 2
OPTIONS: Final = (
    "nodes",
    "pods",
    "services",
    "zones",
    "rolling",
    "at_once",
    "servers",
    "relays",
    "levels",
    "sampled",
    "batch_period",
    "marks",
    "link",
    "memory",
    "cost",
    "grow",
)


#: the options of ``OPTIONS``, and the one that asks for ``scale``
scale_options = with_options(
    switch(
        "--scale",
        "Simulate a large cluster without faults: Services are rolled out, then a zone is "
        "lost; queues, bytes, freshness and what breaks first are told. Exit code 1: a "
        "budget is broken.",
    ),
    number("--nodes", "With --scale.", 60, least=2, most=200000),
    number("--pods", "With --scale.", 600, least=1, most=4000000),
    number("--services", "With --scale.", 30, least=1, most=200000),
    number("--zones", "With --scale.", 3, least=2, most=100),
    number("--rolling", "With --scale: Services that are rolled out.", 6, least=1),
    number("--at-once", "With --scale: so many at a time.", 2, least=1),
    number(
        "--servers",
        "With --scale: API servers, which share nodes and requests.",
        1,
        least=1,
        most=100,
    ),
    number(
        "--relays",
        "With --scale: relays that nodes read from instead of the servers; one is killed, too.",
        0,
        least=0,
        most=1000,
    ),
    number(
        "--levels",
        "With --scale: levels of relays; the upper ones have fewer, as many times at each level.",
        1,
        least=1,
        most=5,
    ),
    number(
        "--sampled",
        "With --scale: nodes that run, informers and rules; the others are counted.",
        2,
        least=0,
        most=10,
    ),
    duration(
        "--batch-period",
        "With --scale: the controller's --endpointslice-updates-batch-period.",
        "0s",
    ),
    option(
        "--marks",
        "With --scale: Pods of the lost zone that are marked not ready in a second.",
        100.0,
        type=click.FloatRange(0, min_open=True),
    ),
    option(
        "--link",
        "With --scale: Gbit/s of a server's network.",
        10.0,
        type=click.FloatRange(0, min_open=True),
    ),
    option(
        "--memory",
        "With --scale: GiB that the run may take.  [default: any]",
        0.0,
        type=click.FloatRange(0),
    ),
    strings(
        "--cost",
        "NAME=SECONDS",
        "With --scale: another cost of processing; may be given several times.",
    ),
    switch(
        "--grow",
        "With --scale: run twice the size again and again until a budget is broken.",
    ),
)


def scale(seed: int, flags: dict[str, Any]) -> None:
    """Ends the command."""
    from sliceplane.cli.progress import ProgressLine
    from sliceplane.lab.sim.scale.text import as_text, growth_text

    plan = _plan(seed, flags)
    outcomes = []
    began = time.monotonic()
    with ProgressLine() as report_progress:
        outcomes.append(_run(plan, report_progress))
        while flags["grow"] and not outcomes[-1].broken and not outcomes[-1].wrong:
            outcomes.append(_run(outcomes[-1].plan.grown(_STEP), report_progress))
    real_s = time.monotonic() - began
    if flags["grow"]:
        show(growth_text(outcomes, screen_width()))
        show("")
    show(as_text(outcomes[-1], screen_width(), real_s))
    failed = outcomes[-1].wrong or (outcomes[-1].broken and not flags["grow"])
    sys.exit(bool(failed))


def _plan(seed: int, flags: dict[str, Any]) -> ScalePlan:
    from sliceplane.controllers.endpointslice import EndpointSliceConfig
    from sliceplane.lab.sim.scale.plan import Budgets, ScalePlan

    sizes = {name: flags[name] for name in OPTIONS[: OPTIONS.index("batch_period")]}
    try:
        return ScalePlan(
            seed=seed,
            **sizes,
            marks_per_s=flags["marks"],
            controller=EndpointSliceConfig(
                endpointslice_updates_batch_period_s=flags["batch_period"]
            ),
            costs=_costs(flags["cost"]),
            budgets=Budgets(
                link_bytes_s=flags["link"] * 1e9 / 8, memory_mib=flags["memory"] * 1024
            ),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _costs(texts: tuple[str, ...]) -> Costs:
    from sliceplane.lab.sim.scale.plan import MEASURED, Costs

    costs = Costs()
    for text in texts:
        name, _, value = text.partition("=")
        if name not in MEASURED:
            raise click.UsageError(f"--cost: {name!r} is none of {', '.join(MEASURED)}")
        try:
            seconds = float(value)
        except ValueError as error:
            raise click.UsageError(f"--cost: {value!r} is no number of seconds") from error
        if not 0 <= seconds < float("inf"):
            raise click.UsageError(f"--cost: {text}: a cost is not negative")
        costs = replace(costs, **{name: seconds})
    return costs


def _run(plan: ScalePlan, report_progress: Callable[[str], None]) -> ScaleOutcome:
    from sliceplane.lab.sim.scale.run import ScaleRun

    return ScaleRun(
        plan, lambda text: report_progress(f"{plan.nodes:,} nodes: {text}"), _memory_mib
    ).run()


def _memory_mib() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0  # not Linux
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
