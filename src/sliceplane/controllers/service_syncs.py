"""The base of controllers that sync the objects of one Service at a time: queue, retries, writes,
Events.

A *sync* is one pass over one key: its engine's plan, the job that executes the plan's writes, and
the end of both. ``SyncController`` selects the next key and retries a key whose sync failed; a
subclass defines the sync. The functions below convert an engine's ``PlannedWrite`` into a host's
``Write``.

``FirstSync`` and ``HintProblems`` pass facts between two controllers of one process. Each works
without the other.
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
    """A flag: the Endpoints controller of this process has synced all Services once since its
    start.

    Only that controller changes it. The mirroring controller waits for it (KEP-0752, "Controller
    Start Up"), so that it mirrors no object that the Endpoints controller is about to take over.
    """

    def __init__(self) -> None:
        self._in_progress = False

    @property
    def over(self) -> bool:
        return not self._in_progress

    def begin(self) -> None:
        """Records that an Endpoints controller was created and will run."""
        self._in_progress = True

    def end(self) -> None:
        self._in_progress = False


class HintProblems:
    """The reasons why Services have no hints, which slices cannot show.

    Written by one ``EndpointSliceController`` (the newest one), read by the controller of
    conditions. If these run in two processes, a condition is based on the slices, and the Event has
    the reason.
    """

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def begin(self) -> None:
        """Clears the reasons for a new writer."""
        self._problems.clear()

    def set(self, key: str, problems: tuple[str, ...]) -> None:
        """Sets the reasons of *key* (``namespace/name``), or forgets them if there are none."""
        if problems:
            self._problems[key] = "; ".join(problems)
        else:
            self._problems.pop(key, None)

    def get(self, key: str) -> str:
        return self._problems.get(key, "")


MAX_RETRIES: Final = 15
#: keys that are synced before other tasks of the process run; at a start there are many without a
#: write
PLANS_PER_TURN: Final = 256


class SyncController(QueueController):
    """A controller whose keys are ``namespace/name`` of Services.

    A subclass decides in ``on_change`` which keys to sync and when. Its ``job`` executes a sync: it
    returns the job that ends the sync, or calls ``end``. Times are seconds since the epoch, delays
    are seconds.
    """

    def __init__(
        self,
        info: ControllerInfo,
        *,
        max_in_progress: int,
        backoff: Backoff = RETRY_BACKOFF,
        plans_per_batch: int | None = PLANS_PER_TURN,
    ) -> None:
        super().__init__(
            info, backoff=backoff, max_in_progress=max_in_progress, plans_per_batch=plans_per_batch
        )

    def add(self, keys: Iterable[str], delay_s: float, now: float) -> None:
        """Queues *keys* after *delay_s*; without a delay until the caches are filled, since every
        key will then be synced once.
        """
        for key in keys:
            self._queue.add_after(key, delay_s if self._synced else 0.0, now)

    def add_touched(self, touched: Touched, batch_period_s: float, now: float) -> None:
        """Queues urgent removals at once; they include the batch collected so far."""
        if touched.urgent:
            self.add(touched.urgent, 0.0, now)
        if touched.later:
            self.add(touched.later, batch_period_s, now)

    def end_idle(self, key: str, now: float) -> None:
        """Does nothing: ``job`` has already called ``end``."""

    def end(self, key: str, *, failed: bool, deadline: float | None, now: float) -> None:
        """Ends a sync. After 15 consecutive failures the retries stop, and the next event starts
        anew.

        *deadline*: the time at which the key needs a plan even without an event. A past deadline is
        left to the retry.
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


def actionable_error(done: Done) -> StatusError | None:
    """Returns the error of *done*, except that of a create in a terminating Namespace, where the
    object is not needed any more.
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
    """Returns an Event, truncated to the maximum length. *meta*: namespace, name and uid of the
    regarding object.
    """
    return EventNote(
        regarding=Object(api_version=resource.api_version, kind=resource.kind, metadata=meta),
        regarding_resource=resource,
        type="Warning" if warning else "Normal",
        reason=reason,
        note=message[:NOTE_MAX],
        component=component,
    )
