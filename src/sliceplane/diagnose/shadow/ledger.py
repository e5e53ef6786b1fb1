"""Decides which differences stand: a controller that is merely behind must not be accused.

A difference is *pending* from its first observation. Its time restarts whenever its inputs on our
side change (its pod, or anything that the whole service depends on), even if it looks the same
afterwards. At the age of the grace period it is *due*. Only the controller makes it *standing*
(``confirm``), by a read of the server that proves that our caches are current. A standing one stays
so until the two sides agree again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from sliceplane.diagnose.shadow.differences import DifferenceKind, SliceDifference

#: differences kept for each service; further ones are only counted
DIFFERENCES_PER_SERVICE_MAX: Final = 1000
#: news that no reader has taken; beyond this the oldest are dropped
NEWS_MAX: Final = 10_000


class StandingDifference(NamedTuple):
    """A confirmed difference of service ``key``, and the time of its first observation in seconds
    since the epoch.
    """

    key: str
    difference: SliceDifference
    since: float


class News(NamedTuple):
    """A difference was confirmed (``appeared``), or a standing one disappeared (``resolved``)."""

    what: Literal["appeared", "resolved"]
    at: float
    standing: StandingDifference


class DifferenceLedger:
    """The pending and standing differences. Written by one running ``ShadowController``, read by
    reports in the same event loop.
    """

    def __init__(self, grace_s: float) -> None:
        assert grace_s >= 0, f"grace {grace_s} s is negative"
        self.grace_s: Final = grace_s
        self._pending: dict[str, dict[SliceDifference, float]] = {}
        self._standing: dict[str, dict[SliceDifference, float]] = {}
        #: number of differences beyond the limit, by service
        self._beyond: dict[str, int] = {}
        self._news: deque[News] = deque(maxlen=NEWS_MAX)
        #: grows with every change, for readers
        self.version = 0
        #: comparisons and confirmations, for metrics
        self.compared = 0
        #: EndpointSlices whose label names the compared controller as their manager
        self.managed = 0
        self.confirmations = {"confirmed": 0, "behind": 0, "failed": 0}

    def begin(self) -> None:
        """The controller starts anew: forgets everything."""
        self._pending.clear()
        self._standing.clear()
        self._beyond.clear()
        self.managed = 0
        self.version += 1

    # -- for the controller

    def observe(
        self,
        key: str,
        differences: Sequence[SliceDifference],
        restless: Collection[str],
        *,
        unrest: bool,
        now: float,
    ) -> None:
        """*differences* are all of *key*. *restless*: pods that changed since the last call;
        *unrest*: everything may have changed.
        """
        self.compared += 1
        pending = self._pending.pop(key, {})
        standing = self._standing.get(key, {})
        kept = differences
        self._beyond.pop(key, None)
        if len(differences) > DIFFERENCES_PER_SERVICE_MAX:
            # Known ones first: new differences must not make them look resolved.
            observed_first = sorted(
                differences, key=lambda each: each not in standing and each not in pending
            )
            kept = observed_first[:DIFFERENCES_PER_SERVICE_MAX]
            self._beyond[key] = len(differences) - len(kept)
        there = frozenset(kept)
        for gone in [difference for difference in standing if difference not in there]:
            self._add_news("resolved", key, gone, standing.pop(gone), now)
        if not standing:
            self._standing.pop(key, None)
        waiting = {
            difference: now
            if unrest or difference.pod in restless
            else pending.get(difference, now)
            for difference in kept
            if difference not in standing
        }
        if waiting:
            self._pending[key] = waiting

    def due(self, key: str, now: float) -> tuple[SliceDifference, ...]:
        """Returns the differences of *key* that are due for confirmation (see ``next_due``)."""
        return tuple(
            d for d, since in self._pending.get(key, {}).items() if now >= since + self.grace_s
        )

    def next_due(self, key: str) -> float | None:
        """Returns the time when ``due`` has the next difference."""
        since = min(self._pending.get(key, {}).values(), default=None)
        return None if since is None else since + self.grace_s

    def confirm(self, key: str, differences: Iterable[SliceDifference], now: float) -> None:
        """Marks the pending ones of *differences* as standing."""
        pending = self._pending.get(key, {})
        for difference in differences:
            since = pending.pop(difference, None)
            if since is not None:
                self._standing.setdefault(key, {})[difference] = since
                self._add_news("appeared", key, difference, since, now)
        if not pending:
            self._pending.pop(key, None)

    def forget(self, key: str, now: float) -> None:
        """The service was deleted."""
        self._pending.pop(key, None)
        self._beyond.pop(key, None)
        for difference, since in self._standing.pop(key, {}).items():
            self._add_news("resolved", key, difference, since, now)

    def _add_news(
        self,
        what: Literal["appeared", "resolved"],
        key: str,
        each: SliceDifference,
        since: float,
        at: float,
    ) -> None:
        self._news.append(News(what, at, StandingDifference(key, each, since)))
        self.version += 1

    # -- for reports

    def take_news(self) -> tuple[News, ...]:
        news = tuple(self._news)
        self._news.clear()
        return news

    def standing(self) -> Iterator[StandingDifference]:
        """Yields the standing differences by service, then in the order of ``SliceDifference``."""
        for key in sorted(self._standing):
            for difference, since in sorted(self._standing[key].items()):
                yield StandingDifference(key, difference, since)

    @property
    def differing(self) -> int:
        """Services with standing differences."""
        return len(self._standing)

    def kinds(self) -> dict[str, dict[DifferenceKind, int]]:
        """Counts the standing differences by service and kind."""
        counts: dict[str, dict[DifferenceKind, int]] = {}
        for key, differences in sorted(self._standing.items()):
            of = counts[key] = {}
            for difference in sorted(differences):
                of[difference.kind] = of.get(difference.kind, 0) + 1
        return counts

    @property
    def pending(self) -> int:
        return sum(map(len, self._pending.values()))

    @property
    def beyond(self) -> int:
        """Differences that are only counted."""
        return sum(self._beyond.values())

    def overdue(self, now: float) -> bool:
        """Returns True if a difference waits for its confirmation. Costs O(pending)."""
        return any(
            now >= since + self.grace_s
            for waiting in self._pending.values()
            for since in waiting.values()
        )

    def check(self) -> None:
        for key, standing in self._standing.items():
            assert standing, f"{key} is filed without a difference"
            both = standing.keys() & self._pending.get(key, {}).keys()
            assert not both, f"{key}: {both} both stand and wait"
        assert all(self._pending.values()), "a service is filed without a pending difference"
