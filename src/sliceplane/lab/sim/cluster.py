"""A cluster without sockets or a clock: the production registry, store and controllers on virtual
time.

Everything is instant and nothing is lost: each commit is durable at once and reaches every
controller before the next one is planned. Time advances only when no controller has work, and then
directly to the earliest deadline. So a test reads as a scenario: make a change, ``converge``, check.

``BurstPace`` makes a cluster less instant: it limits the part of a burst that a controller observes
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sliceplane.api.codec import decode, decode_document
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document, Object
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Resource, by_storage_key
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.scheduler import Scheduler
from sliceplane.lab.sim.server import Server, request
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.types import ListOptions, Target
from sliceplane.server.store.types import EventType, Record, StoreEvent
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import Controller, EventNote, Job
from sliceplane.watch.controller.loop import ControllerLoop, JobRun

START: Final = 1_800_000_000.0  # 2027-01-15, far from any boundary
#: steps after which ``converge`` reports that the controllers do not converge
STEPS_MAX: Final = 100_000
MAX_JOBS: Final = 16


class BurstPace(msgspec.Struct, frozen=True, kw_only=True):
    """The pace of the controllers' writes.

    ``jobs_max``: jobs of a controller before others observe their writes. ``write_s``: seconds that
    a write takes; the controller named by ``eager`` then works after each write of another one.
    """

    jobs_max: int = MAX_JOBS
    write_s: float = 0.0
    eager: str = ""


class Cluster(Server):
    """A cluster. Created by one test or one query, its only caller. The arguments after
    *controllers* are its initial state.
    """

    def __init__(
        self,
        *controllers: Controller,
        seed: int = 1,
        config: RegistryConfig | None = None,
        records: Sequence[Record] = (),
        revision: int = 1,
        began: float = START,
        field_manager: str = "",
        pace: BurstPace | None = None,
    ) -> None:
        self._scheduler = Scheduler(began)
        self._pace = pace or BurstPace()
        super().__init__(
            self._scheduler,
            Rng(seed),
            config,
            records,
            revision=revision,
            field_manager=field_manager,
        )
        self.notes: list[EventNote] = []
        #: every write of a controller, with the result
        self.writes: list[tuple[str, Write]] = []
        self.listeners.append(self._deliver)
        self.replace(*controllers)

    @property
    def now(self) -> float:
        """The controllers' time; the server's is ``ahead_s`` later."""
        return self._scheduler.now

    @now.setter
    def now(self, now: float) -> None:
        self._scheduler.now = now

    @property
    def controllers(self) -> tuple[Controller, ...]:
        """The connected controllers. Setting it disconnects controllers, or reconnects them without
        a first list.
        """
        return tuple(loop.controller for loop in self._loops)

    @controllers.setter
    def controllers(self, controllers: Sequence[Controller]) -> None:
        self._loops = tuple(
            ControllerLoop(controller, self.now, max_in_flight=self._pace.jobs_max)
            for controller in controllers
        )
        for loop in self._loops:
            loop.synced = True

    def replace(self, *controllers: Controller) -> None:
        """Kills the controllers at this moment and starts these in their place."""
        self.controllers = controllers
        for loop in self._loops:
            for selection in loop.controller.info.watches:
                projection = selection.resource.projection
                for record in self.records(selection.resource):
                    new: Object = decode(record.body, projection)
                    loop.on_change(Change(selection.resource.key, None, new), self.now)
                mark = Mark(selection.resource.key, str(self.store.revision), listed=True)
                loop.on_mark(mark, self.now)
            loop.on_synced(self.now)

    # The user's side

    def create(
        self, resource: Resource, document: Document, namespace: str = "default"
    ) -> Document:
        return self._run_request(request("create", resource, namespace, document))

    def patch(
        self,
        resource: Resource,
        name: str,
        change: Document,
        *,
        namespace: str = "default",
        subresource: str = "",
    ) -> Document:
        """Sends a merge patch."""
        return self._run_request(
            request("patch", resource, namespace, change, name=name, subresource=subresource)
        )

    def delete(
        self, resource: Resource, name: str, namespace: str = "default", **options: Any
    ) -> Document:
        return self._run_request(request("delete", resource, namespace, options, name=name))

    def get(self, resource: Resource, name: str, namespace: str = "default") -> Document:
        return self._run_request(request("get", resource, namespace, name=name))

    def list(
        self, resource: Resource, namespace: str = "default", **options: Any
    ) -> list[Document]:
        target = Target(resource=resource, namespace=namespace if resource.namespaced else "")
        page = self.registry.list(self._context(), target, ListOptions(**options))
        return [decode_document(record.body) for record in page.records]

    def _run_request(self, write: Write) -> Document:
        return decode_document(self.execute(write))

    # The controllers' side

    def _deliver(self, event: StoreEvent) -> None:
        resource = by_storage_key(event.record.key.resource)
        projection = resource.projection
        for loop in self._loops:
            if not any(watched.resource is resource for watched in loop.controller.info.watches):
                continue
            last: Object = decode(event.record.body, projection)
            old: Object | None = decode(event.previous.body, projection) if event.previous else None
            new = None if event.type is EventType.DELETED else last
            loop.on_change(Change(resource.key, old, new), self.now)
            loop.on_mark(Mark(resource.key, str(event.revision)), self.now)

    def bookmark(self) -> None:
        """Sends a bookmark on every watch, as servers do once a minute."""
        for loop in self._loops:
            for selection in loop.controller.info.watches:
                loop.on_mark(Mark(selection.resource.key, str(self.store.revision)), self.now)

    def _run(self, loop: ControllerLoop, job: Job) -> None:
        run = JobRun(job)
        while (write := run.next_write) is not None:
            try:
                run.on_answer(self.execute(write))
                self.writes.append(("ok", write))
            except StatusError as failure:
                self.writes.append((failure.reason, write))
                run.on_answer(failure)
            self._pass_write(loop)
        loop.on_done(run.done, self.now)

    def _pass_write(self, writer: ControllerLoop) -> None:
        """Lets a write of *writer* take its time, in which the eager controller works."""
        pace = self._pace
        if not pace.eager or writer.controller.info.name == pace.eager:
            return
        self.now += pace.write_s
        for loop in self._loops:
            if loop.controller.info.name == pace.eager:
                while self._run_loop(loop):
                    pass

    def converge(self, *, limit_s: float = 600.0) -> float:
        """Runs until no controller has work before ``now + limit_s``. Returns the seconds that
        passed.
        """
        began = self.now
        deadline = self.now + limit_s
        for _ in range(STEPS_MAX):
            if self._work():
                continue
            moments = [loop.deadline for loop in self._loops]
            upcoming = min((moment for moment in moments if moment is not None), default=None)
            if upcoming is None or upcoming > deadline:
                return self.now - began
            self.now = max(self.now, upcoming)
        raise AssertionError(f"no rest after {STEPS_MAX} steps; last writes: {self.writes[-6:]}")

    def _work(self) -> bool:
        """Lets every controller work once. Returns True if one of them had work."""
        return sum(self._run_loop(loop) for loop in self._loops) > 0

    def _run_loop(self, loop: ControllerLoop) -> bool:
        work = loop.take_work(self.now)
        self.notes.extend(work.notes)
        for job in work.jobs:
            self._run(loop, job)
        return bool(work.jobs)

    def check(self) -> None:
        super().check()
        for loop in self._loops:
            loop.controller.check()
