"""``explain --kernel`` says what packets find out, in worlds of random Services, Pods and faults.

``python -m tests.kernel.oracle`` plays many of them, and with a real kube-proxy.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.kernel.oracle.__main__ import play_all
from tests.kernel.oracle.field import ProxyKind
from tests.kernel.oracle.judging import Tally
from tests.kernel.oracle.worlds import make_world

pytestmark = pytest.mark.kernel


def test_a_seed_makes_one_world() -> None:
    assert make_world(7) == make_world(7)
    assert len({make_world(seed).faults for seed in range(50)}) > 40


def test_results_of_parts_are_joined() -> None:
    first = Tally(2, 3, 40, 1, Counter({"works, well": 2}), failed=["seed 1: no answer"])
    second = Tally(1, 2, 20, 1, Counter({"works, well": 1, "fails, broken": 1}))
    joined = first.joined(second)
    assert joined.line() == (
        "3 worlds, 5 questions, 60 connections, 2 traces, 0 contradictions, 1 not played; "
        "listed: none"
    )
    assert joined.verdicts == {"works, well": 3, "fails, broken": 1}


async def agree(
    folder: Path, proxy: ProxyKind, seeds: range, patience_s: float, kube_proxy: str = ""
) -> None:
    """Fails with what ``explain`` contradicts."""
    tally = await play_all(folder, proxy, kube_proxy, seeds, patience_s)
    assert tally.worlds
    assert not tally.failed, tally.failed
    assert not tally.faults, "\n".join(map(str, tally.faults))


async def test_explain_agrees_with_packets(tmp_path: Path) -> None:
    """Worlds in which an element, and a map, of the kernel's rules are gone."""
    await agree(tmp_path, "ours nftables", range(6, 8), 6.0)
