"""What every reply has, who gets in, and the paths that are not resources."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from pathlib import Path

import pytest
import yaml
from tests.server.serving import Server
from tests.tables import tables

from sliceplane.server.io.keys import pki

TABLES = tables(__file__)

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_every_reply_has_audit_id_date_and_cache_control(server: Server) -> None:
    for path in ("/api/v1/namespaces", "/api", "/version", "/api/v1/nope", "/livez"):
        reply = server.get(path)
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", reply.headers["Audit-Id"])
        assert "no-cache" in reply.headers["Cache-Control"]
        assert reply.headers["Date"].endswith(" GMT")
        assert len(reply.body) == int(reply.headers["Content-Length"])
    assert server.get("/livez", Audit_ID="mine").headers["Audit-Id"] == "mine"


# Who gets in


def test_client_certificate(server: Server) -> None:
    assert server.get("/api/v1/namespaces/default").code == 200


def test_token(server: Server) -> None:
    token = server.plane.data_dir.tokens.read_text().partition(",")[0]
    good = server.request(
        "GET", "/api/v1/nodes", certificate=False, Authorization=f"Bearer {token}"
    )
    assert good.code == 200
    bad = server.request("GET", "/api/v1/nodes", certificate=False, Authorization="Bearer nope")
    assert (bad.code, bad.json) == (
        401,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Unauthorized",
            "reason": "Unauthorized",
            "code": 401,
        },
    )
    assert "WWW-Authenticate" not in bad.headers


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version", "/version/"])
def test_anonymous_may_see_health_and_version(server: Server, path: str) -> None:
    assert server.request("GET", path, certificate=False).code == 200


@pytest.mark.parametrize(
    ("method", "path", "message"), TABLES["anonymous_is_refused_before_anything_else"]
)
def test_anonymous_is_refused_before_anything_else(
    server: Server, method: str, path: str, message: str
) -> None:
    reply = server.request(method, path, certificate=False)
    assert (reply.code, reply.json["reason"], reply.json["message"]) == (403, "Forbidden", message)
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_certificate_of_a_foreign_authority_fails_the_handshake(
    server: Server, tmp_path: Path
) -> None:
    foreign, _ = pki.ensure(tmp_path / "pki", pki.server_names(()), time.time())
    context = server.context(certificate=False)
    context.load_cert_chain(foreign.admin_file, foreign.admin_key_file)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask_for_version(server, context)
    assert server.get("/livez").code == 200


def ask_for_version(server: Server, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection((server.host, server.port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        # With TLS 1.3 the client learns of a refusal when it reads.
        assert not tls.recv(100)
        raise ConnectionError


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_versions_and_names(server: Server, version: ssl.TLSVersion) -> None:
    context = server.context()
    context.minimum_version = context.maximum_version = version
    for name in ("localhost", "127.0.0.1", "kubernetes", "kubernetes.default.svc", "10.96.0.1"):
        with (
            socket.create_connection((server.host, server.port)) as raw,
            context.wrap_socket(raw, server_hostname=name) as tls,
        ):
            assert tls.getpeercert()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100, b""]
)
def test_what_is_no_tls_harms_nobody(server: Server, garbage: bytes) -> None:
    with socket.create_connection((server.host, server.port), timeout=60) as raw:
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(1000):
            pass
    assert server.get("/livez").code == 200


def test_bad_http_is_400_and_harms_nobody(server: Server) -> None:
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        server.context().wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"NONSENSE\r\n\r\n")
        assert tls.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert server.get("/livez").code == 200


# One connection, many requests


def test_keep_alive(server: Server) -> None:
    connection = server.connect()
    sockets = set()
    for path in ("/version", "/api/v1/namespaces", "/nope", "/api/v1/nope"):
        server.request("GET", path, connection=connection)
        sockets.add(id(connection.sock))
    assert len(sockets) == 1
    connection.close()


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    paths = ["/version", "/api/v1/namespaces/default", "/livez", "/nope", "/api/v1/namespaces"]
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        server.context().wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths))
        got = b""
        while b"NamespaceList" not in got or not got.endswith(b"\n"):
            chunk = tls.recv(65536)
            assert chunk, got
            got += chunk
    order = [
        got.index(mark)
        for mark in (
            b"gitVersion",
            b'"kind":"Namespace",',
            b"\r\n\r\nok",
            b"404 page",
            b"NamespaceList",
        )
    ]
    assert order == sorted(order)


# Discovery


def test_api_versions(server: Server) -> None:
    for path in ("/api", "/api/"):
        reply = server.get(path)
        assert reply.json == {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [
                {"clientCIDR": "0.0.0.0/0", "serverAddress": f"{server.host}:{server.port}"}
            ],
        }


def test_group_list_and_group(server: Server) -> None:
    groups = server.get("/apis").json
    assert (groups["kind"], groups["apiVersion"]) == ("APIGroupList", "v1")
    discovery = next(group for group in groups["groups"] if group["name"] == "discovery.k8s.io")
    version = {"groupVersion": "discovery.k8s.io/v1", "version": "v1"}
    assert discovery == {
        "name": "discovery.k8s.io",
        "versions": [version],
        "preferredVersion": version,
    }
    assert server.get("/apis/discovery.k8s.io").json == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        **discovery,
    }


def test_resource_lists(server: Server) -> None:
    core = server.get("/api/v1").json
    assert "apiVersion" not in core
    assert (core["kind"], core["groupVersion"]) == ("APIResourceList", "v1")
    by_name = {entry["name"]: entry for entry in core["resources"]}
    assert by_name["services"]["shortNames"] == ["svc"]
    assert by_name["services"]["verbs"] == [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ]
    assert "deletecollection" not in by_name["namespaces"]["verbs"]
    assert by_name["namespaces/finalize"]["verbs"] == ["update"]
    assert by_name["pods/status"] == {
        "name": "pods/status",
        "singularName": "",
        "namespaced": True,
        "kind": "Pod",
        "verbs": ["get", "patch", "update"],
    }
    apps = server.get("/apis/apps/v1/").json
    assert (apps["apiVersion"], apps["groupVersion"]) == ("v1", "apps/v1")
    scale = next(entry for entry in apps["resources"] if entry["name"] == "deployments/scale")
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")


def test_aggregated_discovery_with_etag(server: Server) -> None:
    reply = server.get("/apis", Accept=f"{AGGREGATED},application/json")
    assert reply.headers["Content-Type"] == AGGREGATED
    assert (reply.headers["Vary"], reply.headers["Cache-Control"]) == ("Accept", "public")
    assert re.fullmatch('"[0-9A-F]{128}"', reply.headers["ETag"])
    found = {item["metadata"]["name"]: item for item in reply.json["items"]}
    assert found["discovery.k8s.io"]["versions"] == [
        {
            "version": "v1",
            "resources": [
                {
                    "resource": "endpointslices",
                    "responseKind": {"group": "", "version": "", "kind": "EndpointSlice"},
                    "scope": "Namespaced",
                    "singularResource": "endpointslice",
                    "verbs": [
                        "create",
                        "delete",
                        "deletecollection",
                        "get",
                        "list",
                        "patch",
                        "update",
                        "watch",
                    ],
                }
            ],
            "freshness": "Current",
        }
    ]
    again = server.get(
        "/apis", Accept=f"{AGGREGATED},application/json", If_None_Match=reply.headers["ETag"]
    )
    assert (again.code, again.body) == (304, b"")
    core = server.get(
        "/api",
        Accept="application/json;as=APIGroupDiscoveryList;profile=nopeer;v=v2;g=apidiscovery.k8s.io",
    )
    assert [item["metadata"] for item in core.json["items"]] == [{}]


def test_discovery_negotiation(server: Server) -> None:
    old = AGGREGATED.replace("v=v2", "v=v2beta1")
    assert server.get("/apis", Accept=f"{old},application/json").json["kind"] == "APIGroupList"
    assert server.get("/apis", Accept=old).code == 406
    assert (
        yaml.safe_load(server.get("/apis/apps/v1", Accept="application/yaml").body)["kind"]
        == "APIResourceList"
    )


PAGES = ["/nope", "/apis/nope", "/apis/nope/v1", "/readyz/", "/livez/nope", "/openapi/v9"]


@pytest.mark.parametrize("path", PAGES)
def test_unknown_pages_are_plain_404(server: Server, path: str) -> None:
    reply = server.get(path)
    assert (reply.code, reply.headers["Content-Type"]) == (404, "text/plain; charset=utf-8")


MISSING = [
    "/api/v2",
    "/apis/apps/v9",
    "/api/v1/nope",
    "/api/v2/pods",
    "/apis/apps/v9/deployments",
    "/api/v1/namespaces/default/nope/x",
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/x/status",
    "/api/v1/namespaces/default/pods/x/status/more",
    "/api/v1/namespaces/default/nodes",
    "/api/v1/pods/x",
]


@pytest.mark.parametrize("path", MISSING)
def test_unknown_resources_are_status_404(server: Server, path: str) -> None:
    reply = server.get(path)
    assert (reply.code, reply.json) == (
        404,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "the server could not find the requested resource",
            "reason": "NotFound",
            "details": {},
            "code": 404,
        },
    )


@pytest.mark.parametrize(
    ("path", "unserved"), TABLES["a_404_of_a_kind_that_is_not_served_names_the_page_that_says_so"]
)
def test_a_404_of_a_kind_that_is_not_served_names_the_page_that_says_so(
    server: Server, path: str, unserved: str
) -> None:
    reply = server.get(path)
    assert (reply.code, reply.json["message"]) == (
        404,
        "the server could not find the requested resource",
    )
    told = reply.headers.get_all("Warning")
    assert told is not None
    assert f'299 - "this server does not serve {unserved}: see docs/api.md#not-served"' in told


def test_a_404_of_an_object_of_a_kind_that_is_served_warns_of_nothing(server: Server) -> None:
    assert (
        server.get("/api/v1/namespaces/default/configmaps/nope").headers.get_all("Warning") is None
    )


NOT_ALLOWED = [
    ("HEAD", "/api/v1/nodes"),
    ("OPTIONS", "/api/v1/nodes"),
    ("POST", "/api/v1/pods"),
    ("DELETE", "/api/v1/pods"),
    ("DELETE", "/api/v1/namespaces"),
    ("PUT", "/api/v1/nodes"),
    ("POST", "/api/v1/nodes/x"),
    ("DELETE", "/api/v1/nodes/x/status"),
    ("GET", "/api/v1/namespaces/default/finalize"),
    ("PATCH", "/api/v1/namespaces/default/finalize"),
    ("POST", "/version"),
]


@pytest.mark.parametrize(("method", "path"), NOT_ALLOWED)
def test_wrong_methods_are_405(server: Server, method: str, path: str) -> None:
    reply = server.request(method, path, b"" if method == "OPTIONS" else None)
    assert reply.code == 405
    if method != "HEAD":
        message = "the server does not allow this method on the requested resource"
        assert (reply.json["reason"], reply.json["message"], reply.json["details"]) == (
            "MethodNotAllowed",
            message,
            {},
        )


def test_root_lists_paths(server: Server) -> None:
    paths = server.get("/").json["paths"]
    assert {"/api", "/api/v1", "/apis", "/apis/discovery.k8s.io/v1", "/healthz", "/version"} <= set(
        paths
    )


# Health, version, metrics


def test_health(server: Server) -> None:
    plain = server.get("/readyz")
    assert (plain.body, plain.headers["X-Content-Type-Options"]) == (b"ok", "nosniff")
    assert (
        server.get("/livez?verbose").body
        == b"[+]ping ok\n[+]log ok\n[+]etcd ok\nlivez check passed\n"
    )
    assert server.get("/readyz?verbose=0").body.endswith(b"[+]shutdown ok\nreadyz check passed\n")
    assert b"[+]etcd excluded: ok\n" in server.get("/healthz?verbose&exclude=etcd").body
    warned = server.get("/livez?verbose&exclude=zz").body
    assert b'warn: some health checks cannot be excluded: no matches for "zz"\n' in warned


def test_failing_check(server: Server) -> None:
    health = server.plane.health
    health.add("flaky", lambda: "the disk is full")
    try:
        reply = server.get("/livez")
        assert reply.code == 500
        assert b"[-]flaky failed: reason withheld\n" in reply.body
        assert reply.body.endswith(b"livez check failed\n\n")
        assert server.get("/livez?exclude=flaky").body == b"ok"
        assert server.get("/livez/flaky").body == b"internal server error: the disk is full\n"
    finally:
        health._live.pop("flaky")


def test_version(server: Server) -> None:
    reply = server.get("/version")
    assert reply.json["gitVersion"].startswith("v1.36.")
    assert reply.body.startswith(b'{\n  "major": "1"')


def test_unexpected_errors_are_told_without_details(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(server.plane.registry, "get", explode)
    reply = server.get("/api/v1/nodes/x")
    assert (reply.code, reply.json["reason"]) == (500, "InternalError")
    assert reply.headers["Audit-Id"] in reply.json["message"]
    assert "secret" not in json.dumps(reply.json)
