"""What a node proxy tells the flight recorder: what it was told, and what it wrote into the kernel.

Rules are no job of a controller, so a replay leaves a node proxy out; ``recorder show`` and the export have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sliceplane.api.meta import Object
from sliceplane.informer.cache import Change
from sliceplane.kit.ip import Family
from sliceplane.recorder.entries import quantized
from sliceplane.recorder.recorder import Recorder, begin_record
from sliceplane.shell.process.flight import FlightConfig, FlightRecorder, default_folder

#: in recordings: what is told, and writes
COMPONENT: Final = "node-proxy"
KERNEL: Final = "kernel"


class ProxyRecord:
    """Of one node proxy; of nothing without a *recorder*."""

    def __init__(self, recorder: Recorder | None = None, began: float = 0.0) -> None:
        self._recorder = recorder
        self._life = begin_record(recorder, COMPONENT, quantized(began))

    def change(self, change: Change[Object], now: float) -> None:
        self._life.change(change, quantized(now))

    def written(self, family: Family, commands: int, now: float, *, full: bool) -> None:
        whole = ", the whole table" if full else ""
        self._mark(f"{family}: {commands} commands{whole}", now)

    def refused(self, family: Family, why: str, now: float) -> None:
        self._mark(f"{family}: refused: {why}", now)

    def _mark(self, text: str, now: float) -> None:
        if self._recorder is not None:
            self._recorder.mark(KERNEL, text, quantized(now))
            self._recorder.encode()


@asynccontextmanager
async def recording(
    config: FlightConfig, clock: Callable[[], float], unhealthy: Callable[[], str]
) -> AsyncIterator[Recorder | None]:
    """The recorder of a node proxy that is a process of its own, while the context lasts."""
    if not config.size_bytes:
        yield None
        return
    flight = FlightRecorder(COMPONENT, config.size_bytes, config.folder or default_folder(), clock, unhealthy)
    flying = asyncio.create_task(flight.run(), name="flight recorder")
    try:
        yield flight.recorder
    finally:
        flying.cancel()
        await asyncio.gather(flying, return_exceptions=True)
