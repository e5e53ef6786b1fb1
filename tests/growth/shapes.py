"""Every list and map of every kind, and objects in which one of them is long.

``fields_of`` walks the schema, so that a field that is added is found by itself. ``document`` makes
an object, good as far as its names tell how to make one, with the field of n entries. How the
entries relate is a ``Variant``:

- ``distinct``: all good, all different; ``equal``: all the same; ``alike``: the same to those who
  merge by keys, but not equal;
- ``invalid``: none would be accepted, so that n complaints arise;
- ``long``: different, and everything above them has a name as long as they are together, which
  whoever puts the name in front of each pays for n times.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from sliceplane.api.schema import SchemaField, Struct, Type, lookup, struct
from sliceplane.api.scheme import OPTIONAL_RESOURCES, RESOURCES, Resource

Variant = Literal["distinct", "equal", "alike", "invalid", "long"]
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)

_CORPUS: Final = Path(__file__).parent.parent / "fuzz" / "corpus" / "objects.jsonl"
_OBJECTS: Final = [json.loads(line) for line in _CORPUS.read_text().splitlines()]
_TEMPLATE: Final = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "web"}]},
}
#: kinds that the corpus lacks
_MORE: Final = [
    {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "made"},
        "template": _TEMPLATE,
    },
    {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"app": "web"}, "template": _TEMPLATE},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": _TEMPLATE},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web"},
        "spec": {
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": _TEMPLATE,
        },
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": "main"},
        "spec": {"controller": "example.com/ingress"},
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "web"},
        "spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}},
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
    },
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "plain"},
        "handler": "runc",
    },
    {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    },
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    },
    {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "limits"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.9.0.0/24"]},
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {"name": "10.9.0.7"},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}},
    },
]
_TIME: Final = "2026-01-01T00:00:00Z"
_MANAGED: Final = "managedFields"
#: texts that a name asks for
_WORDS: Final = {
    "kind": "User",
    "apiVersion": "v1",
    "protocol": "TCP",
    "operator": "Exists",
    "effect": "NoSchedule",
    "status": "True",
    "apiGroup": "rbac.authorization.k8s.io",
    "whenUnsatisfiable": "DoNotSchedule",
    "ipMode": "VIP",
    "image": "i",
    "operation": "Update",
    "fieldsType": "FieldsV1",
    "type": "Container",
}
_ADDRESSES: Final = frozenset(
    ("addresses", "externalIPs", "ip", "ips", "clusterIPs", "hostIPs", "podIPs", "nameservers")
)
_RANGES: Final = frozenset(("cidrs", "podCIDRs", "loadBalancerSourceRanges"))


@dataclass(frozen=True, slots=True)
class LongField:
    """A list or map of a kind, by the fields that lead to it."""

    resource: Resource
    path: tuple[SchemaField, ...]
    #: the definition that has it, and its name there
    definition: str

    @property
    def field(self) -> SchemaField:
        return self.path[-1]

    def __str__(self) -> str:
        return f"{self.resource.schema_key}:{'.'.join(field.name for field in self.path)}"


#: kinds that clients write; what is read-only takes no body
WRITTEN: Final = tuple(each for each in (*RESOURCES, *OPTIONAL_RESOURCES) if "create" in each.verbs)


def fields_of(resource: Resource) -> Iterator[LongField]:
    for path, definition in _walk(lookup(resource.schema_key), (), frozenset()):
        if path[-1].name != _MANAGED and all(field.name != _MANAGED for field in path):
            yield LongField(resource, path, definition)


def every_field() -> list[LongField]:
    return [found for resource in WRITTEN for found in fields_of(resource)]


def each_definition_once() -> list[LongField]:
    """One place for each list and map of each definition: a Pod's fields are not looked at in its
    templates too.
    """
    found: dict[str, LongField] = {}
    for each in every_field():
        found.setdefault(each.definition, each)
    return list(found.values())


def _walk(
    owner: Struct, above: tuple[SchemaField, ...], seen: frozenset[str]
) -> Iterator[tuple[tuple[SchemaField, ...], str]]:
    for field in owner.fields.values():
        kind, path = field.type, (*above, field)
        if kind.kind in ("list", "map"):
            yield path, f"{owner.name}.{field.name}"
            while kind.kind in ("list", "map"):
                kind = kind.element
        if kind.kind == "struct" and kind.name not in seen:
            yield from _walk(struct(kind.name), path, seen | {kind.name})


def base(resource: Resource) -> Any:
    """A good object of the kind."""
    wanted = (resource.api_version, resource.kind)
    found = next(
        (each for each in (*_OBJECTS, *_MORE) if (each["apiVersion"], each["kind"]) == wanted), None
    )
    assert found is not None, f"{_CORPUS} has no {wanted}: add one"
    return copy.deepcopy(found)


def document(long: LongField, variant: Variant, count: int, *, reverse: bool = False) -> Any:
    """An object in which the field has *count* entries."""
    made = base(long.resource)
    width = count * 8 if variant == "long" else 0
    place = made
    for field in long.path[:-1]:
        place = _enter(place, field, width)
    place[long.field.name] = content(long.field, variant, count, reverse=reverse)
    return made


def patch(long: LongField, value: Any) -> Any:
    """The part of an object that has *value* as the field, and what must be said to get there."""
    made: Any = {}
    place = made
    for field in long.path[:-1]:
        place = _enter(place, field, 0, keys_only=True)
    place[long.field.name] = value
    return made


def pointer(long: LongField) -> str:
    """Where a JSON patch finds the field (of an object in which lists above it have one
    element).
    """
    steps = []
    for field in long.path[:-1]:
        steps.append(field.name)
        if field.type.kind == "list":
            steps.append("0")
        elif field.type.kind == "map":
            steps.append("k")
    return "/" + "/".join((*steps, long.field.name))


def _enter(place: Any, field: SchemaField, width: int, *, keys_only: bool = False) -> Any:
    """Go down one field, making what is missing; objects in lists get names of *width*."""
    kind = field.type
    if kind.kind == "struct":
        return place.setdefault(field.name, {} if keys_only else _required(struct(kind.name)))
    if kind.kind == "list":
        items = place.setdefault(field.name, [])
        if not items:
            items.append(element(kind.element, field, 0))
        inner = items[0]
        if width and isinstance(inner, dict):
            for name, member in inner.items():
                if isinstance(member, str):
                    inner[name] = "a" * width
        return inner
    entries = place.setdefault(field.name, {})
    return entries.setdefault("k" + "a" * width, element(kind.element, field, 0))


def content(field: SchemaField, variant: Variant, count: int, *, reverse: bool = False) -> Any:
    numbers = range(count - 1, -1, -1) if reverse else range(count)
    kind = field.type
    if kind.kind == "map":
        item = kind.element
        return {
            map_key(field, number, variant): element(item, field, number, variant)
            for number in numbers
        }
    return [element(kind.element, field, number, variant) for number in numbers]


def map_key(field: SchemaField, number: int, variant: Variant) -> str:
    if variant == "invalid":
        return f"!/ {number}"
    return (
        f"k{number}"
        if field.name in ("data", "binaryData", "stringData")
        else f"example.com/k{number}"
    )


def element(kind: Type, field: SchemaField, number: int, variant: Variant = "distinct") -> Any:
    """The entry with that *number* of a list or map of *kind*."""
    match kind.kind:
        case "struct":
            return _object(struct(kind.name), field, number, variant)
        case "list":
            return [element(kind.element, field, number, variant)]
        case "map":
            return {"k": element(kind.element, field, number, variant)}
    return scalar(
        kind.kind, field.name, 0 if variant == "equal" else number, invalid=variant == "invalid"
    )


def _object(owner: Struct, field: SchemaField, number: int, variant: Variant) -> Any:
    """Required members and those that tell elements apart; of those ``alike`` varies the last
    alone.
    """
    keys = dict.fromkeys((*field.map_keys, field.merge_key))
    made: dict[str, Any] = {}
    names = [
        name
        for name, each in owner.fields.items()
        if each.required or name in keys or name in ("name", "key", "ip")
    ]
    names = (
        names
        or [name for name, each in owner.fields.items() if each.type.kind == "string"][:1]
        or list(owner.fields)[:1]
    )
    for name in names:
        same = variant == "equal" or (variant == "alike" and name != names[-1])
        wanted = owner.fields[name]
        made[name] = member(wanted, 0 if same else number, invalid=variant == "invalid")
    if variant == "alike" and len(names) == 1:
        other = next((each for each in owner.fields.values() if each.name not in made), None)
        if other is not None:
            made = {names[0]: member(owner.fields[names[0]], 0), other.name: member(other, number)}
    return made


def _required(owner: Struct) -> Any:
    return {name: member(each, 0) for name, each in owner.fields.items() if each.required}


def member(field: SchemaField, number: int, *, invalid: bool = False) -> Any:
    kind = field.type
    if kind.kind == "struct":
        return _required(struct(kind.name))
    if kind.kind == "list":
        return [element(kind.element, field, number, "invalid" if invalid else "distinct")]
    if kind.kind == "map":
        return {"k": element(kind.element, field, number, "invalid" if invalid else "distinct")}
    return scalar(kind.kind, field.name, number, invalid=invalid)


def scalar(kind: str, name: str, number: int, *, invalid: bool = False) -> Any:
    match kind:
        case "bool":
            return True
        case "int32" | "int64":
            return -number - 1 if invalid else number % 65535 + 1
        case "intOrString":
            return f"!{number}" if invalid else number % 65535 + 1
        case "quantity":
            return f"-{number}" if invalid else str(number + 1)
        case "time":
            return _TIME
        case "microTime":
            return _TIME.replace("Z", ".000000Z")
        case "bytes":
            return "YQ=="
        case "any":
            return {f"f:k{number}": {}}
    return _text(name, number, invalid=invalid)


def _text(name: str, number: int, *, invalid: bool) -> str:
    if invalid:
        return f"!/ {number}"
    if name in _WORDS:
        return _WORDS[name]
    if name in _ADDRESSES or name in _RANGES:
        number += 1
        address = f"{11 + (number >> 24)}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        return f"{address}/32" if name in _RANGES else address
    if name == "ipFamilies":
        return ("IPv4", "IPv6")[number % 2]
    return (
        f"example.com/k{number}"
        if name in ("finalizers", "key", "type", "conditionType")
        else f"n{number}"
    )
