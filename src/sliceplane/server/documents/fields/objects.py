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
    made: FieldSet = {}
    match shape:
        case StructShape():
            for name, member in value.items():
                inner = shape.fields.get(name)
                if inner is None:
                    continue
                node = sets.node_of(isinstance(inner, Leaf) or member == {}, _below(inner, member))
                if node is not None:
                    made[f"f:{name}"] = node
        case MapShape():
            for name, member in value.items():
                made[f"f:{name}"] = _member(shape.item, member)
        case KeyedShape() | SetShape():
            item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
            for element, same in by_element(shape, value).items():
                made[element] = _member(item, same[0]) if len(same) == 1 else {}
    return made


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
        made = dict(live)
        for name, member in config.items():
            below = shape.item if isinstance(shape, MapShape) else shape.fields.get(name)
            made[name] = merge(below or Leaf(), made.get(name), member)
        return made
    item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
    wanted = {element_of(shape, entry): entry for entry in config}
    present = by_element(shape, live)
    merged = []
    for element, mine in _interleaved(shape, live, list(wanted), present):
        if element not in wanted:
            merged.append(mine)
        else:
            same = present.get(element, [])
            # Of elements that are there twice, either may be meant: both make room for the wanted
            # one.
            merged.append(
                merge(item, same[0], wanted[element]) if len(same) == 1 else wanted[element]
            )
    return merged


def _interleaved(
    shape: KeyedShape | SetShape, live: list[Any], wanted: list[str], present: dict[str, list[Any]]
) -> list[tuple[str, Any]]:
    """The order of a merged list: pairs of path element and, for those that are only in *live*, the
    element itself.

    Elements in both lists are the anchors, in the order of *wanted*. Before each anchor comes what
    *live* alone has before it, then what *wanted* alone has; what *live* alone has at its end comes
    before the end of *wanted*.
    """
    left: list[tuple[str, Any]] = []
    for item in live:
        try:
            left.append((element_of(shape, item), item))
        except Unkeyed:
            left.append(("", item))
    anchors = [element for element in wanted if element in present]
    named = frozenset(wanted)
    made: list[tuple[str, Any]] = []
    at = 0
    taken = 0
    for anchor in [*anchors, None]:
        while at < len(left) and left[at][0] != anchor:
            if left[at][0] not in named:
                made.append(left[at])
            at += 1
        at += 1
        while taken < len(wanted) and wanted[taken] != anchor:
            made.append((wanted[taken], None))
            taken += 1
        if anchor is not None:
            made.append((anchor, None))
            taken += 1
    return made


def remove(shape: Shape, value: Any, fields: FieldSet) -> Any:
    """*value* without the members of *fields*, and without what is below them.  What becomes empty
    stays, empty.
    """
    if not fields or isinstance(shape, Leaf) or not value:
        return value
    if isinstance(shape, StructShape | MapShape):
        made: Document = {}
        for name, member in value.items():
            node = fields.get(f"f:{name}")
            if node is None:
                made[name] = member
            elif not sets.is_member(node):
                below = shape.item if isinstance(shape, MapShape) else shape.fields.get(name)
                made[name] = remove(below or Leaf(), member, node)
        return made
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
    made: FieldSet = {}
    for element, node in fields.items():
        if element == SELF:
            made[element] = node
            continue
        below = None if shape is None else member_shape(shape, element)
        inner = with_named_fields(below, node)
        declared = isinstance(shape, StructShape) and below is not None
        if inner and declared and SELF not in inner:
            inner = {SELF: {}, **inner}
        made[element] = inner
    return made
