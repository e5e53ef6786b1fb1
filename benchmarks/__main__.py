"""Run every benchmark of this folder, each in a process of its own so that none warms another's
caches.

At the end the budgets that were missed are named, and the exit code is 1 if there is one, or if a
benchmark failed.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.python_build import is_slow

from benchmarks.harness import ROWS_FILE
from benchmarks.tools.process import child_environment

NOT_BENCHMARKS = {"__init__", "__main__", "harness"}


def benchmarks() -> list[str]:
    """Their names, in the order in which they run."""
    return sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_BENCHMARKS
    )


def complaints(name: str, rows: Sequence[dict[str, Any]], exit_code: int) -> list[str]:
    """A line for each budget that benchmark *name* missed, or one if it failed."""
    missed = [
        f"missed: {name}: {row['name']} ({row['size']}): {row['value']:,g} {row['unit']}, budget "
        f"{row['budget']:,g}"
        for row in rows
        if row["met"] is False
    ]
    return missed or ([f"failed: {name}: exit code {exit_code}"] if exit_code else [])


def run(name: str, flags: Sequence[str]) -> list[str]:
    """Run one benchmark, whose output is ours, and give its complaints."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "rows")
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        done = subprocess.run(
            command, check=False, env={**child_environment(), ROWS_FILE: str(file)}
        )
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return complaints(name, [json.loads(line) for line in lines], done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--small", action="store_true", help="the smallest sizes that still run everything"
    )
    parser.add_argument("names", nargs="*", help="benchmarks to run (all)")
    arguments = parser.parse_args()
    flags = [flag for flag in ("--json", "--small") if getattr(arguments, flag[2:])]
    if not arguments.json:
        build = ", built without optimisation: times are a third too long" if is_slow() else ""
        print(f"Python {platform.python_version()} of {sys.base_prefix}{build}", flush=True)
    problems: list[str] = []
    for name in arguments.names or benchmarks():
        if not arguments.json:
            print(f"\n== {name}", flush=True)
        problems += run(name, flags)
    # With --json standard output is rows and nothing else.
    stream = sys.stderr if arguments.json else sys.stdout
    print("", *(problems or ["every budget is met"]), sep="\n", file=stream)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
