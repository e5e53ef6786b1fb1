"""The trigger time: since when the oldest change that a write makes known has been waiting.

Consumers subtract it from the time at which they have programmed the change; that difference is the
network programming latency SLI.  Times are whole nanoseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.kit.times import format_nano_time, parse_time

_NANOSECONDS = 1_000_000_000


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


def earliest_change(pairs: Iterable[tuple[str | None, str | None]]) -> int:
    """The least of the new times that are later than the old ones beside them; 0 if there is none."""
    earliest = 0
    for old, new in pairs:
        if new is None or new == old:
            continue
        time = parse_nanoseconds(new)
        if time > parse_nanoseconds(old) and (not earliest or time < earliest):
            earliest = time
    return earliest


def format_trigger(nanoseconds: int) -> str:
    return format_nano_time(nanoseconds)
