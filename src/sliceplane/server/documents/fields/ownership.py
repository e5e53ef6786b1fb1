"""The effect of an update and of an apply on the managers of an object (KEP-555).

An **update** takes what it changed: every other manager loses those fields, and all lose what went
away.

An **apply** owns exactly what its configuration says. What it says otherwise than the object does,
and another manager owns, is a conflict, unless it is forced; equal values are shared. What its last
configuration said, this one does not and no other manager owns, goes out of the object.

Some fields are never owned (``UNOWNED``), and some cannot be written through the endpoint that was
used: those are passed in as *reset* and left out everywhere, like upstream's reset fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.json import decode, encode
from msgspec.structs import replace

from sliceplane.api.meta import Document
from sliceplane.server.documents.fields import sets
from sliceplane.server.documents.fields.managers import Identity, ManagerEntry, Managers
from sliceplane.server.documents.fields.objects import merge, remove, set_of, with_named_fields
from sliceplane.server.documents.fields.sets import FieldSet, Path
from sliceplane.server.documents.fields.shape import FieldsChange, StructShape, compare

UPDATE_MANAGERS_MAX: Final = 10
ANCIENT_CHANGES: Final = "ancient-changes"
BEFORE_FIRST_APPLY: Final = "before-first-apply"
#: sets of new objects, and how long one may be that is remembered
_REMEMBERED = 256
_REMEMBERED_BYTES_MAX = 8 * 1024

#: identity and book-keeping of the server, and metadata as such; what is in the rest of metadata is
#: owned
UNOWNED: Final[FieldSet] = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {
        ".": {},
        "f:clusterName": {},
        "f:creationTimestamp": {},
        "f:generation": {},
        "f:managedFields": {},
        "f:name": {},
        "f:namespace": {},
        "f:resourceVersion": {},
        "f:selfLink": {},
        "f:uid": {},
    },
}


class OwnedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The writer, its version, the time (RFC 3339), and the fields that this endpoint does not
    write.
    """

    owner: Identity
    api_version: str
    now: str
    reset: FieldSet


class Conflict(msgspec.Struct, frozen=True):
    owner: Identity
    #: of the entry that owns the field
    api_version: str
    path: Path


@dataclass
class Conflicts(Exception):
    """An apply wants fields that others own, with other values.  Sorted by manager, then as sets
    are.
    """

    conflicts: tuple[Conflict, ...]

    __hash__ = Exception.__hash__


class Applied(msgspec.Struct, frozen=True):
    """The result of an apply; ``changed`` is false if the live object stays as it is."""

    document: Document
    managers: Managers
    changed: bool


def updated(managers: Managers, change: FieldsChange, write: OwnedWrite) -> Managers:
    """The managers after an update that made *change*; the argument itself if no manager gains or
    loses anything.
    """
    if not (managers or change.modified or change.removed):
        return _first(change.added, write)
    gained = sets.difference(sets.union(change.modified, change.added), write.reset, whole=True)
    lost = sets.difference(change.removed, write.reset, whole=True)
    if not gained and not lost:
        return managers
    taken = sets.union(gained, lost)
    after: Managers = {}
    for owner, entry in managers.items():
        kept = sets.difference(entry.fields, lost if owner == write.owner else taken)
        if kept is entry.fields:
            after[owner] = entry
        elif kept:
            after[owner] = replace(entry, fields=kept)
    own = sets.difference(gained, UNOWNED)
    if own:
        before = after.get(write.owner)
        if before is None:
            after[write.owner] = ManagerEntry(own, write.api_version, write.now)
        else:
            after[write.owner] = replace(
                before, fields=sets.union(before.fields, own), time=write.now
            )
    return _capped(after) if len(after) > UPDATE_MANAGERS_MAX else after


def _first(added: FieldSet, write: OwnedWrite) -> Managers:
    """The managers of what was created.

    Objects that one template made have the same fields, whatever their values: what follows from a
    set is remembered.
    """
    spelled = encode(added)
    own_of = _own if len(spelled) <= _REMEMBERED_BYTES_MAX else _own.__wrapped__
    own = own_of(spelled, encode(write.reset))
    return {write.owner: ManagerEntry(own, write.api_version, write.now, own)} if own else {}


@lru_cache(_REMEMBERED)
def _own(added: bytes, reset: bytes) -> FieldSet:
    """Returns the fields that a creator owns of the set *added*, if this endpoint does not write
    *reset*; in the order of the wire.
    """
    return sets.ordered(
        sets.difference(sets.difference(decode(added), decode(reset), whole=True), UNOWNED)
    )


def _capped(managers: Managers) -> Managers:
    """At most so many updaters: the oldest of each version become one, called ancient changes."""
    updaters = [owner for owner in managers if owner.operation == "Update"]
    excess = len(updaters) - UPDATE_MANAGERS_MAX
    if excess <= 0:
        return managers
    after = dict(managers)
    merged: dict[Identity, list[FieldSet]] = {}
    updaters.sort(key=lambda owner: (after[owner].time, owner))
    oldest: dict[str, Identity] = {}
    for owner in updaters:
        if excess <= 0:
            break
        entry = after[owner]
        first = oldest.setdefault(entry.api_version, owner)
        if first == owner:
            continue
        bucket = Identity(ANCIENT_CHANGES, "Update", entry.api_version, "")
        if bucket not in after:
            after[bucket] = after.pop(first)
        merged.setdefault(bucket, [after[bucket].fields]).append(entry.fields)
        after[bucket] = entry  # its time; all the fields at the end, at once
        if owner != bucket:
            del after[owner]
            excess -= 1
    for bucket, parts in merged.items():
        after[bucket] = replace(after[bucket], fields=sets.union_of(parts))
    return after


def before_first_apply(shape: StructShape, live: Document, write: OwnedWrite) -> Managers:
    """Returns the managers of an object without tracked ones: one updater owns all fields."""
    owner = Identity(BEFORE_FIRST_APPLY, "Update", write.api_version, write.owner.subresource)
    return updated({}, compare(shape, {}, live), replace(write, owner=owner))


def applied(
    shape: StructShape,
    live: Document,
    config: Document,
    managers: Managers,
    write: OwnedWrite,
    *,
    force: bool,
) -> Applied:
    """Apply *config* to *live*.  Raises ``Conflicts``."""
    merged: Document = merge(shape, live, config)
    fields = sets.difference(set_of(shape, config), write.reset, whole=True)
    last = managers.get(write.owner)
    after = dict(managers)
    after[write.owner] = ManagerEntry(fields, write.api_version, last.time if last else "")
    if last is not None and last.fields:
        merged = _pruned(shape, merged, after, last.fields)
    change = compare(shape, live, merged)
    gained = sets.difference(sets.union(change.modified, change.added), write.reset, whole=True)
    lost = sets.difference(change.removed, write.reset, whole=True)
    conflicts: list[Conflict] = []
    for owner, entry in managers.items():
        if owner == write.owner:
            continue
        contested = sets.intersection(entry.fields, gained)
        conflicts.extend(Conflict(owner, entry.api_version, path) for path in sets.paths(contested))
        kept = sets.difference(sets.difference(entry.fields, contested), lost)
        if kept:
            after[owner] = replace(entry, fields=kept)
        else:
            del after[owner]
    if conflicts and not force:
        raise Conflicts(tuple(sorted(conflicts, key=lambda conflict: str(conflict.owner))))
    changed = merged != live
    own = sets.difference(fields, UNOWNED)
    if own:
        entry = after[write.owner]
        after[write.owner] = replace(entry, fields=own, time=write.now if changed else entry.time)
    else:
        del after[write.owner]
    return Applied(merged, after, changed)


def _pruned(shape: StructShape, merged: Document, managers: Managers, last: FieldSet) -> Document:
    """*merged* without what *last* has and no manager has any more.

    Three steps: take away all that *last* has; put back what a manager owns, or is needed to hold
    it; put back what was never in *last*, though it is inside something that was.
    """
    named = with_named_fields(shape, last)
    owned = sets.union_of(entry.fields for entry in managers.values())
    present = with_named_fields(shape, set_of(shape, merged))
    bare = remove(shape, merged, named)
    remaining = with_named_fields(shape, set_of(shape, bare))
    retained = sets.union(remaining, with_named_fields(shape, owned))
    bare = remove(shape, merged, sets.difference(present, retained))
    remaining = with_named_fields(shape, set_of(shape, bare))
    gone = sets.intersection(sets.difference(present, remaining), named)
    pruned: Document = remove(shape, merged, gone)
    return pruned


def allowed_by_last_applied(shape: StructShape, last_applied: Document, live: Document) -> FieldSet:
    """Fields that the annotation of client-side apply says, as the object still has them: kubectl
    may take those.
    """
    change = compare(shape, last_applied, live)
    fields = set_of(shape, last_applied)
    for changed in (change.modified, change.added, change.removed):
        fields = sets.difference(fields, changed)
    return fields
