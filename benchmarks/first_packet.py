"""The first packet of a connection, with 1,000, 10,000 and 30,000 services on the node: it costs
the same.

A cluster IP is found in a map, by its hash, and the endpoint in another by its number; how many
others there are does not matter. Beside it the same connection straight to the endpoint, without
any translation. Needs root.
"""

from __future__ import annotations

import statistics

from benchmarks.harness import Result, main, note, percentile
from benchmarks.node_proxy import measure, missing

SIZES = ("1000x2", "10000x2", "30000x2")
COUNT = 4_000
SMALL_SIZES = ("20x2",)
SMALL_COUNT = 20
TOOL = "benchmarks.tools.first_packets"


def results(sizes: str, count: int) -> list[Result]:
    measured = measure(TOOL, sizes, str(count))
    size = f"{measured['services']:,} services, {count:,} connections"
    return [
        Result(
            name="connect to a cluster IP, median",
            size=size,
            value=statistics.median(measured["through_s"]) * 1e6,
            unit="us",
            peer="straight to the endpoint",
            peer_value=statistics.median(measured["straight_s"]) * 1e6,
        ),
        Result(
            name="  p99", size=size, value=percentile(measured["through_s"], 99) * 1e6, unit="us"
        ),
    ]


def run(small: bool = False) -> list[Result]:
    lacking = missing()
    if lacking:
        note(f"first packets were not measured; missing: {lacking}")
        return []
    chosen, count = (SMALL_SIZES, SMALL_COUNT) if small else (SIZES, COUNT)
    return [result for sizes in chosen for result in results(sizes, count)]


if __name__ == "__main__":
    main(run)
