"""The quick yes: is a document good enough that no walk would complain of it?

Each schema becomes a ``msgspec`` struct that forbids unknown fields, and converting a document into
it checks the whole of it in C (a slice of 100 endpoints: 65 us, where a walk takes 650 us). The
answer *yes* is final; the answer *no* only means "look closer": the walks in ``check`` have the
last word and the wording.

Structs are made when a kind is first written, a few milliseconds for a Pod, and live as long as the
process.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Union

import msgspec

from sliceplane.api.schema import Type, lookup, struct
from sliceplane.server.documents.schema.scalars import (
    BASE64_PATTERN,
    MICRO_TIME_PATTERN,
    QUANTITY_PATTERN,
    TIME_PATTERN,
)

#: levels of objects below a free-form field (``fieldsV1`` of a Deployment has 9); deeper is no
#: quick yes
FREE_FORM_DEPTH_MAX: Final = 16

_INT32: Final = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_INT64: Final = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


def _text(pattern: str) -> Any:
    return Annotated[str, msgspec.Meta(pattern=pattern)]


def _free_form() -> Any:
    """JSON of a bounded depth: what is accepted here must never be too deep for a walk elsewhere.

    Lists have scalars only. ``fieldsV1`` has none at all, and a type that branched at every level
    would double with each of them.
    """
    leaf = str | int | float | bool | None
    value: Any = leaf
    for _ in range(FREE_FORM_DEPTH_MAX):
        value = Union[leaf, dict[str, value], list[leaf]]  # noqa: UP007  # "|" cannot join a type made at run time
    return value


_SCALARS: Final[dict[str, Any]] = {
    "any": _free_form(),
    "bool": bool,
    "bytes": _text(BASE64_PATTERN),
    "int32": _INT32,
    "int64": _INT64,
    "intOrString": _INT32 | str,
    "microTime": _text(MICRO_TIME_PATTERN),
    "quantity": _text(QUANTITY_PATTERN),
    "string": str,
    "time": _text(TIME_PATTERN),
}


def accepts(resource_key: str, document: object) -> bool:
    """True only if neither ``unknown_in`` nor ``first_mismatch`` would complain of *document*, and
    its depth is that of the kind.
    """
    try:
        msgspec.convert(document, _model(lookup(resource_key).name))
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


@cache
def _model(name: str) -> type[msgspec.Struct]:
    fields = struct(name).fields
    return define(name, list(fields), [annotation(field.type) for field in fields.values()])


def define(name: str, members: list[str], annotations: list[Any]) -> type[msgspec.Struct]:
    """A struct of the definition *name* that knows *members* and no others, all of which may be
    absent.
    """
    # The attributes have neutral names, since a field may be called like a keyword ("continue").
    rename = {f"f{position}": member for position, member in enumerate(members)}
    fields = [(attribute, kind, None) for attribute, kind in zip(rename, annotations, strict=True)]
    return msgspec.defstruct(
        name.replace(".", "_"),
        fields,
        rename=rename,
        forbid_unknown_fields=True,
        gc=False,
        module=__name__,
    )


def scalar(kind: str) -> Any:
    """Returns the annotation of a scalar; null is none."""
    return _SCALARS[kind]


def annotation(kind: Type) -> Any:
    """Returns the annotation of a type. Every type takes null too, as Go's decoding does."""
    match kind.kind:
        case "struct":
            return _model(kind.name) | None
        case "list":
            return list[annotation(kind.element)] | None  # type: ignore[misc]  # a type made at run time
        case "map":
            return dict[str, annotation(kind.element)] | None  # type: ignore[misc]  # a type made at run time
        case other:
            return _SCALARS[other] | None
