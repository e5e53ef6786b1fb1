"""The live model of the page: informers of Services, EndpointSlices and Nodes that feed one
``ClusterModel``.

A user who may not list all namespaces gets the kubeconfig's namespace. Refusals and a lost
connection are reported as ``troubles``; the model then keeps its last state, and ``current``
returns the time of that state.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes, Resource, Services
from sliceplane.diagnose.page.model import ClusterModel
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Cache, Change
from sliceplane.watch.io.base import Reader, Unreachable
from sliceplane.watch.io.reflect import RunningInformer, loop_clock
from sliceplane.watch.paging import CACHE_BYTES_MAX
from sliceplane.watch.reflector import ReflectorConfig

#: seconds between retries of a refused list
REFUSED_PERIOD_S: Final = 10.0
#: seconds for the first lists; afterwards the page is served without the missing ones
START_S: Final = 30.0

T = TypeVar("T", bound=Object)


class _Quiet:
    """Drops log messages, since the page shows the troubles."""

    def info(self, event: str, **values: Any) -> None: ...
    def warning(self, event: str, **values: Any) -> None: ...
    def error(self, event: str, **values: Any) -> None: ...


class LiveCluster:
    """Owned by one loop, from ``start`` to ``stop``. *namespace*: the only one; "": all, if
    permitted. *fallback*: the namespace for a user who may not list all.
    """

    def __init__(self, client: Reader, namespace: str, fallback: str) -> None:
        self.model = ClusterModel()
        self.namespace = namespace
        self._client = client
        self._fallback = fallback
        self._clock: Callable[[], float] = time.time
        self._rng = Rng(int.from_bytes(os.urandom(8)))
        self._informers: list[RunningInformer[Any]] = []
        self._refusals: dict[str, dict[str, str]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._current = 0.0

    def now(self) -> float:
        """Seconds since the epoch, on a clock that does not jump."""
        return self._clock()

    async def start(self) -> None:
        """Returns when the first lists arrived, were refused, or took ``START_S``. Raises
        ``StatusError`` and ``Unreachable``.
        """
        self._clock = loop_clock(time.time())
        if not self.namespace and (refusal := await self._refusal(Selection(Services))) is not None:
            self.namespace = self._fallback
            self._refusals[""] = {**refusal, "instead": self._fallback}
        await asyncio.gather(
            self._follow(Services, Service, self.model.on_services),
            self._follow(EndpointSlices, EndpointSlice, self._on_slices),
            self._follow(Nodes, Node, self.model.on_nodes),
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def troubles(self) -> list[dict[str, str]]:
        """Returns the problems of the connection to the cluster; refusals name the verb, resource
        and namespace.
        """
        lost = [_trouble(informer) for informer in self._informers if informer.lost]
        return [*self._refusals.values(), *lost]

    def current(self) -> float:
        """Returns the time until which the model is known to equal the server's state."""
        if not any(informer.lost for informer in self._informers):
            self._current = self._clock()
        return self._current

    def _on_slices(self, changes: tuple[Change[EndpointSlice], ...]) -> None:
        is_news = any(
            informer.resource is EndpointSlices and informer.synced for informer in self._informers
        )
        self.model.on_slices(changes, self._clock(), is_news=is_news)

    async def _follow(
        self, resource: Resource, kind: type[T], handler: Callable[[tuple[Change[T], ...]], None]
    ) -> None:
        selection = Selection(resource, self.namespace if resource.namespaced else "")
        refusal = await self._refusal(selection)
        if refusal is None:
            with suppress(TimeoutError):  # the page shows the objects so far, and the trouble
                async with asyncio.timeout(START_S):
                    await self._run(selection, kind, handler).wait_synced()
            return
        self._refusals[resource.key] = refusal
        self._tasks.append(asyncio.create_task(self._retry_refused(selection, kind, handler)))

    def _run(
        self, selection: Selection, kind: type[T], handler: Callable[[tuple[Change[T], ...]], None]
    ) -> RunningInformer[T]:
        informer: RunningInformer[T] = RunningInformer(
            self._client,
            selection,
            clock=self._clock,
            rng=self._rng,
            cache=Cache(selection.resource, kind),
            config=ReflectorConfig(cache_bytes_max=CACHE_BYTES_MAX),
            log=_Quiet(),
        )
        informer.add_handler(handler, lambda: None)
        self._informers.append(informer)
        self._tasks.append(asyncio.create_task(informer.run()))
        return informer

    async def _retry_refused(
        self, selection: Selection, kind: type[T], handler: Callable[[tuple[Change[T], ...]], None]
    ) -> None:
        while True:
            await asyncio.sleep(REFUSED_PERIOD_S)
            try:
                if await self._refusal(selection) is None:
                    break
            except (StatusError, Unreachable):
                continue
        del self._refusals[selection.resource.key]
        self._run(selection, kind, handler)

    async def _refusal(self, selection: Selection) -> dict[str, str] | None:
        try:
            await self._client.list(selection, limit=1)
        except StatusError as error:
            if error.code != 403:
                raise
            where = "in all namespaces" if selection.resource.namespaced else ""
            return {
                "kind": "refused",
                "verb": "list",
                "resource": selection.resource.key,
                "where": f"in namespace {selection.namespace}" if selection.namespace else where,
                "says": str(error),
            }
        return None


def _trouble(informer: RunningInformer[Any]) -> dict[str, str]:
    error = informer.reflector.last_error
    code = error[0].code if error is not None else 0
    message = (
        f"{informer.lost}: these credentials do not count any more"
        if code == 401
        else informer.lost
    )
    return {
        "kind": "refused" if code in (401, 403) else "lost",
        "resource": informer.resource.key,
        "says": message,
    }
