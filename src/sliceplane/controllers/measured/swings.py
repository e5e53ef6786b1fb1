"""Demand that swings: hints for the peaks of all zones, so that no return of demand finds hints for
where it was.

Hints that follow demand are wrong after each abrupt change until it is measured, and then an endpoint
may carry more than with ``PreferSameZone``. No law that has learned nothing can avoid that
(``docs/decisions.md``), but a change that *returns* is known. So this remembers for each zone its
greatest share and when it was last near it. When hints are worse than ``PreferSameZone`` because of
a zone that was as busy before, peaks are held for twice the time that it was away, and the shares
that count are those of the peaks.

**Sound.** Let ``m`` be the peaks, ``M`` their sum, and hints those of ``Balanced`` for ``m / M``. If
that lends nothing, hints are those of ``PreferSameZone``. Otherwise a zone has more than (1 +
overload) fair shares of ``m / M``, so ``PreferSameZone`` reaches more than ``(1 + overload) * M`` at
that zone's peak; and with the hints no demand below the peaks puts more on an endpoint than that.
So over a swing that reaches its peaks, hints are never worse than ``PreferSameZone``, up to the
rounding of shares.

The state is in memory: another process learns again, at the price of one return.
"""

from __future__ import annotations

from typing import Final

#: part of a peak from which on a share is near it
NEAR: Final = 0.75
#: a peak is held for so many times the time for which its zone was away, at least, and at most
HELD: Final = 2.0
HELD_S_MIN: Final = 300.0
HELD_S_MAX: Final = 2 * 86_400.0


class _Peak:
    """The greatest share of a zone. ``is_missed``: hints were worse than ``PreferSameZone`` because
    of the zone, since it was last near its peak.
    """

    __slots__ = ("is_missed", "is_near", "near_at", "share")

    def __init__(self, share: float, now: float) -> None:
        self.share = share
        self.near_at = now
        self.is_near = True
        self.is_missed = False


class Swings:
    """The peaks of one Service. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._peaks: dict[str, _Peak] = {}
        #: seconds for which a peak is held; 0: demand does not swing
        self._held_s = 0.0
        self._returned_at = float("-inf")

    def shares(self, measured: dict[str, float], overloaded: str, now: float) -> dict[str, float]:
        """Returns the shares that hints are for. *overloaded*: the zone because of which the present
        hints are worse than ``PreferSameZone``, if they are.
        """
        for zone, share in measured.items():
            self._note(zone, share, now, is_overloaded=zone == overloaded)
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

    def _note(self, zone: str, share: float, now: float, *, is_overloaded: bool) -> None:
        peak = self._peaks.get(zone)
        if peak is None or now - peak.near_at > HELD_S_MAX:
            self._peaks[zone] = _Peak(share, now)
            return
        away_s = now - peak.near_at
        was_near, peak.is_near = peak.is_near, share >= NEAR * peak.share
        peak.share = max(peak.share, share)
        if not peak.is_near:
            peak.is_missed |= is_overloaded
            return
        if not was_near and (peak.is_missed or is_overloaded or away_s <= self._held_s):
            self._returned_at = now
            self._held_s = max(self._held_s, HELD_S_MIN, min(HELD * away_s, HELD_S_MAX))
        peak.near_at = now
        peak.is_missed = False
