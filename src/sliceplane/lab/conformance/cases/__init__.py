"""The cases, by what they vex: ``slices`` as wholes, endpoints that move (``moves``),
``conditions``, ``ports`` and families, the ``watches`` that carry it all, ``hints``, traffic
``policies``.
"""

from __future__ import annotations

from typing import Final

from sliceplane.lab.conformance.cases import (
    conditions,
    hints,
    moves,
    policies,
    ports,
    slices,
    watches,
)
from sliceplane.lab.conformance.story import Case

CASES: Final[tuple[Case, ...]] = (
    *slices.CASES,
    *moves.CASES,
    *conditions.CASES,
    *ports.CASES,
    *hints.CASES,
    *policies.CASES,
    *watches.CASES,
)
BY_NAME: Final = {case.name: case for case in CASES}
