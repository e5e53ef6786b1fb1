"""Counts the open connections to endpoints that a drain waits for (``consume.flow_counts``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sliceplane.consume.flow_counts import CountFlows, FlowCounts, FlowPass, FlowTarget
from sliceplane.consume.io.reporting import Reporter
from sliceplane.kit.io.log import get_logger
from sliceplane.node.io.kernel.conntrack import ConntrackError

#: an address that no endpoint has (RFC 5737): the first count shows if the kernel answers
_NOBODY: Final = FlowTarget("192.0.2.1")

_log = get_logger("progress")


class FlowCounter:
    """Run ``run`` until cancelled; call ``wake`` after changes of the progress of *reporter*."""

    def __init__(
        self, reporter: Reporter, count: CountFlows | None, clock: Callable[[], float]
    ) -> None:
        """*count* ``None``: nothing is counted, and the report says so."""
        self._reporter = reporter
        self._count = count
        self._clock = clock
        self._wake = asyncio.Event()

    def wake(self) -> None:
        flows = self._reporter.progress.flows
        if flows is not None and flows.next_deadline() is not None:
            self._wake.set()

    async def run(self) -> None:
        if self._count is None:
            return
        try:
            await self._count((_NOBODY,))
        except ConntrackError as error:
            _log.warning("connections to draining endpoints are not counted", error=str(error))
            return
        flows = self._reporter.progress.flows = FlowCounts()
        while True:
            self._wake.clear()
            deadline = flows.next_deadline()
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    None if deadline is None else max(deadline - self._clock(), 0.0)
                ):
                    await self._wake.wait()
            if flows.next_deadline() is None:
                continue
            self._reporter.note_progress()
            due = flows.take_pass(self._clock(), self._reporter.progress.report().revisions())
            if due.nonces:
                await self._make(due, flows, self._count)

    async def _make(self, due: FlowPass, flows: FlowCounts, count: CountFlows) -> None:
        began = self._clock()
        counts: dict[FlowTarget, int] | None = None
        try:
            counts = await count(due.targets)
        except ConntrackError as error:
            _log.warning("connections to draining endpoints were not counted", error=str(error))
        flows.on_counted(due, counts, began, self._clock())
        self._reporter.report_due.set()
