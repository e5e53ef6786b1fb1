"""Durations for people: two units at most, coarser as they grow."""

from __future__ import annotations

from typing import Any, Final

from sliceplane.documents.table.columns import UNKNOWN, text
from sliceplane.kit.times import parse_time

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400
_YEAR_S: Final = 365 * _DAY_S


def duration(seconds: float) -> str:
    """Up to a second in the future counts as now (clocks differ); more is ``<invalid>``."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 2 * _MINUTE_S:
        return f"{whole}s"
    if whole < 10 * _MINUTE_S:
        return _two(whole, _MINUTE_S, "m", 1, "s")
    if whole < 3 * _HOUR_S:
        return f"{whole // _MINUTE_S}m"
    if whole < 8 * _HOUR_S:
        return _two(whole, _HOUR_S, "h", _MINUTE_S, "m")
    if whole < 2 * _DAY_S:
        return f"{whole // _HOUR_S}h"
    if whole < 8 * _DAY_S:
        return _two(whole, _DAY_S, "d", _HOUR_S, "h")
    if whole < 2 * _YEAR_S:
        return f"{whole // _DAY_S}d"
    if whole < 8 * _YEAR_S:
        return _two(whole, _YEAR_S, "y", _DAY_S, "d")
    return f"{whole // _YEAR_S}y"


def _two(whole: int, unit_s: int, unit: str, small_s: int, small: str) -> str:
    rest = whole % unit_s // small_s
    return f"{whole // unit_s}{unit}{rest}{small}" if rest else f"{whole // unit_s}{unit}"


def since(time: str, now: float) -> str:
    """How long ago an RFC 3339 time was."""
    if not time:
        return UNKNOWN
    try:
        return duration(now - parse_time(time))
    except ValueError:
        return UNKNOWN


def age(document: Any, now: float) -> str:
    return since(text(document, "metadata", "creationTimestamp"), now)
