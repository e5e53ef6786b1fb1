"""What Kubernetes' own kube-proxy and kube-controller-manager ask for, replayed: answers decode,
streams keep going.

``data/*.json`` holds the requests of the real programs, recorded, and later compared, by the tests
that run them (``make peers``). Here they are sent again, with the same query strings and Accept
headers, and the answers are read as those programs do: a stream of protobuf frames whose first part
ends with the bookmark that closes the initial events.
"""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from tests.documents.frames import FrameReader
from tests.peers.kubernetes import Asked, load
from tests.server.serving import Server, run_plane

from sliceplane.server.documents import protobuf
from sliceplane.server.io.plane import PlaneConfig

PROTOBUF = "application/vnd.kubernetes.protobuf"
END = "k8s.io/initial-events-end"
PROXY = load("kube-proxy.json")
MANAGER = load("kube-controller-manager.json")
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
SERVICES = "/api/v1/namespaces/default/services"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A plane with something of every sort that a node proxy must see or must not see."""
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    server = Server(plane)
    for name in ("node-1", "node-2"):
        make(server, "/api/v1/nodes", "v1", "Node", name)
    make(server, SERVICES, "v1", "Service", "seen", spec={"ports": [{"port": 80}]})
    make(
        server,
        SERVICES,
        "v1",
        "Service",
        "headless",
        spec={"clusterIP": "None", "ports": [{"port": 80}]},
    )
    foreign = {"service.kubernetes.io/service-proxy-name": "another"}
    make(server, SERVICES, "v1", "Service", "foreign", foreign, spec={"ports": [{"port": 80}]})
    make_slice(server, "seen-1", {"kubernetes.io/service-name": "seen"})
    make_slice(server, "hidden-1", {"service.kubernetes.io/headless": ""})
    yield server
    end()


def make(
    server: Server,
    path: str,
    version: str,
    kind: str,
    name: str,
    labels: dict[str, str] | None = None,
    **more: Any,
) -> None:
    document = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": labels or {}},
        **more,
    }
    reply = server.request("POST", path, document, Content_Type="application/json")
    assert reply.code == 201, reply.body


def make_slice(server: Server, name: str, labels: dict[str, str]) -> None:
    endpoints = [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}]
    more = {
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
    }
    make(server, SLICES, "discovery.k8s.io/v1", "EndpointSlice", name, labels, **more)


class Stream:
    """A watch as a client reads it, in protobuf or in JSON."""

    def __init__(self, server: Server, asked: Asked) -> None:
        self._connection = server.connect()
        self.response = send(self._connection, asked)
        self._binary = self.response.headers["Content-Type"].startswith(PROTOBUF)
        self._frames = FrameReader()
        self._line = b""
        self._ready: list[tuple[str, Any]] = []

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.response.close()
        self._connection.close()

    def next(self) -> tuple[str, Any]:
        while not self._ready:
            chunk = self.response.read1()
            assert chunk, "the stream ended"
            self._ready.extend(self._events(chunk))
        return self._ready.pop(0)

    def _events(self, chunk: bytes) -> list[tuple[str, Any]]:
        if self._binary:
            return list(self._frames.feed(chunk))
        *lines, self._line = (self._line + chunk).split(b"\n")
        return [(each["type"], each["object"]) for each in map(json.loads, lines)]

    def initial(self) -> list[Any]:
        """The objects until the bookmark that ends them."""
        found = []
        while (event := self.next())[0] == "ADDED":
            found.append(event[1])
        assert event[0] == "BOOKMARK", event
        assert event[1]["metadata"]["annotations"] == {END: "true"}
        assert int(event[1]["metadata"]["resourceVersion"]) > 0
        return found


def send(connection: http.client.HTTPSConnection, asked: Asked) -> http.client.HTTPResponse:
    headers = {"Accept": asked.accept}
    if asked.content_type:
        headers["Content-Type"] = asked.content_type
    query = urllib.parse.urlencode(asked.query)
    connection.request(
        asked.method, f"{asked.path}?{query}" if query else asked.path, asked.body or None, headers
    )
    return connection.getresponse()


def one(path: str) -> Asked:
    (found,) = (each for each in PROXY if each.path == path)
    return found


def named(asked: Asked) -> str:
    return f"{asked.method} {asked.path}"


@pytest.mark.parametrize(
    "asked", [each for each in PROXY + MANAGER if dict(each.query).get("watch")], ids=named
)
def test_streams_decode_up_to_the_bookmark(server: Server, asked: Asked) -> None:
    assert dict(asked.query).get("sendInitialEvents") == "true", (
        "every informer of today begins with a stream"
    )
    with Stream(server, asked) as stream:
        assert stream.response.status == 200
        wanted = asked.accept.partition(",")[0].partition(";")[0]
        assert stream.response.headers["Content-Type"].partition(";")[0] == wanted
        found = stream.initial()
    versions = [int(each["metadata"]["resourceVersion"]) for each in found]
    assert len(
        {(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in found}
    ) == len(versions)
    if "as=PartialObjectMetadata" in asked.accept:
        assert {each["kind"] for each in found} <= {"PartialObjectMetadata"}


@pytest.mark.parametrize(
    "asked",
    [each for each in MANAGER if each.method == "GET" and not dict(each.query).get("watch")],
    ids=named,
)
def test_reads_decode(server: Server, asked: Asked) -> None:
    connection = server.connect()
    try:
        response = send(connection, asked)
        body = response.read()
    finally:
        connection.close()
    assert response.status == 200, body
    if response.headers["Content-Type"].startswith(PROTOBUF):
        assert protobuf.decode(body)["kind"]
    elif response.headers["Content-Type"].startswith("application/json"):
        assert json.loads(body)["kind"]
    else:
        assert body == b"ok"


def test_the_recordings_are_whole() -> None:
    """What a proxy needs is there, and all of it in protobuf."""
    assert {each.path for each in PROXY if each.method == "GET"} == {
        "/api/v1/nodes",
        "/api/v1/services",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/networking.k8s.io/v1/servicecidrs",
    }
    assert {each.accept for each in PROXY} == {f"{PROTOBUF}, */*"}
    assert [each.path for each in PROXY if each.method == "POST"] == [
        "/apis/events.k8s.io/v1/namespaces/default/events"
    ]


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/api/v1/nodes", {"node-1"}),
        ("/api/v1/services", {"kubernetes", "seen"}),
        ("/apis/discovery.k8s.io/v1/endpointslices", {"seen-1"}),
    ],
)
def test_a_proxy_sees_what_its_selectors_let_through(
    server: Server, path: str, seen: set[str]
) -> None:
    with Stream(server, one(path)) as stream:
        found = {each["metadata"]["name"] for each in stream.initial()}
    # the server's own slice is there when it has an address to offer
    assert found - {"kubernetes"} == seen - {"kubernetes"}


def test_changes_follow_the_initial_events(server: Server) -> None:
    """The stream goes on: a new slice, one that gains the hiding label, one that is deleted."""
    with Stream(server, one("/apis/discovery.k8s.io/v1/endpointslices")) as stream:
        stream.initial()
        make_slice(server, "later-1", {"kubernetes.io/service-name": "seen"})
        kind, added = stream.next()
        assert (kind, added["metadata"]["name"]) == ("ADDED", "later-1")
        assert added["endpoints"][0]["addresses"] == ["192.0.2.1"]
        hide = {"metadata": {"labels": {"service.kubernetes.io/headless": ""}}}
        reply = server.request(
            "PATCH", f"{SLICES}/later-1", hide, Content_Type="application/merge-patch+json"
        )
        assert reply.code == 200, reply.body
        kind, gone = stream.next()
        assert (kind, gone["metadata"]["name"]) == ("DELETED", "later-1")
        assert gone["metadata"]["resourceVersion"] == reply.json["metadata"]["resourceVersion"]
        assert server.request("DELETE", f"{SLICES}/later-1").code == 200
        make_slice(server, "later-2", {"kubernetes.io/service-name": "seen"})
        assert stream.next()[1]["metadata"]["name"] == "later-2", "what is hidden is not heard of"
        assert server.request("DELETE", f"{SLICES}/later-2").code == 200
        assert stream.next()[0] == "DELETED"


def test_a_proxys_event_is_stored(server: Server) -> None:
    (posted,) = (each for each in PROXY if each.method == "POST")
    sent = protobuf.decode(posted.body)
    connection = server.connect()
    try:
        response = send(connection, posted)
        stored = protobuf.decode(response.read())
    finally:
        connection.close()
    assert response.status == 201, stored
    assert stored["reason"] == sent["reason"] == "Starting"
    name = sent["metadata"]["name"]
    core = server.get(f"/api/v1/namespaces/default/events/{name}").json
    assert core["involvedObject"]["name"] == "node-1"
    assert core["reportingComponent"] == "kube-proxy"
