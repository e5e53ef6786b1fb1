"""Runs one controller for as long as the host runs, and restarts it after a fault.

A core that raises is discarded with its state: the next ``LoopShell`` begins with a new core, which
gets all objects again. Between two loops there is a pause (``RESTART_BACKOFF``), and before it the
jobs of the old loop get ``DRAIN_S`` to end, because the jobs of one key must not overlap. A fault
stays with its controller: informers and the client are shared with the others and go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sliceplane.kit.delays import Backoff
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Family
from sliceplane.watch.controller.base import Controller, ControllerInfo
from sliceplane.watch.controller.loop import ControllerLoop
from sliceplane.watch.io.hosting.informers import SharedInformers
from sliceplane.watch.io.hosting.loop_shell import ControllerTally, HostMeans, LoopShell
from sliceplane.watch.recorder.entries import quantized

Factory = Callable[[], Controller]

#: pause between two loops: short after the first fault, long for a controller that always fails
RESTART_BACKOFF = Backoff(base_s=1.0, cap_s=60.0)
#: a loop that ran this long clears the count of faults
HEALTHY_RUN_S = 300.0
#: jobs of a loop that ended must be over before the next begins: jobs of one key are strictly
#: ordered
DRAIN_S = 5.0

_log = get_logger("host")


class ControllerStatus(msgspec.Struct, frozen=True):
    """``alive``: a core is running, not waiting to be started again after a fault.

    ``due_s``: in how many seconds it may have work although nothing happens; ``None``: never.
    """

    name: str
    alive: bool
    synced: bool
    backlog: int
    in_flight: int
    tally: ControllerTally
    fault: str
    due_s: float | None = None


class ControllerRunner:
    """Owned by one host, which runs it as one task."""

    def __init__(
        self, factory: Factory, informers: SharedInformers, means: HostMeans, max_in_flight: int
    ) -> None:
        assert max_in_flight > 0, f"max_in_flight {max_in_flight} must be positive"
        self._factory = factory
        self._informers = informers
        self._means = means
        self._clock = means.clock
        self._max_in_flight = max_in_flight
        # The first instance has the name; a factory that fails now is the caller's error, not a
        # fault to survive.
        self._first: Controller | None = factory()
        self.info: ControllerInfo = self._first.info
        self._shell: LoopShell | None = None
        self._tally = ControllerTally()
        self._fault = ""

    def status(self) -> ControllerStatus:
        shell = self._shell
        due = None if shell is None else shell.due
        return ControllerStatus(
            name=self.info.name,
            alive=shell is not None,
            synced=shell is not None and shell.synced,
            backlog=shell.backlog if shell is not None else 0,
            in_flight=shell.in_flight if shell is not None else 0,
            tally=self._tally,
            fault=self._fault,
            due_s=None if due is None else max(0.0, due - self._clock()),
        )

    def wake(self) -> None:
        if self._shell is not None:
            self._shell.wake()

    def samples(self) -> tuple[Family, ...]:
        """Returns the figures of the running loop; none between two loops."""
        return self._shell.samples() if self._shell is not None else ()

    async def run(self) -> None:
        """Runs until cancelled; never ends otherwise."""
        faults = 0
        while True:
            began = self._clock()
            try:
                await self._live()
            except Exception as error:
                self._fault = f"{type(error).__name__}: {error}"
                self._tally.restarts += 1
                if self._clock() - began > HEALTHY_RUN_S:
                    faults = 0
                delay = RESTART_BACKOFF.delay_s(faults)
                faults += 1
                _log.error(
                    "a controller failed and starts again from scratch",
                    controller=self.info.name,
                    restarts=self._tally.restarts,
                    restart_in_s=delay,
                    exc_info=error,
                )
            await asyncio.sleep(delay)

    async def _live(self) -> None:
        controller = self._first or self._factory()
        self._first = None
        loop = ControllerLoop(
            controller,
            quantized(self._clock()),
            max_in_flight=self._max_in_flight,
            recorder=self._means.recorder,
        )
        shell = self._shell = LoopShell(loop, self._means, self._tally)
        fault = ""
        try:
            await shell.run([self._informers.get(watched) for watched in self.info.watches])
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._shell = None
            await shell.close(DRAIN_S, fault)
