"""``Struct``: classes whose members are their annotations, kept in slots, with an ``__init__`` that
is generated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, dataclass_transform


class _NoDefault:
    def __repr__(self) -> str:
        return "NODEFAULT"


NODEFAULT: Final = _NoDefault()


class Raw(bytes):
    """A value that stays encoded."""

    __slots__ = ()


class _Field(NamedTuple):
    """What ``field()`` returns."""

    default: Any
    default_factory: Any
    name: str | None


def field(
    *, default: Any = NODEFAULT, default_factory: Any = NODEFAULT, name: str | None = None
) -> Any:
    """A member with a factory, or with another name in its encoded form."""
    return _Field(default, default_factory, name)


class Member(NamedTuple):
    """One member of a class: its name, its encoded name, and how a new value gets it."""

    name: str
    wire: str
    default: Any
    factory: Any
    kw_only: bool

    @property
    def required(self) -> bool:
        return self.default is NODEFAULT and self.factory is NODEFAULT

    def is_default(self, value: Any) -> bool:
        """By identity, as msgspec: a word that was read and is equal to a default is written
        again.
        """
        if self.factory in (list, dict, set):
            return type(value) is self.factory and not value
        return value is self.default


class Config(NamedTuple):
    """The options of a class that its subclasses inherit."""

    frozen: bool = False
    rename: Any = None
    omit_defaults: bool = False
    forbid_unknown_fields: bool = False
    array_like: bool = False


def _camel(name: str) -> str:
    first, *rest = name.lstrip("_").rstrip("_").split("_")
    return (
        "_" * (len(name) - len(name.lstrip("_")))
        + first
        + "".join(word.capitalize() for word in rest)
    )


def _renamed(name: str, rename: Any) -> str:
    if rename is None:
        return name
    if isinstance(rename, Mapping):
        return str(rename.get(name, name))
    return _camel(name) if rename == "camel" else name.strip("_").replace("_", "-")


def _is_class_variable(annotation: Any) -> bool:
    return "ClassVar" in (annotation if isinstance(annotation, str) else repr(annotation))


def _init(
    members: tuple[Member, ...], setters: dict[str, Any], finish: Callable[[Any], object] | None
) -> Any:
    """The constructor: every member is a parameter, in the class's order."""
    scope: dict[str, Any] = {"NODEFAULT": NODEFAULT, "finish": finish}
    parameters, lines = ["self"], []
    for number, member in enumerate(members):
        if member.kw_only and (number == 0 or not members[number - 1].kw_only):
            parameters.append("*")
        scope[f"set_{number}"] = setters[member.name]
        scope[f"default_{number}"] = member.default
        scope[f"factory_{number}"] = member.factory
        parameters.append(member.name if member.required else f"{member.name}=default_{number}")
        made = (
            f"factory_{number}() if {member.name} is NODEFAULT else "
            if member.factory is not NODEFAULT
            else ""
        )
        lines.append(f"    set_{number}(self, {made}{member.name})")
    if finish is not None:
        lines.append("    finish(self)")
    source = f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines or ["    pass"])
    exec(source, scope)
    return scope["__init__"]


@dataclass_transform(field_specifiers=(field,))
class _StructMeta(type):
    """Reads the annotations of a class."""

    __members__: tuple[Member, ...]
    __struct_config__: Config

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        kw_only: bool = False,
        **options: Any,
    ) -> Any:
        known: dict[str, Member] = {}
        inherited: dict[str, Any] = {}
        for base in reversed(bases):
            if isinstance(base, _StructMeta):
                known.update({member.name: member for member in base.__members__})
                inherited.update(base.__struct_config__._asdict())
        options.pop("gc", None)  # for the compiled class
        config = Config(**{**inherited, **options})
        slots: list[str] = []
        annotations = (
            namespace.get("__annotations__", {}) if bases else {}
        )  # ``Struct`` itself has no members
        for attribute, annotation in annotations.items():
            if _is_class_variable(annotation):
                continue
            given = namespace.pop(attribute, NODEFAULT)
            told = given if isinstance(given, _Field) else _Field(given, NODEFAULT, None)
            if type(told.default) in (list, dict, set):
                told = told._replace(default=NODEFAULT, default_factory=type(told.default))
            if attribute not in known:
                slots.append(attribute)
            wire = told.name or _renamed(attribute, config.rename)
            known[attribute] = Member(attribute, wire, told.default, told.default_factory, kw_only)
        members = tuple(sorted(known.values(), key=lambda member: member.kw_only))
        made: Any = super().__new__(cls, name, bases, {**namespace, "__slots__": slots})
        made.__members__ = members
        made.__struct_config__ = config
        made.__struct_fields__ = tuple(member.name for member in members)
        made.__struct_encode_fields__ = tuple(member.wire for member in members)
        made.__match_args__ = tuple(member.name for member in members if not member.kw_only)
        setters = {member.name: getattr(made, member.name).__set__ for member in members}
        made.__setters__ = setters
        if "__init__" not in namespace:
            made.__init__ = _init(members, setters, getattr(made, "__post_init__", None))
        if config.frozen:
            made.__setattr__ = made.__delattr__ = _refuse
            made.__hash__ = namespace.get("__hash__", _hash)
        return made


def _refuse(self: Any, *_: Any) -> None:
    raise AttributeError(f"immutable type: '{type(self).__name__}'")


def _hash(self: Any) -> int:
    return hash((type(self), *(getattr(self, name) for name in self.__struct_fields__)))


class Struct(metaclass=_StructMeta):
    """Base of all; see ``msgspec.Struct``."""

    __members__: tuple[Member, ...]
    __struct_fields__: tuple[str, ...]
    __struct_config__: Config

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__)

    __hash__ = None  # type: ignore[assignment]  # a frozen class has one

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({members})"

    def __copy__(self) -> Any:
        return copied(self, {})

    def __reduce__(self) -> Any:
        return copied, (type(self), {name: getattr(self, name) for name in self.__struct_fields__})


def copied(origin: Any, changes: dict[str, Any]) -> Any:
    """A new value with the members of *origin* (or a class, to have them all from *changes*), and
    with *changes*.
    """
    kind = origin if isinstance(origin, type) else type(origin)
    made = kind.__new__(kind)
    for name, setter in kind.__setters__.items():
        setter(made, changes[name] if name in changes else getattr(origin, name))
    finish = getattr(kind, "__post_init__", None)
    if finish is not None:
        finish(made)
    return made


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Encoded name and value of each member that is encoded."""
    omits = value.__struct_config__.omit_defaults
    for member in value.__members__:
        item = getattr(value, member.name)
        if not omits or member.required or not member.is_default(item):
            yield member.wire, item


def make_struct(
    name: str,
    fields: Any,
    *,
    bases: tuple[type, ...] = (),
    module: str | None = None,
    **options: Any,
) -> type[Struct]:
    """A class that is made at run time: *fields* are names, or names with a type and, maybe, a
    default.
    """
    namespace: dict[str, Any] = {
        "__annotations__": {},
        "__module__": module or sys._getframe(1).f_globals["__name__"],
    }
    for each in fields:
        attribute, annotation, *default = (each, Any) if isinstance(each, str) else each
        namespace["__annotations__"][attribute] = annotation
        if default:
            namespace[attribute] = default[0]
    made: type[Struct] = _StructMeta(name, bases or (Struct,), namespace, **options)
    return made
