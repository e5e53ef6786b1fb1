"""Objects as a recording has them: redacted, whole, or, where a large slice changed little, as the
run of its endpoints that differs.

An object is the JSON of its projection, so any version of the program reads it. A slice may instead
be a list ``[front, end, metadata, endpoints]``: so many endpoints at the front and at the end are
those of the version before, and these are between them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection
from functools import cache
from itertools import compress, count, islice
from operator import ne
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.apps import ControllerRevision
from sliceplane.api.core import ConfigMapData, Event
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice, SliceEndpoint
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.watch.recorder.redact import Redactor

#: member of a structure -> how it is hidden; "" is any structure
_HIDDEN: Final[dict[tuple[type | None, str], Callable[[Redactor, Any], Any]]] = {
    (None, "template"): Redactor.template,
    (ObjectMeta, "annotations"): Redactor.annotations,
    (ConfigMapData, "ca_crt"): Redactor.token,
    (ControllerRevision, "data"): Redactor.revision,
    (Event, "message"): Redactor.token,
}


Hider = Callable[[Redactor, Any], Any]


@cache
def _hiding(kind: type[msgspec.Struct]) -> tuple[tuple[str, Hider | None], ...]:
    """Returns the members of a structure that are hidden, each with how, or that have such."""
    members = (
        (field, _HIDDEN.get((kind, field.name)) or _HIDDEN.get((None, field.name)))
        for field in msgspec.structs.fields(kind)
    )
    return tuple(
        (field.name, hide) for field, hide in members if hide is not None or _is_hiding(field.type)
    )


def _is_hiding(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return bool(_hiding(kind))
    return any(map(_is_hiding, typing.get_args(kind)))


def redacted(value: Any, redactor: Redactor) -> Any:
    """Returns *value*, a structure or a tuple of some, with tokens for what is not ours to keep;
    itself if nothing is hidden.
    """
    if type(value) is tuple:
        return tuple(redacted(item, redactor) for item in value)
    if not isinstance(value, msgspec.Struct):
        return value
    changed = {}
    for name, hide in _hiding(type(value)):
        member = getattr(value, name)
        hidden = redacted(member, redactor) if hide is None else member and hide(redactor, member)
        if hidden is not member:
            changed[name] = hidden
    return msgspec.structs.replace(value, **changed) if changed else value


class EqualEnds(NamedTuple):
    """Where two sequences differ: not in so many elements at the front and at the end."""

    front: int
    end: int


def run_of(old: Collection[Any], new: Collection[Any]) -> EqualEnds:
    """Compares in C, and what is the same object not at all."""
    shorter = min(len(old), len(new))
    front = next(compress(count(), map(ne, old, new)), shorter)
    rest = shorter - front
    ends = map(ne, islice(reversed(tuple(old)), rest), islice(reversed(tuple(new)), rest))
    return EqualEnds(front, next(compress(count(), ends), rest))


def changed_slice(new: EndpointSlice, run: EqualEnds, redactor: Redactor) -> tuple[Any, ...]:
    """The short form of *new*, which has the endpoints of the version before but for *run*."""
    endpoints = new.endpoints or ()
    between = endpoints[run.front : len(endpoints) - run.end]
    return (*run, redacted(new.metadata, redactor), between)


def service_of(value: Object | None) -> str:
    """Returns the name of the Service of a slice; "" for other objects."""
    labels = value.metadata.labels if isinstance(value, EndpointSlice) else None
    return (labels or {}).get(LABEL_SERVICE_NAME, "")


def read_object(kind: type[Object], form: Any, before: Any) -> Any:
    """Returns the object of a whole or short *form*; *before*: the version that it rests on. Raises
    ``ValueError`` for what no recorder wrote.
    """
    if not isinstance(form, list):
        return msgspec.convert(form, kind)
    front, end, metadata, between = msgspec.convert(form, _Short)
    if not isinstance(before, EndpointSlice):
        raise ValueError("a difference rests on a slice that is gone")
    endpoints = before.endpoints or ()
    if front < 0 or end < 0 or front + end > len(endpoints):
        raise ValueError("a difference rests on other endpoints")
    return msgspec.structs.replace(
        before,
        metadata=metadata,
        endpoints=(*endpoints[:front], *between, *endpoints[len(endpoints) - end :]),
    )


_Short = tuple[int, int, ObjectMeta, tuple[SliceEndpoint, ...]]
