"""Shapes: the schema of a kind, reduced to what merging and comparing need; and the fields that a
write added, modified and removed between two documents.

A part is a leaf (it has one owner as a whole: scalars, atomic lists and maps, atomic structs,
free-form JSON), or it is owned piece by piece: a struct by its fields, a map by its entries, a
keyed list by its elements, a set by its values. Lists are atomic unless the schema says otherwise,
maps are not. Shapes are made once for each definition, frozen, and shared.

Equal parts are passed over by one comparison in C, so the cost is that of what differs: an
EndpointSlice whose endpoints changed costs the comparison of a list and a set of one element. A
part that is on one side only counts itself and all that it has. Where both sides have it, only
pieces count; a list or map that is empty on both sides counts as a leaf.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from sliceplane.api.meta import Document
from sliceplane.api.schema import SchemaField, Struct, Type, lookup
from sliceplane.api.schema import struct as definition
from sliceplane.server.documents.fields.sets import (
    EMPTY,
    SELF,
    FieldSet,
    key_element,
    value_element,
)

#: fields that Go has as plain structs, beside every ``metadata``, ``spec`` and ``status``: they are
#: there, empty, where a document leaves them out, so that no manager is recorded for them
_PLAIN: Final = frozenset(
    (
        "apps.DeploymentSpec.strategy",
        "apps.DeploymentSpec.template",
        "apps.ReplicaSetSpec.template",
        "core.Container.resources",
        "core.ContainerStatus.lastState",
        "core.ContainerStatus.state",
        "core.EphemeralContainer.resources",
        "core.Event.involvedObject",
        "core.Event.source",
        "core.NodeDaemonEndpoints.kubeletEndpoint",
        "core.NodeStatus.daemonEndpoints",
        "core.NodeStatus.nodeInfo",
        "core.PersistentVolumeClaimSpec.resources",
        "core.PreferredSchedulingTerm.preference",
        "core.ServiceStatus.loadBalancer",
        "core.WeightedPodAffinityTerm.podAffinityTerm",
        "discovery.Endpoint.conditions",
        "events.Event.deprecatedSource",
        "events.Event.regarding",
        "rbac.ClusterRoleBinding.roleRef",
        "rbac.RoleBinding.roleRef",
    )
)
#: keys of list elements that have a default other than Go's zero
_KEY_DEFAULTS: Final[dict[str, Any]] = {
    "core.ContainerPort.protocol": "TCP",
    "core.LocalObjectReference.name": "",
    "core.ServicePort.protocol": "TCP",
}
_ZEROES: Final[dict[str, Any]] = {"string": "", "int32": 0, "int64": 0, "bool": False}


class Unkeyed(ValueError):
    """An element of a list that cannot be told apart from others; the text is upstream's."""


class Leaf(msgspec.Struct, frozen=True):
    """One owner for the whole."""


class StructShape(msgspec.Struct, frozen=True):
    #: fields that are owned piece by piece, or as leaves
    fields: dict[str, Shape]
    #: fields that are there, with this nothing in them, where a document leaves them out
    plain: dict[str, Any]


class MapShape(msgspec.Struct, frozen=True):
    item: Shape


class SetShape(msgspec.Struct, frozen=True):
    """A list of distinct scalars."""


class KeyedShape(msgspec.Struct, frozen=True):
    """A list of objects told apart by *keys*: each name with its default, ``None`` where there is
    none.
    """

    keys: tuple[tuple[str, Any], ...]
    item: Shape


Shape = Leaf | StructShape | MapShape | SetShape | KeyedShape
LEAF: Final = Leaf()


@cache
def shape_of(schema_key: str) -> StructShape:
    """The shape of a resource, by ``Resource.schema_key``."""
    return _struct(lookup(schema_key).name)


@cache
def _struct(name: str) -> StructShape:
    schema = definition(name)
    fields = {member.name: field_shape(member) for member in schema.fields.values()}
    plain: dict[str, Any] = {}
    for member in schema.fields.values():
        if member.type.kind == "struct" and _is_plain(schema, member.name):
            plain[member.name] = {}
        elif member.required and isinstance(fields[member.name], KeyedShape | SetShape | MapShape):
            # Go prints these even when they are nothing.
            plain[member.name] = {} if member.type.kind == "map" else []
    return StructShape(fields, plain)


def _is_plain(owner: Struct, name: str) -> bool:
    # The "spec" and "status" of a kind, not those of something inside one.
    kind = "metadata" in owner.fields
    return (
        name == "metadata"
        or f"{owner.name}.{name}" in _PLAIN
        or (kind and name in ("spec", "status"))
    )


def field_shape(field: SchemaField) -> Shape:
    if field.list_type == "atomic":
        return LEAF
    if field.list_type == "granular" and field.type.kind == "struct":
        return _struct(field.type.name)
    if field.type.kind == "list":
        return _list(field)
    return _type(field.type)


def _type(kind: Type) -> Shape:
    if kind.kind == "map":
        return MapShape(_type(kind.element))
    if kind.kind == "struct" and not definition(kind.name).atomic:
        return _struct(kind.name)
    return LEAF


def _list(field: SchemaField) -> Shape:
    item = field.type.element
    names = field.map_keys
    if not field.list_type and "merge" in field.strategies:
        # Older definitions say it in the words of strategic merge patches alone.
        names = (field.merge_key,) if field.merge_key else ()
    elif field.list_type not in ("set", "map"):
        return LEAF
    if not names:
        return SetShape()
    return KeyedShape(tuple((name, _key_default(item.name, name)) for name in names), _type(item))


def _key_default(owner: str, name: str) -> Any:
    default = _KEY_DEFAULTS.get(f"{owner}.{name}")
    field = definition(owner).fields[name]
    return default if default is not None or not field.required else _ZEROES[field.type.kind]


def element_of(shape: KeyedShape | SetShape, item: Any) -> str:
    """The path element of an element of a list.  Raises ``Unkeyed``."""
    if isinstance(shape, SetShape):
        if isinstance(item, dict):
            raise Unkeyed("associative list without keys has an element that's a map type")
        if isinstance(item, list):
            raise Unkeyed("not supported: associative list with lists as elements")
        if item is None:
            raise Unkeyed("associative list without keys has an element that's an explicit null")
        return value_element(item)
    if item is None:
        raise Unkeyed("associative list with keys may not have a null element")
    if not isinstance(item, dict):
        raise Unkeyed("associative list with keys may not have non-map elements")
    pairs = [
        (name, item.get(name, default))
        for name, default in shape.keys
        if name in item or default is not None
    ]
    if not pairs:
        names = " ".join(f'"{name}"' for name, _ in shape.keys)
        raise Unkeyed(
            f"associative list with keys has an element that omits all key fields [{names}] "
            "(and doesn't have default values for any key fields)"
        )
    return key_element(pairs)


def by_element(shape: KeyedShape | SetShape, items: list[Any]) -> dict[str, list[Any]]:
    """Elements of a stored list by path element, in order; several where a stored list has a key
    twice.

    An element without any key has no owner and is passed over.
    """
    elements: dict[str, list[Any]] = {}
    for item in items:
        try:
            element = element_of(shape, item)
        except Unkeyed:
            continue
        elements.setdefault(element, []).append(item)
    return elements


def member_shape(shape: Shape, element: str) -> Shape | None:
    """Returns the shape below *element* of a part of this shape; ``None`` if the schema has
    none.
    """
    match shape:
        case StructShape():
            return shape.fields.get(element[2:])
        case MapShape() | KeyedShape():
            return shape.item
        case SetShape():
            return LEAF
    return None


class FieldsChange(msgspec.Struct, frozen=True):
    added: FieldSet
    modified: FieldSet
    removed: FieldSet


def whole(shape: Shape, value: Any) -> FieldSet:
    """The node of a part that is on one side only: itself and everything below."""
    if isinstance(shape, Leaf) or not value:
        if not isinstance(shape, StructShape) or not shape.plain:
            return {}
        value = {}
    result: FieldSet = {SELF: {}}
    match shape:
        case StructShape():
            for name, member in value.items():
                below = shape.fields.get(name)
                if below is not None:
                    result[f"f:{name}"] = EMPTY if below is LEAF else whole(below, member)
            for name in shape.plain:
                if name not in value:
                    result[f"f:{name}"] = whole(shape.fields[name], {})
        case MapShape():
            for name, member in value.items():
                result[f"f:{name}"] = EMPTY if shape.item is LEAF else whole(shape.item, member)
        case KeyedShape() | SetShape():
            item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
            for element, same in by_element(shape, value).items():
                result[element] = whole(item, same[0]) if len(same) == 1 else {}
    return result if len(result) > 1 else {}


def compare(shape: StructShape | MapShape, old: Document, new: Document) -> FieldsChange:
    """Member by member of a struct or a map."""
    change = FieldsChange({}, {}, {})
    fields = shape.fields if isinstance(shape, StructShape) else None
    plain = shape.plain if isinstance(shape, StructShape) else {}
    for name, after in new.items():
        before = old.get(name)
        if before == after:
            continue
        below = shape.item if isinstance(shape, MapShape) else shape.fields.get(name)
        if below is None:
            continue
        _part(below, f"f:{name}", plain.get(name) if before is None else before, after, change)
    for name, before in old.items():
        if name in new:
            continue
        if fields is not None and name not in fields:
            continue
        below = shape.item if isinstance(shape, MapShape) else shape.fields[name]
        _part(below, f"f:{name}", before, plain.get(name), change)
    return change


def _part(shape: Shape, element: str, before: Any, after: Any, change: FieldsChange) -> None:
    """Compare what is at *element*; at least one side has it.  ``None``: the other side does
    not.
    """
    if before is None:
        change.added[element] = whole(shape, after)
    elif after is None:
        change.removed[element] = whole(shape, before)
    elif isinstance(shape, Leaf) or not (before or after):
        if before != after:
            change.modified[element] = {}
    else:
        if isinstance(shape, StructShape | MapShape):
            inner = compare(shape, before, after)
        else:
            inner = _elements(shape, before, after)
        for into, part in (
            (change.added, inner.added),
            (change.modified, inner.modified),
            (change.removed, inner.removed),
        ):
            if part:
                into[element] = part


def _elements(shape: KeyedShape | SetShape, old: list[Any], new: list[Any]) -> FieldsChange:
    """Compare lists element by element.  An element that one side has twice is compared as a
    whole.
    """
    change = FieldsChange({}, {}, {})
    item: Shape = shape.item if isinstance(shape, KeyedShape) else Leaf()
    before = by_element(shape, old)
    after = by_element(shape, new)
    for element in {**before, **after}:
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
    return change
