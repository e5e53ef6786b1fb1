"""How the parts of a kind are owned: the schema, reduced to what merging and comparing ask.

A part is a leaf (it has one owner as a whole: scalars, atomic lists and maps, atomic structs, free-form JSON), or it is
owned piece by piece: a struct by its fields, a map by its entries, a keyed list by its elements, a set by its values.
Lists are atomic unless the schema says otherwise, maps are not.

Shapes are made once for each definition, frozen, and shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sliceplane.documents.fields import elements
from sliceplane.documents.schema.model import SchemaField, Struct, Type, lookup
from sliceplane.documents.schema.model import struct as definition

#: fields that Go has as plain structs, beside every ``metadata``, ``spec`` and ``status``: they are there, empty, where
#: a document leaves them out, so that no manager is recorded for them
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


@dataclass(frozen=True, slots=True)
class Leaf:
    """One owner for the whole."""


@dataclass(frozen=True, slots=True)
class StructShape:
    #: fields that are owned piece by piece, or as leaves
    fields: dict[str, Shape]
    #: fields that are there, with this nothing in them, where a document leaves them out
    plain: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MapShape:
    item: Shape


@dataclass(frozen=True, slots=True)
class SetShape:
    """A list of distinct scalars."""


@dataclass(frozen=True, slots=True)
class KeyedShape:
    """A list of objects told apart by *keys*: each name with its default, ``None`` where there is none."""

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
    fields = {field.name: field_shape(field) for field in schema.fields.values()}
    plain: dict[str, Any] = {}
    for field in schema.fields.values():
        if field.type.kind == "struct" and _is_plain(schema, field.name):
            plain[field.name] = {}
        elif field.required and isinstance(fields[field.name], KeyedShape | SetShape | MapShape):
            # Go prints these even when they are nothing.
            plain[field.name] = {} if field.type.kind == "map" else []
    return StructShape(fields, plain)


def _is_plain(owner: Struct, name: str) -> bool:
    # The "spec" and "status" of a kind, not those of something inside one.
    kind = "metadata" in owner.fields
    return name == "metadata" or f"{owner.name}.{name}" in _PLAIN or (kind and name in ("spec", "status"))


def field_shape(field: SchemaField) -> Shape:
    if field.list_type == "atomic":
        return LEAF
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
        return elements.value(item)
    if item is None:
        raise Unkeyed("associative list with keys may not have a null element")
    if not isinstance(item, dict):
        raise Unkeyed("associative list with keys may not have non-map elements")
    pairs = [(name, item.get(name, default)) for name, default in shape.keys if name in item or default is not None]
    if not pairs:
        names = " ".join(f'"{name}"' for name, _ in shape.keys)
        raise Unkeyed(
            f"associative list with keys has an element that omits all key fields [{names}] "
            "(and doesn't have default values for any key fields)"
        )
    return elements.key(pairs)


def by_element(shape: KeyedShape | SetShape, items: list[Any]) -> dict[str, list[Any]]:
    """Elements of a stored list by path element, in order; several where a stored list has a key twice.

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
    """What is below *element* of a part of this shape; ``None`` for what the schema does not have."""
    match shape:
        case StructShape():
            return shape.fields.get(element[2:])
        case MapShape() | KeyedShape():
            return shape.item
        case SetShape():
            return LEAF
    return None
