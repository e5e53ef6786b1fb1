"""Controllers without an API server of their own: against any cluster, as one of several instances,
or once.

``Standalone`` runs them while this instance leads; ``reconcile_until_idle`` runs them until no work
is left. Both use the host of the embedded plane, over another client.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from typing import Any, Final

import msgspec

from sliceplane.controllers.io.freshness import complaint, stuck
from sliceplane.controllers.io.monitoring import health_pages, leader_family
from sliceplane.kit.io.pages import Page, PageMaker
from sliceplane.kit.metrics import Family
from sliceplane.kit.rng import Rng
from sliceplane.watch.controller.election import ElectionConfig
from sliceplane.watch.io.base import Client, FencedClient
from sliceplane.watch.io.events import EventRecorder
from sliceplane.watch.io.flight import FlightConfig, FlightRecorder, default_folder
from sliceplane.watch.io.hosting.election import LeaseCandidate
from sliceplane.watch.io.hosting.host import ControllerEntry, ControllerHost, HostStatus, make_host
from sliceplane.watch.io.hosting.informers import check_readable
from sliceplane.watch.io.hosting.runner import ControllerStatus
from sliceplane.watch.io.reflect import loop_clock

#: seconds without work after which a controller is idle: its own writes have come back long before
IDLE_S: Final = 5.0
_POLL_S: Final = 0.05


class RecordingHere(msgspec.Struct, frozen=True):
    """The recording of this process. ``settings``: settings of the controllers
    (``hosting.settings``).
    """

    config: FlightConfig
    settings: dict[str, Any]


class Standalone:
    """The controllers of this process. Created inside a running loop; ``run`` is called once."""

    def __init__(
        self,
        client: Client,
        entries: tuple[ControllerEntry, ...],
        election: ElectionConfig | None,
        *,
        election_client: Client | None = None,
        recording: RecordingHere | None = None,
    ) -> None:
        """*election_client*: a client without the rate limit of *client*, since a Lease must not
        wait.
        """
        self._client = client
        self._election = election
        self._entries = entries
        self._clock = loop_clock(time.time())
        self._rng = Rng(int.from_bytes(os.urandom(8), "big"))
        self._host: ControllerHost | None = None
        self._flight: FlightRecorder | None = None
        if recording is not None:
            folder = recording.config.folder or default_folder()
            self._flight = FlightRecorder(
                "controllers", recording.config.size_bytes, folder, self._clock, self._unhealthy
            )
            self._flight.settings.update(recording.settings)
        #: for the election only: the controllers' recorder belongs to their host
        self._recorder = EventRecorder(client, clock=self._clock)
        self._candidate = (
            None
            if election is None
            else LeaseCandidate(
                election_client or client,
                election,
                rng=self._rng.fork(),
                clock=self._clock,
                note=self._recorder.record,
            )
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        recording_task = (
            None
            if self._flight is None
            else asyncio.create_task(self._flight.run(), name="flight recorder")
        )
        try:
            await self._run()
        finally:
            if recording_task is not None:
                recording_task.cancel()
                await asyncio.gather(recording_task, return_exceptions=True)

    async def _run(self) -> None:
        if self._candidate is None:
            await self._work()
            return
        reporting_task = asyncio.create_task(
            self._recorder.run(), name="event recorder of the election"
        )
        try:
            await self._candidate.run(self._work)
        finally:
            await self._recorder.flush()
            reporting_task.cancel()
            await asyncio.gather(reporting_task, return_exceptions=True)

    async def wait_ready(self) -> str:
        """Waits until the caches are filled, or until another instance leads. Returns a line with
        the role.
        """
        while True:
            if self._host is not None and not complaint(self._host.status()):
                return "leading"
            if (
                self._candidate is not None
                and not self._candidate.leading
                and self._candidate.holder
            ):
                return f"standby leader={self._candidate.holder}"
            await asyncio.sleep(_POLL_S)

    async def _work(self) -> None:
        candidate = self._candidate
        client = (
            self._client
            if candidate is None
            else FencedClient(self._client, lambda: candidate.leading)
        )
        recorder = None if self._flight is None else self._flight.recorder
        self._host = make_host(client, self._entries, self._rng.fork(), self._clock, recorder)
        try:
            await self._host.run()
        finally:
            self._host = None

    def pages(self) -> dict[str, PageMaker]:
        """Returns the pages for ``kit.io.pages.serve_pages``: alive, and ready to work or to take
        over.
        """
        return health_pages(
            lambda: None if self._host is None else self._host.status(), self._ready
        )

    def _unhealthy(self) -> str:
        return "" if self._host is None else stuck(self._host.status())

    def _ready(self) -> Page:
        if self._host is not None:
            return Page(b"ok: leading\n")
        if self._candidate is not None and self._candidate.holder:
            return Page(f"ok: standing by, {self._candidate.holder} leads\n".encode())
        return Page(b"no leader is known\n", healthy=False)

    def samples(self) -> tuple[Family, ...]:
        """Returns the metrics of active controllers, and the leader flag."""
        figures = () if self._host is None else self._host.samples()
        if self._flight is not None:
            figures = (*figures, *self._flight.metrics.families())
        if self._election is None or self._candidate is None:
            return figures
        return (*figures, leader_family(self._election.name, self._candidate.leading))

    def staleness_s(self) -> float:
        """Returns the age of the stalest cache; ``math.inf`` while there is none."""
        return math.inf if self._host is None else self._host.status().staleness_s


class ReconcileSummary(msgspec.Struct, frozen=True):
    """The result of ``reconcile_until_idle``. ``unfinished``: controllers with retries due or with
    work left.
    """

    seconds: float
    status: HostStatus
    unfinished: tuple[str, ...]


async def reconcile_until_idle(
    client: Client, entries: tuple[ControllerEntry, ...], *, timeout_s: float
) -> ReconcileSummary:
    """Runs until every controller is idle, or for *timeout_s*. Raises ``CannotRead`` and
    ``Unreachable`` before the start.
    """
    await check_readable(
        client, [watched for entry in entries for watched in entry.make().info.watches]
    )
    clock = loop_clock(time.time())
    host = make_host(client, entries, Rng(int.from_bytes(os.urandom(8), "big")), clock)
    began = clock()
    host.start()
    try:
        while True:
            await asyncio.sleep(_POLL_S)
            status = host.status()
            spent = clock() - began
            unfinished = _unfinished(status)
            if not _busy(status) or spent >= timeout_s:
                return ReconcileSummary(spent, status, unfinished)
    finally:
        await host.close()


def _busy(status: HostStatus) -> bool:
    return any(
        _has_work(controller) or (controller.due_s is not None and controller.due_s < IDLE_S)
        for controller in status.controllers
    )


def _unfinished(status: HostStatus) -> tuple[str, ...]:
    """Returns the controllers with work left. A deadline of an idle controller is a retry only
    after a failure; others (an hourly resync) are no work.
    """
    return tuple(
        controller.name
        for controller in status.controllers
        if _has_work(controller) or (controller.due_s is not None and controller.tally.failed_jobs)
    )


def _has_work(controller: ControllerStatus) -> bool:
    return not controller.synced or controller.backlog > 0 or controller.in_flight > 0
