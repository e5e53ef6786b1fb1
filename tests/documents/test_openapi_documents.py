"""OpenAPI documents: complete, consistent in themselves, and hashed by their bytes (KEP-2896)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.schema import definition_names
from sliceplane.api.scheme import DESCRIBED, RESOURCES, Pods
from sliceplane.server.documents import openapi
from sliceplane.server.documents.openapi.fields import SHARED, rows_of, sections
from sliceplane.server.documents.schema import struct

TABLES = tables(__file__)


def load(name: str) -> dict[str, Any]:
    body = openapi.document(name)
    assert body is not None
    loaded: dict[str, Any] = json.loads(body)
    return loaded


DISCOVERY = "apis/discovery.k8s.io/v1"
NAMES = openapi.document_names()


def test_index_names_every_served_version_with_the_hash_of_its_bytes() -> None:
    paths = openapi.index()["paths"]
    versions = {r.path_prefix.removeprefix("/") for r in DESCRIBED}
    groups = {f"apis/{r.group}" for r in DESCRIBED if r.group}
    assert list(paths) == sorted(versions | groups | {"api", "apis", "version"})
    for name, entry in paths.items():
        body = openapi.document(name)
        assert body is not None
        digest = hashlib.sha512(body).hexdigest().upper()
        assert entry == {"serverRelativeURL": f"/openapi/v3/{name}?hash={digest}"}
        assert openapi.hash_of(name) == digest


def test_unknown_document() -> None:
    assert openapi.document("apis/nope/v1") is None
    with pytest.raises(AssertionError):
        openapi.hash_of("apis/nope/v1")


@pytest.mark.parametrize("name", NAMES)
def test_every_reference_leads_somewhere(name: str) -> None:
    document = load(name)
    schemas = document["components"]["schemas"]

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                assert node["$ref"].removeprefix("#/components/schemas/") in schemas
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)


@pytest.mark.parametrize("name", NAMES)
def test_operation_ids_are_unique(name: str) -> None:
    ids = [
        operation["operationId"]
        for item in load(name)["paths"].values()
        for verb, operation in item.items()
        if verb != "parameters"
    ]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.key)
def test_patch_says_what_kubectl_looks_for(resource: Any) -> None:
    document = load(resource.path_prefix.removeprefix("/"))
    path = resource.path("{namespace}" if resource.namespaced else "", "{name}")
    patch = document["paths"][path]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {
        "group": resource.group,
        "version": resource.version,
        "kind": resource.kind,
    }
    names = [parameter["name"] for parameter in patch["parameters"]]
    assert names == ["dryRun", "fieldManager", "fieldValidation", "force"]
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
    for subresource in resource.subresources:
        assert f"{path}/{subresource}" in document["paths"]


def test_verbs_that_are_not_served_are_not_described() -> None:
    paths = load("api/v1")["paths"]
    assert "delete" not in paths["/api/v1/namespaces"]
    assert set(paths["/api/v1/namespaces/{name}/finalize"]) == {"put", "parameters"}
    assert "get" in paths["/api/v1/pods"]
    assert "post" not in paths["/api/v1/pods"]


def test_the_schema_of_an_endpoint_slice() -> None:
    schema = load(DISCOVERY)["components"]["schemas"]["io.k8s.api.discovery.v1.EndpointSlice"]
    assert schema["required"] == ["addressType"]
    assert schema["x-kubernetes-group-version-kind"] == [
        {"group": "discovery.k8s.io", "kind": "EndpointSlice", "version": "v1"}
    ]
    assert schema["properties"]["endpoints"]["x-kubernetes-list-type"] == "atomic"
    assert schema["properties"]["ports"]["x-kubernetes-list-type"] == "atomic"
    assert list(schema["properties"]) == [
        "addressType",
        "apiVersion",
        "endpoints",
        "kind",
        "metadata",
        "ports",
    ]


def test_merge_keys_of_service_ports() -> None:
    schema = load("api/v1")["components"]["schemas"]["io.k8s.api.core.v1.ServiceSpec"]
    ports = schema["properties"]["ports"]
    assert ports["x-kubernetes-list-map-keys"] == ["port", "protocol"]
    assert ports["x-kubernetes-patch-merge-key"] == "port"
    assert ports["x-kubernetes-patch-strategy"] == "merge"


def test_every_list_of_a_kind_is_there() -> None:
    schemas = load("api/v1")["components"]["schemas"]
    assert schemas["io.k8s.api.core.v1.PodList"]["required"] == ["items"]
    assert Pods.list_kind == "PodList"


def test_rows_belong_to_definitions_and_fields_that_exist() -> None:
    assert set(sections()) == {SHARED, *definition_names()}
    for name in definition_names():
        unknown = rows_of(name).keys() - struct(name).fields.keys() - {""}
        # A field of discovery.k8s.io/v1beta1, which is made of v1.
        assert unknown == ({"topology"} if name == "discovery.Endpoint" else set()), name


@pytest.mark.parametrize("name", sections())
def test_a_description_is_a_sentence_that_fits_a_terminal(name: str) -> None:
    for field, row in rows_of(name).items():
        if row.text:
            assert row.text.endswith("."), f"{name}.{field}"
            assert row.text[0].isupper() or row.text.split()[0].isidentifier(), f"{name}.{field}"
            assert len(row.text) <= 450, f"{name}.{field}"


def schemas_of_all_documents() -> dict[str, dict[str, Any]]:
    schemas: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        schemas |= load(name)["components"]["schemas"]
    return schemas


def test_every_field_of_every_kind_has_a_description() -> None:
    shared = rows_of(SHARED)
    for name in definition_names():
        rows = rows_of(name)
        missing = {
            field
            for field in struct(name).fields
            if field not in shared and not rows.get(field, ("", ""))[1]
        }
        assert not missing, f"{name}: write a text into fields.tsv"


def test_the_beta_version_of_slices_is_described_by_the_same_rows() -> None:
    endpoint = load("apis/discovery.k8s.io/v1beta1")["components"]["schemas"][
        "io.k8s.api.discovery.v1beta1.Endpoint"
    ]
    assert "deprecatedTopology" not in endpoint["properties"]
    assert [
        name for name, field in endpoint["properties"].items() if "description" not in field
    ] == []
    assert endpoint["properties"]["topology"]["description"].startswith("Topology labels")
    assert endpoint["properties"]["conditions"]["default"] == {}


def test_every_kind_has_a_description() -> None:
    schemas = schemas_of_all_documents()
    kinds = {
        name for name, schema in schemas.items() if "x-kubernetes-group-version-kind" in schema
    }
    assert len(kinds) >= 2 * len(RESOURCES)
    assert [name for name in kinds if "description" not in schemas[name]] == []


@pytest.mark.parametrize(("schema", "field", "values"), TABLES["an_enumeration_names_its_values"])
def test_an_enumeration_names_its_values(schema: str, field: str, values: list[str] | None) -> None:
    entry = schemas_of_all_documents()[f"io.k8s.api.{schema}"]["properties"][field]
    if values is None:
        assert "" in entry["enum"]
    else:
        assert entry["enum"] == values


def test_an_enumeration_is_of_texts() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("enum"), list):
                assert node["type"] == "string"
            for value in node.values():
                walk(value)

    walk(schemas_of_all_documents())


def test_values_of_a_list_are_enumerated_at_its_elements() -> None:
    claim = schemas_of_all_documents()["io.k8s.api.core.v1.PersistentVolumeClaimSpec"][
        "properties"
    ]["accessModes"]
    assert "enum" not in claim
    assert claim["items"]["enum"] == [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ]


def test_defaults_are_of_values_and_not_of_pointers() -> None:
    schemas = schemas_of_all_documents()
    container = schemas["io.k8s.api.core.v1.Container"]["properties"]
    assert container["resources"]["default"] == {}
    assert "default" not in container["livenessProbe"]
    assert container["args"]["items"] == {"type": "string", "default": ""}
    assert schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"]["default"] == "TCP"


def test_documents_are_small() -> None:
    """They are kept once they were asked for, in both forms."""
    sizes = {
        name: len(openapi.document(name) or b"") + len(openapi.document_protobuf(name))
        for name in NAMES
    }
    assert sum(sizes.values()) < 3_000_000
    assert max(sizes.values()) < 1_000_000


def test_the_table_is_read_when_a_document_is_asked_for() -> None:
    script = (
        "import sys, sliceplane.server.io.plane\n"
        "print([name for name in sys.modules if "
        "name.startswith('sliceplane.server.documents.openapi')])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout == "[]\n"


def test_v2_is_a_message_that_parses() -> None:
    raw = openapi.v2_protobuf()
    fields: list[tuple[int, bytes]] = []
    at = 0
    while at < len(raw):
        tag = raw[at]
        length = raw[at + 1]
        assert tag & 7 == 2
        fields.append((tag >> 3, raw[at + 2 : at + 2 + length]))
        at += 2 + length
    assert [number for number, _ in fields] == [1, 2, 8]
    assert dict(fields)[1] == b"2.0"
    assert b"Kubernetes" in dict(fields)[2]
    assert json.loads(openapi.v2_json()) == {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36"},
        "paths": {},
    }
