"""Run every benchmark of this folder, each in a process of its own so that none warms another's caches."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.tools.process import child_environment

NOT_BENCHMARKS = {"__init__", "__main__", "harness"}


def benchmarks() -> list[str]:
    """Their names, in the order in which they run."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--small", action="store_true", help="the smallest sizes that still run everything")
    parser.add_argument("names", nargs="*", help="benchmarks to run (all)")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.names or benchmarks():
        if not arguments.json:
            print(f"\n== {name}", flush=True)
        flags = [flag for flag in ("--json", "--small") if getattr(arguments, flag[2:])]
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        failed |= subprocess.run(command, check=False, env=child_environment()).returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
