"""Informers shared by all controllers of a host, one for each ``Selection``, started when first
asked for; and the question before a run that ends by itself, whether all of them will be able to
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Resource, is_done_without
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.rng import Rng
from sliceplane.watch.actions import Counters
from sliceplane.watch.cache import Cache
from sliceplane.watch.io.base import Reader
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.recorder.recorder import Recorder

#: answers that another try does not change: who is it, may they, is it served
_FINAL: Final = (401, 403, 404)

_log = get_logger("host")


class InformerStatus(msgspec.Struct, frozen=True):
    """``staleness_s`` is ``math.inf`` until the first list was there; ``error`` is the last one,
    with its time.
    """

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

    def __init__(
        self,
        client: Reader,
        *,
        clock: Callable[[], float],
        rng: Rng,
        recorder: Recorder | None = None,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._rng = rng
        self._informers: dict[Selection, RunningInformer[Object]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def get(self, watched: Selection) -> RunningInformer[Object]:
        informer = self._informers.get(watched)
        if informer is None:
            informer = self._informers[watched] = RunningInformer(
                self._client,
                watched,
                clock=self._clock,
                rng=self._rng.fork(),
                cache=Cache(watched.resource, decode=self._decoder(watched.resource)),
            )
            task = asyncio.get_running_loop().create_task(
                informer.run(), name=f"informer {watched.resource.key}"
            )
            self._tasks.append(task)
        return informer

    def _decoder(self, resource: Resource) -> Callable[[bytes], Object] | None:
        """Returns a decoder that shows bodies to the recorder, if there is one."""
        recorder = self._recorder
        if recorder is None:
            return None

        def decode_noting(body: bytes) -> Object:
            decoded = decode(body, resource.projection)
            recorder.note_body(decoded.metadata.resource_version, body)
            return decoded

        return decode_noting

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


class CannotRead(Exception):
    """The message names every kind whose read permission is missing."""


async def check_readable(reader: Reader, selections: Iterable[Selection]) -> None:
    """Checks that *selections* can be read, with one short list for each. Used before a run that
    ends by itself.

    An informer retries forever, which is right for a server that comes back and wrong for a person
    who waits for an answer: an unreachable server or a missing permission is reported at once. An
    error that passes, of a busy server, is left to the informers. Raises ``CannotRead``, and
    ``Unreachable`` if there is no server.
    """
    refused: dict[str, StatusError] = {}
    for selection in sorted(
        set(selections), key=lambda selection: (selection.resource.key, selection.namespace)
    ):
        try:
            await reader.list(Selection(selection.resource, selection.namespace), limit=1)
        except StatusError as error:
            if error.code in _FINAL and not is_done_without(selection.resource, error):
                refused[selection.resource.plural] = error
    if refused:
        first = next(iter(refused.values()))
        raise CannotRead(
            f"the server does not let us read {', '.join(refused)} (get, list and watch): {first}"
        )
