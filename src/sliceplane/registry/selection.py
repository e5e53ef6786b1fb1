"""From selector texts to one question about a record (reference B12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sliceplane.api.scheme import Resource
from sliceplane.api.selectors import parse_fields, parse_labels
from sliceplane.store.types import Record


@dataclass(frozen=True, slots=True)
class Selection:
    """``matches`` is ``None`` if everything matches.  ``text`` is equal for equal selections.

    ``name`` and ``namespace`` are set where only that one can match.
    """

    matches: Callable[[Record], bool] | None
    text: str
    name: str | None = None
    namespace: str | None = None


def select(resource: Resource, label_selector: str, field_selector: str) -> Selection:
    """Raises a 400 StatusError if a text does not parse or names an unknown field."""
    labels = parse_labels(label_selector)
    fields = parse_fields(field_selector, resource)
    if labels.empty and fields.empty:
        return Selection(None, "")
    by_label, by_field = labels.matches, fields.matches
    text = f"{labels}\n{fields}"
    if fields.empty:
        return Selection(lambda record: by_label(record.labels), text)

    def matches(record: Record) -> bool:
        return by_label(record.labels) and by_field(record.key.name, record.key.namespace, record.fields)

    return Selection(matches, text, fields.exact_name, fields.exact_namespace)
