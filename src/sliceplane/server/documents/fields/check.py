"""Checks of applied configurations, with upstream's messages (KEP-555).

A configuration is looked at before defaults, and everything in it has to mean something: a field
that the kind does not have, a value of another type, or two elements of a list with one key are
refused, not passed over.
"""

from __future__ import annotations

import json
from typing import Any

from sliceplane.api.errors import ERRORS_MAX
from sliceplane.api.schema import SchemaField, Struct, Type
from sliceplane.api.schema import struct as definition
from sliceplane.server.documents.fields import sets
from sliceplane.server.documents.fields.shape import (
    KeyedShape,
    SetShape,
    Unkeyed,
    element_of,
    field_shape,
)
from sliceplane.server.documents.patch.json_and_merge import go_text
from sliceplane.server.documents.schema.walks import ROOT, Complaints, Location, spelled

_NUMBERS = ("int32", "int64")
#: any scalar will do
_UNTYPED = ("intOrString", "quantity")


def check(schema: Struct, document: object) -> str:
    """Returns the problems of *document*, or "". ``.spec.ports: duplicate entries for key
    [port=80]``.
    """
    walk = _ConfigurationWalk()
    walk.value(Type("struct", name=schema.name), document, ROOT)
    if len(walk.errors) < 2:
        return "".join(walk.errors)
    return "\n  ".join(("errors:", *walk.errors))


class _ConfigurationWalk:
    """State of one walk: the complaints."""

    def __init__(self) -> None:
        self.errors = Complaints(ERRORS_MAX, unique=False)

    def complain(self, location: Location, what: str) -> None:
        if not self.errors.full:
            self.errors.add(f"{spelled(location)}: {what}" if location else what)

    def value(
        self, kind: Type, value: Any, location: Location, field: SchemaField | None = None
    ) -> None:
        if value is None or kind.kind == "any":
            return
        match kind.kind:
            case "struct":
                self._struct(kind, value, location)
            case "map":
                if not isinstance(value, dict):
                    self.complain(location, f"expected map, got {_pointed(value)}")
                    return
                for name, member in value.items():
                    self.value(kind.element, member, (location, f".{name}"))
            case "list":
                self._list(kind, value, location, field)
            case _:
                self._scalar(kind.kind, value, location)

    def _struct(self, kind: Type, value: Any, location: Location) -> None:
        if not isinstance(value, dict):
            self.complain(location, f"expected map, got {_pointed(value)}")
            return
        fields = definition(kind.name).fields
        for name, member in value.items():
            field = fields.get(name)
            if field is None:
                self.complain((location, f".{name}"), "field not declared in schema")
                return
            self.value(field.type, member, (location, f".{name}"), field)

    def _list(self, kind: Type, value: Any, location: Location, field: SchemaField | None) -> None:
        if not isinstance(value, list):
            self.complain(location, f"expected list, got {_pointed(value)}")
            return
        shape = field_shape(field) if field is not None else None
        seen: set[str] = set()
        for index, item in enumerate(value):
            step: str | int = index
            if isinstance(shape, KeyedShape | SetShape):
                try:
                    element = element_of(shape, item)
                except Unkeyed as error:
                    self.complain(location, f"element {index}: {error}")
                    return
                step = sets.show_element(element)
                if element in seen:
                    self.complain(location, f"duplicate entries for key {step}")
                seen.add(element)
            self.value(kind.element, item, (location, step))

    def _scalar(self, kind: str, value: Any, location: Location) -> None:
        if kind in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int | float):
                self.complain(location, f"expected numeric (int or float), got {_go_type(value)}")
        elif kind == "bool":
            if not isinstance(value, bool):
                self.complain(location, f"expected boolean, got {_pointed(value)}")
        elif kind in _UNTYPED:
            if isinstance(value, dict | list):
                self.complain(location, f"expected any scalar, got {_pointed(value)}")
        elif not isinstance(value, str):
            self.complain(
                location,
                f"expected string, got &value.valueUnstructured{{Value:{_go_syntax(value)}}}",
            )


def _pointed(value: Any) -> str:
    return f"&{{{value if isinstance(value, str) else go_text(value)}}}"


def _go_type(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case list():
            return "[]interface {}"
    return "map[string]interface {}"


def _go_syntax(value: Any) -> str:
    match value:
        case dict():
            pairs = ", ".join(
                f"{json.dumps(name)}:{_go_syntax(value[name])}" for name in sorted(value)
            )
            return f"map[string]interface {{}}{{{pairs}}}"
        case list():
            return f"[]interface {{}}{{{', '.join(_go_syntax(item) for item in value)}}}"
        case None:
            return "interface {}(nil)"
    return json.dumps(value, ensure_ascii=False)
