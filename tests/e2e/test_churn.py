"""Two minutes of everything at once; ``python -m tests.e2e.churn`` for half an hour of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.churn import CALMS, play


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_minutes_of_churn(tmp_path: Path) -> None:
    report = await play(tmp_path, seconds=120, seed=1)
    assert not report.violations, report.violations
    assert len(report.calms) == CALMS
    assert report.writes["ConfigMap"] > 0
    assert sum(report.faults.values()) > 0
