"""The mass-removal guard: retains endpoints for a while if the removal of many is inferred.

A removal is *reported* if the Pod itself shows it: it is terminating or finished, its containers or
gates are not ready, or a user changed the selector. It is *inferred* otherwise: the Pod is missing
in a new list, its Node is, or its Node stopped reporting, so the node life cycle controller set
``Ready`` of the Pod to False and left ``ContainersReady`` as it was (kubernetes/kubernetes#77864).
A reported removal is never retained.

Removals are a *mass removal* in two cases. Either fewer than half would remain of the peak, the
greatest number of endpoints that lasted a minute within ten minutes, if it is at least four; or
over 30% of all endpoints were lost within 30 s. Mass removals are always confirmed
(``slices.removing.losses``), and then retained if the Service requests it, else its Namespace, else
a flag. If retention is requested, each removal waits ``GATHER_S`` for others. Endpoints are
retained for ``RETAIN_S``, and then removed at 10% of the peak a minute. The peak never counts
retained endpoints: a guard must not follow its own output. A controller that starts has no peak.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from sliceplane.consume.removal_hold import RemovalRetention
from sliceplane.slices.removing.losses import RemovalConfirmation

ANNOTATION_MASS_REMOVAL: Final = "sliceplane.dev/mass-removal"
#: RFC 3339; ends retentions that began before this time
ANNOTATION_RELEASE: Final = "sliceplane.dev/mass-removal-release"
RETAIN_VALUE: Final = "hold"

#: seconds that an inferred loss waits for others: Nodes that stop reporting together are detected
#: within one renewal (10 s)
GATHER_S: Final = 15.0
PEAK_MIN: Final = 4
STAY_SHARE: Final = 0.5
PEAK_MINUTES: Final = 10
BURST_S: Final = 30.0
BURST_SHARE: Final = 0.3
_MINUTE_S: Final = 60.0

REASON_RETAINED: Final = "MassRemovalHeld"
REASON_RELEASED: Final = "MassRemovalReleased"
REASON_EXPIRED: Final = "MassRemovalExpired"
REASON_OVER: Final = "MassRemovalOver"
REASON_REFUTED: Final = "MassRemovalRefuted"


def requests_retention(annotations: Mapping[str, str] | None) -> bool | None:
    """Returns the value of a Service's or Namespace's annotation; ``None`` without the
    annotation.
    """
    value = (annotations or {}).get(ANNOTATION_MASS_REMOVAL)
    return None if value is None else value == RETAIN_VALUE


class Peak:
    """The greatest number within ten minutes that lasted a whole minute of the clock. A note costs
    O(1).
    """

    __slots__ = ("_floor", "_floors", "_last", "_minute")

    def __init__(self) -> None:
        self._floors: tuple[int, ...] = ()
        self._minute: int | None = None
        self._floor = 0
        self._last = 0

    def note(self, count: int, now: float) -> None:
        self._roll(now)
        self._floor = min(self._floor, count)
        self._last = count

    def standing(self, now: float) -> int:
        self._roll(now)
        return max(self._floors, default=0)

    def _roll(self, now: float) -> None:
        minute = int(now // _MINUTE_S)
        if self._minute is None:
            self._minute = minute  # the first minute is incomplete: its floor is 0
        if minute <= self._minute:
            return
        between = min(minute - self._minute - 1, PEAK_MINUTES)
        self._floors = (*self._floors, self._floor, *[self._last] * between)[-PEAK_MINUTES:]
        self._minute = minute
        self._floor = self._last


class RemovalBurst:
    """Counts ready endpoints of all Services, and inferred losses within ``BURST_S``."""

    def __init__(self) -> None:
        self.ready = 0
        self._pending = 0
        #: times and numbers of losses, the oldest first
        self._lost: deque[tuple[float, int]] = deque()
        self._sum = 0

    def lost(self) -> None:
        self._pending += 1

    def is_active(self, now: float) -> bool:
        if self._pending:
            self._lost.append((now, self._pending))
            self._sum += self._pending
            self._pending = 0
        while self._lost and self._lost[0][0] < now - BURST_S:
            self._sum -= self._lost.popleft()[1]
        return self._sum >= PEAK_MIN and self._sum > BURST_SHARE * (self.ready + self._sum)


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """Losses of one Service.

    ``missed``: number of confirmed inferred losses, beside the *ready* endpoints.
    ``retention_requested``: retention is requested. ``released_at``: retentions that began before
    this time end. ``burst``: see ``RemovalBurst``.
    """

    ready: int
    missed: int
    retention_requested: bool
    released_at: float
    burst: bool


class ServiceGuard:
    """The guard of one Service. ``pending_notices``: reasons and texts of retentions that began
    or ended, until the caller takes them.
    """

    def __init__(self) -> None:
        self.retention: RemovalRetention | None = None
        self.pending_notices: list[tuple[str, str]] = []
        self.confirmation: Final = RemovalConfirmation()
        self._peak = Peak()
        #: a burst counts until this time, so that its removals can be confirmed
        self._burst_until = 0.0
        #: the time of the first loss that waits for others
        self._gathers: float | None = None

    def needs_confirmation(
        self, lost: int, ready: int, now: float, *, burst: bool, unknown: bool
    ) -> bool:
        """Returns True if *lost* endpoints, beside the *ready* ones, stay until their removal is
        confirmed. *unknown*: the annotation of their Namespace was not read. Costs O(1).
        """
        peak = self._peak.standing(now)
        if not lost or peak < PEAK_MIN:
            self.confirmation.close()
            return False
        if burst:
            self._burst_until = now + BURST_S
        is_mass_removal = burst or ready < max(1.0, STAY_SHARE * peak)
        return self.confirmation.update(is_mass_removal=is_mass_removal, unknown=unknown, now=now)

    def on_no_losses(self, ready: int, now: float) -> None:
        """Updates the peak when nothing is lost, unconfirmed or retained, the usual case. Replaces
        ``needs_confirmation`` and ``update_retention``.
        """
        assert self.retention is None, f"{self.retention} is not over"
        self.confirmation.close()
        self._gathers = None
        self._peak.note(ready, now)

    def update_retention(self, losses: Losses, now: float) -> int:
        """Begins, continues or ends the retention. Returns the number of missed endpoints that
        stay. Costs O(1).
        """
        if losses.missed:
            keep = (
                self._begin_retention(losses, now)
                if self.retention is None
                else self._continue_retention(self.retention, losses, now)
            )
        else:
            keep = 0
            self._gathers = None
            if self.retention is not None:
                self._end_retention(
                    REASON_OVER, "every retained endpoint is back, or confirmed to be gone"
                )
        self._peak.note(losses.ready, now)
        return keep

    def _begin_retention(self, losses: Losses, now: float) -> int:
        peak = self._peak.standing(now)
        if not losses.retention_requested or peak < PEAK_MIN:
            self._gathers = None
            return 0
        burst = losses.burst or now < self._burst_until
        if not burst and losses.ready >= max(1.0, STAY_SHARE * peak):
            return self._gather(losses.missed, now)
        self._gathers = None
        self.retention = RemovalRetention(now, peak, losses.missed)
        self.pending_notices.append((REASON_RETAINED, str(self.retention)))
        return losses.missed

    def _continue_retention(self, retention: RemovalRetention, losses: Losses, now: float) -> int:
        if not losses.retention_requested or losses.released_at >= retention.since:
            self._end_retention(
                REASON_RELEASED,
                f"{losses.missed} retained endpoints are removed: their release was requested",
            )
            return 0
        if losses.missed > retention.count and now < retention.until:
            retention = self.retention = RemovalRetention(
                retention.since, retention.peak, losses.missed
            )
        keep = min(losses.missed, retention.keeps(now))
        if not keep:
            self._end_retention(
                REASON_EXPIRED, "the last retained endpoints are removed: the retention has expired"
            )
        return keep

    def _gather(self, missed: int, now: float) -> int:
        if self._gathers is None:
            self._gathers = now
        if now < self._gathers + GATHER_S:
            return missed
        self._gathers = None
        return 0

    def _end_retention(self, reason: str, text: str) -> None:
        self.retention = None
        self.pending_notices.append((reason, text))

    def deadline(self, now: float) -> float | None:
        """Returns the time at which the same losses have another result."""
        gathered = None if self._gathers is None else self._gathers + GATHER_S
        step = gathered if self.retention is None else self.retention.next_step(now)
        return min(
            (due for due in (step, self.confirmation.deadline) if due is not None), default=None
        )
