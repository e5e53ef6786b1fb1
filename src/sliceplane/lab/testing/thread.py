"""A process' plane in a thread and a loop of its own, and how others ask it something.

The loop is apart because the caller's may be blocked by what is tested, or may not exist.
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
    """``start`` once, ``stop`` as often as one likes; ``call`` between the two, from any other
    thread.
    """

    def __init__(self, plane: ServerPlane) -> None:
        self._plane = plane
        #: done when the plane answers; its error is that of the start
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()
        self._ended = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sliceplane", daemon=True)

    def start(self) -> None:
        """Returns when the server answers.  Raises what the start raised; nothing is left then."""
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
        """Returns when the thread has ended.  Idempotent.  Raises what the stop raised."""
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
