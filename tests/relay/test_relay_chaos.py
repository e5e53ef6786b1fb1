"""A round of the chaos of relays; 1,000,000 events on request: ``make soak``, ``python -m
tests.relay.chaos``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.relay.chaos import Report, play

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.slow
async def test_every_kind_of_fault_once(tmp_path: Path) -> None:
    report = Report()
    await play(tmp_path, report, seconds=10, seed=1)
    told = "\n".join([*report.lines(), *report.logs])
    assert not report.violations, told
    assert len(report.faults) == 8, told
    assert report.events > 0
