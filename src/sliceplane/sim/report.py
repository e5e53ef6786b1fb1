"""A verdict in words, for people."""

from __future__ import annotations

from sliceplane.sim.faults import KINDS, LEVELS
from sliceplane.sim.invariants import ALWAYS, INVARIANTS
from sliceplane.sim.roster import WORKLOADS, everybody
from sliceplane.sim.simulation import STEPS_DEFAULT, Options, Verdict


def replay(options: Options) -> str:
    """The command that makes the same run again."""
    parts = [f"sliceplane simulate --seed {options.seed}"]
    if options.steps != STEPS_DEFAULT:
        parts.append(f"--steps {options.steps}")
    if options.duration_s is not None:
        parts.append(f"--duration {options.duration_s:g}s")
    weights = told_faults(options)
    if weights != "normal":
        parts.append(f"--faults {weights}")
    if options.workload != WORKLOADS[0]:
        parts.append(f"--workload {options.workload}")
    if options.controllers != everybody(options.workload):
        parts.append(f"--controllers {','.join(options.controllers)}")
    return " ".join(parts)


def told_faults(options: Options) -> str:
    """The level that *options* has, or its weights."""
    given = dict(options.faults)
    for level, factor in LEVELS.items():
        if given == {name: min(kind.weight * factor, 0.9) for name, kind in KINDS.items()}:
            return level
    return ",".join(f"{name}={weight:g}" for name, weight in given.items() if weight) or "none"


def told_setup(verdict: Verdict) -> str:
    """The flags that the seed drew."""
    setup = verdict.setup
    parts = [f"subsetting {setup.subsetting.value or 'off'}"]
    parts.append(f"defragmentation {'on' if setup.defragment else 'off'}")
    if setup.instances > 1:
        parts.append(f"{setup.instances} instances of the slice controller, {verdict.terms} terms")
    return ", ".join(parts)


def summary(verdict: Verdict) -> str:
    """One line; for many seeds."""
    options, violation = verdict.options, verdict.violation
    outcome = "ok" if violation is None else f"FAILED {violation.invariant}"
    counts = f"{verdict.steps} steps, {verdict.virtual_s:.0f} virtual s, {verdict.commits} commits"
    return f"seed {options.seed}: {outcome} ({counts}, {sum(verdict.faults.values())} faults) {verdict.digest}"


def report(verdict: Verdict) -> str:
    """Everything about one run."""
    options, violation = verdict.options, verdict.violation
    lines = [
        f"seed {options.seed}: {verdict.steps} steps of {', '.join(options.controllers)}",
        f"  workload {options.workload}; {told_setup(verdict)}",
        f"  {verdict.virtual_s:.1f} virtual seconds, {verdict.deeds} deeds, {verdict.commits} commits",
        f"  {verdict.writes} writes of controllers reached the server",
        f"  slowest rest {verdict.slowest_rest_s:.1f} s after faults and changes ended",
        f"  trace {verdict.lines} lines, digest {verdict.digest}",
        "faults: " + (", ".join(f"{name} {count}" for name, count in verdict.faults.items()) or "none"),
        "invariants:",
    ]
    broken = violation.invariant if violation is not None else ""
    for name, (meaning, _) in INVARIANTS.items():
        held = f"held at {verdict.checked[name]} quiet points"
        lines.append(f"  {name:31} {'BROKEN' if name == broken else held:24} {meaning}")
    for name, meaning in ALWAYS.items():
        lines.append(f"  {name:31} {'BROKEN' if name == broken else 'held':24} {meaning}")
    if violation is not None:
        lines += ["", f"FAILED {violation.invariant} after {verdict.steps} steps: {violation.message}"]
        lines += ["the newest lines about it:", *(f"  {line}" for line in violation.lines)]
        lines.append(f"replay: {replay(options)}")
    return "\n".join(lines)
