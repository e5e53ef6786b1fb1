"""Forms of answers: YAML, protobuf, indentation, gzip, Table, PartialObjectMetadata."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import yaml
from tests.server.serving import Reply, Server

from sliceplane.server.documents import protobuf

CM = "/api/v1/namespaces/default/configmaps"
ES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = PARTIAL.replace("Metadata;", "MetadataList;")
PROTOBUF = "application/vnd.kubernetes.protobuf"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def endpoint_slice(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [],
    }


def assert_status(reply: Reply, code: int, reason: str, message: str) -> None:
    body = reply.json
    assert (reply.code, body.get("reason", ""), body["message"]) == (code, reason, message)
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", code)


def test_yaml(server: Server) -> None:
    server.request("POST", CM, config_map("yaml", a="x: <&>"))
    reply = server.get(f"{CM}/yaml", Accept="application/yaml")
    assert reply.headers["Content-Type"] == "application/yaml"
    assert yaml.safe_load(reply.body)["data"] == {"a": "x: <&>"}
    made = server.request(
        "POST", CM, b"metadata: {name: yaml2}\ndata: {on: 'off'}\n", Content_Type="application/yaml"
    )
    assert (made.code, made.json["data"]) == (201, {"true": "off"})
    error = server.get(f"{CM}/none", Accept="application/yaml")
    assert yaml.safe_load(error.body)["reason"] == "NotFound"


def test_protobuf(server: Server) -> None:
    raw = protobuf.encode(config_map("proto", a="1"))
    made = server.request(
        "POST", CM, raw, Content_Type=PROTOBUF, Accept=f"{PROTOBUF},application/json"
    )
    assert (made.code, made.headers["Content-Type"]) == (201, PROTOBUF)
    assert protobuf.decode(made.body)["data"] == {"a": "1"}
    listed = protobuf.decode(server.get(CM, Accept=PROTOBUF).body)
    assert "proto" in [item["metadata"]["name"] for item in listed["items"]]
    assert listed["kind"] == "ConfigMapList"
    error = protobuf.decode(server.get(f"{CM}/none", Accept=PROTOBUF).body)
    assert error["reason"] == "NotFound"
    options = protobuf.encode(
        {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    )
    assert server.request("DELETE", f"{CM}/proto", options, Content_Type=PROTOBUF).code == 200


def test_html_characters_are_escaped(server: Server) -> None:
    made = server.request("POST", CM, config_map("html", a="<b>&\u2028"))
    assert b'"a":"\\u003cb\\u003e\\u0026\\u2028"' in made.body
    assert made.json["data"]["a"] == "<b>&\u2028"
    assert b"<" not in server.get(CM).body


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("?pretty=true", {}),
        ("", {"Accept": "application/json;pretty=1"}),
        ("", {"User_Agent": "curl/8.0"}),
    ],
)
def test_pretty(server: Server, path: str, headers: dict[str, str]) -> None:
    body = server.get(f"/api/v1/namespaces/default{path}", **headers).body
    assert body.startswith(b'{\n  "kind": "Namespace",\n  "apiVersion": "v1",\n')
    assert (
        b"\n"
        not in server.get("/api/v1/namespaces/default?pretty=0", User_Agent="curl/8.0").body[:-1]
    )


def test_gzip(server: Server) -> None:
    server.request("POST", CM, config_map("large", a="x" * 200_000))
    reply = server.get(f"{CM}/large", Accept_Encoding="gzip")
    assert reply.headers["Content-Encoding"] == "gzip"
    assert len(reply.body) < 2000
    assert json.loads(gzip.decompress(reply.body))["data"]["a"] == "x" * 200_000
    assert "Content-Encoding" not in server.get(f"{CM}/large").headers
    assert (
        "Content-Encoding"
        not in server.get(f"{CM}/large?x", Accept_Encoding="gzip", Accept=PARTIAL).headers
    )
    server.request("DELETE", f"{CM}/large")


def test_table(server: Server) -> None:
    server.request("POST", ES, endpoint_slice("table"))
    listed = server.get(ES, Accept=f"{TABLE},application/json")
    table = listed.json
    assert listed.headers["Content-Type"] == "application/json"
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name",
        "AddressType",
        "Ports",
        "Endpoints",
        "Age",
    ]
    row = next(row for row in table["rows"] if row["cells"][0] == "table")
    assert row["cells"][1:4] == ["IPv4", "<unset>", "10.0.0.1"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    one = server.get(f"{ES}/table?includeObject=Object", Accept=TABLE).json
    assert (
        one["metadata"]["resourceVersion"]
        == one["rows"][0]["object"]["metadata"]["resourceVersion"]
    )
    assert one["rows"][0]["object"]["kind"] == "EndpointSlice"
    assert (
        server.get(f"{ES}/table?includeObject=None", Accept=TABLE).json["rows"][0]["object"] is None
    )
    bad = server.get(f"{ES}/table?includeObject=Foo", Accept=TABLE)
    assert_status(
        bad,
        400,
        "BadRequest",
        'Unable to convert to Table as requested: includeObject: Invalid value: "Foo": must be '
        "'Metadata', "
        "'Object', 'None', or empty",
    )
    empty = server.get("/api/v1/namespaces/kube-system/endpoints", Accept=TABLE).json
    assert (empty["rows"], len(empty["columnDefinitions"])) == ([], 3)
    assert server.get(f"{ES}/none", Accept=TABLE).json["kind"] == "Status"
    in_yaml = server.get(f"{ES}/table", Accept=TABLE.replace("json", "yaml"))
    assert yaml.safe_load(in_yaml.body)["kind"] == "Table"
    assert (
        server.get(f"{ES}/table", Accept=TABLE.replace("json", "vnd.kubernetes.protobuf")).code
        == 406
    )


@pytest.mark.parametrize(
    "path",
    [
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    ],
)
def test_a_review_has_no_columns(server: Server, path: str) -> None:
    """Upstream has no table convertor for them: a Table alone is 406, and kubectl's list of wishes
    ends with JSON.
    """
    body = {
        "spec": {"namespace": "default", "resourceAttributes": {"verb": "get", "resource": "pods"}}
    }
    body = {} if path.endswith("selfsubjectreviews") else body
    if path.endswith("rulesreviews"):
        body["spec"].pop("resourceAttributes")
    else:
        body.get("spec", {}).pop("namespace", None)
    refused = server.request("POST", path, body, Accept=TABLE)
    types = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    assert_status(
        refused, 406, "NotAcceptable", f"only the following media types are accepted: {types}"
    )
    assert (
        server.request("POST", path, body, Accept=f"{TABLE},application/json")
        .json["kind"]
        .endswith("Review")
    )


@pytest.mark.parametrize("subresource", ["log", "exec", "attach", "portforward", "proxy"])
def test_a_person_who_asks_for_a_container_is_told_that_there_is_none(
    server: Server, subresource: str
) -> None:
    pods = "/api/v1/namespaces/default/pods"
    assert_status(
        server.get(f"{pods}/missing/{subresource}"), 404, "NotFound", 'pods "missing" not found'
    )
    spec = {"containers": [{"name": "c", "image": "i"}]}
    server.request(
        "POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    )
    reply = server.get(f"{pods}/a/{subresource}")
    why = f"there is no {subresource} of a pod here: no kubelet runs containers behind this server"
    assert_status(reply, 404, "NotFound", f"{why}; see docs/api.md#not-served")
    assert (
        server.get("/api/v1/namespaces/default/pods/a/nonsense")
        .json["message"]
        .startswith("the server could not")
    )


def test_a_timeout_is_a_duration_as_go_reads_it(server: Server) -> None:
    """Some 292 years is the most that Go's type holds."""
    assert server.get(f"{CM}?timeout=9999999999h").code == 400
    assert server.get(f"{CM}?timeout=%D9%A3s").code == 400
    assert server.get(f"{CM}?timeout=30s").code == 200


def test_partial_metadata(server: Server) -> None:
    server.request("POST", CM, config_map("partial", a="1"))
    one = server.get(f"{CM}/partial", Accept=PARTIAL).json
    assert (one["kind"], one["apiVersion"], set(one)) == (
        "PartialObjectMetadata",
        "meta.k8s.io/v1",
        {"kind", "apiVersion", "metadata"},
    )
    listed = server.get(CM, Accept=PARTIAL_LIST).json
    assert listed["kind"] == "PartialObjectMetadataList"
    assert {item["kind"] for item in listed["items"]} == {"PartialObjectMetadata"}
    binary = server.get(CM, Accept=PARTIAL_LIST.replace("application/json", PROTOBUF))
    assert protobuf.decode(binary.body)["kind"] == "PartialObjectMetadataList"
    assert_status(
        server.get("/api/v1/namespaces", Accept=PARTIAL),
        406,
        "NotAcceptable",
        "you requested PartialObjectMetadata, but the requested object is a list "
        "(*core.NamespaceList)",
    )
    assert_status(
        server.get("/api/v1/namespaces/default", Accept=PARTIAL_LIST),
        406,
        "NotAcceptable",
        "you requested PartialObjectMetadataList, but the requested object is not a list "
        "(*core.Namespace)",
    )


@pytest.mark.parametrize("accept", ["application/*", "text/html"])
def test_not_acceptable(server: Server, accept: str) -> None:
    reply = server.get(CM, Accept=accept)
    assert (reply.code, reply.json["reason"], reply.json["details"]) == (406, "NotAcceptable", {})
