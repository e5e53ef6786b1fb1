"""One life of a controller core, from its making to its fault or the end of the host.

Everything that reaches the core goes through one inbox, in the order in which it happened: changes,
the news that all caches are filled, ends of jobs. One task empties it, so the core is never called
from two places, and since informers only append to the inbox, a core's fault is its own.
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
    Controller,
    Done,
    EventNote,
    Job,
    MarkReader,
    Measured,
    as_told,
)
from sliceplane.watch.io.base import Client, Unreachable, no_answer, send
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.recorder.entries import quantized
from sliceplane.watch.recorder.recorder import Recorder, begin_record

#: after so many changes the core is asked for work and other tasks get their turn
INBOX_PER_TURN: Final = 512
#: servers answer within 34 s; one that has not answered by then is not going to
WRITE_TIMEOUT_S: Final = 40.0
#: a core whose deadline has passed but that has nothing to do is asked again after this, not at
#: once
PAST_DEADLINE_S: Final = 0.01

_log = get_logger("host")


class _News(Enum):
    SYNCED = "synced"


_Letter = Change[Object] | Mark | Done | _News


@dataclass(slots=True)
class ControllerTally:
    """What a controller did in all its lives; for metrics.  It only grows."""

    changes: int = 0
    jobs: int = 0
    writes: int = 0
    failed_jobs: int = 0
    restarts: int = 0


class Life:
    """Made and run by a ``ControllerRunner``; ``close`` ends what is left of it."""

    def __init__(
        self,
        controller: Controller,
        client: Client,
        note: Callable[[EventNote], None],
        *,
        clock: Callable[[], float],
        max_in_flight: int,
        tally: ControllerTally,
        check: bool,
        recorder: Recorder | None = None,
    ) -> None:
        self._controller = controller
        self._record = begin_record(recorder, controller.info.name, quantized(clock()))
        self._mark_reader = controller if isinstance(controller, MarkReader) else None
        self._client = client
        self._note = note
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._tally = tally
        self._check = check
        self._inbox: deque[_Letter] = deque()
        #: of the loop of ``run``, while that waits
        self._waiter: asyncio.Future[None] | None = None
        self._informers: list[RunningInformer[Object]] = []
        self._unsynced = 0
        self._jobs: dict[str, asyncio.Task[None]] = {}
        #: the core was told that its caches are filled
        self.synced = False

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
        """When the core may have work without a further event; ``None``: not before one."""
        return self._controller.next_deadline() if self.synced else None

    async def run(self, informers: list[RunningInformer[Object]]) -> None:
        """Until cancelled, or until the core raises."""
        self._informers = informers
        self._unsynced = len(informers)
        if not informers:
            self._post(_News.SYNCED)
        for informer in informers:
            on_mark = self._post if self._mark_reader is not None else None
            informer.add_handler(self._on_changes, self._on_synced, on_mark)
        while True:
            await self._until_something_is_due()
            for _ in range(min(len(self._inbox), INBOX_PER_TURN)):
                self._read(self._inbox.popleft())
            if self.synced:
                self._take_work()
            if self._check:
                self._controller.check()
            if self._inbox:
                await asyncio.sleep(0)  # with nothing to read, what comes next is a wait

    async def close(self, drain_s: float, fault: str = "") -> None:
        """Let what is in flight finish for at most *drain_s*, then cancel it. Nothing reaches the
        core any more.

        *fault*: why the life ended, if the core raised.
        """
        self._record.ended(quantized(self._clock()), fault)
        for informer in self._informers:
            informer.remove_handler(self._on_changes, self._post)
        tasks = list(self._jobs.values())
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=drain_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.clear()
        self._inbox.clear()

    def prod(self) -> None:
        """There is something to read; or the core was told something that no informer tells, and is
        asked for work.
        """
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The inbox

    def _post(self, letter: _Letter) -> None:
        self._inbox.append(letter)
        self.prod()

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        self._inbox.extend(changes)
        self.prod()

    def _on_synced(self) -> None:
        self._unsynced -= 1
        if self._unsynced == 0:
            self._post(_News.SYNCED)

    def _read(self, letter: _Letter) -> None:
        now = quantized(self._clock())
        match letter:
            case Change():
                self._tally.changes += 1
                self._record.change(letter, now)
                self._controller.on_change(letter, now)
            case Mark():
                assert self._mark_reader is not None, "marks are for those who read them"
                self._record.reached(letter, now)
                self._mark_reader.on_mark(letter, now)
            case Done():
                self._record.done(letter, now)
                self._controller.on_done(letter, now)
            case _News.SYNCED:
                self._record.synced(now)
                self._controller.on_synced(now)
                self.synced = True

    async def _until_something_is_due(self) -> None:
        if self._inbox:
            return
        delay = None
        # With no room for jobs the core could not give what is due; the end of a job wakes us.
        if self.synced and len(self._jobs) < self._max_in_flight:
            due = self._controller.next_deadline()
            if due is not None:
                delay = max(due - self._clock(), PAST_DEADLINE_S)
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if delay is None else loop.call_later(delay, self.prod)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    # Work

    def _take_work(self) -> None:
        now = quantized(self._clock())
        room = self._max_in_flight - len(self._jobs)
        work = self._controller.take_work(now, room)
        self._record.turn(work, room, now)
        for note in work.notes:
            self._note(note)
        if work.relist:
            for informer, watched in zip(
                self._informers, self._controller.info.watches, strict=True
            ):
                if watched in work.relist:
                    informer.relist("a controller has seen that the cache is wrong")
        for job in work.jobs:
            assert job.key not in self._jobs, f"two unfinished jobs with key {job.key!r}"
            self._tally.jobs += 1
            task = asyncio.get_running_loop().create_task(self._perform(job), name=f"job {job.key}")
            self._jobs[job.key] = task
        assert len(self._jobs) <= self._max_in_flight, (
            f"{len(self._jobs)} jobs, {self._max_in_flight} were allowed"
        )

    async def _perform(self, job: Job) -> None:
        done = await perform(self._client, job)
        self._tally.writes += len(done.results)
        if done.error is not None:
            self._tell_failure(job, len(done.results), done.error)
        del self._jobs[job.key]
        self._post(done)

    def _tell_failure(self, job: Job, at: int, error: StatusError) -> None:
        """The core tries again; an operator must see that it has to, if it is not the course of
        things.

        That is: another writer was first, the namespace is on its way out, or a look-up is told
        that there is nothing.
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


async def perform(client: Client, job: Job) -> Done:
    """A job's writes: in order, stopping at the first error.  Never raises but for cancellation.

    No answer is the error ``api.errors.unreachable``: the write may have happened or not, and the
    controller finds out from its informers.
    """
    results: list[bytes] = []
    for write in job.writes:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                results.append(await send(client, write))
        except StatusError as error:
            if error.reason not in write.tolerate:
                return Done(job, tuple(results), as_told(write, error))
            results.append(b"")
        except (Unreachable, TimeoutError) as error:
            return Done(job, tuple(results), no_answer(error))
        except Exception as error:
            # A fault in a client must not leave the controller waiting for this job for ever.
            values = {"key": job.key, "verb": write.verb, "resource": write.resource.key}
            _log.error("a client failed in a write", **values, exc_info=error)
            return Done(job, tuple(results), internal(f"{type(error).__name__}: {error}"))
    return Done(job, tuple(results))
