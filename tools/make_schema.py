"""Write ``src/sliceplane/api/schema.json`` from the JSON schemas of the PyPI package
``kubernetes-validate``.

A development script, run by hand when a kind is added or a new Kubernetes version is to be followed::

    .venv/bin/python tools/make_schema.py --version 1.36

The kinds are those of ``api.scheme``, of the bodies of subresources, and what every server reads
and answers besides. What is taken over are facts only: the names of types and fields, the types of
fields, which are required, and how lists merge. Descriptions are left behind; ours are in
``server/documents/openapi/fields.tsv``. The shape of the output is told in ``api/schema.py``. The
same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import DESCRIBED
from sliceplane.server.documents.protobuf.schema import package_of

OUTPUT = Path(__file__).parent.parent / "src/sliceplane/api/schema.json"
META = "io.k8s.apimachinery.pkg.apis.meta.v1"
REF = "#/$defs/"

#: what every server reads and answers, whatever it serves
META_KINDS = ("DeleteOptions", "Status")
#: needed without being a part of any kind
EXTRA = (f"{META}.ListMeta",)

#: definitions that are not structs; our name for each
SCALARS = {
    f"{META}.Time": "time",
    f"{META}.MicroTime": "microTime",
    f"{META}.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
}
FORMATS = {"int32": "int32", "int64": "int64", "byte": "bytes"}


def short(definition: str) -> str:
    """``io.k8s.api.core.v1.Pod`` -> ``core.Pod``; every package used here is a v1."""
    package, name = definition.rsplit(".", 1)
    parts = package.split(".")
    assert parts[-1] == "v1", f"{definition} is not of a v1 package"
    return f"{parts[-2]}.{name}"


def json_type(schema: dict[str, Any]) -> str:
    """The one type that is not null; the schemas say ``["string", "null"]`` for what is
    optional.
    """
    kind = schema["type"]
    if isinstance(kind, str):
        return kind
    named = [name for name in kind if name != "null"]
    assert len(named) == 1, f"several types: {kind}"
    return str(named[0])


def spell_type(schema: dict[str, Any], wanted: list[str]) -> str:
    """The type in our notation; definitions met on the way are appended to *wanted*."""
    if "$ref" in schema:
        definition = schema["$ref"].removeprefix(REF)
        if definition in SCALARS:
            return SCALARS[definition]
        wanted.append(definition)
        return short(definition)
    kind = json_type(schema)
    if kind == "array":
        return f"[]{spell_type(schema['items'], wanted)}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"{{}}{spell_type(values, wanted)}" if values else "any"
    if "format" in schema:
        return FORMATS[schema["format"]]
    return {"string": "string", "boolean": "bool", "integer": "int64"}[kind]


def spell_field(schema: dict[str, Any], required: bool, wanted: list[str]) -> str:
    words = [spell_type(schema, wanted)]
    if required:
        words.append("required")
    list_type = schema.get("x-kubernetes-list-type", "")
    if list_type == "map":
        words.append(f"map({','.join(schema['x-kubernetes-list-map-keys'])})")
    elif list_type:
        words.append(list_type)
    if "x-kubernetes-map-type" in schema:
        words.append(schema["x-kubernetes-map-type"])
    strategies = [word for word in schema.get("x-kubernetes-patch-strategy", "").split(",") if word]
    for strategy in strategies:
        key = schema.get("x-kubernetes-patch-merge-key", "")
        words.append(f"merge({key})" if strategy == "merge" and key else strategy)
    return " ".join(words)


def build(definitions: dict[str, Any], version: str) -> dict[str, Any]:
    kinds = {f"meta.k8s.io/v1 {name}": f"{META}.{name}" for name in META_KINDS}
    bodies = [row.body for row in SUBRESOURCES.values() if row.body is not None]
    for served in (*DESCRIBED, *bodies):
        kinds[f"{served.api_version} {served.kind}"] = (
            f"io.k8s.api.{package_of(served.group)}.v1.{served.kind}"
        )
    wanted = [*EXTRA, *kinds.values()]
    packages: dict[str, str] = {}
    out: dict[str, dict[str, str]] = {}
    while wanted:
        definition = wanted.pop()
        name = short(definition)
        package = definition.rsplit(".", 1)[0]
        assert packages.setdefault(name.split(".", maxsplit=1)[0], package) == package, (
            f"{name} names two packages"
        )
        if name in out:
            continue
        schema = definitions[definition]
        required = schema.get("required", [])
        fields = {
            field: spell_field(value, field in required, wanted)
            for field, value in schema["properties"].items()
        }
        if schema.get("x-kubernetes-map-type") == "atomic":
            fields[""] = "atomic"
        out[name] = dict(sorted(fields.items()))
    return {
        "kubernetes": version,
        "packages": dict(sorted(packages.items())),
        "kinds": {name: short(definition) for name, definition in sorted(kinds.items())},
        "definitions": dict(sorted(out.items())),
    }


def render(data: dict[str, Any]) -> str:
    """JSON with one definition a line, so that a change of version is readable as a diff."""
    lines = ["{"]
    for key, value in data.items():
        last = key == list(data)[-1]
        if isinstance(value, dict):
            rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in value.items()]
            lines.append(f'"{key}": {{\n' + ",\n".join(rows) + "\n}" + ("" if last else ","))
        else:
            lines.append(f'"{key}": {json.dumps(value)},')
    lines.append("}")
    return "\n".join(lines) + "\n"


def made(version: str) -> str:
    """The whole file, out of the installed package."""
    spec = importlib.util.find_spec("kubernetes_validate")
    assert spec is not None, "kubernetes-validate is not installed in this environment"
    assert spec.origin is not None, "kubernetes-validate is a package with files"
    folder = Path(spec.origin).parent / "kubernetes-json-schema" / f"v{version}.0-local"
    return render(build(json.loads((folder / "_definitions.json").read_text())["$defs"], version))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--version", default="1.36", help="Kubernetes minor version whose schemas to take"
    )
    arguments = parser.parse_args()
    OUTPUT.write_text(made(arguments.version))
    print(f"{OUTPUT}: {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
