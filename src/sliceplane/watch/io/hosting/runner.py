"""Runs one controller for as long as the host runs, and starts it anew after a fault.

A core that raises is thrown away with all that it knew: the next ``Life`` begins with a new core
that lists everything again. Between two lives there is a pause (``RESTART_BACKOFF``), and before it
the jobs of the old life get ``DRAIN_S`` to end, because the jobs of one key must not overlap. A
fault stays with its controller: informers and the client are shared with the others and go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sliceplane.kit.delays import Backoff
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Family
from sliceplane.watch.controller.base import Controller, ControllerInfo, EventNote
from sliceplane.watch.controller.loop import ControllerLoop
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.hosting.informers import SharedInformers
from sliceplane.watch.io.hosting.life import ControllerTally, Life
from sliceplane.watch.recorder.entries import quantized
from sliceplane.watch.recorder.recorder import Recorder

Factory = Callable[[], Controller]

#: between two lives; the first comes back quickly, one that always fails does not burn the
#: processor
RESTART_BACKOFF = Backoff(base_s=1.0, cap_s=60.0)
#: a life of this length clears the count of faults
HEALTHY_LIFE_S = 300.0
#: jobs of a life that ended must be over before the next begins: jobs of one key are strictly
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
        self,
        factory: Factory,
        informers: SharedInformers,
        client: Client,
        note: Callable[[EventNote], None],
        *,
        clock: Callable[[], float],
        max_in_flight: int,
        check: bool,
        recorder: Recorder | None = None,
    ) -> None:
        assert max_in_flight > 0, f"max_in_flight {max_in_flight} must be positive"
        self._factory = factory
        self._informers = informers
        self._client = client
        self._note = note
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._check = check
        self._recorder = recorder
        # The first instance tells the name; a factory that fails now is the caller's error, not a
        # fault to survive.
        self._first: Controller | None = factory()
        self.info: ControllerInfo = self._first.info
        self._life: Life | None = None
        self._tally = ControllerTally()
        self._fault = ""

    def status(self) -> ControllerStatus:
        life = self._life
        due = None if life is None else life.due
        return ControllerStatus(
            name=self.info.name,
            alive=life is not None,
            synced=life is not None and life.synced,
            backlog=life.backlog if life is not None else 0,
            in_flight=life.in_flight if life is not None else 0,
            tally=self._tally,
            fault=self._fault,
            due_s=None if due is None else max(0.0, due - self._clock()),
        )

    def wake(self) -> None:
        if self._life is not None:
            self._life.wake()

    def samples(self) -> tuple[Family, ...]:
        """The figures of the life that is going on; none between two."""
        return self._life.samples() if self._life is not None else ()

    async def run(self) -> None:
        """Until cancelled; never ends otherwise."""
        faults = 0
        while True:
            began = self._clock()
            try:
                await self._live()
            except Exception as error:
                self._fault = f"{type(error).__name__}: {error}"
                self._tally.restarts += 1
                if self._clock() - began > HEALTHY_LIFE_S:
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
            recorder=self._recorder,
        )
        life = self._life = Life(
            loop,
            self._client,
            self._note,
            clock=self._clock,
            tally=self._tally,
            check=self._check,
        )
        fault = ""
        try:
            await life.run([self._informers.get(watched) for watched in self.info.watches])
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._life = None
            await life.close(DRAIN_S, fault)
