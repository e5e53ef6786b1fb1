"""Path elements: one step from an object to a part of it, spelled as in ``FieldsV1``.

    ==================  =======================================  ==========================
    spelling            stands for                               shown in messages as
    ==================  =======================================  ==========================
    ``f:NAME``          a field of a struct, an entry of a map   ``.NAME``
    ``k:{"a":1}``       the element of a list with these keys    ``[a=1]``
    ``v:"x"``           the element of a set with this value     ``[="x"]``
    ``i:3``             an element by its position               ``[3]``
    ==================  =======================================  ==========================

One element has one spelling here (keys sorted by name, compact JSON), so that elements are compared as text; what
clients send is brought to that form by ``canonical``.  Spellings repeat from object to object and from write to write,
which is why what is derived from one is remembered.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sliceplane.api.errors import show as show_value
from sliceplane.documents.schema.walks import DEPTH_MAX, deeper_than
from sliceplane.kit.containers import remembered

#: spellings remembered; the names of some thousand labels and ports
_REMEMBERED: Final = 8192

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
#: what JSON has, in the order in which upstream sorts values of different types
_RANKS: Final[dict[type, int]] = {int: 0, float: 0, str: 1, bool: 2, list: 3, dict: 4, type(None): 5}


class MalformedElement(ValueError):
    """A spelling that cannot be read; the text says why."""


def key(pairs: list[tuple[str, Any]]) -> str:
    """The element of a list by its *pairs* of key and value."""
    return f"k:{_encode(dict(sorted(pairs))).decode()}"


def value(scalar: Any) -> str:
    return f"v:{_encode(scalar).decode()}"


@remembered(_REMEMBERED)
def canonical(text: str) -> str | None:
    """The one spelling of an element; ``None`` for an unknown sort, to be passed over.  Raises ``MalformedElement``."""
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
        return key(list(decoded.items()))
    if sort == "i":
        if type(decoded) is not int:
            raise MalformedElement(f"not a position: {body}")
        return f"i:{decoded}"
    return value(decoded)


def _value_order(scalar: Any) -> tuple[int, Any]:
    rank = _RANKS[type(scalar)]
    return rank, scalar if rank < 3 else repr(scalar)


@remembered(_REMEMBERED)
def order(text: str) -> tuple[int, Any]:
    """Where an element stands among its siblings: itself, fields, keys, values, positions; each in its own order."""
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
def show(text: str) -> str:
    """The element as messages show it."""
    sort = text[:2]
    body = text[2:]
    match sort:
        case "f:":
            return f".{body}"
        case "k:":
            pairs = ",".join(f"{name}={show_value(scalar)}" for name, scalar in _decode(body).items())
            return f"[{pairs}]"
        case "v:":
            return f"[={show_value(_decode(body))}]"
    return f"[{body}]"
