"""GET: one object, a list, or the plan of a watch (Kubernetes API Concepts, Resource versions).

Readers receive only durable records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec
from msgspec.structs import replace

from sliceplane.api.errors import bad_request, expired, too_large_resource_version
from sliceplane.api.gates import SHARDED_LIST_AND_WATCH, Gates
from sliceplane.api.scheme import Resource
from sliceplane.api.selectors import parse_fields, parse_labels
from sliceplane.api.selectors.shards import parse_shards
from sliceplane.server.registry.core import Core, key_of, missing
from sliceplane.server.registry.types import (
    ListOptions,
    ListOutcome,
    Target,
    WatchOptions,
    WatchPlan,
)
from sliceplane.server.registry.verbs.options import (
    EXACT,
    NEWEST,
    check_list,
    check_watch,
    decode_continue,
    encode_continue,
    encode_continue_start,
    list_version,
    read_version,
)
from sliceplane.server.store.mvcc import Compacted
from sliceplane.server.store.types import Key, Record

#: records scanned in one step
_CHUNK_RECORDS = 500
Steps = Generator[None, None, ListOutcome]
#: upper bound of the limit; clients send up to 2^63 - 1
_LIMIT_MAX = 1 << 31
_TOKEN_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)
_LIST_EXPIRED = "The resourceVersion for the provided list is too old."


class RecordSelection(msgspec.Struct, frozen=True):
    """The parsed selectors.  ``matches`` is ``None`` if everything matches.  ``text`` is equal for
    equal selections.

    ``name`` and ``namespace`` are set if only that one can match. ``shard``: the canonical shard
    selector.
    """

    matches: Callable[[Record], bool] | None
    text: str
    name: str | None = None
    namespace: str | None = None
    shard: str = ""


def select(
    resource: Resource, options: ListOptions | WatchOptions, gates: Gates
) -> RecordSelection:
    """Raises a 400 StatusError if a text does not parse or names an unknown field."""
    selection = _by_labels_and_fields(resource, options.label_selector, options.field_selector)
    if options.shard_selector is None or not gates.enabled(SHARDED_LIST_AND_WATCH):
        return selection
    shards = parse_shards(options.shard_selector)
    others = selection.matches

    def matches(record: Record) -> bool:
        return shards.matches(record.uid, record.key.namespace) and (
            others is None or others(record)
        )

    return replace(
        selection, matches=matches, text=f"{selection.text}\n{shards}", shard=str(shards)
    )


def _by_labels_and_fields(
    resource: Resource, label_selector: str, field_selector: str
) -> RecordSelection:
    labels = parse_labels(label_selector)
    fields = parse_fields(field_selector, resource)
    if labels.empty and fields.empty:
        return RecordSelection(None, "")
    by_label = labels.matches
    by_field = fields.matches
    text = f"{labels}\n{fields}"
    if fields.empty:
        return RecordSelection(lambda record: by_label(record.labels), text)

    def matches(record: Record) -> bool:
        return by_label(record.labels) and by_field(
            record.key.name, record.key.namespace, record.fields
        )

    return RecordSelection(matches, text, fields.exact_name, fields.exact_namespace)


def get(core: Core, target: Target, resource_version: str | None) -> Record:
    """Returns the newest version, if it is not older than *resource_version*.

    Raises StatusError: 404, 504 (the caller may wait a little for that revision and retry), 500 for
    a version that is not a number.
    """
    version = read_version(resource_version)
    _check_not_beyond(core, target, version)
    record = core.store.get(key_of(target))
    if record is None:
        raise missing(target.resource, target.name)
    return record


def list_records(core: Core, target: Target, options: ListOptions) -> ListOutcome:
    """Returns a page.  Raises StatusError: 400, 410, 422, 504 (as for ``get``)."""
    steps = list_steps(core, target, options)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: ListOutcome = end.value
            return outcome


def list_steps(core: Core, target: Target, options: ListOptions) -> Steps:
    """``list_records`` in steps, between which others may read and write; the result is of one
    revision.
    """
    check_list(options)
    selection = select(target.resource, options, core.config.gates)
    limit = min(max(options.limit, 0), _LIMIT_MAX)
    version = list_version(options.resource_version)
    if options.continue_token:
        if version:
            raise bad_request("specifying resource version is not allowed when using continue")
        return (yield from _continue(core, target, selection, limit, options.continue_token))
    _check_not_beyond(core, target, version)
    match = options.resource_version_match
    if version == 0 and not target.resource.uncached:
        limit = 0
    exact = match == EXACT or (not match and bool(version) and limit > 0)
    revision = version if exact and version else core.store.revision
    try:
        return (yield from _page(core, target, selection, revision=revision, after="", limit=limit))
    except Compacted as error:
        raise expired(_LIST_EXPIRED) from error


def watch_plan(core: Core, target: Target, options: WatchOptions) -> WatchPlan:
    """Raises StatusError: 400 (selectors), 422 (options), 500 (a version that is not a number).

    The hub reports a version that is too old, on the stream.
    """
    check_watch(options)
    selection = select(target.resource, options, core.config.gates)
    version = read_version(options.resource_version)
    initial = options.send_initial_events
    if initial is None:
        initial = not version
    beyond = version is not None and version > core.store.revision
    return WatchPlan(
        resource=target.requested,
        namespace=target.namespace or selection.namespace or "",
        name=target.name or selection.name or "",
        matches=selection.matches,
        selector=selection.text,
        initial=initial,
        since=None if initial or not version else version,
        bookmarks=options.allow_bookmarks,
        wait_for=version if initial and beyond else None,
        timeout_s=options.timeout_s,
        newest=version is None,
    )


def _check_not_beyond(core: Core, target: Target, version: int | None) -> None:
    if version is not None and version > core.store.revision:
        raise too_large_resource_version(
            version, core.store.revision, retry=not target.resource.uncached
        )


def _continue(
    core: Core, target: Target, selection: RecordSelection, limit: int, token: str
) -> Steps:
    position = decode_continue(token)
    if position.revision > core.store.revision:
        raise too_large_resource_version(position.revision, core.store.revision)
    revision = core.store.revision if position.revision == NEWEST else position.revision
    try:
        after = position.after(target.namespace)
        return (
            yield from _page(core, target, selection, revision=revision, after=after, limit=limit)
        )
    except Compacted as error:
        fresh = encode_continue_start(NEWEST, f"/{position.start}")
        raise expired(_TOKEN_EXPIRED, {"continue": fresh}) from error


def _page(
    core: Core, target: Target, selection: RecordSelection, *, revision: int, after: str, limit: int
) -> Steps:
    """Returns at most *limit* (0: all) matching records after *after*, at *revision*.  Raises
    Compacted.
    """
    resource = target.resource
    namespace = target.namespace
    matching = yield from _scan(
        core, target, selection, revision=revision, after=after, count=limit + 1 if limit else 0
    )
    more = bool(limit) and len(matching) > limit
    records = tuple(matching[:limit] if limit else matching)
    remaining = None
    if more and selection.matches is None:
        remaining = core.store.count_after(
            resource.storage_key, namespace=namespace, after=records[-1].key.path, revision=revision
        )
    token = encode_continue(revision, records[-1].key.path, namespace) if more else ""
    return ListOutcome(
        records=records,
        resource_version=revision,
        continue_token=token,
        remaining=remaining,
        shard=selection.shard,
    )


def _scan(
    core: Core,
    target: Target,
    selection: RecordSelection,
    *,
    revision: int,
    after: str,
    count: int,
) -> Generator[None, None, list[Record]]:
    """Returns matching records in key order, at most *count* (0: all), and scans no more than
    needed.
    """
    store = core.store
    resource = target.resource
    namespace = target.namespace
    matches = selection.matches
    if matches is not None:
        if namespace and selection.namespace not in (None, namespace):
            return []
        namespace = namespace or (resource.namespaced and selection.namespace) or ""
        if (
            selection.name is not None
            and (namespace or not resource.namespaced)
            and revision == store.revision
        ):
            key = Key(resource.storage_key, namespace, selection.name)
            record = store.get(key)
            return [record] if record is not None and key.path > after and matches(record) else []
    matching: list[Record] = []
    while True:
        most = _CHUNK_RECORDS
        if matches is None and count:
            most = min(most, count - len(matching))
        chunk = store.scan(
            resource.storage_key, namespace=namespace, revision=revision, after=after, limit=most
        )
        matching.extend(chunk if matches is None else filter(matches, chunk))
        if len(chunk) < most or len(matching) >= count > 0:
            return matching[:count] if count else matching
        after = chunk[-1].key.path
        yield
