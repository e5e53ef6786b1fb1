"""Run every benchmark of this folder, each in a process of its own so that none warms another's caches."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

NOT_BENCHMARKS = {"__init__", "__main__", "harness"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("names", nargs="*", help="benchmarks to run (all)")
    arguments = parser.parse_args()
    found = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_BENCHMARKS)
    failed = False
    for name in arguments.names or found:
        if not arguments.json:
            print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--json"] if arguments.json else [])]
        failed |= subprocess.run(command, check=False).returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
