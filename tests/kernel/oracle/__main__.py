"""``python -m tests.kernel.oracle``: many worlds, their disagreements, and a table (root)."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

from benchmarks.tools.peers import OPTIMISED
from tests.figures import tell
from tests.kernel.oracle.field import ProxyKind, started
from tests.kernel.oracle.judging import Tally, play
from tests.kernel.oracle.worlds import make_world
from tests.peers import kubernetes
from tests.peers.programs import build


async def play_all(
    folder: Path, proxy: ProxyKind, kube_proxy: str, seeds: range, patience_s: float
) -> Tally:
    """Plays the worlds of *seeds* one after the other, begins none after *patience_s*, and
    prints what differs.
    """
    tally = Tally()
    async with started(folder, proxy, kube_proxy) as place:
        deadline = time.monotonic() + patience_s
        for seed in seeds:
            if time.monotonic() > deadline:
                break
            told = len(tally.disagreements)
            try:
                await play(place, make_world(seed), tally)
            except (RuntimeError, AssertionError) as error:
                tally.failed.append(f"seed {seed}: {error}")
                print(tally.failed[-1], flush=True)
                await place.reset()
            for each in tally.disagreements[told:]:
                print(each, flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = get_args(ProxyKind)
    parser.add_argument("--proxy", choices=kinds, nargs="+", default=["ours nftables"])
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--kube-proxy", default="", help="a kube-proxy that is built already")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.worlds)
    tallies = [_tally_of(proxy, asked.kube_proxy, seeds, asked.seconds) for proxy in asked.proxy]
    return 1 if any(tally.faults or tally.failed for tally in tallies) else 0


def _tally_of(proxy: ProxyKind, kube_proxy: str, seeds: range, patience_s: float) -> Tally:
    with tempfile.TemporaryDirectory(prefix="sliceplane-oracle-") as folder:
        if "kube-proxy" in proxy and not kube_proxy:
            kube_proxy = build(kubernetes.MODULE, Path(folder), "./kube-proxy", OPTIMISED)
        tally = asyncio.run(play_all(Path(folder), proxy, kube_proxy, seeds, patience_s))
    print(tally.text())
    tell(f"{proxy}: {tally.line()}")
    return tally


if __name__ == "__main__":
    sys.exit(main())
