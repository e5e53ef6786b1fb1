"""A round of the chaos each time, minutes of it on request: ``make soak``, ``python -m
tests.replicated.chaos``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replicated.chaos import Report, play

pytestmark = pytest.mark.timeout(3600)


def verdict(report: Report) -> str:
    return "\n".join([*report.lines(), *report.logs])


async def test_every_kind_of_fault_once(tmp_path: Path) -> None:
    report = await play(tmp_path, seconds=20, seed=1)
    assert not report.violations, verdict(report)
    assert len(report.faults) == 9, verdict(report)


@pytest.mark.slow
async def test_two_minutes(tmp_path: Path) -> None:
    report = await play(tmp_path, seconds=120, seed=1, updates=150, events=300)
    assert not report.violations, verdict(report)
    assert sum(report.faults.values()) >= 15, verdict(report)
