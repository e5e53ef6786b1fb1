"""A process with one controller: its informers, its jobs in flight, its end.

It runs the same ``ControllerLoop`` as the production host (``watch.io.hosting``), on virtual time.
A process that dies loses its whole state; its requests in flight get no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Leases, Resource
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.network import Actor, Network
from sliceplane.lab.sim.scheduler import Alarm
from sliceplane.lab.sim.server import Server
from sliceplane.lab.sim.streams import informers_of
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import CACHE_DIFFERS, Controller, Job
from sliceplane.watch.controller.loop import ControllerLoop, JobRun
from sliceplane.watch.recorder.recorder import Recorder

MAX_IN_FLIGHT: Final = 5


class ControllerFault(Exception):
    """A core raised an exception, which is chained."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"{actor} raised")
        self.actor = actor


class Process(Actor):
    """A simulated process. Owned by one simulation."""

    def __init__(
        self,
        actor: str,
        make: Callable[[], Controller],
        network: Network,
        rng: Rng,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(actor, network)
        self._loop = ControllerLoop(
            make(), self._scheduler.now, max_in_flight=MAX_IN_FLIGHT, recorder=recorder
        )
        self.controller = self._loop.controller
        self._work_scheduled = False
        self._alarm = Alarm(self._scheduler, self._schedule_work, self._receive)
        self._informers = informers_of(
            self.controller.info.watches,
            network,
            rng,
            receive=self._receive,
            deliver=self._on_changes,
            on_synced=self._on_synced,
            on_mark=self._on_mark,
        )

    def start(self) -> None:
        self._trace.note(self._scheduler.now, self.actor, "start", "process")
        for informer in self._informers:
            informer.start()

    def kill(self) -> None:
        self._trace.note(self._scheduler.now, self.actor, "die", "process")
        self.alive = False
        self._loop.end(self._scheduler.now)
        for informer in self._informers:
            informer.stop()

    def silence(self, resource: Resource) -> None:
        """Makes the watch of *resource* half-open from now on: it delivers nothing, not even its
        end.
        """
        for informer in self._informers:
            if informer.selection.resource is resource:
                informer.silence()

    def cut_watches(self) -> None:
        for informer in self._informers:
            informer.cut()

    def check(self) -> None:
        with self._attribute_faults():
            self.controller.check()
        for informer in self._informers:
            informer.reflector.check()

    def stale(self, server: Server) -> str:
        """Returns how the caches differ from the server; "" if they do not."""
        for informer in self._informers:
            if informer.selection.resource is Leases:
                continue  # a renewal is always in flight
            records = server.page(informer.selection, 0, "").records
            truth = {(record.key.path, str(record.revision)) for record in records}
            versions = {
                (cached.metadata.key, cached.metadata.resource_version)
                for cached in informer.reflector.cache
            }
            if versions != truth:
                wrong = sorted(truth ^ versions)[:4]
                return (
                    f"{informer.selection.resource.plural} differ in {wrong} when "
                    f"{informer.reflector.phase.value}"
                )
        return ""

    # In

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        with self._attribute_faults():
            for change in changes:
                self._loop.on_change(change, self._scheduler.now)
        self._schedule_work()

    def _on_mark(self, mark: Mark) -> None:
        with self._attribute_faults():
            self._loop.on_mark(mark, self._scheduler.now)

    def _on_synced(self) -> None:
        self._trace.note(self._scheduler.now, self.actor, "synced", "process")
        with self._attribute_faults():
            self._loop.on_synced(self._scheduler.now)
        self._schedule_work()

    @contextmanager
    def _attribute_faults(self) -> Iterator[None]:
        """Converts an exception of the core into ``ControllerFault``, except a broken invariant."""
        try:
            yield
        except Broken:
            raise
        except Exception as error:
            raise ControllerFault(self.actor) from error

    # Work

    def _schedule_work(self) -> None:
        """Schedules the work after all actions of this moment."""
        if not self._work_scheduled:
            self._work_scheduled = True
            self._scheduler.after(0.0, lambda: self._receive(self._work))

    def _work(self) -> None:
        self._work_scheduled = False
        with self._attribute_faults():
            self._take_work()
            self._alarm.set(self._loop.wake_at(self._scheduler.now))

    def _take_work(self) -> None:
        work = self._loop.take_work(self._scheduler.now)
        for note in work.notes:
            target = f"{note.regarding_resource.plural}/{note.regarding.metadata.key}"
            self._trace.note(self._scheduler.now, self.actor, "event", target, note.reason)
            if note.reason == CACHE_DIFFERS:
                raise Broken("no-false-alarm", note.regarding.metadata.name, note.note)
        for informer in self._informers:
            if informer.selection in work.relist:
                informer.relist()
        for job in work.jobs:
            self._begin(job)

    def _begin(self, job: Job) -> None:
        named = [write.name for write in job.writes if write.parts and write.name]
        assert len(named) == len(set(named)), f"the job of {job.key} writes a slice twice"
        self._continue(JobRun(job))

    def _continue(self, run: JobRun) -> None:
        """Sends the next write of a job, or passes the job's end to the core."""
        write = run.next_write
        if write is None:
            with self._attribute_faults():
                self._loop.on_done(run.done, self._scheduler.now)
            self._schedule_work()
            return

        def on_answer(answer: bytes | StatusError) -> None:
            run.on_answer(answer)
            self._continue(run)

        self._network.send(
            self.actor, write, lambda answer: self._receive(lambda: on_answer(answer))
        )
