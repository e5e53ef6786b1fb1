"""What a write changed: the fields that were added, modified and removed between two documents.

Equal parts are passed over by one comparison in C, so the cost is that of what differs: an EndpointSlice whose
endpoints changed costs the comparison of a list and a set of one element.

A part that is on one side only counts itself and all that it has.  Where both sides have it, only pieces count; a list
or map that is empty on both sides counts as a leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sliceplane.api.meta import Document
from sliceplane.documents.fields.elements import field
from sliceplane.documents.fields.sets import EMPTY, SELF, FieldSet
from sliceplane.documents.fields.shape import LEAF, KeyedShape, Leaf, MapShape, SetShape, Shape, StructShape, by_element

#: shapes whose pieces have names
_NAMED = (StructShape, MapShape)


@dataclass(frozen=True, slots=True)
class FieldsChange:
    added: FieldSet
    modified: FieldSet
    removed: FieldSet


def compare(shape: StructShape, old: Document, new: Document) -> FieldsChange:
    change = FieldsChange({}, {}, {})
    _pieces(shape, old, new, change)
    return change


def whole(shape: Shape, value: Any) -> FieldSet:
    """The node of a part that is on one side only: itself and everything below."""
    if isinstance(shape, Leaf) or not value:
        if not isinstance(shape, StructShape) or not shape.plain:
            return {}
        value = {}
    made: FieldSet = {SELF: {}}
    match shape:
        case StructShape():
            for name, member in value.items():
                below = shape.fields.get(name)
                if below is not None:
                    made[field(name)] = EMPTY if below is LEAF else whole(below, member)
            for name in shape.plain:
                if name not in value:
                    made[field(name)] = whole(shape.fields[name], {})
        case MapShape():
            for name, member in value.items():
                made[field(name)] = EMPTY if shape.item is LEAF else whole(shape.item, member)
        case KeyedShape() | SetShape():
            item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
            for element, same in by_element(shape, value).items():
                made[element] = whole(item, same[0]) if len(same) == 1 else {}
    return made if len(made) > 1 else {}


def _pieces(shape: StructShape | MapShape, old: Document, new: Document, change: FieldsChange) -> None:
    """Compare members of structs and maps."""
    fields = shape.fields if isinstance(shape, StructShape) else None
    plain = shape.plain if isinstance(shape, StructShape) else {}
    for name, after in new.items():
        before = old.get(name)
        if before == after:
            continue
        below = shape.item if isinstance(shape, MapShape) else shape.fields.get(name)
        if below is None:
            continue
        _part(below, field(name), plain.get(name) if before is None else before, after, change)
    for name, before in old.items():
        if name in new:
            continue
        if fields is not None and name not in fields:
            continue
        below = shape.item if isinstance(shape, MapShape) else shape.fields[name]
        _part(below, field(name), before, plain.get(name), change)


def _part(shape: Shape, element: str, before: Any, after: Any, change: FieldsChange) -> None:
    """Compare what is at *element*; at least one side has it.  ``None``: the other side does not."""
    if before is None:
        change.added[element] = whole(shape, after)
    elif after is None:
        change.removed[element] = whole(shape, before)
    elif isinstance(shape, Leaf) or not (before or after):
        if before != after:
            change.modified[element] = {}
    else:
        inner = FieldsChange({}, {}, {})
        if isinstance(shape, _NAMED):
            _pieces(shape, before, after, inner)
        else:
            _elements(shape, before, after, inner)
        for into, found in (
            (change.added, inner.added),
            (change.modified, inner.modified),
            (change.removed, inner.removed),
        ):
            if found:
                into[element] = found


def _elements(shape: KeyedShape | SetShape, old: list[Any], new: list[Any], change: FieldsChange) -> None:
    """Compare lists element by element.  An element that one side has twice is compared as a whole."""
    item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
    before = by_element(shape, old)
    after = by_element(shape, new)
    for element in (*before, *(element for element in after if element not in before)):
        was = before.get(element, [])
        now = after.get(element, [])
        if len(was) < 2 and len(now) < 2:
            if was != now:
                _part(item, element, was[0] if was else None, now[0] if now else None, change)
        elif len(was) > 1 and len(now) > 1:
            if was != now:
                change.modified[element] = {}
        elif len(was) > 1:
            if now:
                _part(item, element, None, now[0], change)
            change.removed[element] = {}
        else:
            if was:
                _part(item, element, was[0], None, change)
            change.added[element] = {}
