"""A process with one controller: its informers, its jobs in flight, its death.

What the production host does (``controllers.io``), on virtual time: changes reach the core in the
order in which they came, jobs run side by side up to a bound, the writes of one job in order until
the first error. A process that dies takes all that it knew with it; its requests that are under way
are not called back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Leases, Resource
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.actor import Actor
from sliceplane.lab.sim.agenda import Alarm, Deed
from sliceplane.lab.sim.network import Network
from sliceplane.lab.sim.server import Server
from sliceplane.lab.sim.steady import Broken
from sliceplane.lab.sim.streams import informers_of
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import CACHE_DIFFERS, Controller, Done, Job, MarkReader
from sliceplane.watch.recorder.recorder import Recorder, begin_record

MAX_IN_FLIGHT: Final = 5
#: as the production host's
PAST_DEADLINE_S: Final = 0.01


class ControllerFault(Exception):
    """A core raised.  The cause is chained."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"{actor} raised")
        self.actor = actor


class Process(Actor):
    """Owned by one simulation."""

    def __init__(
        self,
        actor: str,
        make: Callable[[], Controller],
        network: Network,
        rng: Rng,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(actor, network)
        self.controller = make()
        self._record = begin_record(recorder, self.controller.info.name, self._agenda.now)
        self._mark_reader = self.controller if isinstance(self.controller, MarkReader) else None
        self._jobs: set[str] = set()
        self._turn_asked = False
        self._alarm = Alarm(self._agenda, self._ask_turn, self._receive)
        self._informers = informers_of(
            self.controller.info.watches,
            network,
            rng,
            receive=self._receive,
            deliver=self._on_changes,
            on_synced=self._on_synced,
            on_mark=self._on_mark,
        )
        self._synced = False

    def start(self) -> None:
        self._trace.note(self._agenda.now, self.actor, "start", "process")
        for informer in self._informers:
            informer.start()

    def kill(self) -> None:
        self._trace.note(self._agenda.now, self.actor, "die", "process")
        self.alive = False
        self._record.ended(self._agenda.now)
        for informer in self._informers:
            informer.stop()

    def silence(self, resource: Resource) -> None:
        """The watch of *resource* is half open from now on: nothing comes, not even its end."""
        for informer in self._informers:
            if informer.selection.resource is resource:
                informer.silence()

    def cut_watches(self) -> None:
        for informer in self._informers:
            informer.cut()

    def check(self) -> None:
        self._guarded(self.controller.check)
        for informer in self._informers:
            informer.reflector.check()

    def stale(self, server: Server) -> str:
        """What the caches show otherwise than the server; "" if nothing."""
        for informer in self._informers:
            if informer.selection.resource is Leases:
                continue  # there is always a renewal under way
            records = server.page(informer.selection, 0, "").records
            truth = {(record.key.path, str(record.revision)) for record in records}
            held = {
                (cached.metadata.key, cached.metadata.resource_version)
                for cached in informer.reflector.cache
            }
            if held != truth:
                wrong = sorted(truth ^ held)[:4]
                return (
                    f"{informer.selection.resource.plural} differ in {wrong} when "
                    f"{informer.reflector.phase.value}"
                )
        return ""

    # In

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            self._record.change(change, self._agenda.now)
            self._guarded(lambda change=change: self.controller.on_change(change, self._agenda.now))  # type: ignore[misc]  # a default binds the loop's value
        self._ask_turn()

    def _on_mark(self, mark: Mark) -> None:
        reader = self._mark_reader
        if reader is not None:
            self._record.reached(mark, self._agenda.now)
            self._guarded(lambda: reader.on_mark(mark, self._agenda.now))

    def _on_synced(self) -> None:
        self._synced = True
        self._trace.note(self._agenda.now, self.actor, "synced", "process")
        self._record.synced(self._agenda.now)
        self._guarded(lambda: self.controller.on_synced(self._agenda.now))
        self._ask_turn()

    def _guarded(self, deed: Deed) -> None:
        try:
            deed()
        except Broken:
            raise
        except Exception as error:
            raise ControllerFault(self.actor) from error

    # Work

    def _ask_turn(self) -> None:
        """Once all that happens at this moment has happened."""
        if not self._turn_asked:
            self._turn_asked = True
            self._agenda.after(0.0, lambda: self._receive(self._turn))

    def _turn(self) -> None:
        self._turn_asked = False
        if not self._synced:
            return
        self._guarded(self._take_work)
        due = self.controller.next_deadline() if len(self._jobs) < MAX_IN_FLIGHT else None
        if due is not None:
            self._alarm.set(max(due, self._agenda.now + PAST_DEADLINE_S))

    def _take_work(self) -> None:
        room = MAX_IN_FLIGHT - len(self._jobs)
        work = self.controller.take_work(self._agenda.now, room)
        self._record.turn(work, room, self._agenda.now)
        for note in work.notes:
            what = f"{note.regarding_resource.plural}/{note.regarding.metadata.key}"
            self._trace.note(self._agenda.now, self.actor, "event", what, note.reason)
            if note.reason == CACHE_DIFFERS:
                raise Broken("no-false-alarm", note.regarding.metadata.name, note.note)
        for informer in self._informers:
            if informer.selection in work.relist:
                informer.relist()
        for job in work.jobs:
            assert job.key not in self._jobs, f"two unfinished jobs with key {job.key!r}"
            named = [write.name for write in job.writes if write.parts and write.name]
            assert len(named) == len(set(named)), f"the job of {job.key} writes a slice twice"
            self._jobs.add(job.key)
            self._next_write(job, ())

    def _next_write(self, job: Job, results: tuple[bytes, ...]) -> None:
        if len(results) == len(job.writes):
            self._end(Done(job, results))
            return
        write = job.writes[len(results)]

        def answered(answer: bytes | StatusError) -> None:
            if not isinstance(answer, StatusError):
                self._next_write(job, (*results, answer))
            elif answer.reason in write.tolerate:
                self._next_write(job, (*results, b""))
            else:
                self._end(Done(job, results, answer))

        self._network.send(
            self.actor, write, lambda answer: self._receive(lambda: answered(answer))
        )

    def _end(self, done: Done) -> None:
        self._jobs.discard(done.job.key)
        self._record.done(done, self._agenda.now)
        self._guarded(lambda: self.controller.on_done(done, self._agenda.now))
        self._ask_turn()
