"""Sets of fields: their elements, and their algebra.

A path element is one step from an object to a part of it, spelled as in ``FieldsV1``.

    ==================  =======================================  ==========================
    spelling            stands for                               shown in messages as
    ==================  =======================================  ==========================
    ``f:NAME``          a field of a struct, an entry of a map   ``.NAME``
    ``k:{"a":1}``       the element of a list with these keys    ``[a=1]``
    ``v:"x"``           the element of a set with this value     ``[="x"]``
    ``i:3``             an element by its position               ``[3]``
    ==================  =======================================  ==========================

One element has one spelling here (keys sorted by name, compact JSON), so that elements are compared
as text; what clients send is brought to that form by ``canonical_element``. Spellings repeat from
object to object and from write to write, which is why what is derived from one is remembered.

A set is the tree that ``FieldsV1`` writes down: a dictionary from path elements to what the set has
below them. A path is a **member** if its node is empty (a leaf) or has the entry ``"."``; nodes
without members do not exist. So ``{"f:a": {}, "f:b": {".": {}, "f:c": {}}}`` has the members
``.a``, ``.b`` and ``.b.c``. The root is never a member.

Because the wire form is the working form, a stored set costs nothing to read, and equality is
equality of dictionaries. Sets are never changed once made and share nodes; an operation that
changes nothing returns its first argument itself, which is how callers see that nothing changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from sliceplane.api.errors import show as show_value
from sliceplane.kit.containers import remembered
from sliceplane.server.documents.schema.walks import DEPTH_MAX, deeper_than

#: spellings remembered; the names of some thousand labels and ports
_REMEMBERED: Final = 8192

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
#: what JSON has, in the order in which upstream sorts values of different types
_RANKS: Final[dict[type, int]] = {
    int: 0,
    float: 0,
    str: 1,
    bool: 2,
    list: 3,
    dict: 4,
    type(None): 5,
}


class MalformedElement(ValueError):
    """A spelling that cannot be read; the text says why."""


def key_element(pairs: list[tuple[str, Any]]) -> str:
    """The element of a list by its *pairs* of key and value."""
    return f"k:{_encode(dict(sorted(pairs))).decode()}"


def value_element(scalar: Any) -> str:
    return f"v:{_encode(scalar).decode()}"


@remembered(_REMEMBERED)
def canonical_element(text: str) -> str | None:
    """The one spelling of an element; ``None`` for an unknown sort, to be passed over.  Raises
    ``MalformedElement``.
    """
    if len(text) < 2:
        raise MalformedElement("key must be 2 characters long:")
    sort = text[0]
    body = text[2:]
    if text[1] != ":":
        raise MalformedElement(f"missing colon: {text}")
    if sort == "f":
        return text
    if sort not in "kvi":
        return None
    try:
        decoded = _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedElement(str(error)) from error
    if deeper_than(decoded, DEPTH_MAX):
        raise MalformedElement("exceeded max depth")
    if sort == "k":
        if not isinstance(decoded, dict):
            raise MalformedElement(f"not an object: {body}")
        return key_element(list(decoded.items()))
    if sort == "i":
        if type(decoded) is not int:
            raise MalformedElement(f"not a position: {body}")
        return f"i:{decoded}"
    return value_element(decoded)


def _value_order(scalar: Any) -> tuple[int, Any]:
    rank = _RANKS[type(scalar)]
    return rank, scalar if rank < 3 else repr(scalar)


@remembered(_REMEMBERED)
def element_order(text: str) -> tuple[int, Any]:
    """Returns the sort key of an element among its siblings: itself, fields, keys, values,
    positions; each in its own order.
    """
    sort = text[:2]
    body = text[2:]
    match sort:
        case "f:":
            return 1, body
        case "k:":
            return 2, tuple((name, _value_order(scalar)) for name, scalar in _decode(body).items())
        case "v:":
            return 3, _value_order(_decode(body))
        case "i:":
            return 4, int(body)
    return 0, ""


@remembered(_REMEMBERED)
def show_element(text: str) -> str:
    """The element as messages show it."""
    sort = text[:2]
    body = text[2:]
    match sort:
        case "f:":
            return f".{body}"
        case "k:":
            pairs = ",".join(
                f"{name}={show_value(scalar)}" for name, scalar in _decode(body).items()
            )
            return f"[{pairs}]"
        case "v:":
            return f"[={show_value(_decode(body))}]"
    return f"[{body}]"


FieldSet = dict[str, "FieldSet"]
Path = tuple[str, ...]

#: the entry of a node that is a member and has more below it
SELF: Final = "."
EMPTY: Final[FieldSet] = {}


def is_member(node: FieldSet) -> bool:
    return not node or SELF in node


def node_of(member: bool, below: FieldSet) -> FieldSet | None:
    """The node that has *below* under it and is a *member* or not; ``None`` if there is nothing to
    say.
    """
    if not below:
        return {} if member else None
    return {SELF: {}, **below} if member else below


def of_paths(paths: list[Path]) -> FieldSet:
    result: FieldSet = {}
    for path in paths:
        one: FieldSet = {}
        for element in reversed(path):
            one = {element: one}
        _gather(result, one)
    return result


def has(fields: FieldSet, path: Path) -> bool:
    node = fields
    for element in path:
        below = node.get(element)
        if below is None:
            return False
        node = below
    return bool(path) and is_member(node)


def paths(fields: FieldSet, before: Path = ()) -> Iterator[Path]:
    """All members: at each level those of the level, in order, and then those below."""
    inner = sorted((element for element in fields if element != SELF), key=element_order)
    for element in inner:
        if is_member(fields[element]):
            yield (*before, element)
    for element in inner:
        yield from paths(fields[element], (*before, element))


def show(path: Path) -> str:
    """``.spec.ports[port=80,protocol="TCP"].name``."""
    return "".join(show_element(element) for element in path)


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    if not right or left is right:
        return left
    result = left
    for element, theirs in right.items():
        mine = left.get(element)
        if mine is None:
            node = theirs
        elif mine is theirs or element == SELF:
            continue
        elif not theirs:
            node = mine if is_member(mine) else {SELF: {}, **mine}
        elif not mine:
            node = theirs if SELF in theirs else {SELF: {}, **theirs}
        else:
            node = union(mine, theirs)
        if node is mine:
            continue
        if result is left:
            result = dict(left)
        result[element] = node
    return result


def union_of(sets: Iterable[FieldSet]) -> FieldSet:
    """Returns the union of any number of sets, in the time of all their sizes; repeated ``union``
    would copy the first one each time.
    """
    result: FieldSet = {}
    for fields in sets:
        _gather(result, fields)
    return result


def _gather(into: FieldSet, more: FieldSet) -> None:
    """Add *more* to *into*, whose nodes are all its own."""
    for element, theirs in more.items():
        mine = into.get(element)
        if mine is None:
            mine = into[element] = {}
        elif element == SELF:
            continue
        elif bool(mine) != bool(theirs):
            # One of the two is a leaf, and stays a member with what the other has below it.
            mine[SELF] = {}
        _gather(mine, theirs)


def difference(left: FieldSet, right: FieldSet, *, whole: bool = False) -> FieldSet:
    """Members of *left* that are not members of *right*. What is below a member of *right* stays,
    unless that goes as a *whole*.
    """
    if not right or not left:
        return left
    result = left
    for element, mine in left.items():
        theirs = right.get(element)
        if theirs is None or element == SELF:
            continue
        taken = is_member(theirs)
        if whole and taken:
            node = None
        else:
            below = difference(mine, theirs, whole=whole)
            if not taken or not is_member(mine):
                # Membership stays as it is; a node that is left with "." alone is a leaf.
                node = below if below is mine else _tidy(below)
            else:
                node = node_of(False, {name: kept for name, kept in below.items() if name != SELF})
            if node is mine:
                continue
        if result is left:
            result = dict(left)
        if node is None:
            del result[element]
        else:
            result[element] = node
    return result


def _tidy(node: FieldSet) -> FieldSet | None:
    """A node whose children may all have gone."""
    if len(node) == 1 and SELF in node:
        return {}
    return node or None


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    result: FieldSet = {}
    for element, mine in left.items():
        theirs = right.get(element)
        if theirs is None or element == SELF:
            continue
        node = node_of(is_member(mine) and is_member(theirs), intersection(mine, theirs))
        if node is not None:
            result[element] = node
    return result


def leaves(fields: FieldSet) -> FieldSet:
    """Members that have no members below them."""
    return {element: leaves(node) for element, node in fields.items() if element != SELF}


def renamed(fields: FieldSet, names: dict[str, str]) -> FieldSet:
    """The same members under other names of top-level fields."""
    if not names:
        return fields
    return {f"f:{names.get(element[2:], element[2:])}": node for element, node in fields.items()}


def ordered(fields: FieldSet) -> FieldSet:
    """Equal, with elements in the order in which they are written."""
    names = fields if len(fields) < 2 else sorted(fields, key=element_order)
    # Most nodes are leaves, which all may share.
    return {element: ordered(fields[element]) if fields[element] else EMPTY for element in names}


def from_wire(value: Any) -> FieldSet:
    """A set that a client sent, in canonical form.  Raises ``MalformedElement``."""
    result: FieldSet = {}
    for element, below in _object(value).items():
        if element != SELF:
            _add(result, element, below)
    return result


def _add(into: FieldSet, element: str, value: Any) -> None:
    spelled = canonical_element(element)
    if spelled is None:
        return
    below = from_wire(value)
    # What has nothing below that means anything is a leaf, as upstream reads it.
    node = node_of(not below or SELF in value, below)
    assert node is not None, f"{element} has neither itself nor anything below"
    if spelled in into:
        # One element may be spelled in many ways.
        _gather(into, {spelled: node})
    else:
        into[spelled] = node


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedElement("a set of fields is made of objects")
    return value
