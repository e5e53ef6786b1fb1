"""``python -m tests.kernel.oracle``: many worlds, their disagreements, and a table (root).

A world waits most of its time, so several are played at once, each in a process with namespaces of
its own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial, reduce
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
    parser.add_argument("--at-once", type=int, default=4, help="worlds that are played at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--kube-proxy", default="", help="a kube-proxy that is built already")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.worlds)
    parts = [part for n in range(asked.at_once) if (part := seeds[n :: asked.at_once])]
    tallies = [_tally_of(proxy, asked.kube_proxy, parts, asked.seconds) for proxy in asked.proxy]
    return 1 if any(tally.faults or tally.failed for tally in tallies) else 0


def _tally_of(proxy: ProxyKind, kube_proxy: str, parts: list[range], patience_s: float) -> Tally:
    """Plays each of *parts* in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="sliceplane-oracle-") as folder:
        if "kube-proxy" in proxy and not kube_proxy:
            kube_proxy = build(kubernetes.MODULE, Path(folder), "./kube-proxy", OPTIMISED)
        play_part = partial(_played, folder, proxy, kube_proxy, patience_s)
        with ProcessPoolExecutor(len(parts)) as processes:
            tally = reduce(Tally.joined, processes.map(play_part, parts))
    print(tally.text())
    tell(f"{proxy}: {tally.line()}")
    return tally


def _played(
    folder: str, proxy: ProxyKind, kube_proxy: str, patience_s: float, seeds: range
) -> Tally:
    own = Path(folder) / str(seeds.start)
    own.mkdir()
    return asyncio.run(play_all(own, proxy, kube_proxy, seeds, patience_s))


if __name__ == "__main__":
    sys.exit(main())
