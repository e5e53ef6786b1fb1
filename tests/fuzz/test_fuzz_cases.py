"""The same cases in every run: a short slice of ``make fuzz``, so that no change breaks a property
unseen.
"""

from __future__ import annotations

import pytest
from tests.fuzz.cases import run_case

BLOCKS, OTHER_BLOCKS, CASES = 6, 3, 8
_SLOW = [
    pytest.param(block, marks=pytest.mark.slow) for block in range(BLOCKS, BLOCKS + OTHER_BLOCKS)
]


@pytest.mark.parametrize("block", [*range(BLOCKS), *_SLOW])
async def test_properties_hold(block: int) -> None:
    """Numbers of a block are consecutive: a failing one is replayed with ``python -m tests.fuzz
    --case NUMBER``.
    """
    accepted = 0
    for number in range(block * CASES, (block + 1) * CASES):
        try:
            accepted += await run_case(number)
        except Exception as error:
            error.add_note(f"replay: python -m tests.fuzz --case {number}")
            raise
    assert accepted > CASES, "hardly anything was accepted: nothing was tested"
