"""The shell of one controller loop in the production host, until a fault or the end of the host.

Everything that reaches the core goes through one inbox, in the order in which it happened: changes,
the end of the first lists, ends of jobs. One task empties it into the ``ControllerLoop``, so the
core is never called from two places, and since informers only append to the inbox, a core's fault
is its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sliceplane.api.errors import StatusError, internal, is_namespace_terminating
from sliceplane.api.meta import Object
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Family
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import (
    Done,
    EventNote,
    Job,
    Measured,
)
from sliceplane.watch.controller.loop import ControllerLoop, JobRun
from sliceplane.watch.io.base import Client, Unreachable, no_answer, send
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.recorder.entries import quantized
from sliceplane.watch.recorder.recorder import Recorder

#: changes that the core handles before it is asked for work and other tasks run
INBOX_BATCH_MAX: Final = 512
#: servers answer within 34 s; one that has not answered by then is not going to
WRITE_TIMEOUT_S: Final = 40.0

_log = get_logger("host")


class _News(Enum):
    SYNCED = "synced"


_Letter = Change[Object] | Mark | Done | _News


@dataclass(slots=True)
class ControllerTally:
    """Counts of a controller over all its loops; for metrics. It only grows."""

    changes: int = 0
    jobs: int = 0
    writes: int = 0
    failed_jobs: int = 0
    restarts: int = 0


@dataclass(slots=True, frozen=True, kw_only=True)
class HostMeans:
    """The parts of a host that all its controllers use."""

    client: Client
    note: Callable[[EventNote], None]
    clock: Callable[[], float]
    #: assert every invariant of a core after each batch
    check: bool = False
    recorder: Recorder | None = None


class LoopShell:
    """Created and run by a ``ControllerRunner``; ``close`` ends its remaining jobs."""

    def __init__(self, loop: ControllerLoop, means: HostMeans, tally: ControllerTally) -> None:
        self._loop = loop
        self._controller = loop.controller
        self._means = means
        self._clock = means.clock
        self._tally = tally
        self._inbox: deque[_Letter] = deque()
        #: completed by ``wake`` while ``run`` waits
        self._waiter: asyncio.Future[None] | None = None
        self._informers: list[RunningInformer[Object]] = []
        self._unsynced = 0
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def synced(self) -> bool:
        return self._loop.synced

    @property
    def backlog(self) -> int:
        """Letters that the core has not read yet."""
        return len(self._inbox)

    def samples(self) -> tuple[Family, ...]:
        return (
            self._controller.samples(self._clock())
            if isinstance(self._controller, Measured)
            else ()
        )

    @property
    def in_flight(self) -> int:
        return len(self._jobs)

    @property
    def due(self) -> float | None:
        """The time at which the core may have work without a further event; ``None``: not before
        one.
        """
        return self._loop.deadline

    async def run(self, informers: list[RunningInformer[Object]]) -> None:
        """Runs until cancelled, or until the core raises."""
        self._informers = informers
        self._unsynced = len(informers)
        if not informers:
            self._post(_News.SYNCED)
        on_mark = self._post if self._loop.reads_marks else None
        for informer in informers:
            informer.add_handler(self._on_changes, self._on_synced, on_mark)
        while True:
            await self._until_something_is_due()
            for _ in range(min(len(self._inbox), INBOX_BATCH_MAX)):
                self._read(self._inbox.popleft())
            self._take_work()
            if self._means.check:
                self._controller.check()
            if self._inbox:
                await asyncio.sleep(0)  # with nothing to read, what comes next is a wait

    async def close(self, drain_s: float, fault: str = "") -> None:
        """Let jobs in flight finish for at most *drain_s*, then cancel them. Nothing reaches the
        core any more.

        *fault*: why the loop ended, if the core raised.
        """
        self._loop.end(quantized(self._clock()), fault)
        for informer in self._informers:
            informer.remove_handler(self._on_changes, self._post)
        tasks = list(self._jobs)
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=drain_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.clear()
        self._inbox.clear()

    def wake(self) -> None:
        """Call after a letter was posted, or after the core got an input that no informer
        delivers.
        """
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The inbox

    def _post(self, letter: _Letter) -> None:
        self._inbox.append(letter)
        self.wake()

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        self._inbox.extend(changes)
        self.wake()

    def _on_synced(self) -> None:
        self._unsynced -= 1
        if self._unsynced == 0:
            self._post(_News.SYNCED)

    def _read(self, letter: _Letter) -> None:
        now = quantized(self._clock())
        match letter:
            case Change():
                self._tally.changes += 1
                self._loop.on_change(letter, now)
            case Mark():
                self._loop.on_mark(letter, now)
            case Done():
                self._loop.on_done(letter, now)
            case _News.SYNCED:
                self._loop.on_synced(now)

    async def _until_something_is_due(self) -> None:
        if self._inbox:
            return
        now = self._clock()
        due = self._loop.wake_at(now)
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if due is None else loop.call_later(due - now, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    # Work

    def _take_work(self) -> None:
        work = self._loop.take_work(quantized(self._clock()))
        for note in work.notes:
            self._means.note(note)
        if work.relist:
            for informer, watched in zip(
                self._informers, self._controller.info.watches, strict=True
            ):
                if watched in work.relist:
                    informer.relist("a controller has seen that the cache is wrong")
        for job in work.jobs:
            self._tally.jobs += 1
            task = asyncio.get_running_loop().create_task(self._run_job(job), name=f"job {job.key}")
            self._jobs.add(task)
            task.add_done_callback(self._jobs.discard)

    async def _run_job(self, job: Job) -> None:
        done = await execute(self._means.client, job)
        self._tally.writes += len(done.results)
        if done.error is not None:
            self._log_failure(job, len(done.results), done.error)
        self._post(done)

    def _log_failure(self, job: Job, at: int, error: StatusError) -> None:
        """Logs an error that the core retries: a warning, unless the error is an expected one.

        Expected are a conflict with another writer and a namespace that is terminating. A get of
        an object that does not exist is no failure.
        """
        failed = job.writes[at]
        if failed.verb == "get" and error.code == 404:
            return
        self._tally.failed_jobs += 1
        expected = error.reason == "Conflict" or is_namespace_terminating(error)
        write_line = _log.debug if expected else _log.warning
        what = (
            f"{failed.verb} "
            f"{failed.resource.path(failed.namespace, failed.name, failed.subresource)}"
        )
        write_line(
            "a write failed",
            controller=self._controller.info.name,
            key=job.key,
            write=what,
            error=str(error),
        )


async def execute(client: Client, job: Job) -> Done:
    """Sends the writes of *job*.  Never raises but for cancellation.

    No answer is the error ``api.errors.unreachable``: the write may have happened or not, and the
    controller finds out from its informers.
    """
    run = JobRun(job)
    while (write := run.next_write) is not None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                run.on_answer(await send(client, write))
        except StatusError as error:
            run.on_answer(error)
        except (Unreachable, TimeoutError) as error:
            run.on_answer(no_answer(error))
        except Exception as error:
            # A fault in a client must not leave the controller waiting for this job for ever.
            values = {"key": job.key, "verb": write.verb, "resource": write.resource.key}
            _log.error("a client failed in a write", **values, exc_info=error)
            run.on_answer(internal(f"{type(error).__name__}: {error}"))
    return run.done
