"""Run cases until the time is over: ``python -m tests.fuzz --seconds 1800``.

A failing case prints its violation and the line that replays it. The same violation is printed
once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.cases import run_case
from tests.fuzz.properties import Violation

#: growth of the process over its second half, beyond caches that fill
GROWTH_MIB_MAX = 32.0


def rss_mib() -> float:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long new cases are begun")
    parser.add_argument(
        "--seed", type=int, default=None, help="number of the first case (from the clock)"
    )
    parser.add_argument("--case", type=int, default=None, help="run this one alone")
    arguments = parser.parse_args()
    if arguments.case is not None:
        asyncio.run(run_case(arguments.case))
        return
    first = arguments.seed if arguments.seed is not None else int(time.time()) * 1000
    print(f"first case: {first}", flush=True)
    seen: set[str] = set()
    began, number, accepted, sizes = time.monotonic(), first, 0, [rss_mib()]
    while (elapsed := time.monotonic() - began) < arguments.seconds:
        if elapsed > len(sizes) * arguments.seconds / 4:
            sizes.append(rss_mib())
        try:
            accepted += asyncio.run(run_case(number))
        except Exception as error:
            what = error.what if isinstance(error, Violation) else traceback.format_exc()
            kind = re.sub(r"[0-9a-f]{8}-[0-9a-f-]+|'[^']*'|\"[^\"]*\"|\d+", "_", what)[:100]
            if kind not in seen:
                seen.add(kind)
                told = error if isinstance(error, Violation) else what
                print(f"\n{told}\n  replay: python -m tests.fuzz --case {number}", flush=True)
        number += 1
    sizes.append(rss_mib())
    print(
        f"{number - first} cases, {accepted} accepted, {len(seen)} violations, MiB "
        f"{[round(size) for size in sizes]}"
    )
    grown = sizes[-1] - sizes[len(sizes) // 2]
    if grown > GROWTH_MIB_MAX:
        print(f"the process has grown by {grown:.0f} MiB in its second half")
    sys.exit(bool(seen) or grown > GROWTH_MIB_MAX)


if __name__ == "__main__":
    main()
