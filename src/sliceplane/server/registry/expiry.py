"""Objects that the server forgets by itself: Events, an hour after they were last written
(kube-apiserver's ``--event-ttl``).

``on_stored`` has no clock; a write counts from the next ``take_due``, which the process calls every
few seconds. After a start it is not known when an Event was written, and the times that it carries
itself stand in for that; they are believed as far as they are not in the future.

Deadlines are handed out in the order in which they come due, so a plain dictionary is the queue:
what is due is looked for at its front, and nothing is ever sorted but what was found at the start.
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
    """Deadlines of the newest Events.  A ``server.registry.core.Follower``."""

    follows = frozenset((Events.storage_key,))

    def __init__(self, ttl_s: float = EVENT_TTL_S) -> None:
        self._ttl_s = ttl_s
        #: from before the start, by the time that they tell; earliest first
        self._found: dict[Key, float] = {}
        #: written since the last ``take_due``, in order
        self._fresh: dict[Key, None] = {}
        self._deadlines: dict[Key, float] = {}

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._fresh.clear()
        self._deadlines.clear()
        seen = ((last_seen(event), key) for key, event in objects)
        self._found = {key: at for at, key in sorted(seen)}

    def on_stored(self, key: Key, document: Document) -> None:
        self.on_removed(key)
        self._fresh[key] = None

    def on_removed(self, key: Key) -> None:
        self._found.pop(key, None)
        self._fresh.pop(key, None)
        self._deadlines.pop(key, None)

    def take_due(self, now: float, most: int) -> tuple[Key, ...]:
        """At most *most* keys whose time has come.  They stay known until ``on_removed``."""
        for key, seen in self._found.items():
            self._deadlines[key] = min(seen, now) + self._ttl_s
        for key in self._fresh:
            self._deadlines[key] = now + self._ttl_s
        self._found.clear()
        self._fresh.clear()
        due: list[Key] = []
        for key, deadline in self._deadlines.items():
            if deadline > now or len(due) == most:
                break
            due.append(key)
        return tuple(due)

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        """Each is known once."""
        known = sorted([*self._found, *self._fresh, *self._deadlines])
        stored = sorted(key for key, _ in objects)
        assert known == stored, f"{known} have deadlines, not {stored}"


def last_seen(event: Document) -> float:
    """The latest time that an Event tells of; 0 if it tells none."""
    times = (
        event["metadata"].get("creationTimestamp"),
        event.get("eventTime"),
        event.get("lastTimestamp"),
        (event.get("series") or {}).get("lastObservedTime"),
    )
    return max((parse_time(time) for time in times if time), default=0.0)
