"""What it costs a node to count connections to Services with measured zones: the kernel for each
connection, and Python for a read of the counters, 6 times a minute whatever the rate.

Beside rules of kube-proxy's layout in a network namespace. The least of the rounds counts, as
whatever else the machine does only adds to it. Needs root.
"""

from __future__ import annotations

import shutil

from benchmarks.harness import Result, main, note
from benchmarks.node_proxy import measure, missing
from sliceplane.consume.progress import CHANGED_PERIOD_S

TOOL = "benchmarks.tools.counted"
SERVICES = 200
FLOWS = 20_000
ROUNDS = 15
KERNEL_BUDGET_US = 0.3
PYTHON_BUDGET = 0.5


def run(small: bool = False) -> list[Result]:
    lacking = missing() or ("" if shutil.which("conntrack") else "conntrack")
    if lacking:
        note(f"demand was not measured; missing: {lacking}")
        return []
    services, flows, rounds = (5, 50, 1) if small else (SERVICES, FLOWS, ROUNDS)
    measured = measure(TOOL, str(services), str(flows), str(rounds))
    assert measured["counted"] == flows, measured["counted"]
    without_us, with_us = (min(measured[name]) / flows * 1e6 for name in ("without_s", "with_s"))
    size = f"{services} services of two families"
    return [
        Result(
            name="one connection more, kernel",
            size=size,
            value=max(0.0, (with_us - without_us) / measured["copies"]),
            unit="us",
            budget=KERNEL_BUDGET_US,
            peer="all of a new flow without it",
            peer_value=without_us,
        ),
        Result(
            name="Python, at any rate of connections",
            size=size,
            value=measured["read_s"] / CHANGED_PERIOD_S * 100,
            unit="% of a core",
            budget=PYTHON_BUDGET,
        ),
    ]


if __name__ == "__main__":
    main(run)
