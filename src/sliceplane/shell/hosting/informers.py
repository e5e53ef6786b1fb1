"""Informers shared by all controllers of a host: one for each ``Selection``, started when first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.controllers.base import Selection
from sliceplane.informer.reflector import Counters
from sliceplane.kit.rng import Rng
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.transport.base import Client
from sliceplane.shell.transport.reflect import Informer

_log = get_logger("host")


@dataclass(frozen=True, slots=True)
class InformerStatus:
    """``staleness_s`` is ``math.inf`` until the first list was there; ``error`` is the last one, with its time."""

    watched: Selection
    synced: bool
    staleness_s: float
    objects: int
    unreadable: int
    resource_version: str
    counters: Counters
    error: tuple[StatusError, float] | None


class SharedInformers:
    """Owned by one host.  Each informer has a task, from ``get`` until ``close``."""

    def __init__(self, client: Client, *, clock: Callable[[], float], rng: Rng) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        self._informers: dict[Selection, Informer[Object]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def get(self, watched: Selection) -> Informer[Object]:
        informer = self._informers.get(watched)
        if informer is None:
            informer = self._informers[watched] = Informer(
                self._client, watched, clock=self._clock, rng=self._rng.fork()
            )
            task = asyncio.get_running_loop().create_task(informer.run(), name=f"informer {watched.resource.key}")
            self._tasks.append(task)
        return informer

    def statuses(self) -> tuple[InformerStatus, ...]:
        """In the order in which they were first asked for."""
        return tuple(
            InformerStatus(
                watched,
                informer.synced,
                informer.staleness(),
                len(informer.cache),
                len(informer.cache.unreadable),
                informer.reflector.resource_version,
                informer.reflector.counters,
                informer.reflector.last_error,
            )
            for watched, informer in self._informers.items()
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                _log.error("an informer died", exc_info=ended)
        self._tasks.clear()
