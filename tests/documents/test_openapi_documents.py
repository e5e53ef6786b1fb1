"""OpenAPI documents: complete, consistent in themselves, and hashed by their bytes (KEP-2896)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from sliceplane.api.scheme import DESCRIBED, RESOURCES, Pods
from sliceplane.documents import openapi
from sliceplane.documents.schema import struct
from sliceplane.documents.schema.help import COMMON, HELP


def load(name: str) -> dict[str, Any]:
    body = openapi.document(name)
    assert body is not None
    loaded: dict[str, Any] = json.loads(body)
    return loaded


DISCOVERY = "apis/discovery.k8s.io/v1"


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


@pytest.mark.parametrize("name", openapi.document_names())
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


@pytest.mark.parametrize("name", openapi.document_names())
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
    assert list(schema["properties"]) == ["addressType", "apiVersion", "endpoints", "kind", "metadata", "ports"]


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


def test_help_texts_belong_to_fields_that_exist() -> None:
    for name, texts in HELP.items():
        fields = struct(name).fields
        for field, text in texts.items():
            assert field == "" or field in fields, f"{name}.{field}"
            assert text[0].isupper() or text.split()[0].islower()
            assert text.endswith(".")
    assert all(text.endswith(".") for text in COMMON.values())


@pytest.mark.parametrize("name", [n for n in HELP if n.startswith("discovery.")])
def test_an_endpoint_slice_is_explained_to_the_last_field(name: str) -> None:
    missing = set(struct(name).fields) - set(HELP[name]) - set(COMMON)
    assert not missing


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
