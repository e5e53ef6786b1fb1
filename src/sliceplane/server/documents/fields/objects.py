"""Sets and documents: the fields that a configuration sets, merging it into an object, and taking
fields away.

No function changes what it is given; results share parts with it.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.meta import Document
from sliceplane.server.documents.fields import sets
from sliceplane.server.documents.fields.sets import SELF, FieldSet
from sliceplane.server.documents.fields.shape import (
    KeyedShape,
    Leaf,
    MapShape,
    SetShape,
    Shape,
    StructShape,
    Unkeyed,
    by_element,
    element_of,
    member_shape,
)


def set_of(shape: StructShape, document: Document) -> FieldSet:
    """The fields that *document* sets.

    Leaves are members; so are elements of lists, entries of maps and everything that is empty. A
    struct or a list that has something is none: it is there because of what is in it.
    """
    return _below(shape, document)


def _below(shape: Shape, value: Any) -> FieldSet:
    result: FieldSet = {}
    match shape:
        case StructShape():
            for name, member in value.items():
                inner = shape.fields.get(name)
                if inner is None:
                    continue
                node = sets.node_of(isinstance(inner, Leaf) or member == {}, _below(inner, member))
                if node is not None:
                    result[f"f:{name}"] = node
        case MapShape():
            for name, member in value.items():
                result[f"f:{name}"] = _member(shape.item, member)
        case KeyedShape() | SetShape():
            item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
            for element, same in by_element(shape, value).items():
                result[element] = _member(item, same[0]) if len(same) == 1 else {}
    return result


def _member(shape: Shape, value: Any) -> FieldSet:
    node = sets.node_of(True, _below(shape, value))
    assert node is not None, "a member has a node"
    return node


def merge(shape: Shape, live: Any, config: Any) -> Any:
    """*live* with what *config* says: maps and structs by their members, lists by their elements,
    leaves as a whole.

    Elements that *config* names stand in its order; those it does not name stay where they are
    between them.
    """
    if isinstance(shape, Leaf) or live is None or not (live or config):
        return config
    if isinstance(shape, StructShape | MapShape):
        result = dict(live)
        for name, member in config.items():
            below = shape.item if isinstance(shape, MapShape) else shape.fields.get(name)
            result[name] = merge(below or Leaf(), result.get(name), member)
        return result
    item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
    config_by_element = {element_of(shape, entry): entry for entry in config}
    present = by_element(shape, live)
    merged = []
    for element, mine in _interleaved(shape, live, list(config_by_element), present):
        if element not in config_by_element:
            merged.append(mine)
        else:
            same = present.get(element, [])
            # Of elements that are there twice, either may be meant: both make room for the
            # configured one.
            merged.append(
                merge(item, same[0], config_by_element[element])
                if len(same) == 1
                else config_by_element[element]
            )
    return merged


def _interleaved(
    shape: KeyedShape | SetShape,
    live: list[Any],
    config_elements: list[str],
    present: dict[str, list[Any]],
) -> list[tuple[str, Any]]:
    """The order of a merged list: pairs of path element and, for those that are only in *live*, the
    element itself.

    Elements in both lists are the anchors, in the order of *config_elements*. Before each anchor
    comes what *live* alone has before it, then what *config_elements* alone has; what *live* alone
    has at its end comes before the end of *config_elements*.
    """
    live_pairs: list[tuple[str, Any]] = []
    for item in live:
        try:
            live_pairs.append((element_of(shape, item), item))
        except Unkeyed:
            live_pairs.append(("", item))
    anchors = [element for element in config_elements if element in present]
    named = frozenset(config_elements)
    ordered: list[tuple[str, Any]] = []
    at = 0
    taken = 0
    for anchor in [*anchors, None]:
        while at < len(live_pairs) and live_pairs[at][0] != anchor:
            if live_pairs[at][0] not in named:
                ordered.append(live_pairs[at])
            at += 1
        at += 1
        while taken < len(config_elements) and config_elements[taken] != anchor:
            ordered.append((config_elements[taken], None))
            taken += 1
        if anchor is not None:
            ordered.append((anchor, None))
            taken += 1
    return ordered


def remove(shape: Shape, value: Any, fields: FieldSet) -> Any:
    """*value* without the members of *fields*, and without what is below them.  What becomes empty
    stays, empty.
    """
    if not fields or isinstance(shape, Leaf) or not value:
        return value
    if isinstance(shape, StructShape | MapShape):
        result: Document = {}
        for name, member in value.items():
            node = fields.get(f"f:{name}")
            if node is None:
                result[name] = member
            elif not sets.is_member(node):
                below = shape.item if isinstance(shape, MapShape) else shape.fields.get(name)
                result[name] = remove(below or Leaf(), member, node)
        return result
    kept = []
    item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
    for element in value:
        try:
            node = fields.get(element_of(shape, element))
        except Unkeyed:
            node = None
        if node is None:
            kept.append(element)
        elif not sets.is_member(node):
            kept.append(remove(item, element, node))
    return kept


def with_named_fields(shape: Shape | None, fields: FieldSet) -> FieldSet:
    """*fields* with every declared field that has a member below it as a member too.

    What no configuration has anything in any more can then go as a whole, without leaving empty
    structs behind.
    """
    result: FieldSet = {}
    for element, node in fields.items():
        if element == SELF:
            result[element] = node
            continue
        below = None if shape is None else member_shape(shape, element)
        inner = with_named_fields(below, node)
        declared = isinstance(shape, StructShape) and below is not None
        if inner and declared and SELF not in inner:
            inner = {SELF: {}, **inner}
        result[element] = inner
    return result
