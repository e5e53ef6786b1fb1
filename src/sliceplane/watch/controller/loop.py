"""The loop of a controller, as every host runs it: the production host, the simulator, the tests.

A host waits, and moves answers and events; it decides *when* to call. ``ControllerLoop`` decides
*what* a call means: it feeds one core in order, records what the core was told, and bounds the jobs
in flight. ``JobRun`` is the progress of one job, whoever sends its writes and however.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import (
    Controller,
    Done,
    Job,
    MarkReader,
    Work,
    Write,
    stable_error,
)
from sliceplane.watch.recorder.recorder import Recorder, begin_record

#: seconds until a core is called again whose deadline has passed but that had nothing to do
PAST_DEADLINE_S: Final = 0.01


class JobRun:
    """The writes of one job in order, up to the first error that its write does not tolerate."""

    def __init__(self, job: Job) -> None:
        self.job: Final = job
        self._results: list[bytes] = []
        self._error: StatusError | None = None

    @property
    def next_write(self) -> Write | None:
        """The write to send now; ``None`` when the job has ended."""
        if self._error is not None or len(self._results) == len(self.job.writes):
            return None
        return self.job.writes[len(self._results)]

    def on_answer(self, answer: bytes | StatusError) -> None:
        """Takes the answer to ``next_write``."""
        write = self.next_write
        assert write is not None, f"an answer to no write of the job {self.job.key!r}"
        if not isinstance(answer, StatusError):
            self._results.append(answer)
        elif answer.reason in write.tolerate:
            self._results.append(b"")
        else:
            self._error = stable_error(write, answer)

    @property
    def done(self) -> Done:
        """The result of a job that has ended."""
        return Done(self.job, tuple(self._results), self._error)


class ControllerLoop:
    """Calls one core; its host calls it from one place at a time.  Times are as the core gets
    them.
    """

    def __init__(
        self,
        controller: Controller,
        now: float,
        *,
        max_in_flight: int,
        recorder: Recorder | None = None,
    ) -> None:
        self.controller: Final = controller
        #: the core knows that its caches are filled
        self.synced = False
        self._max_in_flight = max_in_flight
        self._in_flight: set[str] = set()
        self._mark_reader = controller if isinstance(controller, MarkReader) else None
        self._record = begin_record(recorder, controller.info.name, now)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def reads_marks(self) -> bool:
        return self._mark_reader is not None

    def on_change(self, change: Change[Object], now: float) -> None:
        self._record.change(change, now)
        self.controller.on_change(change, now)

    def on_mark(self, mark: Mark, now: float) -> None:
        if self._mark_reader is not None:
            self._record.reached(mark, now)
            self._mark_reader.on_mark(mark, now)

    def on_synced(self, now: float) -> None:
        self._record.synced(now)
        self.controller.on_synced(now)
        self.synced = True

    def on_done(self, done: Done, now: float) -> None:
        self._in_flight.discard(done.job.key)
        self._record.done(done, now)
        self.controller.on_done(done, now)

    def take_work(self, now: float) -> Work:
        """Returns what is to be done now; the host runs each job and calls ``on_done``."""
        if not self.synced:
            return Work()
        room = self._max_in_flight - len(self._in_flight)
        work = self.controller.take_work(now, room)
        self._record.batch_taken(work, room, now)
        for job in work.jobs:
            assert job.key not in self._in_flight, f"two unfinished jobs with key {job.key!r}"
            self._in_flight.add(job.key)
        assert len(work.jobs) <= room, f"{len(work.jobs)} jobs, {room} were allowed"
        return work

    @property
    def deadline(self) -> float | None:
        """The time at which the core may have work without a further event; ``None``: not before
        one.
        """
        return self.controller.next_deadline() if self.synced else None

    def wake_at(self, now: float) -> float | None:
        """Returns when to call ``take_work`` at the latest; ``None``: after the next event.

        Without room for jobs a core could not hand out what is due; the end of a job is the event.
        """
        due = self.deadline if len(self._in_flight) < self._max_in_flight else None
        return None if due is None else max(due, now + PAST_DEADLINE_S)

    def end(self, now: float, fault: str = "") -> None:
        """Notes the end of the core, because of *fault* if it raised; it is not called again."""
        self._record.ended(now, fault)
