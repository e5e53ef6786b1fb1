"""Write ``src/sliceplane/server/documents/openapi/fields.tsv``: the facts of
``tools/openapi_facts.json``, the texts as they are.

A development script, run by hand when a kind is added, after ``make_schema.py``::

    .venv/bin/python tools/make_openapi_fields.py

The facts are those of every definition of the stable versions, served or not.  They are taken anew when a new
Kubernetes version is to be followed::

    go mod download k8s.io/kubernetes          (in tests/peers/kubernetes)
    .venv/bin/python tools/make_openapi_fields.py ~/go/pkg/mod/k8s.io/kubernetes@v1.36.2

Facts only are read: the default of a field from the published documents (``api/openapi-spec/v3``),
the values of an enumeration, which those lack, from
``pkg/generated/openapi/zz_generated.openapi.go``. Descriptions are left behind. Texts are written
by hand, in the file itself; this script keeps them, and names the fields that have none.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from sliceplane.api.schema import definition_names, shape_of
from sliceplane.api.scheme import DESCRIBED
from sliceplane.server.documents.openapi.fields import SHARED, FieldRow, rows_of, sections
from sliceplane.server.documents.schema import struct

FACTS: Final = Path(__file__).parent / "openapi_facts.json"
OUTPUT: Final = Path(__file__).parent.parent / "src/sliceplane/server/documents/openapi/fields.tsv"
_STABLE: Final = re.compile(r"^io\.k8s\.api\.(\w+)\.v1\.(\w+)$")
_FUNCTION: Final = re.compile(
    r"^func schema_(?:k8sio_api|pkg_apis)_([a-z]+)_v1_(\w+)\(.*?\n(.*?)^\}",
    re.MULTILINE | re.DOTALL,
)
_FIELD: Final = re.compile(r'^\t{5}"(\w+)": \{\n(.*?)^\t{5}\}', re.MULTILINE | re.DOTALL)
_ENUM: Final = re.compile(r"Enum: +\[\]interface\{\}\{(.*)\},")


def enumerations(source: str) -> dict[tuple[str, str], list[str]]:
    """The values of each enumeration, by definition and field."""
    found: dict[tuple[str, str], list[str]] = {}
    for package, name, body in _FUNCTION.findall(source):
        for field, text in _FIELD.findall(body):
            enum = _ENUM.search(text)
            if enum:
                found[f"{package}.{name}", field] = json.loads(f"[{enum[1]}]")
    return found


def taken(kubernetes: Path) -> str:
    """The facts, a definition a line."""
    schemas: dict[str, Any] = {}
    for path in sorted((kubernetes / "api/openapi-spec/v3").glob("*_openapi.json")):
        schemas |= json.loads(path.read_text())["components"].get("schemas", {})
    enums = enumerations((kubernetes / "pkg/generated/openapi/zz_generated.openapi.go").read_text())
    names = {
        full: f"{package}.{name}" for full in schemas for package, name in _STABLE.findall(full)
    }
    names |= {struct(name).full_name: name for name in definition_names()}
    lines: list[str] = []
    for full, name in sorted(names.items(), key=lambda item: item[1]):
        rows: dict[str, Any] = {}
        for field, published in sorted(schemas[full].get("properties", {}).items()):
            row = {"default": published["default"]} if "default" in published else {}
            enum = enums.get((name, field))
            if enum:
                elements = next(
                    (member for member in ("items", "additionalProperties") if member in published),
                    "",
                )
                row |= {elements: {"enum": enum}} if elements else {"enum": enum}
            if row:
                rows[field] = row
        if rows:
            lines.append(f"{json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def facts_of(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The facts of each field that has some, by definition and field."""
    known = json.loads(text)
    return {
        (name, field): row
        for name in definition_names()
        for field, row in known.get(name, {}).items()
    }


def render(
    facts: dict[tuple[str, str], dict[str, Any]], table: dict[str, dict[str, FieldRow]]
) -> str:
    """The table: a section for each definition, and in it a row for each field that has facts or a
    text.
    """
    sections = []
    for name in (SHARED, *definition_names()):
        texts = {field: row.text for field, row in table.get(name, {}).items()}
        rows = [f"{name}\t\t\t{texts.pop('', '')}".rstrip("\t")]
        for field in sorted({*texts, *(field for owner, field in facts if owner == name)}):
            fact = facts.get((name, field))
            spelled = json.dumps(fact, separators=(",", ":")) if fact else ""
            rows.append(f"\t{field}\t{spelled}\t{texts.get(field, '')}".rstrip("\t"))
        sections.append("\n".join(rows) + "\n")
    return "\n".join(sections)


def missing_texts() -> list[str]:
    """``DEFINITION`` of each kind and ``DEFINITION.FIELD`` of each field without a description."""
    shared = rows_of(SHARED)
    kinds = {shape_of(resource.api_version, resource.kind).name for resource in DESCRIBED}
    nameless = [name for name in sorted(kinds) if not rows_of(name).get("", FieldRow("", "")).text]
    return nameless + [
        f"{name}.{field}"
        for name in definition_names()
        for field in struct(name).fields
        if not rows_of(name).get(field, FieldRow("", "")).text and field not in shared
    ]


def main() -> None:
    table = {name: rows_of(name) for name in sections()}
    if len(sys.argv) > 1:
        FACTS.write_text(taken(Path(sys.argv[1]).expanduser()))
    OUTPUT.write_text(render(facts_of(FACTS.read_text()), table))
    print(f"{OUTPUT}: {OUTPUT.stat().st_size} bytes")
    for name in missing_texts():
        print(f"without a text: {name}")


if __name__ == "__main__":
    main()
