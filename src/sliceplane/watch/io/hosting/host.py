"""All controllers of a process: their informers, their runners, their Events.

host = ControllerHost(client, rng=Rng(seed))
host.add(lambda: EndpointSliceController(...), max_in_flight=5)
host.start()
...
await host.close()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Family, merged
from sliceplane.kit.rng import Rng
from sliceplane.watch.controller.events import RecorderStatus
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.events import EventRecorder
from sliceplane.watch.io.hosting.informers import InformerStatus, SharedInformers
from sliceplane.watch.io.hosting.loop_shell import HostMeans
from sliceplane.watch.io.hosting.runner import ControllerRunner, ControllerStatus, Factory
from sliceplane.watch.io.reflect import loop_clock
from sliceplane.watch.recorder.recorder import Recorder

MAX_IN_FLIGHT: Final = 5

_log = get_logger("host")


class ControllerEntry(msgspec.Struct, frozen=True):
    """One controller: how to make it (again, after a fault) and how many of its jobs may run side
    by side.
    """

    make: Factory
    max_in_flight: int = MAX_IN_FLIGHT


class HostStatus(msgspec.Struct, frozen=True):
    """The state that health pages and metrics show, read at one moment."""

    informers: tuple[InformerStatus, ...]
    controllers: tuple[ControllerStatus, ...]
    recorder: RecorderStatus
    #: seconds since the epoch
    at: float

    @property
    def synced(self) -> bool:
        return all(controller.synced for controller in self.controllers)

    @property
    def staleness_s(self) -> float:
        """The staleness of the worst informer."""
        return max((informer.staleness_s for informer in self.informers), default=0.0)


class ControllerHost:
    """Made inside a running loop; ``add``, then ``start`` and ``close``, or ``run``. The client
    stays its owner's and is not closed here.

    *clock* gives seconds since the epoch. *check* makes cores check their invariants at every turn
    (tests). *instance* names this process in Events. *recorder* is told all that the cores are
    told.
    """

    def __init__(
        self,
        client: Client,
        *,
        rng: Rng,
        clock: Callable[[], float] | None = None,
        instance: str = "",
        check: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._clock = clock or loop_clock(time.time())
        self._informers = SharedInformers(
            client, clock=self._clock, rng=rng.fork(), recorder=recorder
        )
        self._recorder = EventRecorder(client, clock=self._clock, instance=instance)
        self._means = HostMeans(
            client=client,
            note=self._recorder.record,
            clock=self._clock,
            check=check,
            recorder=recorder,
        )
        self._runners: list[ControllerRunner] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, factory: Factory, *, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        """*factory* makes a fresh core each time it is called: once now, and again after each
        fault.
        """
        assert not self._tasks, "controllers are added before start"
        self._runners.append(ControllerRunner(factory, self._informers, self._means, max_in_flight))

    def start(self) -> None:
        assert not self._tasks, "started twice"
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._recorder.run(), name="event recorder")]
        for runner in self._runners:
            self._tasks.append(loop.create_task(runner.run(), name=runner.info.name))
        for task in self._tasks:
            task.add_done_callback(_complain)

    def wake(self) -> None:
        """Asks all cores for work at once, after an input that no informer delivers."""
        for runner in self._runners:
            runner.wake()

    async def run(self) -> None:
        """Until cancelled."""
        self.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop taking work, let writes in flight finish for a few seconds, end every task.
        Idempotent.
        """
        recorder, *runners = self._tasks or (None,)
        for task in runners:
            task.cancel()
        # Cancelled runners still drain their jobs; informers outlive them, so that no core reads a
        # dead cache.
        await asyncio.gather(*runners, return_exceptions=True)
        await self._informers.close()
        if recorder is not None:
            await self._recorder.flush()
            recorder.cancel()
            await asyncio.gather(recorder, return_exceptions=True)
        self._tasks = []

    def samples(self) -> tuple[Family, ...]:
        """The figures of all controllers; each metric once, sorted by name."""
        return merged(*(runner.samples() for runner in self._runners))

    def status(self) -> HostStatus:
        return HostStatus(
            self._informers.statuses(),
            tuple(runner.status() for runner in self._runners),
            self._recorder.status(),
            self._clock(),
        )


def make_host(
    client: Client,
    entries: tuple[ControllerEntry, ...],
    rng: Rng,
    clock: Callable[[], float] | None = None,
    recorder: Recorder | None = None,
) -> ControllerHost:
    """A host with the controllers of *entries*, not started."""
    host = ControllerHost(client, rng=rng, clock=clock, recorder=recorder)
    for entry in entries:
        host.add(entry.make, max_in_flight=entry.max_in_flight)
    return host


def _complain(task: asyncio.Task[None]) -> None:
    """Runners and recorders never end by themselves; one that does is a bug that must be seen."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("a task of the host died", task=task.get_name(), exc_info=task.exception())
