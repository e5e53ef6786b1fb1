"""The public face of the informer: ``watch.io.reflect`` with a task of its own, and readers that
may be slow.

How it keeps what it promises stands in ``sliceplane.watch.reflector`` (the state machine) and
``sliceplane.watch.cache`` (what a change is); nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Resource
from sliceplane.consume.io.client.connecting import RawObject, load_raw
from sliceplane.kit.rng import Rng
from sliceplane.kit.terminal_text import printable
from sliceplane.watch.actions import Counters
from sliceplane.watch.cache import Cache, Change, Coalesced, IndexFunction
from sliceplane.watch.io import reflect
from sliceplane.watch.io.base import Client
from sliceplane.watch.paging import CACHE_BYTES_MAX
from sliceplane.watch.reflector import IDLE_TIMEOUT_S, ReflectorConfig

T = TypeVar("T", bound=Object)

#: of a value in a line of the log: part of it is what a server sent
VALUE_CHARACTERS_MAX: Final = 4096

_logger = logging.getLogger("sliceplane.client")


def new_rng(seed: int | None = None) -> Rng:
    """Seeded by the operating system, unless a test wants the same numbers again."""
    return Rng(int.from_bytes(os.urandom(8)) if seed is None else seed)


class Informer(Generic[T]):
    """A cache of one resource that follows the server, for one event loop. Use as an ``async with``
    block.

    *kind* is what objects are decoded as: a projection of ours (the default where there is one),
    your own subclass of ``Object`` with just the members that you use, or ``RawObject``. *indexes*
    maps a name to a function from an object to the values under which ``by_index`` finds it. A
    stream in which nothing, not even a bookmark, is heard for *idle_timeout_s* is taken for dead;
    servers send a bookmark every minute or so.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        kind: type[T] | None = None,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        seed: int | None = None,
    ) -> None:
        self.resource = resource
        self._index_names = tuple(indexes or ())
        decode = cast(Callable[[bytes], T], load_raw) if kind is RawObject else None

        def make() -> reflect.RunningInformer[T]:
            return reflect.RunningInformer(
                client,
                Selection(resource, namespace, label_selector, field_selector),
                clock=reflect.loop_clock(time.time()),
                rng=new_rng(seed),
                cache=Cache(resource, kind, indexes, decode),
                config=ReflectorConfig(
                    idle_timeout_s=idle_timeout_s,
                    only_reads=resource is EndpointSlices,
                    cache_bytes_max=CACHE_BYTES_MAX,
                ),
                log=StandardLog(),
            )

        self._make = make
        self._running: reflect.RunningInformer[T] | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Callable[[tuple[Change[T], ...]], None], Callable[[], None]]] = []
        self._closed = False
        self._wakers: list[asyncio.Event] = []

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to follow.  Once; ``async with`` does it."""
        if self._running is not None or self._closed:
            raise ValueError("an informer is started once, and not after its end: make another")
        self._running = self._make()
        for handler, on_synced in self._waiting:
            self._running.add_handler(handler, on_synced)
        self._task = asyncio.get_running_loop().create_task(
            self._running.run(), name=f"informer {self.resource.key}"
        )

    async def close(self) -> None:
        """Stop following; the cache stays readable, and readers of ``changes`` come to their end.
        Idempotent.
        """
        self._closed = True
        for waker in self._wakers:
            waker.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # Reading

    @property
    def running(self) -> reflect.RunningInformer[T]:
        """The informer inside, once it was started.  Raises ``ValueError`` before."""
        if self._running is None:
            raise ValueError("the informer was not started: use it in an async with block")
        return self._running

    @property
    def started(self) -> bool:
        """Returns True once ``start`` was called."""
        return self._running is not None

    @property
    def synced(self) -> bool:
        """The first list is here, and every handler has seen it."""
        return self._running is not None and self._running.synced

    async def wait_synced(self, timeout: float | None = None) -> None:
        """Raises ``TimeoutError``, which says what went wrong last."""
        try:
            async with asyncio.timeout(timeout):
                await self.running.wait_synced()
        except TimeoutError as error:
            raise TimeoutError(
                f"no list of {self.resource.key} within {timeout:g} s{self.trouble()}"
            ) from error

    def staleness(self) -> float:
        """Seconds since the cache was last known to be what the server held; ``math.inf`` before
        the first list.

        A healthy and quiet watch stays below the period of bookmarks, a minute or so; a number that
        keeps growing means that the server has not been heard of. The cache then shows the state of
        that time.
        """
        return self.running.staleness()

    @property
    def last_error(self) -> StatusError | None:
        """Why the last list or watch failed; ``None`` once things go well again."""
        error = self.running.reflector.last_error
        return None if error is None else error[0]

    def trouble(self) -> str:
        """ "; the last error: ..." for messages to people, or ""."""
        return f"; the last error: {self.last_error}" if self.last_error is not None else ""

    @property
    def counters(self) -> Counters:
        """Lists, watches, events, failures and so on since the start, for metrics."""
        return self.running.reflector.counters

    @property
    def resource_version(self) -> str:
        """The version that the cache stands for; "" while a list is due."""
        return self.running.reflector.resource_version

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Keys of objects whose newest version does not decode as *kind*, and why; an older version
        may be held.
        """
        return self.running.cache.unreadable

    def __len__(self) -> int:
        return len(self.running.cache)

    def __iter__(self) -> Iterator[T]:
        """The objects, by key; not across an ``await``."""
        return iter(self.running.cache)

    def __contains__(self, key: str) -> bool:
        return key in self.running.cache

    def get(self, key: str) -> T | None:
        """*key* is ``namespace/name``, or the name alone for what is in no namespace."""
        return self.running.cache.get(key)

    def by_index(self, name: str, value: str) -> tuple[T, ...]:
        """The objects under *value* in the index *name*, by key.  Raises ``ValueError`` if there is
        no such index.
        """
        try:
            return self.running.cache.by_index(name, value)
        except KeyError as error:
            names = ", ".join(self._index_names) or "none"
            raise ValueError(
                f"no index is called {name!r}: Informer(indexes=...) declared {names}"
            ) from error

    # Following

    def add_handler(
        self,
        handler: Callable[[tuple[Change[T], ...]], None],
        *,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        """Call *handler* with every change, in order, each exactly once, beginning with what is
        there now.

        What one event or one relist changed comes in one call. Handlers run in the loop and must
        not block; one that raises loses that call's changes (the failure is logged), never those of
        others. *on_synced* is called once, when the handler has seen the first list whole.
        """
        if self._running is None:
            self._waiting.append((handler, on_synced))
        else:
            self._running.add_handler(handler, on_synced)

    async def changes(self) -> AsyncIterator[tuple[Change[T], ...]]:
        """The same for a reader with a pace of its own: what changed since it last looked, one
        difference an object.

        Ends when the informer is closed.
        """
        pending: Coalesced[T] = Coalesced()
        news = asyncio.Event()

        def note(changes: tuple[Change[T], ...]) -> None:
            for change in changes:
                pending.note(change)
            news.set()

        running = self.running
        running.add_handler(note, lambda: None)
        self._wakers.append(news)
        try:
            while True:
                news.clear()
                taken = pending.take()
                if taken:
                    yield taken
                elif self._closed:
                    return
                else:
                    await news.wait()
        finally:
            self._wakers.remove(news)
            running.remove_handler(note)


class StandardLog:
    """The log of informers, through the standard library: a library does not print. Values follow
    the event as ``name=value``; see ``watch.io.reflect.Log``.
    """

    def info(self, event: str, **values: Any) -> None:
        self._write(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._write(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        self._write(logging.ERROR, event, values)

    @staticmethod
    def _write(level: int, event: str, values: dict[str, Any]) -> None:
        if _logger.isEnabledFor(level):
            failure = values.pop("exc_info", None)
            text = " ".join(
                f"{name}={printable(str(value)[:VALUE_CHARACTERS_MAX])}"
                for name, value in values.items()
            )
            _logger.log(level, "%s %s", event, text, exc_info=failure)
