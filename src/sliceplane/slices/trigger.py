"""The trigger time: since when the oldest change that a write makes known has been waiting.

Consumers subtract it from the time at which they have programmed the change; that difference is the
network programming latency SLI.  Times are whole nanoseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.kit.times import parse_time

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


class TriggerTime:
    """Of the changes of one Service that no write made known yet: since when the oldest waits.  Kept until it is
    written, so that a retry still tells it."""

    __slots__ = ("_began", "since")

    def __init__(self) -> None:
        #: nanoseconds; 0: nothing waits
        self.since = 0
        self._began = False

    def restart(self) -> None:
        """It is another Service."""
        self.since = 0
        self._began = False

    def note(self, changed: int, created: str | None) -> None:
        """Members *changed* then (0: none did).  What is first made for a Service waits since its creation."""
        if not self._began:
            changed = parse_nanoseconds(created)
            self._began = True
        if changed and (not self.since or changed < self.since):
            self.since = changed

    def written(self) -> None:
        self.since = 0
