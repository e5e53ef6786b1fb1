"""RFC 3339 times, as Kubernetes writes them, without a clock.

``Time`` fields are whole seconds (``2026-11-21T10:00:00Z``); ``MicroTime`` fields have exactly six
fraction digits.  Seconds since the epoch (``float``) are the form that cores compute with.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_400_YEARS = timedelta(days=146_097)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def format_time(seconds: float) -> str:
    """A ``metav1.Time``: whole seconds, UTC."""
    # ``isoformat`` costs a tenth of ``strftime``, and writes four digits for early years, too.
    return f"{datetime.fromtimestamp(int(seconds // 1), UTC).isoformat()[:19]}Z"


def format_micro_time(seconds: float) -> str:
    """A ``metav1.MicroTime``: exactly six fraction digits, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_nano_time(nanoseconds: int) -> str:
    """RFC 3339 with up to nine fraction digits, trailing zeros dropped, UTC (Go's ``RFC3339Nano``)."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    text = datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def since_epoch(text: str) -> timedelta:
    """What has passed since the epoch.  Raises ``ValueError`` if *text* is not RFC 3339 with an offset."""
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
