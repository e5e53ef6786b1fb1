"""Discovery, unknown pages, methods and the headers of every reply."""

from __future__ import annotations

import json

import pytest
from tests.server.serving import Server
from tests.server.surface import CONFIG_MAPS, PROTOBUF, YAML, Case, cases, check

from sliceplane.server.documents import protobuf

AGGREGATED = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

CASES = cases(__file__)


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
