"""Shadow mode: runs the production engine beside a cluster's own EndpointSlice controller,
read-only.

Nothing here can write: the controller's jobs are reads, the client refuses writes
(``transport.guards``), and its operator gives it a read-only account. There is no leader election,
because nothing is written.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final, Protocol

from sliceplane.api.scheme import Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.controllers.io.monitoring import health_pages
from sliceplane.diagnose.shadow.controller import ShadowController
from sliceplane.diagnose.shadow.ledger import DifferenceLedger, News
from sliceplane.diagnose.shadow.report import ShadowSummary, summary_of
from sliceplane.kit.io.pages import Page, PageMaker
from sliceplane.kit.metrics import Family
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.base import Reader, ReadOnlyClient
from sliceplane.watch.io.hosting.host import ControllerHost
from sliceplane.watch.io.reflect import loop_clock

#: seconds between two reads of the ledger
POLL_S: Final = 0.5
#: concurrent confirmations: they are reads of the API server, and not urgent
CONFIRMATIONS_MAX: Final = 2
#: seconds that ``wait_until_compared`` waits for confirmations after the grace period
CONFIRM_S: Final = 5.0


class ShadowOutput(Protocol):
    """Receives news. Called from the run's own task."""

    def news(self, news: tuple[News, ...]) -> None: ...

    def on_state(self, ledger: DifferenceLedger, summary: ShadowSummary, now: float) -> None:
        """Called every ``POLL_S``, for an output that shows the state rather than news."""


class ShadowRun:
    """One run. Create it inside a running loop; call ``start``, then ``follow`` or
    ``wait_until_compared``, then ``close``.
    """

    def __init__(self, reader: Reader, config: EndpointSliceConfig, *, grace_s: float) -> None:
        self._clock = loop_clock(time.time())
        self.ledger = DifferenceLedger(grace_s)
        self.client = ReadOnlyClient(reader)
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        self._host = ControllerHost(self.client, rng=rng, clock=self._clock)
        self._host.add(
            lambda: ShadowController(config, self.ledger), max_in_flight=CONFIRMATIONS_MAX
        )
        #: the watched resources
        self.watches = ShadowController(config, self.ledger).info.watches

    def start(self) -> None:
        self._host.start()

    async def wait_synced(self) -> None:
        while not self._host.status().synced:
            await asyncio.sleep(POLL_S / 10)

    async def follow(self, output: ShadowOutput) -> None:
        """Reports until cancelled, and a last time then."""
        try:
            while True:
                self._report(output)
                await asyncio.sleep(POLL_S)
        finally:
            self._report(output)

    async def wait_until_compared(self, output: ShadowOutput, timeout_s: float) -> bool:
        """Returns True once every service was compared and each difference was confirmed or
        disappeared; False after *timeout_s*.

        Does not wait for differences that are younger than the grace period at the end.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_synced()
                await self._rest()
                latest = self._clock() + self.ledger.grace_s + CONFIRM_S
                while self.ledger.pending and (
                    self._clock() < latest or self.ledger.overdue(self._clock())
                ):
                    await asyncio.sleep(POLL_S / 5)
                    self._report(output)
                await self._rest()
        except TimeoutError:
            return False
        finally:
            self._report(output)
        return True

    async def _rest(self) -> None:
        """Waits until the controllers have no backlog."""
        while any(
            controller.backlog or controller.in_flight
            for controller in self._host.status().controllers
        ):
            await asyncio.sleep(POLL_S / 10)

    def _report(self, output: ShadowOutput) -> None:
        news = self.ledger.take_news()
        if news:
            output.news(news)
        output.on_state(self.ledger, self.summary(), self._clock())

    def summary(self) -> ShadowSummary:
        informers = self._host.status().informers
        services = next(
            (informer.objects for informer in informers if informer.watched.resource is Services), 0
        )
        return summary_of(self.ledger, services)

    def now(self) -> float:
        return self._clock()

    async def close(self) -> None:
        await self._host.close()

    # For monitoring

    def samples(self) -> tuple[Family, ...]:
        return self._host.samples()

    def staleness_s(self) -> float:
        return self._host.status().staleness_s

    def pages(self) -> dict[str, PageMaker]:
        return health_pages(self._host.status, lambda: Page(b"ok: shadow\n"))
