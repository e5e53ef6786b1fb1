"""metadata.managedFields on every write: the writer, the fields that the endpoint does not write,
and the stored entries.

``on_create``, ``on_update`` and ``on_apply`` read the client's request with its defaults, before
the server adds its own values: a cluster IP that the server chose has no owner. They put the
entries to store into the document's metadata. Entries that the client sent, which decoding keeps
there, are handled as upstream does:

- none, or invalid ones: those of the stored object are kept;
- ``[]`` or ``[{}]``: nothing is tracked until the next apply;
- others, through the main endpoint: they are the state before this write.

Sets are compared in one version.  Versions differ at most in the names of top-level fields
(``server.documents.conversion``), so sets are translated, never documents.
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
from sliceplane.server.registry.core import WriteCall
from sliceplane.server.registry.kinds import kind_of

MEMBER: Final = "managedFields"

_STATUS: Final = fields.of_paths([("f:status",)])
#: cached, as many writes have the same second
_stamp = lru_cache(8)(format_time)


def on_create(call: WriteCall, document: Document) -> None:
    """Puts the entries of a new object into *document*, which is in stored form."""
    head = document["metadata"]
    base = _base(head.pop(MEMBER, None), [])
    write = _write(call, "Update")
    working = stored_form(call.target.resource)
    change = fields.compare(fields.shape_of(working.schema_key), {}, document)
    before = fields.decode(base, partial(_translated, working, True), ordered=False)
    _store(head, fields.updated(before, change, write), working)


def on_update(call: WriteCall, new: Document, old: Document) -> bool:
    """Puts the entries after the change from *old* to *new* into *new*; both are in stored form.

    ``call.target.subresource`` names the endpoint, ``scale`` included. Returns True if the entries
    are derived from the stored ones, so that they differ only by the effect of this write.
    """
    head = new["metadata"]
    stored = old["metadata"].get(MEMBER, [])
    sent = head.pop(MEMBER, None)
    base = stored if call.target.subresource else _base(sent, stored)
    if not base:
        # No manager was tracked, or the client reset them: nothing is tracked until the next apply.
        return base is stored
    working = stored_form(call.target.resource)
    change = fields.compare(fields.shape_of(working.schema_key), _untracked(old), new)
    write = _write(call, "Update")
    before = fields.decode(base, partial(_translated, working, True), ordered=base is stored)
    after = fields.updated(before, change, write)
    if after is before and base is stored:
        head[MEMBER] = stored
    else:
        _store(head, after, working)
    return base is stored


def on_apply(call: WriteCall, live: Document, config: Document, *, force: bool) -> Document:
    """Returns *live* with *config* applied and with its entries; all in the requested version.

    *live* is ``{}`` if there is no object.  Raises ``fields.Conflicts``.
    """
    working = call.target.requested
    shape = fields.shape_of(working.schema_key)
    write = _write(call, "Apply")
    before = fields.decode(
        live.get("metadata", {}).get(MEMBER, []), partial(_translated, working, True)
    )
    bare = _untracked(live)
    if not before and live:
        before = fields.before_first_apply(shape, bare, write)
    try:
        result = fields.applied(shape, bare, config, before, write, force=force)
    except fields.Conflicts as refused:
        raise _in_own_versions(refused, working) from None
    # Copies down to metadata, which is changed below.
    merged = {**result.document, "metadata": dict(result.document.get("metadata", {}))}
    _store(merged["metadata"], result.managers, working)
    return merged


def _in_own_versions(refused: fields.Conflicts, working: Resource) -> fields.Conflicts:
    """Returns the conflicts with each field named as in its owner's version."""
    restore = partial(_translated, working, False)
    conflicts = []
    for conflict in refused.conflicts:
        named = restore(fields.of_paths([conflict.path]), conflict.api_version)
        assert named is not None, f"an entry of the unknown version {conflict.api_version} was kept"
        conflicts.append(replace(conflict, path=next(fields.paths(named))))
    return fields.Conflicts(tuple(conflicts))


def changes_nothing(new: Document, old: Document, *, derived: bool) -> bool:
    """Returns True if *new*, canonical like *old*, does not change the object.

    Times of entries are ignored. *derived* entries (see ``on_update``) are ignored completely: an
    update that the server undid changes nothing, whatever its writer would own.
    """
    if not derived:
        ours = new["metadata"].get(MEMBER)
        theirs = old["metadata"].get(MEMBER)
        if ours != theirs and not (ours and theirs and fields.same_but_times(ours, theirs)):
            return False
    return _untracked(new) == _untracked(old)


def _untracked(document: Document) -> Document:
    """Returns *document* without its entries; the same object if it has none."""
    head = document.get("metadata", {})
    if MEMBER not in head:
        return document
    head = dict(head)
    del head[MEMBER]
    return {**document, "metadata": head}


def _base(sent: Any, stored: list[Document]) -> list[Document]:
    """Returns the entries before this write, from those that the client *sent*."""
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
    """Translates the names of *owned* from *version* *into* those of *working*, or back; ``None``
    for an unknown version.
    """
    if version == working.api_version:
        return owned
    other = by_kind(version, working.kind)
    if other is None:
        return None
    source, aim = (other, working) if into else (working, other)
    return fields.renamed(owned, conversion.renamed_members(source, aim))


def _write(call: WriteCall, operation: Any) -> fields.OwnedWrite:
    _, ctx, target, options = call
    version = target.requested.api_version
    # The fields that the endpoint does not write, whatever the body has.
    if target.subresource == "status":
        reset = kind_of(target.resource).status.not_written
    else:
        reset = _STATUS if target.resource.has_status else fields.EMPTY
    return fields.OwnedWrite(
        owner=fields.identity(options.field_manager, operation, version, target.subresource),
        api_version=version,
        now=_stamp(int(ctx.now)),
        reset=reset,
    )
