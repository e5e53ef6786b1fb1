"""Reports on demand (``consume.drain.reports``) behind a relay: it answers its nodes itself, and is
one consumer of its parent.

The relay leaves the request of each node open, unless it passes its Lease on, and has one of its own
at its parent, for its own Lease, with the least revisions that this has of nodes that are not late.
When a barrier requires more, the parent answers. The relay then asks its nodes, and writes its Lease once
all of them have applied it; while some have not, as often as while a slice requests reports. So a
barrier reads what it would read anyway, sooner.

Where the parent has no such memory, nodes' requests are passed on, for the parent to refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.consume.drain.relayed import RELAY_PREFIX
from sliceplane.consume.drain.reports import BarrierQuestion, pause_s, versions_of
from sliceplane.consume.io.reporting import APPLY_WAIT_MAX_S, answer_barriers
from sliceplane.consume.progress import LEASE_NAMESPACE, LEASE_PREFIX, ProgressReport, Scope
from sliceplane.kit.rng import Rng
from sliceplane.relay.io.reports import ReportLeases
from sliceplane.relay.io.upstream import ParentClient
from sliceplane.server.io.requests.reports import ReportService, rights
from sliceplane.server.registry.types import Attributes

#: answers of a parent without a memory of reports
_ABSENT: Final = (403, 404, 405)


class BarrierAnswers:
    """Owned by one relay; ``run`` is one task."""

    def __init__(
        self, leases: ReportLeases, client: ParentClient, clock: Callable[[], float], rng: Rng
    ) -> None:
        self.leases = leases
        self._client = client
        self._clock = clock
        self._rng = rng
        self._has_memory = True
        self.memory = ReportService(clock, self._on_report)

    def right(self, method: str, path: str) -> Attributes | None:
        """Returns the right that a node's request needs; ``None``: it is not answered here."""
        needed = rights(method, path) if self._has_memory else None
        if (
            needed is None
            or needed.namespace != LEASE_NAMESPACE
            or not needed.name.startswith((LEASE_PREFIX, RELAY_PREFIX))
            or self.leases.core.is_passed(needed.name)
        ):
            return None
        return needed

    async def run(self) -> None:
        """Answers the parent, until cancelled."""
        lease = f"{LEASE_NAMESPACE}/{self.leases.core.lease}"
        report = self.leases.core.least_written
        await answer_barriers(self._ask, lease, report, self._apply, self._rng)

    async def _ask(self, path: str, body: bytes) -> bytes:
        try:
            answer = await self._client.post(path, body)
        except StatusError as error:
            self._has_memory = error.code not in _ABSENT
            raise
        self._has_memory = True
        return answer

    def _on_report(self, lease: str, report: ProgressReport) -> None:
        self.leases.core.on_answer(lease.partition("/")[2], report, self._clock())

    async def _apply(self, required: Mapping[Scope, int]) -> None:
        """Asks the nodes, and waits a moment for them, and for the Lease."""
        core, loop = self.leases.core, asyncio.get_running_loop()
        ends = loop.time() + APPLY_WAIT_MAX_S
        self.memory.require(BarrierQuestion(versions_of(required), wait_seconds=1.0))
        while not core.least_written().has_applied(required):
            if loop.time() > ends:
                core.request(self._clock())
                return
            if core.least(self._clock()).has_applied(required):
                core.expedite()
                self.leases.due.set()
            await asyncio.sleep(pause_s(len(core)))
