"""Durations as Go writes them: ``1h0m0s``, ``1m30s``, ``250ms``, ``0s``; seconds as a float here."""

from __future__ import annotations

import re
from typing import Final

#: Go's; a micro is U+00B5, the sign, or U+03BC, the letter
_UNITS_S: Final = {
    "ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_WHOLE: Final = re.compile(rf"(?P<sign>[-+]?)(?P<parts>(?:{_PART.pattern})+)", re.ASCII)
#: Go counts nanoseconds in 63 bits: about 292 years
DURATION_MAX_S: Final = (1 << 63) / 1e9


def parse_duration(text: str) -> float | None:
    """Seconds, or ``None`` for what Go's ``time.ParseDuration`` refuses."""
    if text in {"0", "+0", "-0"}:
        return 0.0
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        return None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(whole["parts"]))
    if seconds >= DURATION_MAX_S:
        return None
    return -seconds if whole["sign"] == "-" else seconds


def format_duration(seconds: float) -> str:
    """As Go prints it, to the microsecond: ``15m0s``, ``250ms``, ``0s``."""
    sign = "-" if seconds < 0 else ""
    micros = round(abs(seconds) * 1_000_000)
    if micros == 0:
        return "0s"
    if micros < 1000:
        return f"{sign}{micros}µs"
    if micros < 1_000_000:
        return f"{sign}{_decimal(micros, 1000)}ms"
    minutes, rest = divmod(micros, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, 1_000_000)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _decimal(count: int, unit: int) -> str:
    """*count* divided by *unit*, a power of ten, without trailing zeros."""
    whole, fraction = divmod(count, unit)
    digits = f"{fraction:0{len(str(unit)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
