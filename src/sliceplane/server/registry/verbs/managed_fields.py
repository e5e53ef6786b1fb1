"""metadata.managedFields on every write: who the writer is, what this endpoint does not write, what
is stored.

``on_create``, ``on_update`` and ``on_apply`` look at what a client asked for, defaults included,
before the server adds anything of its own: a cluster IP that the server chose has no owner. They
leave the entries to be stored in the document's metadata; a client's own entries, which decoding
left there, are taken into account as upstream does:

- none, or some that cannot be read: those of the stored object stay;
- ``[]`` or ``[{}]``: nothing is tracked from here on, until the next apply;
- others, through the main endpoint: they are the state before this write.

Sets are compared in one version.  Versions differ in the names of top-level fields at most
(``server.documents.conversion``), so it is sets that are translated, never documents.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final

from msgspec.structs import replace

from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, by_kind, stored_form
from sliceplane.kit.times import format_time
from sliceplane.server.documents import conversion, fields
from sliceplane.server.documents.fields import FieldSet, Managers
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.types import Context, Target, WriteOptions

MEMBER: Final = "managedFields"

_STATUS: Final = fields.of_paths([("f:status",)])
#: many writes a second, one text
_stamp = lru_cache(8)(format_time)


def on_create(ctx: Context, target: Target, document: Document, options: WriteOptions) -> None:
    """Put the entries of a new object into *document*, which is in stored form."""
    head = document["metadata"]
    base = _base(head.pop(MEMBER, None), [])
    write = _write(ctx, target, options, "Update")
    working = stored_form(target.resource)
    change = fields.compare(fields.shape_of(working.schema_key), {}, document)
    before = fields.decode(base, partial(_translated, working, True), ordered=False)
    _store(head, fields.updated(before, change, write), working)


def on_update(
    ctx: Context, target: Target, new: Document, old: Document, options: WriteOptions
) -> bool:
    """Put the entries that come of making *new* out of *old* into *new*; both are in stored form.

    ``target.subresource`` says through which endpoint, ``scale`` included. Returns whether the
    stored entries were where it began, so that they differ now by what this write does to the
    object and by nothing else.
    """
    head = new["metadata"]
    stored = old["metadata"].get(MEMBER, [])
    sent = head.pop(MEMBER, None)
    base = stored if target.subresource else _base(sent, stored)
    if not base:
        # No manager was tracked, or should be any more: that lasts until the next apply.
        return base is stored
    working = stored_form(target.resource)
    change = fields.compare(fields.shape_of(working.schema_key), _untracked(old), new)
    write = _write(ctx, target, options, "Update")
    before = fields.decode(base, partial(_translated, working, True), ordered=base is stored)
    after = fields.updated(before, change, write)
    if after is before and base is stored:
        head[MEMBER] = stored
    else:
        _store(head, after, working)
    return base is stored


def on_apply(
    ctx: Context,
    target: Target,
    live: Document,
    config: Document,
    options: WriteOptions,
    *,
    force: bool,
) -> Document:
    """What applying *config* makes of *live*, with its entries; both in the version that the client
    speaks.

    *live* is ``{}`` where there is no object.  Raises ``fields.Conflicts``.
    """
    working = target.spoken
    shape = fields.shape_of(working.schema_key)
    write = _write(ctx, target, options, "Apply")
    before = fields.decode(
        live.get("metadata", {}).get(MEMBER, []), partial(_translated, working, True)
    )
    bare = _untracked(live)
    if not before and live:
        before = fields.before_first_apply(shape, bare, write)
    try:
        result = fields.applied(shape, bare, config, before, write, force=force)
    except fields.Conflicts as refused:
        raise _in_their_words(refused, working) from None
    # Copies down to metadata, since what follows changes it.
    made = {**result.document, "metadata": dict(result.document.get("metadata", {}))}
    _store(made["metadata"], result.managers, working)
    return made


def _in_their_words(refused: fields.Conflicts, working: Resource) -> fields.Conflicts:
    """Each field under the name that it has in the version of the one who owns it."""
    back = partial(_translated, working, False)
    conflicts = []
    for conflict in refused.conflicts:
        named = back(fields.of_paths([conflict.path]), conflict.api_version)
        assert named is not None, f"an entry of the unknown version {conflict.api_version} was kept"
        conflicts.append(replace(conflict, path=next(fields.paths(named))))
    return fields.Conflicts(tuple(conflicts))


def changes_nothing(new: Document, old: Document, *, derived: bool) -> bool:
    """Is the write that made *new*, canonical as *old* is, none?

    It is if nothing but the times of entries differs. An update that the server undid is none
    either, whatever its writer would own: that is where the entries are *derived* from it (see
    ``on_update``).
    """
    if not derived:
        ours = new["metadata"].get(MEMBER)
        theirs = old["metadata"].get(MEMBER)
        if ours != theirs and not (ours and theirs and fields.same_but_times(ours, theirs)):
            return False
    return _untracked(new) == _untracked(old)


def _untracked(document: Document) -> Document:
    """*document* without its entries; shared where there are none."""
    head = document.get("metadata", {})
    if MEMBER not in head:
        return document
    head = dict(head)
    del head[MEMBER]
    return {**document, "metadata": head}


def _base(sent: Any, stored: list[Document]) -> list[Document]:
    """The entries before this write, by what the client *sent* of them."""
    if fields.is_reset(sent):
        return []
    if not sent or sent == stored:
        return stored
    try:
        return fields.received(sent)
    except fields.MalformedManagers:
        return stored


def _store(head: Document, managers: Managers, working: Resource) -> None:
    head.pop(MEMBER, None)
    if managers:
        head[MEMBER] = fields.encode(managers, partial(_translated, working, False))


def _translated(working: Resource, into: bool, owned: FieldSet, version: str) -> FieldSet | None:
    """*owned* from the names of its own *version* *into* those of *working*, or back; ``None``:
    that is not known.
    """
    if version == working.api_version:
        return owned
    other = by_kind(version, working.kind)
    if other is None:
        return None
    source, aim = (other, working) if into else (working, other)
    return fields.renamed(owned, conversion.renamed_members(source, aim))


def _write(
    ctx: Context, target: Target, options: WriteOptions, operation: Any
) -> fields.OwnedWrite:
    version = target.spoken.api_version
    # What the endpoint does not write, whatever a body says.
    if target.subresource == "status":
        reset = kind_of(target.resource).status.not_written
    else:
        reset = _STATUS if target.resource.has_status else fields.EMPTY
    return fields.OwnedWrite(
        who=fields.identity(options.field_manager, operation, version, target.subresource),
        api_version=version,
        now=_stamp(int(ctx.now)),
        reset=reset,
    )
