"""The shape of every controller core, and the values that it exchanges with its host.

A host (``controllers.io``, or the simulator) owns informers and a client. It calls, always from one
place at a time:

1. ``on_change`` for every difference that an informer reports, and ``on_synced`` once, after the
   first list of *every* watched resource was delivered;
2. ``take_work`` when something happened or ``next_deadline`` has passed;
3. ``on_done`` when a job's writes were performed (or one of them failed).

A ``Job`` is a list of writes for one key, to be performed **in order, stopping at the first
error**. A controller never hands out two unfinished jobs with one key; jobs with different keys may
run side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, runtime_checkable

import msgspec

from sliceplane.api.codec import decode, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document, Object, ObjectMeta
from sliceplane.api.requests import PatchType, Selection, Write
from sliceplane.api.scheme import Resource
from sliceplane.kit.metrics import Family
from sliceplane.kit.names import GENERATED_ALPHABET, GENERATED_BASE_MAX, GENERATED_SUFFIX_LENGTH
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.own_writes import delete_options

__all__ = [
    "Controller",
    "ControllerInfo",
    "Done",
    "EventNote",
    "Job",
    "MarkReader",
    "Measured",
    "Selection",
    "Work",
    "Write",
    "stable_error",
    "deletion",
]

_GENERATED_SUFFIX: Final = f"[{GENERATED_ALPHABET}]{{{GENERATED_SUFFIX_LENGTH}}}"


#: the object is gone, or another one has its name
_NOT_THERE: Final = ("NotFound", "Conflict")


def deletion(
    resource: Resource,
    meta: ObjectMeta,
    version: str = "",
    tolerate: tuple[str, ...] = _NOT_THERE,
    **options: object,
) -> Write:
    """Deletes the object with this uid, and with a *version* only that version of it: an object of
    its name that was created since is kept.
    """
    return Write(
        verb="delete",
        resource=resource,
        namespace=meta.namespace,
        name=meta.name,
        body=delete_options(meta.uid, version, **options),
        tolerate=tolerate,
    )


def object_patch(
    resource: Resource,
    meta: ObjectMeta,
    change: Document,
    subresource: str = "",
    patch_type: PatchType = "merge",
    *,
    tolerate: tuple[str, ...] = _NOT_THERE,
) -> Write:
    """Patches the object with this uid; it holds for one version only if *change* names that."""
    body = {**change, "metadata": {"uid": meta.uid, **change.get("metadata", {})}}
    return Write(
        verb="patch",
        resource=resource,
        namespace=meta.namespace,
        name=meta.name,
        subresource=subresource,
        body=encode(body),
        patch_type=patch_type,
        tolerate=tolerate,
    )


def condition_write(resource: Resource, meta: ObjectMeta, condition: Document) -> Write:
    """Writes *condition* to the status of an object; conditions of other types are kept."""
    return object_patch(
        resource, meta, {"status": {"conditions": [condition]}}, "status", "strategic"
    )


def stable_error(write: Write, error: StatusError) -> StatusError:
    """Returns *error* of *write* in words that are the same at each retry of the same failure.

    A create with ``generateName`` gets another name at every try, and what refuses the object (a
    quota, say) puts that name into its message, as Kubernetes' admission does. The name is of
    nothing that exists. Said again with each retry it would make each retry a new Event, a new
    condition and a new line; so the prefix is shown in its place.
    """
    if write.verb != "create" or write.name:
        return error
    meta = decode(write.body, Object).metadata
    prefix = meta.generate_name
    if meta.name or not prefix:
        return error
    generated_name = re.compile(f'"{re.escape(prefix[:GENERATED_BASE_MAX])}{_GENERATED_SUFFIX}"')
    return replace(error, message=generated_name.sub(lambda _: f'"{prefix}"', error.message))


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Writes for one key, in order.  ``token`` is the controller's own mark, given back in
    ``Done``.
    """

    key: str
    writes: tuple[Write, ...]
    token: Any = None


class Done(msgspec.Struct, frozen=True):
    """The result of a job.

    ``results[i]`` is the server's answer to ``job.writes[i]``: the object's JSON bytes (the deleted
    object or a Status for a delete; empty if the error was tolerated). If ``error`` is set, the
    write after the last result failed with it and the rest was not tried.
    """

    job: Job
    results: tuple[bytes, ...]
    error: StatusError | None = None


#: reason of the Event of a Node whose cache differs from the API server's: it lost an event
CACHE_DIFFERS: Final = "CacheDiffers"


class EventNote(msgspec.Struct, frozen=True, kw_only=True):
    """An Event for people (``kubectl describe``): the host's recorder makes and writes the Event
    object.
    """

    regarding: Object
    regarding_resource: Resource
    type: Literal["Normal", "Warning"]
    reason: str
    note: str
    component: str
    #: what was done or tried, in CamelCase (events.k8s.io)
    action: str = "Reconcile"
    #: a second object that the note is about
    related: Object | None = None
    related_resource: Resource | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a controller at one moment: jobs (in the order in which they became due) and
    notes.

    ``relist``: selections among those that it watches whose caches are wrong, to be listed anew.
    """

    jobs: tuple[Job, ...] = ()
    notes: tuple[EventNote, ...] = ()
    relist: tuple[Selection, ...] = ()


@dataclass(slots=True)
class ControllerInfo:
    """Static facts, for the host, logs, metrics and ``--controllers``."""

    name: str  # "endpointslice-controller"
    watches: tuple[Selection, ...]
    aliases: tuple[str, ...] = field(default_factory=tuple)
    #: the name of its work queue in metrics, if that is not its own name
    queue: str = ""
    #: the source of its Events, if that is not its name
    component: str = ""


class Controller(Protocol):
    """A controller core.  Times are seconds since the epoch."""

    @property
    def info(self) -> ControllerInfo: ...

    def on_change(self, change: Change[Object], now: float) -> None: ...

    def on_synced(self, now: float) -> None:
        """Every cache is filled; before this call ``take_work`` must yield nothing."""

    def take_work(self, now: float, max_jobs: int) -> Work:
        """Returns at most *max_jobs* jobs; the host calls again when one is done."""

    def on_done(self, done: Done, now: float) -> None: ...

    def next_deadline(self) -> float | None:
        """Returns when ``take_work`` may have something without a further event; ``None``:
        never.
        """

    def check(self) -> None:
        """Assert every invariant of the owned state.  Costs O(state); on in tests."""


@runtime_checkable
class Measured(Protocol):
    """A controller with figures for monitoring.  They restart at zero with each controller loop,
    which monitoring systems expect.
    """

    def samples(self, now: float) -> tuple[Family, ...]:
        """Frozen, as they are now.  Costs O(figures), and only when asked."""


@runtime_checkable
class MarkReader(Protocol):
    """A controller that wants to know how far its caches are, and not only what changed in them."""

    def on_mark(self, mark: Mark, now: float) -> None:
        """Called after the changes that lead to *mark*."""
