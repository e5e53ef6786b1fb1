"""Notices a second controller of the same kind: a live kube-controller-manager whose controller was
not switched off writes the objects that ours writes.

A version that is not ours shows in the cache. If our controller writes the same Service within a
minute, the object is read once, because caches have no managedFields: these name the program that
wrote last, and when. One such write of an upstream controller is enough. Of other programs several
are needed within a minute, since a person may edit an object. The answer is an Event of the Service
and a log line, at most one in ten minutes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.meta import Object, ObjectMeta, Projection
from sliceplane.api.scheme import Resource, Services
from sliceplane.controllers.service_syncs import SyncController, note_about
from sliceplane.kit.times import time_or_zero
from sliceplane.watch.controller.base import Done, EventNote, Job, Write

#: the key of the queue under which the read is due
KEY: Final = "other-writers"
REASON: Final = "TwoControllers"
#: seconds in which edits and our writes belong together, and the edits of a program that is no known
#: controller are counted
PERIOD_S: Final = 60.0
EDITS_MIN: Final = 3
#: Services whose last edit is remembered
SERVICES_MAX: Final = 256
#: minimum seconds between two reads, and between two reports
READ_PAUSE_S: Final = 5.0
REPORT_PAUSE_S: Final = 600.0
#: field managers of upstream's controllers, alone or in a larger program
UPSTREAM: Final = frozenset(("kube-controller-manager", "k3s", "kubelite", "kube-apiserver"))
#: beginning of the names of our own field managers
_OURS: Final = "sliceplane"


class _Entry(Projection, frozen=True, kw_only=True):
    manager: str = ""
    time: str | None = None


class _Metadata(ObjectMeta, frozen=True, kw_only=True):
    managed_fields: tuple[_Entry, ...] | None = None


class _Written(Object, frozen=True, kw_only=True):
    metadata: _Metadata = _Metadata()


class OtherWriters:
    """The foreign edits that one controller sees. Owned by it; it has the queue."""

    def __init__(self, resource: Resource, component: str) -> None:
        self._resource = resource
        self._component = component
        #: the object that was edited last, and when, by the key of its Service, oldest first
        self._edited: dict[str, tuple[ObjectMeta, float]] = {}
        #: the object to read, and the key of its Service
        self._suspect: tuple[ObjectMeta, str] | None = None
        #: times of edits by programs that are no known controllers, by program
        self._edits: dict[str, list[float]] = {}
        self._read_at = float("-inf")
        self._reported_at = float("-inf")

    def on_edit(self, key: str, meta: ObjectMeta, now: float) -> None:
        """Handles a version of an object of ours that we did not write. *key*: of its Service."""
        self._edited.pop(key, None)
        self._edited[key] = (meta, now)
        if len(self._edited) > SERVICES_MAX:
            del self._edited[next(iter(self._edited))]

    def on_own_write(self, key: str, now: float) -> float | None:
        """Handles a write of ours. Returns the seconds until ``KEY`` is due; ``None``: nothing is
        to read.
        """
        edit = self._edited.pop(key, None) if self._edited else None
        if edit is None or now > edit[1] + PERIOD_S or now < self._reported_at + REPORT_PAUSE_S:
            return None
        is_due = self._suspect is None
        self._suspect = (edit[0], key)
        return max(0.0, self._read_at + READ_PAUSE_S - now) if is_due else None

    def job(self, now: float) -> Job | None:
        """Returns the read of the object that was edited last."""
        if self._suspect is None:
            return None
        meta, service = self._suspect
        self._suspect = None
        self._read_at = now
        read = Write(
            verb="get",
            resource=self._resource,
            namespace=meta.namespace,
            name=meta.name,
            tolerate=("NotFound", "Forbidden"),
        )
        return Job(key=KEY, writes=(read,), token=service)

    def on_done(self, done: Done, now: float) -> EventNote | None:
        """Returns the Event if the read shows another controller."""
        if not done.results or not done.results[0]:
            return None
        try:
            meta = decode(done.results[0], _Written).metadata
        except msgspec.DecodeError:
            return None
        times = {
            entry.manager: time_or_zero(entry.time or "")
            for entry in meta.managed_fields or ()
            if entry.manager and not entry.manager.startswith(_OURS)
        }
        writer = max(times, key=lambda manager: times[manager], default="")
        if not writer or times[writer] < now - PERIOD_S or not self._is_controller(writer, now):
            return None
        self._reported_at = now
        self._edits.clear()
        return self._note(writer, meta, done.job.token)

    def _is_controller(self, writer: str, now: float) -> bool:
        if writer in UPSTREAM:
            return True
        recent = [time for time in self._edits.get(writer, ()) if time > now - PERIOD_S]
        self._edits = {writer: [*recent, now]}  # of one program at a time: names are a client's
        return len(recent) + 1 >= EDITS_MIN

    def _note(self, writer: str, meta: ObjectMeta, service: str) -> EventNote:
        namespace, _, name = service.partition("/")
        note = note_about(
            Services,
            ObjectMeta(namespace=namespace, name=name),
            component=self._component,
            reason=REASON,
            message=f"{writer} writes {self._resource.kind} {meta.name}, as this controller does: "
            f"switch the controller of one of the two off, or run: sliceplane controllers "
            "--adopted-only",
        )
        return msgspec.structs.replace(note, is_logged=True)


class ObservantController(SyncController):
    """A ``SyncController`` that notices others. A subclass sets ``_others``, passes ``KEY`` from its
    ``job`` to ``edit_job``, and that job's end to ``on_edit_read``.
    """

    _others: OtherWriters

    def note_edit(self, key: str, meta: ObjectMeta, now: float) -> None:
        """Handles a version of an object of the Service *key* that this controller did not write."""
        self._others.on_edit(key, meta, now)

    def note_own_write(self, key: str, now: float) -> None:
        delay_s = self._others.on_own_write(key, now)
        if delay_s is not None:
            self.add((KEY,), delay_s, now)

    def edit_job(self, now: float) -> Job | None:
        job = self._others.job(now)
        if job is None:
            self.end(KEY, failed=False, deadline=None, now=now)
        return job

    def on_edit_read(self, done: Done, now: float) -> None:
        note = self._others.on_done(done, now)
        if note is not None:
            self._notes.append(note)
        self.end(KEY, failed=False, deadline=None, now=now)
