"""The tasks that write a node proxy's rules into the kernel and check that they still exist.

Each IP family has one task, so that a slow or refused transaction of one does not block the other.
While one transaction runs, the changes for the next are collected.

**Other programs.**  No change requires a listing of the kernel. Periodically, and immediately after
a refused transaction, the writer checks that our tables exist. It rewrites each one every
``WHOLE_TABLE_PERIOD_S``, and every ``SUSPECT_PERIOD_S`` if another program changed rules of nftables
(the kernel does not report whose). So rules that other programs deleted or changed are restored even
if no Service changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from sliceplane.consume.progress import Progress
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.node.io.claims import log_unserved
from sliceplane.node.io.kernel.backend import AnyBackend, KernelError
from sliceplane.node.io.metrics import ProxyMetrics, ProxyRecord
from sliceplane.node.io.options import WHOLE_TABLE_PERIOD_S, ProxyTiming
from sliceplane.node.io.side_effects import SideEffects
from sliceplane.node.plane import AnyNodePlane, RulesTransaction
from sliceplane.node.schedule import Damage

_log = get_logger("node-proxy")


class ProxyReports:
    """The reports of a node proxy: its progress, metrics and recording."""

    def __init__(self, progress: Progress, metrics: ProxyMetrics, record: ProxyRecord) -> None:
        self.progress = progress
        self.metrics = metrics
        self.record = record
        #: events that ``consume.io.reporting`` waits for
        self.report_due = asyncio.Event()
        self.revision_applied = asyncio.Event()

    def on_progress(self) -> None:
        """Notes that the next report has changed; it is due immediately if one was requested."""
        if self.progress.has_requests:
            self.report_due.set()

    def on_applied(self, plane: AnyNodePlane) -> None:
        """Notes that the kernel has applied the changes of the write. Of large Services with remaining
        portions it has the changes before the first portion.
        """
        self.progress.on_written(plane.family, plane.tracker.portions.complete)
        self.revision_applied.set()
        self.on_progress()


class RulesWriter:
    """Owned by one ``NodeProxy``."""

    def __init__(
        self,
        backend: AnyBackend,
        planes: tuple[AnyNodePlane, ...],
        side_effects: Mapping[Family, SideEffects],
        reports: ProxyReports,
        *,
        timing: ProxyTiming,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._planes = planes
        self._side_effects = side_effects
        self._reports = reports
        self._timing = timing
        self._clock = clock
        self._wake = {plane.family: asyncio.Event() for plane in planes}
        self._written = {plane.family: asyncio.Event() for plane in planes}
        self._check_now = asyncio.Event()
        #: families whose tables another program may have changed since they were written
        self._suspects: set[Family] = set()
        self._damage = Damage()
        #: the error of the last refused write
        self.refusals: dict[Family, str] = {}

    def wake(self) -> None:
        """Wakes the tasks: a plane may have a change to write."""
        for wake in self._wake.values():
            wake.set()

    async def wait_written(self) -> None:
        """Returns when every family has been written once."""
        for written in self._written.values():
            await written.wait()

    def warnings(self, now: float) -> tuple[str, ...]:
        """Returns sentences about rules that other programs deleted lately."""
        return self._damage.warnings(now)

    async def write(self, plane: AnyNodePlane) -> None:
        """Writes the changes of *plane* when they are due, until cancelled."""
        wake = self._wake[plane.family]
        while True:
            wake.clear()
            deadline = plane.schedule.next_deadline()
            delay_s = None if deadline is None else deadline - self._clock()
            if delay_s is not None and delay_s <= 0:
                await self._write_due(plane)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await wake.wait()

    async def _write_due(self, plane: AnyNodePlane) -> None:
        started = self._clock()
        pending_since = plane.schedule.pending_since
        reports = self._reports
        reports.progress.on_taken(plane.family, plane.tracker.portions.number + 1)
        if plane.rules.needs_full:
            await self._backend.prepare(plane)
        transaction = plane.take_transaction(started)
        reports.metrics.on_started(plane.family, pending_since)
        if transaction is not None:
            failed = True
            try:
                await self._backend.write(plane, transaction)
                failed = False
            except KernelError as error:
                await self._on_refused(plane, error)
                return
            finally:
                seconds = self._clock() - started
                reports.metrics.on_write(
                    plane.family, seconds, full=transaction.full, failed=failed
                )
            self._on_written(plane, transaction)
        reports.on_applied(plane)
        if plane.tracker.newly_unserved:
            log_unserved(plane)
        if transaction is None:
            await self._side_effects[plane.family].on_written(full=False)
            return
        self._written[plane.family].set()
        await self._side_effects[plane.family].on_written(full=transaction.full)
        _log.debug(
            "rules written",
            family=plane.family,
            full=transaction.full,
            commands=transaction.size,
            seconds=round(self._clock() - started, 4),
        )

    async def _on_refused(self, plane: AnyNodePlane, error: KernelError) -> None:
        self.refusals[plane.family] = str(error)
        plane.on_failure(self._clock())
        self._reports.report_due.set()
        await self._check_rules(plane)  # before the retry restores them
        self._check_now.set()  # the same may have happened to the other family's table
        self._reports.record.refused(plane.family, str(error), self._clock())
        _log.error(
            "rules not written",
            family=plane.family,
            reason=error.reason,
            error=str(error),
            failures=plane.schedule.freshness.failures,
        )

    def _on_written(self, plane: AnyNodePlane, transaction: RulesTransaction) -> None:
        reports = self._reports
        now = self._clock()
        plane.on_success(now)
        reports.record.written(plane.family, transaction.size, now, full=transaction.full)
        if transaction.full and self._damage.on_full_write(plane.family, now):
            times = self._damage.times(plane.family)
            reports.metrics.on_restored(plane.family, times)
            _log.info("our rules were gone and are back", family=plane.family, times=times)
            reports.report_due.set()

    async def wait_check(self) -> None:
        """Waits until the next ``check_tables`` is due: after a period, or after a refusal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.check_period_s):
                await self._check_now.wait()
        self._check_now.clear()

    async def check_tables(self) -> None:
        """Schedules full writes of tables that are missing, or too old."""
        if self._backend.disturbed():
            self._suspects.update(self._wake)
        for plane in self._planes:
            await self._check_rules(plane)

    async def _check_rules(self, plane: AnyNodePlane) -> None:
        if plane.written_whole_at is None:
            return
        try:
            present = await self._backend.has_rules(plane)
        except KernelError:
            return  # the next write reports it
        now = self._clock()
        period_s = (
            self._timing.suspect_period_s
            if plane.family in self._suspects
            else WHOLE_TABLE_PERIOD_S
        )
        if not present:
            if not self._damage.on_missing(plane.family, now):
                return  # a write runs, or was refused and waits for its back-off
            _log.warning("our rules are gone, they are written anew", family=plane.family)
            self._reports.report_due.set()
        elif now - plane.written_whole_at < period_s:
            return
        if plane.request_full_write(now):
            self._suspects.discard(plane.family)
            self._wake[plane.family].set()
