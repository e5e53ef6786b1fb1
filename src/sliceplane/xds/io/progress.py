"""How far the clients of an xDS server are, told as other consumers tell it
(``consume.io.reporting``).

A version counts when every client that wants something of it has accepted it, where other consumers
tell what they have read. So what was read is *carried* until the clients lack nothing of it; what
was read meanwhile is carried next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sortedcontainers import SortedDict

from sliceplane.consume.io.reporting import FAMILY, Consumer
from sliceplane.consume.progress import XDS, Place
from sliceplane.consume.selections import ALL
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.xds.laggards import LagReport

Applied = Callable[[], "tuple[int | None, int] | None"]
Lags = Callable[[], LagReport]


class BehindCounts:
    """How many clients lack something, by the first revision of the catalog that they lack."""

    def __init__(self) -> None:
        self._counts: SortedDict = SortedDict()

    def move(self, before: int | None, after: int | None) -> None:
        """A client that lacked *before* lacks *after*; ``None``: nothing."""
        if before == after:
            return
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        if after is not None:
            self._counts[after] = self._counts.get(after, 0) + 1

    @property
    def first(self) -> int | None:
        return next(iter(self._counts), None)

    @property
    def clients(self) -> int:
        return sum(self._counts.values())


class AckReporter(Consumer):
    """*applied*: what clients lack (``BehindCounts.first``), and up to which revision they were
    told; ``None``: changes are about to be told. *lags*: clients that are not among these
    (``xds.laggards``).
    """

    def __init__(
        self,
        name: str,
        slices: RunningInformer[Any],
        clock: Callable[[], float],
        applied: Applied,
        lags: Lags,
    ) -> None:
        self._applied = applied
        self._lags = lags
        #: the revision of the catalog to which what is carried leads
        self._carried: int | None = None
        super().__init__(XDS, name, {ALL: slices}, clock)

    def note_progress(self) -> None:
        applied = self._applied()
        if applied is None:
            return
        self.progress.on_behind(*self._lags())
        behind, revision = applied
        if behind is None:
            self._carried = None
            self.progress.on_idle(FAMILY)
            return
        if self._carried is not None and behind > self._carried:
            self.progress.on_written(FAMILY)
            self._carried = None
        if self._carried is None:
            self.progress.on_taken(FAMILY)
            self._carried = revision

    def on_applied(self) -> None:
        """Clients have accepted something, or were told of something that none of them wants."""
        self.note_progress()
        self.held_more.set()
        if self.progress.asked:
            self.reports_wanted.set()

    def on_lags(self) -> None:
        """Other clients are behind."""
        self.on_applied()
        self.reports_wanted.set()

    def catch_up(self, wanted: Mapping[Place, int]) -> None:
        """A client that is behind is no reason to list."""
        super().catch_up({place: version for place, version in wanted.items() if place[1] == ALL})
