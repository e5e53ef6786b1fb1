"""The base of controllers that sync the objects of one Service at a time: queue, retries, writes,
notes.

A *sync* is one turn of one key: the plan that its engine makes, the job that performs the plan's
writes, and the end of both. ``SyncController`` says whose turn it is and what becomes of a key
whose sync failed; a subclass says what a turn does. The functions below turn what an engine plans
(``PlannedWrite``) into what a host performs.

``FirstSync`` and ``HintProblems`` are what two controllers of one process tell each other. Where
only one of them runs, the other does without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from sliceplane.api.errors import StatusError, is_namespace_terminating
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import Resource
from sliceplane.kit.delays import Backoff
from sliceplane.kit.workqueue import RETRY_BACKOFF
from sliceplane.server.registry.kinds.event import NOTE_MAX
from sliceplane.slices.pod_routes import Touched
from sliceplane.watch.controller.base import ControllerInfo, Done, EventNote, Write
from sliceplane.watch.controller.keyed import QueueController
from sliceplane.watch.controller.own_writes import PlannedWrite


class FirstSync:
    """Tells whether the Endpoints controller of this process has visited all Services once since it
    began.

    That controller alone changes it. The mirroring controller waits for it (KEP-0752, "Controller
    Start Up"), so that it mirrors nothing that is about to be the Endpoints controller's.
    """

    def __init__(self) -> None:
        self._under_way = False

    @property
    def over(self) -> bool:
        return not self._under_way

    def begin(self) -> None:
        """An Endpoints controller was made, and will run."""
        self._under_way = True

    def end(self) -> None:
        self._under_way = False


class HintProblems:
    """The reasons why Services have no hints: slices show that there are none and not why.

    Written by one ``EndpointSliceController`` (the latest life of it), read by the controller of
    conditions. Where these run in two processes a condition says what slices show, and the Event
    has the reason.
    """

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def begin(self) -> None:
        """A new life of the writer."""
        self._problems.clear()

    def set(self, key: str, problems: tuple[str, ...]) -> None:
        """*key* is ``namespace/name``; without problems it is forgotten."""
        if problems:
            self._problems[key] = "; ".join(problems)
        else:
            self._problems.pop(key, None)

    def get(self, key: str) -> str:
        return self._problems.get(key, "")


MAX_RETRIES: Final = 15
#: keys that are looked at before others in the process get their turn; at a start there are many,
#: without a write
PLANS_PER_TURN: Final = 256


class SyncController(QueueController):
    """A controller whose keys are ``namespace/name`` of Services.

    A subclass says in ``on_change`` which keys to look at when, and in ``job`` what a turn does: it
    gives the job that the turn ends with, or calls ``end``. Times are seconds since the epoch,
    delays are seconds.
    """

    def __init__(
        self,
        info: ControllerInfo,
        *,
        at_once: int,
        backoff: Backoff = RETRY_BACKOFF,
        plans_per_turn: int | None = PLANS_PER_TURN,
    ) -> None:
        super().__init__(info, backoff=backoff, at_once=at_once, plans_per_turn=plans_per_turn)

    def add(self, keys: Iterable[str], delay_s: float, now: float) -> None:
        """Before the caches are filled there is nothing to wait for: every key will be synced
        once.
        """
        for key in keys:
            self._queue.add_after(key, delay_s if self._synced else 0.0, now)

    def add_touched(self, touched: Touched, batch_period_s: float, now: float) -> None:
        """Queues urgent removals at once; they take the batch so far with them."""
        if touched.urgent:
            self.add(touched.urgent, 0.0, now)
        if touched.later:
            self.add(touched.later, batch_period_s, now)

    def end_idle(self, key: str, now: float) -> None:
        """``job`` has ended it."""

    def end(self, key: str, *, failed: bool, deadline: float | None, now: float) -> None:
        """A sync is over.  After 15 failures in a row the next event starts afresh.

        *deadline*: when the key has to be planned again although nothing happens. One that has
        passed is the retry's to look at.
        """
        if failed and self._queue.num_requeues(key) < MAX_RETRIES:
            self._queue.add_rate_limited(key, now)
        else:
            self._queue.forget(key)
        self._queue.done(key, now)
        if deadline is not None and deadline > now:
            self._queue.add_after(key, deadline - now, now)


def to_write(resource: Resource, planned: PlannedWrite, parts: Collection[bytes] = ()) -> Write:
    return Write(
        verb=planned.verb,
        resource=resource,
        namespace=planned.namespace,
        name=planned.name if planned.verb != "create" else "",
        body=planned.body,
        tolerate=("NotFound",) if planned.verb == "delete" else (),
        metadata_only=bool(parts) and planned.verb == "update",
        parts=parts,
    )


def error_to_heed(done: Done) -> StatusError | None:
    """The error of *done*, but for a create in a Namespace that is going: what it was for goes,
    too.
    """
    error = done.error
    if (
        error is not None
        and done.job.writes[len(done.results)].verb == "create"
        and is_namespace_terminating(error)
    ):
        return None
    return error


def note_about(
    resource: Resource,
    meta: ObjectMeta,
    *,
    component: str,
    reason: str,
    message: str,
    warning: bool = True,
) -> EventNote:
    """Returns an Event for people, cut to the length that an Event may have. *meta*: namespace,
    name and uid of what it is about.
    """
    return EventNote(
        regarding=Object(api_version=resource.api_version, kind=resource.kind, metadata=meta),
        regarding_resource=resource,
        type="Warning" if warning else "Normal",
        reason=reason,
        note=message[:NOTE_MAX],
        component=component,
    )
