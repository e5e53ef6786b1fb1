"""``discovery.k8s.io/v1beta1`` over HTTP: off unless asked for, then the same objects in every
form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from tests.documents.frames import FrameReader
from tests.server.serving import Server, run_plane

from sliceplane.api.gates import Gates
from sliceplane.api.scheme import EndpointSlicesV1beta1
from sliceplane.cli.main import main
from sliceplane.server.documents import protobuf
from sliceplane.server.io.plane import PlaneConfig
from sliceplane.server.io.requests.encoders import encoder_for
from sliceplane.server.io.requests.response import negotiate
from sliceplane.server.registry.config import served_resources

OLD = "/apis/discovery.k8s.io/v1beta1"
OLD_SLICES = f"{OLD}/namespaces/default/endpointslices"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
PROTOBUF = "application/vnd.kubernetes.protobuf"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
ZONE = "topology.kubernetes.io/zone"


@pytest.fixture(scope="module")
def old() -> Iterator[Server]:
    """A server with v1beta1 on."""
    served = served_resources("discovery.k8s.io/v1beta1=true")
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, served=served))
    yield Server(plane)
    end()


def document(name: str, **topology: str) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1beta1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"case": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.2.3"], "topology": {ZONE: "z", **topology}}],
    }


def test_off_by_default(server: Server) -> None:
    assert server.get(OLD).code == 404
    assert server.get(OLD_SLICES).code == 404
    assert server.request("POST", OLD_SLICES, document("no")).code == 404
    assert server.get(f"/openapi/v3{OLD}").code == 404
    assert f"{OLD[1:]}" not in server.get("/openapi/v3").json["paths"]
    [group] = [
        each for each in server.get("/apis").json["groups"] if each["name"] == "discovery.k8s.io"
    ]
    assert [each["version"] for each in group["versions"]] == ["v1"]


def test_discovery(old: Server) -> None:
    [group] = [
        each for each in old.get("/apis").json["groups"] if each["name"] == "discovery.k8s.io"
    ]
    assert [each["version"] for each in group["versions"]] == ["v1", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"
    [entry] = old.get(OLD).json["resources"]
    [current] = old.get("/apis/discovery.k8s.io/v1").json["resources"]
    assert entry == current, (
        "one kind, one storage: even the hash of the storage version is the same"
    )
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    items = {
        item["metadata"]["name"]: item for item in old.get("/apis", Accept=accept).json["items"]
    }
    versions = [each["version"] for each in items["discovery.k8s.io"]["versions"]]
    assert versions == ["v1", "v1beta1"]
    assert OLD in old.get("/").json["paths"]


def test_openapi(old: Server) -> None:
    assert OLD[1:] in old.get("/openapi/v3").json["paths"]
    schemas = old.get(f"/openapi/v3{OLD}").json["components"]["schemas"]
    properties = schemas["io.k8s.api.discovery.v1beta1.Endpoint"]["properties"]
    assert {"topology", "nodeName"} < properties.keys()
    assert not {"zone", "deprecatedTopology"} & properties.keys()
    assert "io.k8s.api.discovery.v1.Endpoint" not in schemas


def test_json_both_ways(old: Server) -> None:
    made = old.request("POST", OLD_SLICES, document("json", rack="r"))
    assert (made.code, made.json["apiVersion"]) == (201, "discovery.k8s.io/v1beta1")
    assert made.values("warning") == [
        (
            '299 - "discovery.k8s.io/v1beta1 EndpointSlice is deprecated in v1.21+, unavailable '
            "in v1.25+; "
            'use discovery.k8s.io/v1 EndpointSlice"'
        )
    ]
    read = old.get(f"{SLICES}/json")
    assert read.values("warning") == []
    [endpoint] = read.json["endpoints"]
    assert (endpoint["zone"], endpoint["deprecatedTopology"]) == ("z", {"rack": "r"})
    listed = old.get(f"{OLD_SLICES}?labelSelector=case%3Djson").json
    assert (listed["apiVersion"], listed["kind"]) == (
        "discovery.k8s.io/v1beta1",
        "EndpointSliceList",
    )
    assert listed["items"][0]["endpoints"][0]["topology"] == {ZONE: "z", "rack": "r"}
    assert "apiVersion" not in listed["items"][0]
    body = {**made.json, "endpoints": [{"addresses": ["10.9.9.9"], "topology": {ZONE: "y"}}]}
    assert old.request("PUT", f"{OLD_SLICES}/json", body).json["endpoints"][0]["topology"] == {
        ZONE: "y"
    }
    merge = {"Content-Type": "application/merge-patch+json"}
    patched = old.request(
        "PATCH", f"{OLD_SLICES}/json", {"metadata": {"labels": {"a": "b"}}}, **merge
    )
    assert (patched.code, patched.json["apiVersion"]) == (200, "discovery.k8s.io/v1beta1")
    assert old.request("DELETE", f"{OLD_SLICES}/json").json["status"] == "Success"


def test_protobuf_both_ways(old: Server) -> None:
    raw = protobuf.encode(document("proto", rack="r"))
    made = old.request("POST", OLD_SLICES, raw, Content_Type=PROTOBUF, Accept=PROTOBUF)
    assert made.code == 201, made.body
    decoded = protobuf.decode(made.body)
    assert decoded["apiVersion"] == "discovery.k8s.io/v1beta1"
    assert decoded["endpoints"][0]["topology"] == {ZONE: "z", "rack": "r"}
    assert (
        protobuf.decode(old.get(f"{SLICES}/proto", Accept=PROTOBUF).body)["endpoints"][0]["zone"]
        == "z"
    )
    listed = protobuf.decode(
        old.get(f"{OLD_SLICES}?labelSelector=case%3Dproto", Accept=PROTOBUF).body
    )
    assert listed["items"][0]["endpoints"][0]["topology"] == {ZONE: "z", "rack": "r"}


def test_table_partial_metadata_and_yaml(old: Server) -> None:
    old.request("POST", OLD_SLICES, document("forms"))
    table = old.get(f"{OLD_SLICES}/forms?includeObject=Object", Accept=TABLE).json
    assert table["rows"][0]["cells"][:4] == ["forms", "IPv4", "<unset>", "10.1.2.3"]
    assert table["rows"][0]["object"]["endpoints"][0]["topology"] == {ZONE: "z"}
    partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    assert old.get(f"{OLD_SLICES}/forms", Accept=partial).json["metadata"]["name"] == "forms"
    assert f"{ZONE}: z".encode() in old.get(f"{OLD_SLICES}/forms", Accept="application/yaml").body


@pytest.mark.parametrize("prefix", [OLD, f"{OLD}/watch"])
def test_watch(old: Server, prefix: str) -> None:
    name = f"watched{len(prefix)}"
    old.request("POST", OLD_SLICES, document(name, rack="r"))
    query = f"watch=1&labelSelector=case%3D{name}&timeoutSeconds=1"
    reply = old.get(f"{prefix}/namespaces/default/endpointslices?{query}")
    [event] = [json.loads(line) for line in reply.body.splitlines()]
    assert (event["type"], event["object"]["apiVersion"]) == ("ADDED", "discovery.k8s.io/v1beta1")
    assert event["object"]["endpoints"][0]["topology"] == {ZONE: "z", "rack": "r"}


def test_watch_in_protobuf_and_as_table(old: Server) -> None:
    old.request("POST", OLD_SLICES, document("framed", rack="r"))
    query = "watch=1&labelSelector=case%3Dframed&timeoutSeconds=1"
    reply = old.get(f"{OLD_SLICES}?{query}", Accept=f"{PROTOBUF};stream=watch")
    [(kind, framed)] = FrameReader().feed(reply.body)
    assert (kind, framed["endpoints"][0]["topology"]) == ("ADDED", {ZONE: "z", "rack": "r"})
    row = json.loads(old.get(f"{OLD_SLICES}?{query}&includeObject=Object", Accept=TABLE).body)
    assert row["object"]["rows"][0]["object"]["endpoints"][0]["topology"] == {
        ZONE: "z",
        "rack": "r",
    }


def test_all_watchers_of_a_version_share_one_encoder(old: Server) -> None:
    representation = negotiate("application/json", watch=True)
    first = encoder_for(EndpointSlicesV1beta1, representation, "Metadata", old.plane.clock)
    assert first is encoder_for(EndpointSlicesV1beta1, representation, "Metadata", old.plane.clock)


@pytest.mark.parametrize("command", ["up", "apiserver"])
def test_what_the_flag_cannot_mean_is_a_usage_error(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--runtime-config=discovery.k8s.io/v2=true"])
    assert result.exit_code == 64
    assert (
        "Invalid value for '--runtime-config': unknown api 'discovery.k8s.io/v2'" in result.output
    )


def test_an_emulated_release_has_its_gates_and_says_so() -> None:
    gates = Gates.parse("TopologyAwareHints=false", (1, 30))
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, gates=gates))
    server = Server(plane)
    try:
        shown = server.get("/version").json
        assert (shown["minor"], shown["emulationMinor"], shown["minCompatibilityMinor"]) == (
            "36",
            "30",
            "29",
        )
        hints = {"forZones": [{"name": "z"}]}
        endpoints = [{"addresses": ["10.1.2.3"], "hints": hints}]
        body = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": endpoints}
        made = server.request("POST", SLICES, body)
        assert (made.code, made.json["endpoints"]) == (
            201,
            [{"addresses": ["10.1.2.3"], "conditions": {}}],
        )
    finally:
        end()
