"""Demand that swings: hints for the peaks of all zones, so that no return of demand finds hints for
where it was.

Hints that follow demand are wrong after each abrupt change until it is measured, and then an endpoint
may carry more than with ``PreferSameZone``. No law that has learned nothing can avoid that
(``docs/decisions.md``), but a change that *returns* is known. So this remembers for each zone its
greatest share and when it was last near it. When hints are worse than ``PreferSameZone`` because of
a zone that was as busy before, demand has returned, and peaks are held: the shares that count are
those of the peaks. The first return may be the end of a burst, so they are held for ``HELD_S_MIN``;
after further returns for twice the time that the zone was away.

**Sound.** Let ``m`` be the peaks, ``M`` their sum, and hints those of ``Balanced`` for ``m / M``. If
that lends nothing, hints are those of ``PreferSameZone``. Otherwise a zone has more than (1 +
overload) fair shares of ``m / M``, so ``PreferSameZone`` reaches more than ``(1 + overload) * M`` at
that zone's peak; and with the hints no demand below the peaks puts more on an endpoint than that.
So over a swing that reaches its peaks, hints are never worse than ``PreferSameZone``, up to the
rounding of shares.

The state is in memory: another process learns again, at the price of two returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: part of a peak from which on a share is near it
NEAR: Final = 0.75
#: a peak is held for so many times the time for which its zone was away, and seconds
HELD: Final = 2.0
HELD_S_MIN: Final = 300.0
HELD_S_MAX: Final = 2 * 86_400.0


@dataclass(slots=True)
class _Peak:
    """The greatest share of a zone. ``is_missed``: hints were worse than ``PreferSameZone`` because
    of the zone, since it was last near its peak.
    """

    share: float
    near_at: float
    is_near: bool = True
    is_missed: bool = False


class Swings:
    """The peaks of one Service. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._peaks: dict[str, _Peak] = {}
        #: seconds for which a peak is held; 0: demand does not swing
        self._held_s = 0.0
        self._returned = ""
        self._returned_at = float("-inf")

    def shares(self, measured: dict[str, float], overloaded: str, now: float) -> dict[str, float]:
        """Returns the shares that hints are for. *overloaded*: the zone because of which the present
        hints are worse than ``PreferSameZone``, if they are.
        """
        returned = {
            zone: away_s
            for zone, share in measured.items()
            if (away_s := self._note(zone, share, now, is_overloaded=zone == overloaded))
        }
        for zone, away_s in returned.items():
            self._on_return(zone, away_s, now)
        if now - self._returned_at > 2 * self._held_s:
            self._held_s = 0.0
        held = {
            zone: peak.share
            for zone, peak in self._peaks.items()
            if zone in measured and now - peak.near_at <= self._held_s
        }
        if not self._held_s or all(share <= measured[zone] for zone, share in held.items()):
            return measured
        peaks = {zone: max(share, held.get(zone, 0.0)) for zone, share in measured.items()}
        whole = sum(peaks.values())
        return {zone: share / whole for zone, share in peaks.items()}

    def _note(self, zone: str, share: float, now: float, *, is_overloaded: bool) -> float:
        """Returns for how many seconds *zone* was away, if it returns to hints for where demand was,
        or while peaks are held; else 0.
        """
        peak = self._peaks.get(zone)
        if peak is None or now - peak.near_at > HELD_S_MAX:
            self._peaks[zone] = _Peak(share, now)
            return 0.0
        away_s, was_near = now - peak.near_at, peak.is_near
        peak.is_near = share >= NEAR * peak.share
        peak.share = max(peak.share, share)
        peak.is_missed |= is_overloaded
        if not peak.is_near:
            return 0.0
        is_return = not was_near and (peak.is_missed or away_s <= self._held_s)
        peak.near_at = now
        peak.is_missed = False
        return away_s if is_return else 0.0

    def _on_return(self, zone: str, away_s: float, now: float) -> None:
        """Handles the return of *zone*. Zones that return together are one return."""
        before = self._peaks.get(self._returned)
        is_recent = now - self._returned_at <= HELD_S_MAX
        if before is not None and is_recent and (zone == self._returned or not before.is_near):
            self._held_s = max(self._held_s, min(HELD * away_s, HELD_S_MAX))
        self._held_s = max(self._held_s, HELD_S_MIN)
        self._returned, self._returned_at = zone, now
