"""The heuristics of this distribution; they need no entry point."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sliceplane.slices.heuristics.balanced import Balanced
from sliceplane.slices.heuristics.measured import MeasuredZones
from sliceplane.slices.heuristics.spread_constraints import SpreadConstraints
from sliceplane.slices.heuristics.types import Heuristic

_OURS: Final[tuple[Heuristic, ...]] = (Balanced(), MeasuredZones(), SpreadConstraints())
SHIPPED: Final[Mapping[str, Heuristic]] = MappingProxyType(
    {heuristic.name: heuristic for heuristic in _OURS}
)


def not_installed(name: str) -> str:
    """Returns the sentence for a name that no heuristic has."""
    return f"no heuristic {name} is installed"


def find_shipped(name: str) -> Heuristic | str:
    """An ``queries.Find`` that knows no others."""
    return SHIPPED.get(name) or not_installed(name)
