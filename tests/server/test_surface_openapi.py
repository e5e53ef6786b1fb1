"""OpenAPI over HTTP: index, documents in JSON and protobuf, hashes, conditional requests."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.serving import Server
from tests.server.surface import Case, check

from sliceplane.kit.protobuf import BYTES, FIXED64, VARINT, read_length, read_varint

V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
V3 = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
DOCUMENT = "/openapi/v3/apis/discovery.k8s.io/v1"
KIND = "application/json"

CASES = [
    Case("B2 none", "GET", "/openapi/v3/", 404),
    Case("B2 none", "GET", "/openapi/v3/apis/none/v1", 404),
    Case("B2 none", "GET", "/openapi/v3/apis/none", 404),
    *(
        Case(
            "B2 JSON",
            "GET",
            DOCUMENT,
            200,
            '"openapi":"3.0.0"',
            None,
            {"Accept": accept},
            {"Content-Type": KIND},
        )
        for accept in ("", "*/*", "application/*", f"text/html, {KIND}")
    ),
    *(
        Case(
            "B2 protobuf",
            "GET",
            DOCUMENT,
            200,
            "",
            None,
            {"Accept": accept},
            {"Content-Type": V3, "Vary": "Accept"},
        )
        for accept in (V3, V3.replace(".v1.0", "@v1.0"), f"{V3}, {KIND}")
    ),
    *(
        Case("B2 406", "GET", DOCUMENT, 406, sent={"Accept": accept})
        for accept in ("application/yaml", V2)
    ),
    *(
        Case("B2 v2", "GET", "/openapi/v2", 200, "", None, {"Accept": accept}, {"Content-Type": V2})
        for accept in (V2, V2.replace(".v1.0", "@v1.0"))
    ),
    Case(
        "B2 v2",
        "GET",
        "/openapi/v2",
        200,
        '"swagger":"2.0"',
        headers={"Vary": "Accept-Encoding, Accept"},
    ),
    Case("B2 v2", "GET", "/openapi/v2", 406, sent={"Accept": "application/yaml"}),
    Case("B2 discovery", "GET", "/openapi/v3/api", 200, '"/api/":{"get":'),
    Case("B2 discovery", "GET", "/openapi/v3/apis", 200, "APIGroupList"),
    Case("B2 discovery", "GET", "/openapi/v3/apis/apps", 200, "getAppsAPIGroup"),
    Case("B2 discovery", "GET", "/openapi/v3/version", 200, "io.k8s.apimachinery.pkg.version.Info"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_openapi(server: Server, case: Case) -> None:
    reply = check(server, case)
    if case.code >= 400:
        assert reply.body == b""


def test_the_index_names_every_document(server: Server) -> None:
    paths = server.get("/openapi/v3").json["paths"]
    assert {
        "api",
        "api/v1",
        "apis",
        "apis/discovery.k8s.io",
        "apis/discovery.k8s.io/v1",
        "version",
    } <= set(paths)
    for name, entry in paths.items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{name}?hash=")
        assert server.get(entry["serverRelativeURL"], Accept=V3).code == 200


def fields(message: bytes) -> list[tuple[int, Any]]:
    """(number, value) of each field: a plain reader, to check the writer with."""
    found: list[tuple[int, Any]] = []
    position = 0
    while position < len(message):
        key, position = read_varint(message, position, len(message))
        if key & 7 == VARINT:
            value, position = read_varint(message, position, len(message))
            found.append((key >> 3, value))
        elif key & 7 == FIXED64:
            found.append((key >> 3, message[position : position + 8]))
            position += 8
        else:
            assert key & 7 == BYTES
            start, position = read_length(message, position, len(message))
            found.append((key >> 3, message[start:position]))
    return found


def one(message: bytes, number: int) -> Any:
    return next(value for found, value in fields(message) if found == number)


def named(message: bytes, number: int = 1) -> dict[str, bytes]:
    return {
        one(entry, 1).decode(): one(entry, 2) for found, entry in fields(message) if found == number
    }


def test_protobuf_says_what_json_says(server: Server) -> None:
    document = server.get(DOCUMENT).json
    message = server.get(DOCUMENT, Accept=V3).body
    assert one(message, 1) == b"3.0.0"
    assert one(one(message, 2), 1) == b"Kubernetes"
    paths = named(one(message, 4))
    assert list(paths) == list(document["paths"])
    path = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}"
    patch = one(paths[path], 10)
    parameters = [
        one(one(choice, 1), 1).decode() for number, choice in fields(patch) if number == 6
    ]
    assert parameters == ["dryRun", "fieldManager", "fieldValidation", "force"]
    assert one(named(patch, 13)["x-kubernetes-action"], 2) == b'"patch"'
    schemas = {name: one(choice, 1) for name, choice in named(one(one(message, 5), 1)).items()}
    assert list(schemas) == list(document["components"]["schemas"])
    wanted = document["components"]["schemas"]["io.k8s.api.discovery.v1.EndpointSlice"]
    schema = schemas["io.k8s.api.discovery.v1.EndpointSlice"]
    assert one(schema, 34).decode() == wanted["description"]
    assert [value.decode() for number, value in fields(schema) if number == 23] == wanted[
        "required"
    ]
    properties = named(one(schema, 31))
    assert list(properties) == list(wanted["properties"])
    address_type = one(properties["addressType"], 1)
    values = [one(value, 2).decode() for number, value in fields(address_type) if number == 24]
    assert values == ['"FQDN"', '"IPv4"', '"IPv6"']


def test_openapi_index_and_documents(server: Server) -> None:
    index = server.get("/openapi/v3")
    assert index.headers["Content-Type"] == "text/plain; charset=utf-8"
    unchanged = server.get("/openapi/v3", If_Modified_Since=index.headers["Last-Modified"])
    assert (unchanged.code, unchanged.body) == (304, b"")
    url = index.json["paths"]["apis/discovery.k8s.io/v1"]["serverRelativeURL"]
    document = server.get(url)
    assert document.headers["Cache-Control"] == "public, immutable"
    assert document.headers["Expires"].endswith("GMT")
    assert document.headers["ETag"] == f'"{url.partition("hash=")[2]}"'
    assert document.json["openapi"] == "3.0.0"
    assert server.get(url, If_None_Match=document.headers["ETag"]).code == 304
    plain = server.get(url.partition("?")[0])
    assert (plain.headers["Cache-Control"], plain.body) == ("no-cache, private", document.body)
    moved = server.get(f"{url}0")
    assert (moved.code, moved.headers["Location"], moved.body) == (301, url, b"")


def test_openapi_v2(server: Server) -> None:
    wanted = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    reply = server.get("/openapi/v2", Accept=wanted)
    assert reply.headers["Content-Type"] == wanted.replace("@", ".")
    assert reply.body.startswith(b"\x0a\x032.0")
    assert server.get("/openapi/v2", Accept=wanted, If_None_Match=reply.headers["ETag"]).code == 304
    assert server.get("/openapi/v2").json["swagger"] == "2.0"
