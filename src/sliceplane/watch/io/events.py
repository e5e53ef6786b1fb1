"""The recorder that all controllers of a process share: performs what ``watch.controller.events``
decides.

Recording never blocks and never fails: what does not fit into the bounds is dropped and counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from sliceplane.api.errors import StatusError, is_namespace_terminating
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EventsV1
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.tasks import ends_within
from sliceplane.watch.controller.base import EventNote
from sliceplane.watch.controller.events import EventCorrelator, EventWrite, Outcome, RecorderStatus
from sliceplane.watch.io.base import Client, Unreachable

WRITE_TIMEOUT_S = 10.0
FLUSH_S = 1.0

_log = get_logger("events")


class EventRecorder:
    """``record`` from anywhere in the loop; ``run`` is one task.  *instance*: this process, if not
    the machine.
    """

    def __init__(self, client: Client, *, clock: Callable[[], float], instance: str = "") -> None:
        self._client = client
        self._clock = clock
        self._correlator = EventCorrelator(instance or socket.gethostname())
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(self, note: EventNote) -> None:
        """Never blocks, never raises for what a note says."""
        self._correlator.on_note(note, self._clock())
        if not self._correlator.idle:
            self._idle.clear()
        self._wake.set()

    def status(self) -> RecorderStatus:
        return self._correlator.status()

    async def flush(self) -> None:
        """Wait for what is pending to be written, for a moment."""
        self._correlator.hurry(self._clock())
        self._wake.set()
        await ends_within(FLUSH_S, self._idle.wait())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            write = self._correlator.take_write(self._clock())
            if write is None:
                await self._until_due()
                continue
            self._correlator.on_outcome(await self._send(write), self._clock())

    async def _until_due(self) -> None:
        if self._correlator.idle:
            self._idle.set()
        due = self._correlator.next_deadline()
        try:
            async with asyncio.timeout(None if due is None else max(due - self._clock(), 0.01)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _send(self, write: EventWrite) -> Outcome:
        namespace = write.namespace
        name = write.name
        request = Write(
            verb=write.verb,
            resource=EventsV1,
            namespace=namespace,
            name="" if write.verb == "create" else name,
            body=write.body,
        )
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._client.perform(request)
        except StatusError as error:
            if error.reason == "AlreadyExists":
                return "exists"
            if error.code == 404 and write.verb == "patch":
                return "missing"
            if error.code == 429 or error.code >= 500:
                return "later"
            level = _log.debug if is_namespace_terminating(error) else _log.warning
            level("an Event was refused", name=name, namespace=namespace, error=str(error))
            return "refused"
        except (Unreachable, TimeoutError):
            return "later"
        except Exception as error:  # Events are never worth a crash
            _log.error(
                "an Event could not be written", name=name, namespace=namespace, exc_info=error
            )
            return "refused"
        return "written"
