"""``make attack``: every attack, one after another, with what it cost and what it may cost.

``python -m tests.attack [NAME ...] [--json]``. Each module beside this one that has ``ATTACKS``
takes part. Exits with 1 when a figure is above its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.tools.process import scratch
from tests.attack.harness import Attack, Figure

_NOT_ATTACKS = ("__main__", "harness")


def attacks() -> dict[str, Attack]:
    """All of them by name, in the order of modules and then as a module lists them."""
    found: dict[str, Attack] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem in _NOT_ATTACKS or path.stem.startswith("test_"):
            continue
        for attack in getattr(importlib.import_module(f"tests.attack.{path.stem}"), "ATTACKS", ()):
            assert attack.name not in found, f"two attacks are named {attack.name}"
            found[attack.name] = attack
    return found


def _tell(attack: Attack, figures: tuple[Figure, ...], seconds: float) -> None:
    print(f"\n{attack.name} ({seconds:.0f} s)\n  {attack.story}")
    for figure in figures:
        mark = "ok " if figure.met else "BAD"
        bound = f"at {'least' if figure.at_least else 'most'} {figure.limit:g}"
        print(f"  {mark} {figure.what}: {figure.value:g} {figure.unit} ({bound})", flush=True)


def main() -> None:
    known = attacks()
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"all unless given: {', '.join(known)}"
    )
    parser.add_argument("--json", action="store_true", help="one object a line")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"no attack is named {unknown[0]}; there are {', '.join(known)}")
    bad = 0
    for name in arguments.names or known:
        began = time.monotonic()
        with scratch() as folder:
            os.environ["XTABLES_LOCKFILE"] = (
                f"{folder}/xtables.lock"  # of all network namespaces, and of other programs
            )
            figures = tuple(asyncio.run(known[name].run(Path(folder))))
        bad += sum(not figure.met for figure in figures)
        if arguments.json:
            for figure in figures:
                row = {
                    "attack": name,
                    "what": figure.what,
                    "value": figure.value,
                    "unit": figure.unit,
                }
                print(
                    json.dumps(
                        row
                        | {"limit": figure.limit, "at_least": figure.at_least, "met": figure.met}
                    ),
                    flush=True,
                )
        else:
            _tell(known[name], figures, time.monotonic() - began)
    if not arguments.json:
        print(f"\n{bad} figures above their limits")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
