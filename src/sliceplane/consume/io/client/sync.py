"""``SyncEndpointView``: an ``EndpointView`` for programs without an event loop, in a thread of its
own.

The thread follows the server; callers read its state and pick under one lock, which is held for a
few microseconds at a time. Use from as many threads as you like. A process that forks makes its
views after the fork.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sliceplane.api.errors import StatusError
from sliceplane.consume.balancing import pickers, ring
from sliceplane.consume.balancing.model import Endpoint, ViewChange
from sliceplane.consume.balancing.usable import Scope
from sliceplane.consume.io.client.picking import Picker
from sliceplane.consume.io.client.view import EndpointView
from sliceplane.watch.io.connection import Connection
from sliceplane.watch.io.http.client import HttpClient

T = TypeVar("T")


class _Ended(Exception):
    """The thread answers no more."""


class SyncEndpointView:
    """See ``EndpointView`` for *options* and for what each member means.  Use as a ``with`` block.

    *path* and *context* choose the cluster as ``connect`` does; *connection* says it directly.
    """

    def __init__(
        self,
        service: str,
        namespace: str = "default",
        *,
        path: str | Path | None = None,
        context: str | None = None,
        connection: Connection | None = None,
        **options: Any,
    ) -> None:
        if connection is None:
            from sliceplane.watch.io import kubeconfig  # programs with a Connection need none

            connection = kubeconfig.load_or_running(path, context=context)
        self._connection = connection
        self._lock = threading.Lock()
        self._make: Callable[[HttpClient], EndpointView] = lambda client: EndpointView(
            client, service, namespace, lock=self._lock, **options
        )
        self._ready: Future[tuple[asyncio.AbstractEventLoop, EndpointView]] = Future()
        self._end = asyncio.Event()
        #: held while a question is handed to the loop: none is after ``_ended``, when no answer
        #: would come
        self._submitting = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(
            target=self._run, name=f"endpoints of {namespace}/{service}", daemon=True
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread.  Once; ``with`` does it."""
        if self._thread.ident is not None:
            raise ValueError("a view is started once: make another SyncEndpointView")
        self._thread.start()
        self._ready.result()

    def close(self) -> None:
        """Stop following and end the thread; what was known stays readable.  Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        client = HttpClient(self._connection, read_only=True)
        try:
            view = self._make(client)
            view.start()
        except BaseException as error:
            self._ready.set_exception(error)
            await client.close()
            return
        self._ready.set_result((asyncio.get_running_loop(), view))
        try:
            await self._end.wait()
        finally:
            with self._submitting:
                self._ended = True
            await view.close()
            await client.close()
            # Those who wait in ``changes`` find that it is over, and what was asked in time is at
            # least begun.
            await asyncio.sleep(0)

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Returns the result of *question*, which runs in the thread. Raises ``_Ended``, also if
        the thread ends meanwhile.
        """
        with self._submitting:
            if self._ended:
                question.close()
                raise _Ended
            answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return answer.result()
        except CancelledError:
            raise _Ended from None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._ready.result()[0]

    @property
    def view(self) -> EndpointView:
        """The view inside, which belongs to the thread: only its plain properties may be read from
        outside.
        """
        if not self._ready.done():
            raise ValueError("the view was not started: use it in a with block")
        return self._ready.result()[1]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints, whatever their conditions, in the order of ids."""
        return self.view.endpoints

    @property
    def usable(self) -> tuple[Endpoint, ...]:
        """The endpoints that picks choose from."""
        return self.view.usable

    @property
    def scope(self) -> Scope:
        """How ``usable`` was chosen; see ``EndpointView.scope``."""
        return self.view.scope

    @property
    def synced(self) -> bool:
        """The first list is here."""
        return self.view.synced

    @property
    def last_error(self) -> StatusError | None:
        """Why the last list or watch failed; ``None`` once things go well again."""
        return self.view.last_error

    def staleness(self) -> float:
        """Seconds since the endpoints were last known to be what the server held."""
        return self.view.staleness()

    def wait_ready(self, timeout: float | None = None, *, count: int = 1) -> None:
        """Raises ``NotReady``, at once where the view is closed."""
        view = self.view
        try:
            self._ask(view.wait_ready(timeout, count=count))
        except _Ended:
            view._is_ready(count)

    def changes(self) -> Iterator[ViewChange]:
        """Yields the changes since the last turn; the first turn yields the whole state. Ends when
        the view is closed.
        """
        change_iterator = aiter(self.view)

        async def following() -> ViewChange | None:
            return await anext(change_iterator, None)

        async def done() -> None:
            await change_iterator.aclose()  # type: ignore[attr-defined]  # it is a generator

        try:
            while (change := self._ask(following())) is not None:
                yield change
        except _Ended:
            return
        finally:
            with suppress(_Ended):
                self._ask(done())

    def random(self) -> Picker:
        """Each usable endpoint with the same chance."""
        return self.view.random()

    def round_robin(self) -> Picker:
        """One after another, beginning anywhere."""
        return self.view.round_robin()

    def least_outstanding(self) -> Picker:
        """One of those with the fewest leases; by chance among equals."""
        return self.view.least_outstanding()

    def consistent_hash(self, *, load_factor: float = ring.LOAD_FACTOR) -> Picker:
        """The same key to the same endpoint; see ``EndpointView.consistent_hash``."""
        return self.view.consistent_hash(load_factor=load_factor)

    def zone_first(self, *, spill_at: int = pickers.SPILL_REQUESTS) -> Picker:
        """The least loaded of our zone; see ``EndpointView.zone_first``."""
        return self.view.zone_first(spill_at=spill_at)


__all__ = ["SyncEndpointView"]
