"""Controllers with one work queue, and the part that level-driven ones have in common.

``on_change`` (the subclass's) notes what is true and enqueues keys; ``take_work`` asks for the job
of each key that is due: a ``KeyedController`` makes it of the writes of a ``plan``. A plan without
writes ends the processing of its key. A key whose job is under way is not planned again before
``on_done`` (the queue's *processing* set), so a plan may trust that its previous writes have been
answered. Failed jobs come back with the queue's back-off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Literal

from sliceplane.api.errors import is_namespace_terminating
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Resource
from sliceplane.kit.delays import Backoff
from sliceplane.kit.metrics import Family
from sliceplane.kit.workqueue import WorkQueue, queue_families
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, EventNote, Job, Work, Write
from sliceplane.watch.controller.expectations import Expectations

#: a laptop's controllers should not brood for a quarter of an hour over a passing error
RETRY_BACKOFF = Backoff(base_s=0.1, cap_s=30.0)
#: how long a key rests whose object the server does not know any more, if the cache does not notice
#: earlier
GONE_REST_S = 30.0


def is_steady(change: Change[Object]) -> bool:
    """Returns True if the object is the same one with the same owners, finalizers and deletion
    time. Nearly all changes are of this kind, and a controller that decides whether objects should
    exist ignores them.
    """
    if change.old is None or change.new is None:
        return False
    old = change.old.metadata
    new = change.new.metadata
    return (
        old.uid == new.uid
        and old.owner_references == new.owner_references
        and old.finalizers == new.finalizers
        and old.deletion_timestamp == new.deletion_timestamp
    )


class QueueController(ABC):
    """One queue, and what every controller does with its own.  ``job`` is a subclass's, and what
    comes of it.
    """

    def __init__(
        self,
        info: ControllerInfo,
        *,
        backoff: Backoff = RETRY_BACKOFF,
        max_in_progress: int | None = None,
        plans_per_batch: int | None = None,
    ) -> None:
        """*max_in_progress*: keys whose jobs may run at a time. *plans_per_batch*: keys that one
        call of ``take_work`` plans, before other controllers of the process run. ``None``: no
        bound.
        """
        self.info: Final = info
        self._queue: WorkQueue[str] = WorkQueue(backoff=backoff)
        #: the caches are filled
        self._synced = False
        self._notes: list[EventNote] = []
        self._max_in_progress = max_in_progress
        self._plans_per_batch = plans_per_batch
        #: time of the last batch, and True if it was full
        self._last_batch_at = 0.0
        self._more = False

    @abstractmethod
    def on_change(self, change: Change[Object], now: float) -> None: ...

    @abstractmethod
    def job(self, key: str, now: float) -> Job | None:
        """Returns the job of *key*; ``None``: the key needs none.  A job ends with ``on_done``."""

    @abstractmethod
    def on_done(self, done: Done, now: float) -> None: ...

    def on_synced(self, now: float) -> None:
        self._synced = True

    def enqueue(self, key: str, now: float) -> None:
        self._queue.add(key, now)

    def enqueue_after(self, key: str, delay_s: float, now: float) -> None:
        self._queue.add_after(key, delay_s, now)

    def note(self, note: EventNote) -> None:
        self._notes.append(note)

    def report(
        self,
        resource: Resource,
        regarding: Object,
        kind: Literal["Normal", "Warning"],
        reason: str,
        text: str,
        *,
        action: str = "Reconcile",
    ) -> None:
        """Reports an Event about an object of *resource*."""
        note = EventNote(
            regarding=regarding,
            regarding_resource=resource,
            type=kind,
            reason=reason,
            note=text,
            component=self.info.component or self.info.name,
            action=action,
        )
        self.note(note)

    def take_work(self, now: float, max_jobs: int) -> Work:
        if not self._synced:
            return Work()
        jobs: list[Job] = []
        queue, max_in_progress = self._queue, self._max_in_progress
        self._last_batch_at = now
        plans = 0
        while (
            len(jobs) < max_jobs
            and (max_in_progress is None or queue.in_progress < max_in_progress)
            and plans != self._plans_per_batch
            and (key := queue.get(now)) is not None
        ):
            plans += 1
            job = self.job(key, now)
            if job is not None:
                jobs.append(job)
            else:
                self.end_idle(key, now)
        self._more = plans == self._plans_per_batch
        notes = tuple(self._notes)
        self._notes = []
        return Work(jobs=tuple(jobs), notes=notes)

    def end_idle(self, key: str, now: float) -> None:
        """Ends the processing of *key*, which needs no job."""
        self._queue.forget(key)
        self._queue.done(key, now)

    def next_deadline(self) -> float | None:
        if not self._synced:
            return None
        return self._last_batch_at if self._more else self._queue.next_deadline()

    @property
    def waiting(self) -> int:
        """Number of keys in the queue."""
        return self._queue.depth

    def samples(self, now: float) -> tuple[Family, ...]:
        name = self.info.queue or self.info.name.removesuffix("-controller").replace("-", "_")
        return queue_families(name, self._queue, now)

    def check(self) -> None:
        self._queue.check()


class KeyedController(QueueController):
    """Level-driven: a plan says what to write for a key, and the key comes back until a plan has
    nothing to write.
    """

    def __init__(self, info: ControllerInfo, *, backoff: Backoff = RETRY_BACKOFF) -> None:
        super().__init__(info, backoff=backoff)
        #: for those that ``observe`` and ``expect``; others wait for nothing
        self._expectations = Expectations()
        #: uids of which a write found nothing -> until when nothing is done for them
        self._gone: dict[str, float] = {}

    @abstractmethod
    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        """The writes that bring *key* nearer to what must hold; none if it holds or cannot be
        decided yet.
        """

    @abstractmethod
    def finished(self, done: Done, now: float) -> None:
        """A job was performed, wholly or up to ``done.error``; its key is queued anew after this
        call.
        """

    def job(self, key: str, now: float) -> Job | None:
        writes = self.plan(key, now)
        return Job(key=key, writes=writes) if writes else None

    def on_done(self, done: Done, now: float) -> None:
        self.finished(done, now)
        if done.error is None or is_namespace_terminating(done.error):
            self._queue.forget(done.job.key)
            self._queue.done(done.job.key, now)
        else:
            self._queue.done(done.job.key, now)
            self._queue.add_rate_limited(done.job.key, now)

    # An object that the cache still shows may be gone (its watch is silent, say). A controller that
    # goes on making dependents for it races the garbage collector, which takes them away at once: a
    # loop at full speed.

    def note_gone(self, uid: str, done: Done, resource: Resource, now: float) -> None:
        """*uid* is what *done* was for; if a patch of *resource* or a question for it found
        nothing, let its key rest.

        Another object of that name refuses the uid in the patch: 422.
        """
        for write, result in zip(done.job.writes, done.results, strict=False):
            if write.resource is resource and write.verb in ("get", "patch") and not result:
                self._gone[uid] = now + GONE_REST_S
        if done.error is not None and done.error.reason == "Invalid":
            refused = done.job.writes[len(done.results)]
            if refused.resource is resource and refused.verb == "patch":
                self._gone[uid] = now + GONE_REST_S

    def rests(self, key: str, uid: str, now: float) -> bool:
        """Returns True if nothing is planned for *uid* now; its key is queued for later."""
        until = self._gone.get(uid)
        if until is None:
            return False
        if now >= until:
            del self._gone[uid]
            return False
        self.enqueue_after(key, until - now, now)
        return True

    def alive_or_over(self, change: Change[Object]) -> None:
        """The cache shows something of an object: whatever was thought of it is old."""
        for version in (change.old, change.new):
            if version is not None:
                self._gone.pop(version.metadata.uid, None)

    def waits_for_cache(self, key: str, now: float) -> bool:
        """The cache does not show yet what the writes of *key* did; it will be looked at again."""
        again = self._expectations.pending(key, now)
        if again is not None:
            self.enqueue_after(key, again - now, now)
        return again is not None

    def check(self) -> None:
        super().check()
        self._expectations.check()
