"""Objects that the server removes by itself: Events, an hour after their last write
(kube-apiserver's ``--event-ttl``).

``on_stored`` has no clock: the time to live starts at the next ``take_due``, which the process
calls every few seconds. After a start the time of the last write is unknown; the times inside the
Event are used instead, or the present if they are in the future.

Deadlines are assigned in the order in which they expire, so a plain dictionary is the queue: due
keys are at its front, and only the Events of the start are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.api.meta import Document
from sliceplane.api.scheme import Events
from sliceplane.kit.times import parse_time
from sliceplane.server.store.types import Key

EVENT_TTL_S: Final = 3600.0


class Expiry:
    """The deadlines of all Events.  A ``server.registry.core.Follower``."""

    follows = frozenset((Events.storage_key,))

    def __init__(self, ttl_s: float = EVENT_TTL_S) -> None:
        self._ttl_s = ttl_s
        #: Events from before the start and their latest times, earliest first
        self._initial: dict[Key, float] = {}
        #: written since the last ``take_due``, in order
        self._fresh: dict[Key, None] = {}
        self._deadlines: dict[Key, float] = {}

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._fresh.clear()
        self._deadlines.clear()
        times = ((latest_time(event), key) for key, event in objects)
        self._initial = {key: at for at, key in sorted(times)}

    def on_stored(self, key: Key, document: Document) -> None:
        self.on_removed(key)
        self._fresh[key] = None

    def on_removed(self, key: Key) -> None:
        self._initial.pop(key, None)
        self._fresh.pop(key, None)
        self._deadlines.pop(key, None)

    def take_due(self, now: float, most: int) -> tuple[Key, ...]:
        """Returns at most *most* expired keys.  They are returned again until ``on_removed``."""
        for key, at in self._initial.items():
            self._deadlines[key] = min(at, now) + self._ttl_s
        for key in self._fresh:
            self._deadlines[key] = now + self._ttl_s
        self._initial.clear()
        self._fresh.clear()
        due: list[Key] = []
        for key, deadline in self._deadlines.items():
            if deadline > now or len(due) == most:
                break
            due.append(key)
        return tuple(due)

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        """Asserts that each Event has exactly one deadline."""
        tracked = sorted([*self._initial, *self._fresh, *self._deadlines])
        stored = sorted(key for key, _ in objects)
        assert tracked == stored, f"{tracked} have deadlines, not {stored}"


def latest_time(event: Document) -> float:
    """Returns the latest time in an Event; 0 if it has none."""
    times = (
        event["metadata"].get("creationTimestamp"),
        event.get("eventTime"),
        event.get("lastTimestamp"),
        (event.get("series") or {}).get("lastObservedTime"),
    )
    return max((parse_time(time) for time in times if time), default=0.0)
