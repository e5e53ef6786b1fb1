"""Verdicts of Kubernetes' own rules on random Pods and workloads, recorded by
``tests/peers/test_validation.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.peers.verdicts import RECORDED, is_same, ours, question

VERDICTS: dict[str, list[Any]] = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("start", range(0, len(VERDICTS["objects"]), 100))
def test_objects_are_judged_as_upstream_does(start: int) -> None:
    compare(
        VERDICTS["objects"], range(start, min(start + 100, len(VERDICTS["objects"]))), updates=False
    )


def test_updates_are_judged_as_upstream_does() -> None:
    compare(VERDICTS["updates"], range(len(VERDICTS["updates"])), updates=True)


def compare(verdicts: list[Any], seeds: range, *, updates: bool) -> None:
    refused = 0
    for seed in seeds:
        asked = question(seed, updates=updates)
        refused += bool(verdicts[seed])
        mine = ours(asked)
        assert is_same(mine, {"verdicts": verdicts[seed]}), (
            f"seed {seed}\n{json.dumps(asked)}\n{mine}\n{verdicts[seed]}"
        )
    assert refused > len(seeds) / 4, "too few complaints to prove anything"
