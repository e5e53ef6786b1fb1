"""Finds the last writer of a field, from ``metadata.managedFields`` (kubernetes.io, "Server-Side
Apply", field management).

A manager owns a field if its ``fieldsV1`` has the path, or ends above it as an owner of the whole.
Times are of the manager's last write of any field that it owns, to the second: "helm at 02:09:41"
is the most that this source has. Our own server also remembers the users of recent writes: "alice
(helm) at 02:09:41".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.meta import Projection
from sliceplane.kit.times import parse_time

_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


class FieldsEntry(Projection, frozen=True, kw_only=True):
    manager: str = ""
    time: str | None = None
    subresource: str = ""
    fields: dict[str, Any] | None = msgspec.field(name="fieldsV1", default=None)


class _Metadata(Projection, frozen=True, kw_only=True):
    managed_fields: tuple[FieldsEntry, ...] | None = None


class _Managed(Projection, frozen=True, kw_only=True):
    metadata: _Metadata = _Metadata()


class LastWrite(NamedTuple):
    """``time`` is RFC 3339, "" if the entry has none."""

    manager: str
    time: str


class RememberedWrite(msgspec.Struct, frozen=True):
    """A write as our own server remembers it.  ``time``: seconds since the epoch."""

    time: float
    user: str
    verb: str
    agent: str = ""


_noted = msgspec.json.Decoder(tuple[RememberedWrite, ...])
#: seconds between a server's time in managedFields and its answer, at most
_SAME_WRITE_S: Final = 3.0


def noted_writes(page: bytes) -> tuple[RememberedWrite, ...]:
    """Returns the writes on a page of our own server; none for another page."""
    try:
        return _noted.decode(page)
    except msgspec.DecodeError:
        return ()


def with_user(write: LastWrite, noted: tuple[RememberedWrite, ...]) -> LastWrite:
    """Returns *write* with the user of its request, if the server remembers it."""
    try:
        at = parse_time(write.time)
    except ValueError:
        return write
    # managedFields have whole seconds, and the server answers a little later.
    near = [entry for entry in noted if -1.0 <= entry.time - at <= _SAME_WRITE_S]
    program = write.manager.partition("-")[0]
    same = [entry for entry in near if entry.agent.startswith(program)] or near
    if not same:
        return write
    nearest = min(same, key=lambda entry: abs(entry.time - at))
    return write._replace(manager=f"{nearest.user} ({write.manager})")


_decoder = msgspec.json.Decoder(_Managed)


def managed_fields(body: bytes) -> tuple[FieldsEntry, ...]:
    """Returns the managers of the fields of the object *body*; none if it cannot be decoded."""
    try:
        return _decoder.decode(body).metadata.managed_fields or ()
    except msgspec.DecodeError:
        return ()


def last_write(entries: tuple[FieldsEntry, ...], path: str) -> LastWrite | None:
    """Returns the last write of the field *path* (``spec.selector``, ``metadata.labels[app]``); of
    several managers the last one. ``None``: no manager in *entries* owns the field.
    """
    steps = tuple(_steps(path))
    writes = [
        LastWrite(entry.manager, entry.time or "")
        for entry in entries
        if _owns(entry.fields or {}, steps)
    ]
    return max(writes, key=lambda write: write.time, default=None)


def _steps(path: str) -> Iterator[str]:
    """Yields the names of members. A part in brackets is the key of a map, or an item of a list."""
    for step in _STEP.findall(path):
        if step.startswith("["):
            yield step[1:-1]
        else:
            yield step


def _owns(fields: dict[str, Any], steps: tuple[str, ...]) -> bool:
    """Returns True if *fields* has the field, a part of it, or the whole that contains it."""
    here: Any = fields
    for number, step in enumerate(steps):
        below = here.get(f"f:{step}")
        if below is None:
            # In an item of a list (``k:{...}``) or an atomic whole: the owner of the last name
            # present.
            return number > 0 and (not here or any(key.startswith("k:") for key in here))
        here = below
    return True
