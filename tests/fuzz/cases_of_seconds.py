"""The command line of fuzzers whose cases are numbers: new ones until the time is over, or one
again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable


def run_cases(module: str, case: Callable[[int], None], what: str) -> None:
    """A case that fails prints the line that replays it, and its error ends the run."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long new cases are begun")
    parser.add_argument("--case", type=int, help="run this one alone")
    arguments = parser.parse_args()
    if arguments.case is not None:
        case(arguments.case)
        return
    number = first = time.time_ns() % 10**9 * 1000
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        try:
            case(number)
        except BaseException:
            print(f"replay: python -m {module} --case {number}", file=sys.stderr, flush=True)
            raise
        number += 1
    print(f"{number - first} {what}, nothing found")
