"""RFC 3339 times as Kubernetes writes them, and durations as Go writes them, without a clock.

``Time`` fields are whole seconds (``2026-11-21T10:00:00Z``); ``MicroTime`` fields have exactly six
fraction digits. Durations are ``1h0m0s``, ``1m30s``, ``250ms``, ``0s``. Here, seconds (since the
epoch) are a ``float``: the form that cores compute with.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_400_YEARS = timedelta(days=146_097)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOSECONDS: Final = 1_000_000_000
#: Go's; a micro is U+00B5, the sign, or U+03BC, the letter
_UNITS_S: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_WHOLE: Final = re.compile(rf"(?P<sign>[-+]?)(?P<parts>(?:{_PART.pattern})+)", re.ASCII)
#: Go counts nanoseconds in 63 bits: about 292 years
DURATION_MAX_S: Final = (1 << 63) / 1e9


def format_time(seconds: float) -> str:
    """A ``metav1.Time``: whole seconds, UTC."""
    # ``isoformat`` costs a tenth of ``strftime``, and writes four digits for early years, too.
    return f"{datetime.fromtimestamp(int(seconds // 1), UTC).isoformat()[:19]}Z"


def format_micro_time(seconds: float) -> str:
    """A ``metav1.MicroTime``: exactly six fraction digits, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_nano_time(nanoseconds: int) -> str:
    """RFC 3339 with up to nine fraction digits, trailing zeros dropped, UTC (Go's
    ``RFC3339Nano``).
    """
    seconds, fraction = divmod(nanoseconds, _NANOSECONDS)
    text = datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else f"{text}Z"


def since_epoch(text: str) -> timedelta:
    """Returns the time since the epoch. Raises ``ValueError`` if *text* is not RFC 3339 with an
    offset.
    """
    # RFC 3339 and Go have a year 0, ``datetime`` has not; the calendar repeats every 400 years.
    year_zero = text.startswith("0000-")
    moment = datetime.fromisoformat(f"0400{text[4:]}" if year_zero else text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no UTC offset")
    passed = moment - _EPOCH
    return passed - _400_YEARS if year_zero else passed


def parse_time(text: str) -> float:
    """Seconds since the epoch.  Raises ``ValueError`` if *text* is not RFC 3339 with an offset."""
    return since_epoch(text).total_seconds()


def time_or_zero(text: str | None) -> float:
    """Seconds since the epoch; 0 for no time, or one that cannot be read: a server sent it, and no
    user wrote it.
    """
    try:
        return parse_time(text) if text else 0.0
    except (ValueError, OverflowError):
        return 0.0


def parse_nanoseconds(text: str | None) -> int:
    """Nanoseconds since the epoch; 0 for no time, or one that cannot be read."""
    if not text:
        return 0
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    try:
        seconds = parse_time(whole + rest[len(digits) :] if dot else text)
    except ValueError:
        return 0
    return int(seconds) * _NANOSECONDS + int(digits[:9].ljust(9, "0") if digits else "0")


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
