"""From selector texts to one question about a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sliceplane.api.gates import SHARDED_LIST_AND_WATCH, Gates
from sliceplane.api.scheme import Resource
from sliceplane.api.selectors import parse_fields, parse_labels
from sliceplane.api.selectors.shards import parse_shards
from sliceplane.registry.types import ListOptions, WatchOptions
from sliceplane.store.types import Record


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """``matches`` is ``None`` if everything matches.  ``text`` is equal for equal selections.

    ``name`` and ``namespace`` are set where only that one can match.  ``shard``: the shard selector, canonically.
    """

    matches: Callable[[Record], bool] | None
    text: str
    name: str | None = None
    namespace: str | None = None
    shard: str = ""


def select(resource: Resource, options: ListOptions | WatchOptions, gates: Gates) -> RecordSelection:
    """Raises a 400 StatusError if a text does not parse or names an unknown field."""
    selection = _by_labels_and_fields(resource, options.label_selector, options.field_selector)
    if options.shard_selector is None or not gates.enabled(SHARDED_LIST_AND_WATCH):
        return selection
    shards = parse_shards(options.shard_selector)
    others = selection.matches

    def matches(record: Record) -> bool:
        return shards.matches(record.uid, record.key.namespace) and (others is None or others(record))

    return replace(selection, matches=matches, text=f"{selection.text}\n{shards}", shard=str(shards))


def _by_labels_and_fields(resource: Resource, label_selector: str, field_selector: str) -> RecordSelection:
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
        return by_label(record.labels) and by_field(record.key.name, record.key.namespace, record.fields)

    return RecordSelection(matches, text, fields.exact_name, fields.exact_namespace)
