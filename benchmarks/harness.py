"""What every benchmark shares: a result, the two ways to print it, the exit code, medians."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from sliceplane.kit.columns import table

#: whose figures the budgets are measured against: built from source and run on the machine of the
#: budgets, once
UPSTREAM: Final = "upstream 1.36.2 (recorded)"
#: environment variable of a benchmark that ``python -m benchmarks`` runs
ROWS_FILE: Final = "SLICEPLANE_BENCHMARK_ROWS"
COLUMNS: Final = ("name", "size", "value", "unit", "budget", "met", "peer", "peer_value", "ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure.  ``budget`` is an upper bound in the same unit, ``peer_value`` the figure of
    ``peer``.
    """

    name: str
    size: str
    value: float
    unit: str
    budget: float | None = None
    peer: str = ""
    peer_value: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.budget is None else self.value <= self.budget

    def row(self) -> dict[str, object]:
        ratio = float(f"{self.value / self.peer_value:.3g}") if self.peer_value else None
        return {
            "name": self.name,
            "size": self.size,
            "value": round(self.value, 4),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": self.peer_value,
            "ratio": ratio,
            "budget": self.budget,
            "met": self.met,
        }


def median(measure: Callable[[], float], runs: int) -> float:
    """The median of *runs* calls; the first call is a warm-up and does not count."""
    measure()
    return statistics.median(measure() for _ in range(runs))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of *values* that at least *percent* of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        if 0 < value < 0.01:
            return f"1/{1 / value:,.0f}"  # only ratios are that small
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return str(value)


def finish(results: Iterable[Result], *, as_json: bool, text: str | None = None) -> NoReturn:
    """Print *results*, for people as a table or as *text*, and end the process: with 1 if a budget
    is missed.

    Where ``python -m benchmarks`` started this process, ``ROWS_FILE`` names the file that it reads
    the rows from.
    """
    rows = [result.row() for result in results]
    lines = [json.dumps(row) for row in rows]
    if ROWS_FILE in os.environ:
        Path(os.environ[ROWS_FILE]).write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
    if not as_json:
        cells = [[_cell(row[column]) for column in COLUMNS] for row in rows]
        lines = [text] if text is not None else list(table(COLUMNS, cells))
    print(*lines, sep="\n", flush=True)
    sys.exit(any(row["met"] is False for row in rows))


def note(text: str) -> None:
    """What a reader of the figures should know, and why a figure is missing.  On standard error,
    beside the table.
    """
    print(f"note: {text}", file=sys.stderr, flush=True)


def main(run: Callable[[bool], list[Result]]) -> None:
    """Entry point of one benchmark module.  *run* gets whether small sizes were asked for, without
    budgets.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--small", action="store_true", help="the smallest size that still runs everything"
    )
    arguments = parser.parse_args()
    results = run(arguments.small)
    if arguments.small:
        results = [replace(result, budget=None) for result in results]
    finish(results, as_json=arguments.json)
