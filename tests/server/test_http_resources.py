"""Resources over HTTP: verbs, forms, bodies and complaints."""

from __future__ import annotations

import json

import pytest
from tests.server.serving import CM, ES, Server, assert_status, config_map, endpoint_slice
from tests.tables import tables

from sliceplane.server.io.requests.request import BODY_BYTES_MAX

TABLES = tables(__file__)

# Verbs


def test_life_of_an_object(server: Server) -> None:
    created = server.request("POST", CM, config_map("life", a="1"))
    assert (created.code, created.json["data"]) == (201, {"a": "1"})
    assert created.body.startswith(b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{')
    assert created.body.endswith(b"}\n")
    found = server.get(f"{CM}/life")
    assert (found.code, found.body) == (200, created.body)
    changed = server.request("PUT", f"{CM}/life", {**created.json, "data": {"a": "2"}})
    assert (changed.code, changed.json["data"]) == (200, {"a": "2"})
    stale = server.request("PUT", f"{CM}/life", {**created.json, "data": {"a": "3"}})
    assert (stale.code, stale.json["reason"]) == (409, "Conflict")
    patched = server.request(
        "PATCH",
        f"{CM}/life",
        {"data": {"b": "9"}},
        Content_Type="application/merge-patch+json; charset=utf-8",
    )
    assert (patched.code, patched.json["data"]) == (200, {"a": "2", "b": "9"})
    gone = server.request("DELETE", f"{CM}/life")
    assert (gone.code, gone.json["status"], gone.json["details"]["name"]) == (
        200,
        "Success",
        "life",
    )
    assert_status(server.get(f"{CM}/life"), 404, "NotFound", 'configmaps "life" not found')
    assert_status(
        server.request("DELETE", f"{CM}/life"), 404, "NotFound", 'configmaps "life" not found'
    )


def test_already_exists(server: Server) -> None:
    server.request("POST", CM, config_map("twice"))
    again = server.request("POST", CM, config_map("twice"))
    assert_status(again, 409, "AlreadyExists", 'configmaps "twice" already exists')
    assert again.json["details"] == {"name": "twice", "kind": "configmaps"}


def test_delete_collection_and_delete_options(server: Server) -> None:
    for name in ("dc1", "dc2", "dc3"):
        body = config_map(name)
        body["metadata"]["labels"] = {"dc": "x"}
        uid = server.request("POST", CM, body).json["metadata"]["uid"]
    wrong = server.request("DELETE", f"{CM}/dc3", {"preconditions": {"uid": "nope"}})
    assert (wrong.code, wrong.json["reason"]) == (409, "Conflict")
    assert server.request("DELETE", f"{CM}/dc3?dryRun=All").code == 200
    assert server.get(f"{CM}/dc3").json["metadata"]["uid"] == uid
    gone = server.request("DELETE", f"{CM}?labelSelector=dc%3Dx")
    assert [item["metadata"]["name"] for item in gone.json["items"]] == ["dc1", "dc2", "dc3"]
    assert gone.json["kind"] == "ConfigMapList"
    assert server.get(f"{CM}?labelSelector=dc%3Dx").json["items"] == []


def test_status_and_scale(server: Server) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = server.request("POST", deployments, {"metadata": {"name": "d"}, "spec": spec})
    assert made.code == 201, made.body
    scale = server.get(f"{deployments}/d/scale").json
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == (
        "Scale",
        "autoscaling/v1",
        {"replicas": 2},
    )
    scale["spec"]["replicas"] = 5
    assert server.request("PUT", f"{deployments}/d/scale", scale).json["spec"]["replicas"] == 5
    assert server.get(f"{deployments}/d").json["spec"]["replicas"] == 5
    document = server.get(f"{deployments}/d").json
    document["status"] = {"replicas": 5}
    assert (
        server.request("PUT", f"{deployments}/d/status", document).json["status"]["replicas"] == 5
    )


# Lists


def test_typed_lists_omit_kind_and_api_version(server: Server) -> None:
    reply = server.get("/api/v1/namespaces")
    listed = reply.json
    assert list(listed) == ["kind", "apiVersion", "metadata", "items"]
    assert list(listed["metadata"]) == ["resourceVersion"]
    assert all(next(iter(item)) == "metadata" for item in listed["items"])
    assert reply.body.endswith(b"]}\n")


def test_pages(server: Server) -> None:
    for index in range(5):
        server.request(
            "POST", "/api/v1/namespaces/kube-public/configmaps", config_map(f"page-{index}")
        )
    names, token, sizes = [], "", []
    while True:
        reply = server.get(
            f"/api/v1/namespaces/kube-public/configmaps?limit=2&continue={token}"
        ).json
        names += [item["metadata"]["name"] for item in reply["items"]]
        sizes.append(reply["metadata"].get("remainingItemCount"))
        token = reply["metadata"].get("continue", "")
        if not token:
            break
    assert names == [f"page-{index}" for index in range(5)]
    assert sizes == [3, 1, None]


def test_all_namespaces_and_selectors(server: Server) -> None:
    body = config_map("sel")
    body["metadata"]["labels"] = {"sel": "1"}
    server.request("POST", CM, body)
    found = server.get("/api/v1/configmaps?labelSelector=sel%3D1").json["items"]
    assert [item["metadata"]["namespace"] for item in found] == ["default"]
    assert (
        len(server.get("/api/v1/configmaps?fieldSelector=metadata.name%3Dsel").json["items"]) == 1
    )


# Bodies


UNKNOWN_FORMAT = (
    "the body of the request was in an unknown format - accepted media types include: "
    "application/json, "
    "application/yaml, application/vnd.kubernetes.protobuf"
)


def test_unsupported_media_types(server: Server) -> None:
    for method, path in (("POST", CM), ("PUT", f"{CM}/x")):
        reply = server.request(method, path, config_map("x"), Content_Type="text/plain")
        assert_status(reply, 415, "UnsupportedMediaType", UNKNOWN_FORMAT)
        assert "details" not in reply.json
    reply = server.request("PATCH", f"{CM}/x", {}, Content_Type="application/json")
    assert_status(reply, 415, "UnsupportedMediaType", "415: Unsupported Media Type")
    assert reply.json["details"] == {}
    # An empty body may call itself anything.
    assert server.request("DELETE", f"{CM}/none", b"", Content_Type="text/plain").code == 404


BAD_BODIES = TABLES["BAD_BODIES"]


@pytest.mark.parametrize(("body", "message"), BAD_BODIES)
def test_bad_bodies(server: Server, body: bytes, message: str) -> None:
    assert_status(server.request("POST", CM, body), 400, "BadRequest", message)


def test_too_large_a_body(server: Server) -> None:
    message = "Request entity too large: limit is 3145728"
    body = json.dumps(config_map("huge", a="x" * BODY_BYTES_MAX)).encode()
    for method, path, kind in (
        ("POST", CM, "application/json"),
        ("PUT", f"{CM}/huge", "application/json"),
        ("PATCH", f"{CM}/huge", "application/merge-patch+json"),
        ("DELETE", f"{CM}/huge", "application/json"),
    ):
        reply = server.request(method, path, body, Content_Type=kind)
        assert_status(reply, 413, "RequestEntityTooLarge", message)


def test_too_large_a_chunked_body(server: Server) -> None:
    connection = server.connect()
    chunks = (b"x" * 65536 for _ in range(BODY_BYTES_MAX // 65536 + 1))
    connection.request("POST", CM, chunks, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


# Options


OPTION_ERRORS = TABLES["OPTION_ERRORS"]


@pytest.mark.parametrize(("method", "path", "query", "message"), OPTION_ERRORS)
def test_option_errors(server: Server, method: str, path: str, query: str, message: str) -> None:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    body = None if method == "DELETE" else config_map("x")
    reply = server.request(method, f"{path}?{query}", body, Content_Type=kind)
    assert_status(reply, 422, "Invalid", message)
    assert reply.json["details"]["group"] == "meta.k8s.io"


def test_apply_needs_a_manager(server: Server) -> None:
    reply = server.request("PATCH", f"{CM}/x", {}, Content_Type="application/apply-patch+yaml")
    message = (
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for '
        "apply patch"
    )
    assert_status(reply, 422, "Invalid", message)


def test_strict_warn_and_ignore(server: Server) -> None:
    body = {**endpoint_slice("strict"), "dat": 1}
    strict = server.request("POST", f"{ES}?fieldValidation=Strict", body)
    assert_status(
        strict,
        400,
        "BadRequest",
        'EndpointSlice in version "v1" cannot be handled as a EndpointSlice: strict decoding '
        "error: "
        'unknown field "dat"',
    )
    warned = server.request("POST", f"{ES}?dryRun=All", body)
    assert warned.values("Warning") == ['299 - "unknown field \\"dat\\""']
    assert "dat" not in warned.json
    ignored = server.request("POST", f"{ES}?dryRun=All&fieldValidation=Ignore", body)
    assert ignored.values("Warning") == []
    assert "dat" not in ignored.json
    assert server.get(f"{ES}/strict").code == 404


def test_deprecated_resources_warn_always(server: Server) -> None:
    text = '299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"'
    for path in ("/api/v1/endpoints", "/api/v1/namespaces/default/endpoints/none"):
        assert server.get(path).values("Warning") == [text]
