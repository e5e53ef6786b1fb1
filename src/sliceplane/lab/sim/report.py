"""Reports of a verdict, and the shortest history that still fails.

The history of the first k steps does not depend on how many follow. So a failing run is cut to the
step at which it failed, and then to the least k whose own quiet point already shows a violation:
first by halving, then one by one, since fewer steps do not always fail when more do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from sliceplane.lab.sim.checks.invariants import ALWAYS, INVARIANTS
from sliceplane.lab.sim.faults import KINDS, LEVELS
from sliceplane.lab.sim.roster import WORKLOADS, all_controllers
from sliceplane.lab.sim.simulation import STEPS_DEFAULT, Options, RunVerdict, Simulation

#: maximum number of runs of one shrinking
RUNS_MAX: Final = 40


def replay(options: Options) -> str:
    """Returns the command that repeats the run."""
    parts = [f"sliceplane simulate --seed {options.seed}"]
    if options.steps != STEPS_DEFAULT:
        parts.append(f"--steps {options.steps}")
    if options.duration_s is not None:
        parts.append(f"--duration {options.duration_s:g}s")
    weights = faults_text(options)
    if weights != "normal":
        parts.append(f"--faults {weights}")
    if options.workload != WORKLOADS[0]:
        parts.append(f"--workload {options.workload}")
    if options.controllers != all_controllers(options.workload):
        parts.append(f"--controllers {','.join(options.controllers)}")
    if options.adoption is not None:
        parts.append(f"--from {options.adoption.file}")
    return " ".join(parts)


def faults_text(options: Options) -> str:
    """Returns the level of *options*, or its weights."""
    weights = dict(options.faults)
    for level, factor in LEVELS.items():
        if weights == {name: min(kind.weight * factor, 0.9) for name, kind in KINDS.items()}:
            return level
    return ",".join(f"{name}={weight:g}" for name, weight in weights.items() if weight) or "none"


def setup_text(verdict: RunVerdict) -> str:
    """Returns the flags that the seed drew."""
    setup = verdict.setup
    parts = [f"subsetting {setup.subsetting.value or 'off'}"]
    parts.append(f"defragmentation {'on' if setup.defragment else 'off'}")
    if setup.instances > 1:
        parts.append(f"{setup.instances} instances of the slice controller, {verdict.terms} terms")
    return ", ".join(parts)


def summary(verdict: RunVerdict) -> str:
    """Returns one line, for reports of many seeds."""
    options = verdict.options
    violation = verdict.violation
    outcome = "ok" if violation is None else f"FAILED {violation.invariant}"
    counts = f"{verdict.steps} steps, {verdict.virtual_s:.0f} virtual s, {verdict.commits} commits"
    return (
        f"seed {options.seed}: {outcome} ({counts}, {sum(verdict.faults.values())} faults) "
        f"{verdict.digest}"
    )


def report(verdict: RunVerdict) -> str:
    """Returns the full report of one run."""
    options = verdict.options
    violation = verdict.violation
    lines = [
        f"seed {options.seed}: {verdict.steps} steps of {', '.join(options.controllers)}",
        f"  workload {options.workload}; {setup_text(verdict)}",
        (
            f"  {verdict.virtual_s:.1f} virtual seconds, {verdict.callbacks} actions, {verdict.commits} "
            "commits"
        ),
        f"  {verdict.writes} writes of controllers reached the server",
        f"  slowest rest {verdict.slowest_rest_s:.1f} s after faults and changes ended",
        f"  trace {verdict.lines} lines, digest {verdict.digest}",
        "faults: "
        + (", ".join(f"{name} {count}" for name, count in verdict.faults.items()) or "none"),
        "invariants:",
    ]
    broken = violation.invariant if violation is not None else ""
    for name, invariant in INVARIANTS.items():
        result = f"held at {verdict.checked[name]} quiet points"
        lines.append(f"  {name:31} {'BROKEN' if name == broken else result:24} {invariant.meaning}")
    for name, meaning in ALWAYS.items():
        lines.append(f"  {name:31} {'BROKEN' if name == broken else 'held':24} {meaning}")
    if violation is not None:
        lines += [
            "",
            f"FAILED {violation.invariant} after {verdict.steps} steps: {violation.message}",
        ]
        lines += ["the newest lines about it:", *(f"  {line}" for line in violation.lines)]
        lines.append(f"replay: {replay(options)}")
    return "\n".join(lines)


def shrink(verdict: RunVerdict, run: Callable[[Options], RunVerdict] | None = None) -> RunVerdict:
    """Returns a failing verdict of the same seed with the fewest steps found. *verdict* must be
    failing.
    """
    assert verdict.violation is not None, f"seed {verdict.options.seed} does not fail"
    run = run or (lambda options: Simulation(options).run())
    best = verdict
    low = 0
    runs = 0
    high = verdict.steps

    def fails(steps: int) -> bool:
        nonlocal best, runs
        runs += 1
        shorter = run(replace(verdict.options, steps=steps, duration_s=None))
        if shorter.violation is not None and shorter.steps <= best.steps:
            best = shorter
            return True
        return False

    while low < high and runs < RUNS_MAX:
        middle = (low + high) // 2
        if fails(middle):
            high = best.steps
        else:
            low = middle + 1
    while best.steps > 0 and runs < RUNS_MAX and fails(best.steps - 1):
        pass
    return best
