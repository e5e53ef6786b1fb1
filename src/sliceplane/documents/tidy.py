"""Documents that are already as they are stored: nothing in them is unknown, of a wrong type, null, or empty where Go
would leave it out.

Most of what is written is: what our controllers send, what a patch makes of a stored object, and what a decoder made
of protobuf.  Each kind becomes a ``msgspec`` struct, as in ``schema.fast``, whose annotations also say what must
not be empty, so that one conversion in C answers for four walks.  *Yes* is final.  *No* means only "look closer".
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Union

import msgspec

from sliceplane.documents.protobuf.nothings import omitted_fields
from sliceplane.documents.schema import fast
from sliceplane.documents.schema.model import Struct, Type, lookup, struct

_SOME: Final = msgspec.Meta(min_length=1)
_MANAGED: Final = "managedFields"


class _Yes:
    """A boolean that must be true; ``msgspec`` has no word for it, so it asks ``_hook``."""


def is_tidy(schema_key: str, document: object) -> bool:
    """True only if decoding (``registry.decoding``) would change nothing but times and defaults.

    ``metadata.managedFields`` need only be of the right types: an empty list is not nothing there.
    """
    model = _top(schema_key)
    if model is None:
        return False
    try:
        msgspec.convert(document, model, dec_hook=_hook)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _hook(kind: type, value: object) -> object:
    if kind is not _Yes or value is not True:
        raise ValueError("not true")
    return _YES


_YES: Final = _Yes()


@cache
def _top(schema_key: str) -> type[msgspec.Struct] | None:
    """``None`` where it is not known which fields Go leaves out."""
    schema = lookup(schema_key)
    return None if omitted_fields(_message(schema)) is None else _model(schema.name, kind=True)


def _message(schema: Struct) -> str:
    """The name of its protobuf message."""
    return schema.full_name.replace("io.k8s.", "k8s.io.", 1)


@cache
def _model(name: str, *, kind: bool = False, own_metadata: bool = False) -> type[msgspec.Struct]:
    """*kind*: it is a whole object; *own_metadata*: it is the metadata of one."""
    schema = struct(name)
    omitted = omitted_fields(_message(schema)) or frozenset()
    annotations = []
    for field in schema.fields.values():
        if own_metadata and field.name == _MANAGED:
            annotations.append(fast.annotation(field.type))
        elif kind and field.name == "metadata":
            annotations.append(_model(field.type.name, own_metadata=True))
        else:
            annotations.append(_annotation(field.type, said=field.name in omitted))
    return fast.define(name, list(schema.fields), annotations)


def _annotation(kind: Type, *, said: bool = False) -> Any:
    """*said*: it is left out if it says nothing."""
    match kind.kind:
        case "struct":
            return _model(kind.name)
        case "list":
            # An empty list never stays, wherever it is.
            return Annotated[list[_annotation(kind.element)], _SOME]  # type: ignore[misc]  # a type made at run time
        case "map":
            made: Any = dict[str, _annotation(kind.element)]  # type: ignore[misc]  # a type made at run time
            return Annotated[made, _SOME] if said else made
        case "any":
            return _free_form()
        case scalar:
            return _said(scalar) if said else fast.scalar(scalar)


def _said(scalar: str) -> Any:
    # A negative number says something too, and takes the longer way.
    match scalar:
        case "bool":
            return _Yes
        case "int32":
            return Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
        case "int64":
            return Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
        case "string" | "bytes":
            return Annotated[fast.scalar(scalar), _SOME]
    return fast.scalar(scalar)


def _free_form() -> Any:
    leaf = str | int | float | bool
    value: Any = leaf
    for _ in range(fast.FREE_FORM_DEPTH_MAX):
        value = Union[leaf, dict[str, value], Annotated[list[leaf], _SOME]]  # noqa: UP007  # made at run time
    return value
