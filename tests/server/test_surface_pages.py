"""Discovery, unknown pages, methods and the headers of every reply."""

from __future__ import annotations

import json

import pytest
from tests.server.serving import Server
from tests.server.surface import CONFIG_MAPS, NAMESPACES, PROTOBUF, SLICES, YAML, Case, check

from sliceplane.server.documents import protobuf

AGGREGATED = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
PLAIN = "text/plain; charset=utf-8"
GONE = "the server could not find the requested resource"
REFUSED = "the server does not allow this method on the requested resource"
PAGE = "404 page not found\n"

CASES = [
    # Trailing slashes
    Case("B1 /api/", "GET", "/api/", 200, '"versions":["v1"]'),
    Case("B1 /apis/", "GET", "/apis/", 200, '"kind":"APIGroupList"'),
    Case("B1 /apis/G/", "GET", "/apis/discovery.k8s.io/", 200, '"kind":"APIGroup"'),
    Case(
        "B1 /apis/G/V/",
        "GET",
        "/apis/discovery.k8s.io/v1/",
        200,
        '"groupVersion":"discovery.k8s.io/v1"',
    ),
    Case("B1 /version/", "GET", "/version/", 200, '"major": "1"'),
    # Unknown pages are text, unknown resources a Status
    *(
        Case("B1 page", "GET", path, 404, PAGE, headers={"Content-Type": PLAIN})
        for path in (
            "/nope",
            "/apis/nope",
            "/apis/nope/v1",
            "/readyz/",
            "/livez/nope",
            "/metrics/",
            "/version/x",
            "//api/v1",
            "/configz",
            "/debug/pprof",
            "/debug/flags/v",
            "/statusz",
            "/flagz",
            "/logs",
            "/openapi/v2/",
            "/openapi",
            "/swagger.json",
        )
    ),
    Case(
        "B1 /metrics/slis",
        "GET",
        "/metrics/slis",
        200,
        'kubernetes_healthcheck{name="ping",type="livez"} 1.0',
    ),
    Case("B1 page, any method", "POST", "/nope", 404, PAGE, headers={"Content-Type": PLAIN}),
    Case("B1 version", "GET", "/api/v2", 404, GONE),
    Case("B1 version", "GET", "/apis/discovery.k8s.io/v9", 404, GONE),
    Case("B1 resource", "GET", "/api/v1/nope", 404, GONE),
    Case("B1 subresource", "GET", f"{SLICES}/x/status", 404, GONE),
    Case("B1 segments", "GET", "/api/v1//pods", 404, GONE),
    # Methods
    Case("B1 405", "POST", "/api/v1/pods", 405, REFUSED, headers={"Allow": "GET"}),
    Case("B1 405", "OPTIONS", CONFIG_MAPS, 405, REFUSED, headers={"Allow": "DELETE, GET, POST"}),
    Case("B1 405", "HEAD", f"{CONFIG_MAPS}/x", 405, headers={"Allow": "DELETE, GET, PATCH, PUT"}),
    Case("B1 405", "TRACE", CONFIG_MAPS, 405, REFUSED),
    Case("B1 namespaces", "DELETE", NAMESPACES, 405, REFUSED, headers={"Allow": "GET, POST"}),
    Case("B1 finalize", "GET", f"{NAMESPACES}/x/finalize", 405, REFUSED, headers={"Allow": "PUT"}),
    Case(
        "B10 status",
        "DELETE",
        "/api/v1/nodes/x/status",
        405,
        REFUSED,
        headers={"Allow": "GET, PATCH, PUT"},
    ),
    Case("B1 405", "PUT", "/version", 405, REFUSED, headers={"Allow": "GET, HEAD"}),
    Case("B1 405", "POST", "/metrics", 405, REFUSED, headers={"Allow": "GET, HEAD"}),
    # Discovery in other forms
    Case(
        "B1 v2beta1",
        "GET",
        "/apis",
        406,
        sent={"Accept": f"application/json{AGGREGATED}".replace("v2", "v2beta1")},
    ),
    Case(
        "B1 v2beta1 and plain",
        "GET",
        "/apis",
        200,
        '"kind":"APIGroupList"',
        sent={"Accept": f"application/json{AGGREGATED},application/json".replace("v2", "v2beta1")},
    ),
    Case(
        "B3 unknown type",
        "GET",
        "/apis",
        406,
        "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, "
        "application/vnd.kubernetes.protobuf",
        sent={"Accept": "application/cbor"},
    ),
    Case(
        "B3 YAML", "GET", "/apis", 200, "groupVersion: discovery.k8s.io/v1\n", sent={"Accept": YAML}
    ),
    Case("B3 pretty", "GET", "/api?pretty=true", 200, '{\n  "kind": "APIVersions"'),
    Case("B3 pretty", "GET", "/api/v1", 200, '{\n  "kind"', sent={"User-Agent": "curl/8"}),
    # Names
    Case(
        "B13 ..", "GET", f"{CONFIG_MAPS}/..", 400, "Name parameter invalid: \"..\": may not be '..'"
    ),
    Case(
        "B13 ..",
        "GET",
        f"{CONFIG_MAPS}/%2e%2e",
        400,
        "Name parameter invalid: \"..\": may not be '..'",
    ),
    Case(
        "B13 %",
        "DELETE",
        f"{CONFIG_MAPS}/a%25b",
        400,
        "Name parameter invalid: \"a%b\": may not contain '%'",
    ),
    Case(
        "B13 namespaces are not checked",
        "GET",
        f"{NAMESPACES}/Not%20One/configmaps",
        200,
        '"items":[]',
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pages(server: Server, case: Case) -> None:
    check(server, case)


@pytest.mark.parametrize(
    "path", ["/api", "/apis", "/apis/apps", "/api/v1", "/apis/discovery.k8s.io/v1"]
)
def test_discovery_in_protobuf_says_what_it_says_in_json(server: Server, path: str) -> None:
    reply = server.get(path, Accept=PROTOBUF)
    assert reply.headers["Content-Type"] == PROTOBUF
    assert protobuf.decode(reply.body) == {"apiVersion": "v1", **server.get(path).json}


@pytest.mark.parametrize("path", ["/api", "/apis"])
def test_aggregated_discovery_in_protobuf(server: Server, path: str) -> None:
    plain = server.get(path, Accept=f"application/json{AGGREGATED}")
    binary = server.get(
        path, Accept=f"{PROTOBUF}{AGGREGATED},application/json{AGGREGATED},application/json"
    )
    assert binary.headers["Content-Type"] == f"{PROTOBUF}{AGGREGATED}"
    assert protobuf.decode(binary.body) == plain.json
    again = server.get(path, Accept=f"{PROTOBUF}{AGGREGATED}", If_None_Match=binary.headers["ETag"])
    assert (again.code, again.body) == (304, b"")


def flow(
    server: Server, path: str, *, certificate: bool = True, **sent: str
) -> tuple[str | None, str | None]:
    headers = server.request("GET", path, certificate=certificate and not sent, **sent).headers
    return headers.get("X-Kubernetes-Pf-Flowschema-Uid"), headers.get(
        "X-Kubernetes-Pf-Prioritylevel-Uid"
    )


def test_every_reply_names_its_flow_but_a_401(server: Server) -> None:
    exempt = flow(server, "/api/v1/nodes")
    assert None not in exempt
    assert (
        flow(server, "/api/v1/nope")
        == flow(server, "/api/v1/nodes?watch=1&timeoutSeconds=1")
        == exempt
    )
    assert flow(server, "/readyz") == exempt
    probe = flow(server, "/readyz", certificate=False)
    assert probe != exempt
    assert probe[1] == exempt[1]
    assert flow(server, "/api/v1/nodes", Authorization="Bearer nonsense") == (None, None)


def test_errors_are_negotiated_too(server: Server) -> None:
    """B3: YAML and protobuf Statuses; JSON where negotiation itself failed."""
    path = f"{CONFIG_MAPS}/none"
    assert b"reason: NotFound\n" in server.get(path, Accept=YAML).body
    assert protobuf.decode(server.get(path, Accept=PROTOBUF).body)["reason"] == "NotFound"
    assert json.loads(server.get(path, Accept="text/html").body)["code"] == 406
