"""The schema data as objects.

``schema.json`` has one definition a line: a dictionary from field name to a short spelling. A
spelling is a type, then words about it:

    ============================  ==================================================================
    ``string`` ``bool`` ...       a scalar (``SCALARS``); ``any`` is free-form JSON
    ``core.PodSpec``              another definition, by package and name
    ``[]T``, ``{}T``              list of T, map from string to T
    ``required``                  the field must be there (for OpenAPI; validation decides for itself)
    ``atomic``                    a list or map that has one owner as a whole
    ``granular``                  a map whose members have owners of their own, even if its definition is ``atomic``
    ``set``, ``map(a,b)``         a list of distinct scalars; a list of objects told apart by the fields a and b
    ``merge``, ``merge(key)``     strategic merge patch merges the list, its objects by the field *key*
    ``retainKeys``                strategic merge patch may bring ``$retainKeys``
    ``replace``                   strategic merge patch takes the new object whole
    ============================  ==================================================================

The member ``""`` of a definition says ``atomic`` of the definition as a whole.

The file (57 KB) is read on first use, in about a millisecond; a definition is parsed when it is
first asked for. All objects are frozen and shared.

``discovery.k8s.io/v1beta1``, which current releases no longer describe, is made of v1 with
``topology`` in the place of ``deprecatedTopology`` and ``zone``
(``pkg/apis/discovery/v1beta1/conversion.go``).
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Final

import msgspec

from sliceplane.api import scheme

_OLD: Final = "discoveryV1beta1"
_OWN: Final = "discovery."
_GONE: Final = ("deprecatedTopology", "zone")

PACKAGES: Final = {_OLD: "io.k8s.api.discovery.v1beta1"}
KINDS: Final = {"discovery.k8s.io/v1beta1 EndpointSlice": f"{_OLD}.EndpointSlice"}
SCALARS: Final = frozenset(
    (
        "any",
        "bool",
        "bytes",
        "int32",
        "int64",
        "intOrString",
        "microTime",
        "quantity",
        "string",
        "time",
    )
)


def definitions(current: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The definitions to add to the *current* ones."""
    old: dict[str, dict[str, str]] = {}
    for name, fields in current.items():
        if name.startswith(_OWN):
            spellings = {
                field: spelling.replace(_OWN, f"{_OLD}.", 1) for field, spelling in fields.items()
            }
            old[_old_name(name)] = spellings
    endpoint = old[f"{_OLD}.Endpoint"]
    for field in _GONE:
        del endpoint[field]
    endpoint["topology"] = "{}string"
    old[f"{_OLD}.Endpoint"] = dict(sorted(endpoint.items()))
    return old


def _old_name(name: str) -> str:
    return f"{_OLD}.{name.removeprefix(_OWN)}"


class Type(msgspec.Struct, frozen=True):
    """``kind`` is a scalar's name, ``list``, ``map`` or ``struct``.

    ``item`` is the type of elements (``list``) or values (``map``); ``name`` the definition
    (``struct``).
    """

    kind: str
    item: Type | None = None
    name: str = ""

    @property
    def element(self) -> Type:
        """``item`` of a list or map."""
        assert self.item is not None, f"a {self.kind} has no elements"
        return self.item


class SchemaField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a struct."""

    name: str
    type: Type
    required: bool = False
    #: "" (not said), "atomic", "set" or "map" for lists; "", "atomic" or "granular" for maps
    list_type: str = ""
    #: what tells elements of a "map" list apart
    map_keys: tuple[str, ...] = ()
    #: of a strategic merge patch: "merge", "retainKeys", "replace"
    strategies: tuple[str, ...] = ()
    merge_key: str = ""


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """One definition.  ``name`` is ``core.PodSpec``; ``full_name`` is
    ``io.k8s.api.core.v1.PodSpec``.
    """

    name: str
    full_name: str
    fields: dict[str, SchemaField]
    atomic: bool = False

    @property
    def go_name(self) -> str:
        """``PodSpec``."""
        return self.name.rpartition(".")[2]


class _Data(msgspec.Struct, frozen=True):
    kubernetes: str
    packages: dict[str, str]
    kinds: dict[str, str]
    definitions: dict[str, dict[str, str]]


@cache
def _data() -> _Data:
    raw = pkgutil.get_data(__package__, "schema.json")
    assert raw is not None, "schema.json is not in the package"
    data = msgspec.json.decode(raw, type=_Data)
    data.packages.update(PACKAGES)
    data.kinds.update(KINDS)
    data.definitions.update(definitions(data.definitions))
    return data


def kubernetes_version() -> str:
    """``1.36``: the version whose fields these are."""
    return _data().kubernetes


def definition_names() -> tuple[str, ...]:
    """The definitions of the current versions, sorted."""
    return tuple(name for name in _data().definitions if not name.startswith(_OLD))


@cache
def lookup(resource_key: str) -> Struct:
    """The schema of a resource, by ``Resource.schema_key``; a key that is not in the scheme is a
    programmer's fault.
    """
    resource = scheme.by_key(resource_key)
    assert resource is not None, f"no resource {resource_key!r} in the scheme"
    return shape_of(resource.api_version, resource.kind)


def lookup_kind(api_version: str, kind: str) -> Struct | None:
    """The schema of a kind, served or not, or ``None``.  DeleteOptions and Status are of
    ``meta.k8s.io/v1``.
    """
    name = _data().kinds.get(f"{api_version} {kind}")
    return None if name is None else struct(name)


def shape_of(api_version: str, kind: str) -> Struct:
    """The schema of a kind that is known."""
    shape = lookup_kind(api_version, kind)
    assert shape is not None, f"no schema for {kind} of {api_version}: run tools/make_schema.py"
    return shape


@cache
def struct(name: str) -> Struct:
    """The definition called *name* (``core.PodSpec``), which must exist."""
    data = _data()
    fields = {
        field: _parse_field(field, spelling)
        for field, spelling in data.definitions[name].items()
        if field
    }
    package, _, local = name.partition(".")
    return Struct(
        name=name,
        full_name=f"{data.packages[package]}.{local}",
        fields=fields,
        atomic=data.definitions[name].get("") == "atomic",
    )


@cache
def _parse_type(spelling: str) -> Type:
    if spelling.startswith("[]"):
        return Type("list", _parse_type(spelling[2:]))
    if spelling.startswith("{}"):
        return Type("map", _parse_type(spelling[2:]))
    if spelling in SCALARS:
        return Type(spelling)
    return Type("struct", name=spelling)


def _parse_field(name: str, spelling: str) -> SchemaField:
    head, *options = spelling.split(" ")
    required = False
    list_type = ""
    merge_key = ""
    map_keys: tuple[str, ...] = ()
    strategies: list[str] = []
    for option in options:
        verb, _, argument = option.rstrip(")").partition("(")
        match verb:
            case "required":
                required = True
            case "atomic" | "granular" | "set":
                list_type = verb
            case "map":
                list_type = verb
                map_keys = tuple(argument.split(","))
            case "merge":
                merge_key = argument
                strategies.append(verb)
            case "retainKeys" | "replace":
                strategies.append(verb)
            case _:
                raise AssertionError(f"field {name}: unknown word {option!r} in {spelling!r}")
    return SchemaField(
        name=name,
        type=_parse_type(head),
        required=required,
        list_type=list_type,
        map_keys=map_keys,
        strategies=tuple(strategies),
        merge_key=merge_key,
    )
