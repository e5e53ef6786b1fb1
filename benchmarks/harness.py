"""What every benchmark shares: a result, the two ways to print it, medians."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

#: whose figures the budgets are measured against: built from source and run on the machine of the budgets, once
UPSTREAM = "upstream 1.36.2 (recorded)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure.  ``budget`` is an upper bound in the same unit, ``peer_value`` somebody else's figure."""

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


def report(results: Iterable[Result], *, as_json: bool) -> bool:
    """Print *results*; true if no budget was missed."""
    rows = [result.row() for result in results]
    if as_json:
        for row in rows:
            print(json.dumps(row), flush=True)
    else:
        columns = ("name", "size", "value", "unit", "budget", "met", "peer", "peer_value", "ratio")
        table = [list(columns), *([_cell(row[column]) for column in columns] for row in rows)]
        widths = [max(len(line[index]) for line in table) for index in range(len(columns))]
        for line in table:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return all(row["met"] is not False for row in rows)


def note(text: str) -> None:
    """What a reader of the figures should know, and why a figure is missing.  On standard error, beside the table."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def main(run: Callable[[bool], list[Result]]) -> None:
    """Entry point of one benchmark module.  *run* gets whether small sizes were asked for, without budgets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--small", action="store_true", help="the smallest size that still runs everything")
    arguments = parser.parse_args()
    report(run(arguments.small), as_json=arguments.json)
