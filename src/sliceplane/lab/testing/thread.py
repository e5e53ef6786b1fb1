"""A plane in its own thread and loop, with calls from other threads.

The loop is separate because the test may block the caller's, or the caller may have none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from sliceplane.server.io.plane import ServerPlane

T = TypeVar("T")

NOT_RUNNING: Final = "this plane is not running: use it inside its with block"


class PlaneThread:
    """Call ``start`` once, ``stop`` any number of times, and ``call`` in between, from any other
    thread.
    """

    def __init__(self, plane: ServerPlane) -> None:
        self._plane = plane
        #: set when the plane answers; its exception is that of the start
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()
        self._ended = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sliceplane", daemon=True)

    def start(self) -> None:
        """Returns when the server answers. Raises the exception of the start, without residue."""
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            self._ended = True
            raise

    def call(self, question: Coroutine[Any, Any, T]) -> T:
        """Runs *question* in the plane's loop and returns its result."""
        if self._ended or not self._started.done():
            question.close()
            raise ValueError(NOT_RUNNING)
        if threading.current_thread() is self._thread:
            question.close()
            raise ValueError(
                "a Plane is not used from its own thread, which would wait for itself: call it "
                "elsewhere"
            )
        try:
            return asyncio.run_coroutine_threadsafe(question, self._started.result()).result()
        except CancelledError:
            raise RuntimeError("the plane was stopped meanwhile") from None

    def stop(self) -> None:
        """Stops the plane; returns when the thread has ended. Raises the exception of the stop.
        Idempotent.
        """
        if self._ended or not self._started.done():
            return
        self._ended = True
        self._started.result().call_soon_threadsafe(self._end.set)
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            if self._started.done():
                self._fault = error
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        await self._plane.start()
        try:
            self._started.set_result(asyncio.get_running_loop())
            await self._end.wait()
        finally:
            await self._plane.stop()
