"""``msgspec.structs``: functions over instances and classes."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any, NamedTuple

from ._struct import NODEFAULT, Struct, copied


class FieldInfo(NamedTuple):
    """One member, its annotation evaluated."""

    name: str
    encode_name: str
    type: Any
    default: Any = NODEFAULT
    default_factory: Any = NODEFAULT

    @property
    def required(self) -> bool:
        return self.default is NODEFAULT and self.default_factory is NODEFAULT


@cache
def fields(kind: Any) -> tuple[FieldInfo, ...]:
    """The members of a class, or of an instance's class."""
    kind = kind if isinstance(kind, type) else type(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        FieldInfo(member.name, member.wire, hints[member.name], member.default, member.factory)
        for member in kind.__members__
    )


def replace(value: Any, /, **changes: Any) -> Any:
    """A copy of *value* with *changes*."""
    for name in changes:
        if name not in value.__struct_fields__:
            raise TypeError(f"`{type(value).__name__}` has no field {name!r}")
    return copied(value, changes)


def force_setattr(value: Struct, name: str, item: Any) -> None:
    """Sets a member of a value that may be frozen."""
    type(value).__setters__[name](value, item)  # type: ignore[attr-defined]  # the metaclass sets it


def astuple(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value.__struct_fields__)


def asdict(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}
