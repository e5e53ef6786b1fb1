"""Reports of the progress of an xDS server's clients, like those of other consumers
(``consume.io.reporting``).

A version is applied when every client that subscribes to changes in it has accepted them; other
consumers apply a version when they read it. A version that was read is therefore *carried* until no
client lacks any of it; versions that were read meanwhile are carried next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sortedcontainers import SortedDict

from sliceplane.consume.io.reporting import FAMILY, Consumer
from sliceplane.consume.progress import XDS, Scope
from sliceplane.consume.selections import ALL
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.xds.laggards import LagReport

Applied = Callable[[], "tuple[int | None, int] | None"]
Lags = Callable[[], LagReport]


class BehindCounts:
    """Numbers of clients that lack changes, by the first revision of the catalog that they lack."""

    def __init__(self) -> None:
        self._counts: SortedDict = SortedDict()

    def move(self, before: int | None, after: int | None) -> None:
        """Moves a client that lacked *before* to *after*; ``None``: it lacks nothing."""
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
    """The reporter of one server.

    *applied* returns the first revision that clients lack (``BehindCounts.first``) and the last
    that was sent, or ``None`` while changes are being sent. *lags* returns the clients that are not
    counted there (``xds.laggards``).
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
        #: the revision of the catalog that has the carried version
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
        """Notes that clients accepted a change, or that no client subscribes to it."""
        self.note_progress()
        self.revision_applied.set()
        if self.progress.has_requests:
            self.report_due.set()

    def on_lags(self) -> None:
        """Notes that the set of laggards changed."""
        self.on_applied()
        self.report_due.set()

    def relist_if_behind(self, required: Mapping[Scope, int]) -> None:
        """Ignores versions of laggards: a client that is behind is no reason to list."""
        super().relist_if_behind(
            {scope: version for scope, version in required.items() if scope[1] == ALL}
        )
