"""The shortest history that still fails.

The history of the first k steps does not depend on how many follow, so a failing run is cut to the step at which it
failed, and then to the least k whose own quiet point already shows a violation: by halving first, then one by one, as
fewer steps do not always fail when more do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sliceplane.sim.simulation import Options, Simulation, Verdict

#: runs that one shrinking may cost
RUNS_MAX = 40


def shrink(verdict: Verdict, run: Callable[[Options], Verdict] | None = None) -> Verdict:
    """A failing verdict of the same seed with the fewest steps found.  *verdict* must be failing."""
    assert verdict.violation is not None, f"seed {verdict.options.seed} does not fail"
    run = run or (lambda options: Simulation(options).run())
    best = verdict
    low, high, runs = 0, verdict.steps, 0

    def fails(steps: int) -> bool:
        nonlocal best, runs
        runs += 1
        found = run(replace(verdict.options, steps=steps, duration_s=None))
        if found.violation is not None and found.steps <= best.steps:
            best = found
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
