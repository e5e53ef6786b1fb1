"""``components.schemas`` of one document: the kinds it speaks of and everything that they are made
of.

A reference is always wrapped in ``allOf``, as upstream does, so that a description can stand beside
it; kubectl's readers expect that.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sliceplane.server.documents.openapi.fields import SHARED, FieldRow, rows_of
from sliceplane.server.documents.schema import SchemaField, Struct, Type, lookup_kind, struct

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
PATCH = f"{_META}.Patch"

_EMPTY: Final = FieldRow(facts="", text="")
#: the default of elements of a list and of values of a map, as upstream's generator has it
_ZEROS: Final[dict[str, Any]] = {"string": "", "int32": 0, "int64": 0, "struct": {}}
#: scalars that are inline
_PLAIN: dict[str, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "string": {"type": "string"},
}
#: scalars that have a definition
_NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "any": (f"{_META}.FieldsV1", {"type": "object", "description": "Any JSON object."}),
    "intOrString": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {
            "description": "A number, or a name or percentage.",
            "format": "int-or-string",
            "oneOf": [{"type": "integer"}, {"type": "string"}],
        },
    ),
    "microTime": (
        f"{_META}.MicroTime",
        {
            "description": "A time with exactly six digits of a second.",
            "type": "string",
            "format": "date-time",
        },
    ),
    "quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {
            "description": "A number with an optional suffix, such as 500m, 2Gi or 1e3.",
            "oneOf": [{"type": "string"}, {"type": "number"}],
        },
    ),
    "time": (
        f"{_META}.Time",
        {"description": "A time in RFC 3339.", "type": "string", "format": "date-time"},
    ),
}


def reference(full_name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{full_name}"}


class Components:
    """Collects definitions while a document is made.  Owned by one ``document`` call."""

    def __init__(self, group: str, version: str) -> None:
        self._group = group
        self._version = version
        self._shared = rows_of(SHARED)
        self._schemas: dict[str, dict[str, Any]] = {}

    def schemas(self) -> dict[str, dict[str, Any]]:
        """All that was asked for, and what that refers to, by name."""
        return dict(sorted(self._schemas.items()))

    def kind(self, api_version: str, kind: str) -> dict[str, Any]:
        """A reference to a kind, which is marked as one."""
        schema = lookup_kind(api_version, kind)
        assert schema is not None, f"no schema for {api_version} {kind}"
        self._add(schema)
        group, _, version = api_version.rpartition("/")
        self._schemas[schema.full_name]["x-kubernetes-group-version-kind"] = [
            {"group": group, "kind": kind, "version": version}
        ]
        return reference(schema.full_name)

    def kind_list(self, api_version: str, kind: str) -> dict[str, Any]:
        """A reference to the list of a kind."""
        item = lookup_kind(api_version, kind)
        assert item is not None, f"no schema for {api_version} {kind}"
        name = f"{item.full_name}List"
        if name not in self._schemas:
            group, _, version = api_version.rpartition("/")
            self._schemas[name] = {
                "description": f"A list of objects of kind {kind}.",
                "type": "object",
                "required": ["items"],
                "properties": {
                    "apiVersion": {
                        "type": "string",
                        "description": self._shared["apiVersion"].text,
                    },
                    "items": {
                        "description": "The objects.",
                        "type": "array",
                        "items": {"allOf": [self.kind(api_version, kind)], "default": {}},
                    },
                    "kind": {"type": "string", "description": self._shared["kind"].text},
                    "metadata": self._type(Type("struct", name="meta.ListMeta"))
                    | {"default": {}, "description": "The standard metadata of a list."},
                },
                "x-kubernetes-group-version-kind": [
                    {"group": group, "kind": f"{kind}List", "version": version}
                ],
            }
        return reference(name)

    def delete_options(self) -> dict[str, Any]:
        return self._meta_kind("DeleteOptions")

    def status(self) -> dict[str, Any]:
        return self._meta_kind("Status")

    def patch(self) -> dict[str, Any]:
        self._schemas[PATCH] = {
            "description": "A patch, in the form that the media type says.",
            "type": "object",
        }
        return reference(PATCH)

    def _meta_kind(self, kind: str) -> dict[str, Any]:
        """A kind of the meta package, which belongs to every group and version."""
        schema = lookup_kind("meta.k8s.io/v1", kind)
        assert schema is not None, f"no schema for {kind}"
        self._add(schema)
        own = {"group": self._group, "kind": kind, "version": self._version}
        core = {"group": "", "kind": kind, "version": "v1"}
        self._schemas[schema.full_name]["x-kubernetes-group-version-kind"] = (
            [core] if own == core else [core, own]
        )
        return reference(schema.full_name)

    def _add(self, schema: Struct) -> None:
        if schema.full_name in self._schemas:
            return
        entry = self._schemas[schema.full_name] = {}
        rows = rows_of(schema.name)
        text = rows.get("", _EMPTY).text
        if text:
            entry["description"] = text
        entry["type"] = "object"
        required = [field.name for field in schema.fields.values() if field.required]
        if required:
            entry["required"] = required
        entry["properties"] = {
            name: self._field(field, rows.get(name, _EMPTY))
            for name, field in schema.fields.items()
        }
        if schema.atomic:
            entry["x-kubernetes-map-type"] = "atomic"

    def _field(self, field: SchemaField, row: FieldRow) -> dict[str, Any]:
        entry = self._type(field.type)
        text = row.text or self._shared.get(field.name, _EMPTY).text
        if text:
            entry["description"] = text
        if field.list_type and field.type.kind == "list":
            entry["x-kubernetes-list-type"] = field.list_type
        elif field.list_type:
            entry["x-kubernetes-map-type"] = field.list_type
        if field.map_keys:
            entry["x-kubernetes-list-map-keys"] = list(field.map_keys)
        if field.strategies:
            entry["x-kubernetes-patch-strategy"] = ",".join(field.strategies)
        if field.merge_key:
            entry["x-kubernetes-patch-merge-key"] = field.merge_key
        for member, value in msgspec.json.decode(row.facts or "{}").items():
            entry[member] = entry[member] | value if member in entry else value
        return entry

    def _type(self, kind: Type) -> dict[str, Any]:
        match kind.kind:
            case "struct":
                schema = struct(kind.name)
                self._add(schema)
                return {"allOf": [reference(schema.full_name)]}
            case "list":
                return {"type": "array", "items": self._element(kind.element)}
            case "map":
                return {"type": "object", "additionalProperties": self._element(kind.element)}
            case scalar if scalar in _PLAIN:
                return dict(_PLAIN[scalar])
            case scalar:
                name, schema_of_it = _NAMED[scalar]
                self._schemas[name] = schema_of_it
                return {"allOf": [reference(name)]}

    def _element(self, kind: Type) -> dict[str, Any]:
        entry = self._type(kind)
        if kind.kind in _ZEROS:
            return entry | {"default": _ZEROS[kind.kind]}
        bare: dict[str, Any] = entry.get("allOf", [entry])[0]
        return bare
