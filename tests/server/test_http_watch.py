"""Watch streams over HTTP, their limits, and how they end."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.documents.frames import FrameReader
from tests.server.serving import Server, Stream, complaints, run_plane, serving, watching
from tests.waiting import until

from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.requests.limits import Limits

NAMESPACES = "/api/v1/namespaces"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def space(server: Server, name: str) -> str:
    """A namespace of the test's own; the path of its ConfigMaps."""
    made = server.request("POST", NAMESPACES, {"metadata": {"name": name}})
    assert made.code == 201, made.body
    return f"{NAMESPACES}/{name}/configmaps"


def put(server: Server, path: str, name: str, value: str = "", **labels: str) -> int:
    """Create or replace a ConfigMap; its resourceVersion."""
    body = {"metadata": {"name": name, "labels": labels}, "data": {"value": value}}
    reply = server.request("POST", path, body)
    if reply.code == 409:
        reply = server.request("PUT", f"{path}/{name}", body)
    return int(reply.json["metadata"]["resourceVersion"])


def brief(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"].get("name", "")


def settle(server: Server, watchers: int) -> None:
    """Wait until the hub has so many watchers."""
    until(lambda: len(server.plane.hub), lambda count: count == watchers)


def test_state_then_events(server: Server) -> None:
    path = space(server, "w1")
    put(server, path, "b")
    put(server, path, "a")
    with watching(server, f"{path}?watch=true") as stream:
        assert stream.response.headers["Content-Type"] == "application/json"
        assert stream.response.headers["Transfer-Encoding"] == "chunked"
        assert stream.response.headers["Audit-Id"]
        assert [brief(stream.next()) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]
        put(server, path, "a", "2")
        changed = stream.next()
        assert (brief(changed), changed["object"]["data"]) == (("MODIFIED", "a"), {"value": "2"})
        assert (changed["object"]["kind"], changed["object"]["apiVersion"]) == ("ConfigMap", "v1")
        server.request("DELETE", f"{path}/b")
        gone = stream.next()
        assert brief(gone) == ("DELETED", "b")
        assert int(gone["object"]["metadata"]["resourceVersion"]) > int(
            changed["object"]["metadata"]["resourceVersion"]
        )


def test_resume_from_a_version(server: Server) -> None:
    path = space(server, "w2")
    first = put(server, path, "a")
    put(server, path, "b")
    server.request("DELETE", f"{path}/a")
    with watching(server, f"{path}?watch=true&resourceVersion={first}") as stream:
        assert [brief(stream.next()) for _ in range(2)] == [("ADDED", "b"), ("DELETED", "a")]


def test_watch_list(server: Server) -> None:
    path = space(server, "w3")
    put(server, path, "a")
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with watching(server, f"{path}?{query}") as stream:
        assert brief(stream.next()) == ("ADDED", "a")
        mark = stream.next()
        assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(mark["object"]["metadata"]["resourceVersion"]) >= 1
        put(server, path, "b")
        assert brief(stream.next()) == ("ADDED", "b")


def test_selector_transitions(server: Server) -> None:
    path = space(server, "w4")
    version = put(server, path, "a", "1", on="yes")
    with watching(
        server, f"{path}?watch=true&labelSelector=on%3Dyes&resourceVersion={version}"
    ) as stream:
        put(server, path, "x", "1", on="no")
        left = put(server, path, "a", "2", on="no")
        gone = stream.next()
        assert (brief(gone), gone["object"]["data"]) == (("DELETED", "a"), {"value": "1"})
        assert gone["object"]["metadata"]["resourceVersion"] == str(left)
        put(server, path, "a", "3", on="yes")
        assert brief(stream.next()) == ("ADDED", "a")


def test_legacy_watch_paths(server: Server) -> None:
    path = space(server, "w5")
    put(server, path, "a")
    put(server, path, "b")
    legacy = path.replace("/api/v1/", "/api/v1/watch/")
    with watching(server, legacy) as stream:
        assert brief(stream.next()) == ("ADDED", "a")
    with watching(server, f"{legacy}/b") as stream:
        assert brief(stream.next()) == ("ADDED", "b")
    refused = server.get(f"{legacy}/b?fieldSelector=metadata.name%3Da")
    assert refused.code == 400
    assert refused.json["message"] == "fieldSelector metadata.name doesn't match requested name"


def test_watch_of_one_object_and_of_nothing(server: Server) -> None:
    path = space(server, "w6")
    with watching(server, f"{path}?watch=true&fieldSelector=metadata.name%3Db") as stream:
        put(server, path, "a")
        put(server, path, "b")
        assert brief(stream.next()) == ("ADDED", "b")
    with watching(server, f"{NAMESPACES}/nowhere/configmaps?watch=true&timeoutSeconds=1") as stream:
        assert stream.ended()


def test_timeout_ends_the_stream_cleanly_and_the_connection_lives_on(server: Server) -> None:
    connection = server.connect()
    for _ in range(2):
        started = time.monotonic()
        reply = server.request(
            "GET", "/api/v1/nodes?watch=true&timeoutSeconds=1", connection=connection
        )
        assert (reply.code, reply.body) == (200, b"")
        assert 0.9 < time.monotonic() - started < 30
    connection.close()
    settle(server, 0)


def test_too_old_a_version_is_an_error_event(server: Server) -> None:
    store = server.plane.store
    put(server, f"{NAMESPACES}/default/configmaps", "old")
    compacted, store.compacted = store.compacted, store.revision
    try:
        with watching(server, f"{NAMESPACES}?watch=true&resourceVersion=1") as stream:
            event = stream.next()
            assert event["type"] == "ERROR"
            assert event["object"]["code"] == 410
            assert event["object"]["reason"] == "Expired"
            assert event["object"]["message"] == f"too old resource version: 1 ({store.revision})"
            assert stream.ended()
    finally:
        store.compacted = compacted


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """Waits neither for versions nor for those who do not read."""
    with serving(Periods(future_version_s=0.5, stalled_watch_s=0.2)) as server:
        yield server


def test_state_at_a_version_from_the_future(impatient: Server) -> None:
    server = impatient
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=999999"
    with watching(server, f"{NAMESPACES}?watch=true&{query}") as stream:
        event = stream.next()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
            "ERROR",
            504,
            "Timeout",
        )
        assert stream.ended()


def test_a_version_that_storage_never_had_is_an_error_event(server: Server) -> None:
    """It is of a history that is lost: nothing that follows it would ever come."""
    newest = server.plane.store.revision
    for path in (NAMESPACES, "/api/v1/events"):
        with watching(server, f"{path}?watch=true&resourceVersion={newest + 1000}") as stream:
            event = stream.next()
            assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
                "ERROR",
                410,
                "Expired",
            )
            assert (
                f"resource version {newest + 1000} is not of this history"
                in event["object"]["message"]
            )
            assert stream.ended()


WATCH_ERRORS = [
    (
        "sendInitialEvents=true",
        422,
        (
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: '
            "sendInitialEvents requires "
            "setting resourceVersionMatch to NotOlderThan"
        ),
    ),
    ("timeoutSeconds=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    ("fieldSelector=foo%3D1", 400, "field label not supported: foo"),
]


@pytest.mark.parametrize(("query", "code", "message"), WATCH_ERRORS)
def test_errors_before_the_stream(server: Server, query: str, code: int, message: str) -> None:
    reply = server.get(f"{NAMESPACES}?watch=true&{query}")
    assert (reply.code, reply.json["message"]) == (code, message)


def test_not_acceptable_on_a_watch(server: Server) -> None:
    reply = server.get(f"{NAMESPACES}?watch=true", Accept="application/yaml")
    assert reply.json["message"] == (
        "only the following media types are accepted: application/json;stream=watch, "
        "application/vnd.kubernetes.protobuf;stream=watch"
    )


# Forms


def test_table_watch_has_columns_once_per_connection(server: Server) -> None:
    path = space(server, "w7")
    put(server, path, "a")
    put(server, path, "b")
    for _ in range(2):
        with watching(server, f"{path}?watch=true", Accept=f"{TABLE},application/json") as stream:
            first, second = stream.next(), stream.next()
            assert [column["name"] for column in first["object"]["columnDefinitions"]] == [
                "Name",
                "Data",
                "Age",
            ]
            assert second["object"]["columnDefinitions"] is None
            assert [event["object"]["rows"][0]["cells"][:2] for event in (first, second)] == [
                ["a", 1],
                ["b", 1],
            ]


def test_partial_metadata_watch(server: Server) -> None:
    path = space(server, "w8")
    put(server, path, "a")
    accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    with watching(server, f"{path}?watch=true&allowWatchBookmarks=true", Accept=accept) as stream:
        event, mark = stream.next(), stream.next()
        assert event["object"]["kind"] == mark["object"]["kind"] == "PartialObjectMetadata"
        assert set(event["object"]) == {"kind", "apiVersion", "metadata"}


def test_protobuf_watch(server: Server) -> None:
    path = space(server, "w9")
    put(server, path, "a", "1")
    accept = "application/vnd.kubernetes.protobuf;stream=watch"
    with watching(
        server, f"{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1", Accept=accept
    ) as stream:
        assert stream.response.headers["Content-Type"] == accept
        events = FrameReader().feed(stream.response.read())
    assert [kind for kind, _ in events][:2] == ["ADDED", "BOOKMARK"]
    assert events[0][1]["data"] == {"value": "1"}
    assert events[1][1]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_never_pretty_never_gzipped_always_escaped(server: Server) -> None:
    path = space(server, "w10")
    put(server, path, "a", "<&>" + "x" * 200_000)
    with watching(
        server, f"{path}?watch=true&pretty=true", Accept_Encoding="gzip", User_Agent="curl/8"
    ) as stream:
        line = stream.response.readline()
        assert b"\\u003c\\u0026\\u003e" in line
        assert line.startswith(b'{"type":"ADDED","object":{"kind":"ConfigMap"')


# Ends


def test_a_client_that_leaves_is_forgotten(server: Server) -> None:
    settle(server, 0)
    streams = [
        Stream(server, f"{NAMESPACES}?watch=true&resourceVersion={server.plane.store.revision}")
        for _ in range(5)
    ]
    settle(server, 5)
    for stream in streams:
        stream.close()
    settle(server, 0)
    assert len(server.plane.hub) == 0


def test_a_client_that_leaves_before_the_stream_begins_is_forgotten(impatient: Server) -> None:
    server = impatient
    query = "watch=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&resourceVersion=99999"
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        server.context().wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(f"GET /api/v1/nodes?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        until(lambda: watch_requests(server), lambda count: count == 1)
    until(lambda: watch_requests(server), lambda count: count == 0)


def watch_requests(server: Server) -> int:
    text = server.get("/metrics").body.decode()
    return sum(
        int(float(n))
        for n in re.findall(r"^apiserver_longrunning_requests\{[^}]*\} (\S+)$", text, re.M)
    )


def test_a_client_that_leaves_behind_a_pipelined_request_is_forgotten(server: Server) -> None:
    settle(server, 0)
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        server.context().wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(
            b"GET /api/v1/nodes?watch=1 HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert tls.recv(65536).startswith(b"HTTP/1.1 200 ")
        settle(server, 1)
    settle(server, 0)


def read_to_the_end(tls: ssl.SSLSocket) -> None:
    while tls.recv(1_000_000):
        pass
    raise EOFError


@contextmanager
def overflowing(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> Iterator[ssl.SSLSocket]:
    """A connection whose watch was closed, since it did not read while another one did."""
    path = space(server, name)
    hub = server.plane.hub
    subscribe, before = hub.subscribe, hub.overflowed.value
    monkeypatch.setattr(
        hub, "subscribe", lambda *args, **kw: subscribe(*args, **{**kw, "bound_bytes": 1_000_000})
    )
    settle(server, 0)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        raw.settimeout(60)
        raw.connect((server.host, server.port))
        with (
            server.context().wrap_socket(raw, server_hostname="localhost") as tls,
            watching(server, f"{path}?watch=true") as reader,
        ):
            tls.sendall(f"GET {path}?watch=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert tls.recv(1000)
            settle(server, 2)
            for number in range(100):
                put(server, path, f"cm-{number}", "x" * 300_000)
                # Nobody is held up by the one that does not read.
                assert brief(reader.next()) == ("ADDED", f"cm-{number}")
                if hub.overflowed.value > before:
                    break
            assert len(hub) == 1
            yield tls


def test_a_client_that_does_not_read_is_cut_off(
    impatient: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = impatient
    with overflowing(server, monkeypatch, "stalled") as tls:
        until(lambda: server.plane.listener.connections, lambda count: count <= 1)
        with pytest.raises((ConnectionError, ssl.SSLError, EOFError)):
            read_to_the_end(tls)


def test_a_client_that_reads_too_slowly_is_told_to_start_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overflowing(server, monkeypatch, "slow") as tls:
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            chunk = tls.recv(1_000_000)
            assert chunk, "the stream broke off"
            received = (received + chunk)[-2000:]
        error = json.loads(received[received.rindex(b'{"type":') :].partition(b"\n")[0])
        assert (error["type"], error["object"]["code"], error["object"]["reason"]) == (
            "ERROR",
            410,
            "Expired",
        )


# Limits and the end of the server


def test_limit_of_watches() -> None:
    limits = Limits(watches_max=1)
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, limits=limits))
    server = Server(plane)
    try:
        with watching(server, f"{NAMESPACES}?watch=true"):
            refused = server.get(f"{NAMESPACES}?watch=true")
            assert (refused.code, refused.headers["Retry-After"]) == (429, "1")
            assert refused.headers["Content-Type"].startswith("text/plain")
            assert refused.body == b"Too many requests, please try again later."
            assert server.get(NAMESPACES).code == 200
        settle(server, 0)
        with watching(server, f"{NAMESPACES}?watch=true") as stream:
            stream.next()
    finally:
        end()


def test_limit_of_connections() -> None:
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0, limits=Limits(connections_max=2))
    )
    server = Server(plane)
    try:
        kept = [server.connect() for _ in range(2)]
        for connection in kept:
            assert server.request("GET", "/livez", connection=connection).code == 200
        with pytest.raises((ConnectionError, ssl.SSLError, http.client.BadStatusLine)):
            server.get("/livez")
        kept.pop().close()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert server.get("/livez").code == 200
                break
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline
        kept.pop().close()
    finally:
        end()


def test_shutdown_with_open_watches_is_fast_and_silent(capfd: pytest.CaptureFixture[str]) -> None:
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0), periods=Periods(stop_grace_s=100.0)
    )
    server = Server(plane)
    streams = [Stream(server, f"{NAMESPACES}?watch=true&resourceVersion=5") for _ in range(50)]
    idle = server.connect()
    server.request("GET", "/livez", connection=idle)
    settle(server, 50)
    started = time.monotonic()
    end()
    assert time.monotonic() - started < 90, "less than the time for requests that run"
    for stream in streams:
        assert stream.ended(), "a watch ends with a clean last chunk"
        stream.close()
    idle.close()
    said = capfd.readouterr()
    assert (said.out, complaints(said.err)) == ("", [])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port))


def test_connections_are_shared_by_users(tmp_path: Path) -> None:
    """One account had all 30,000, and kept everybody else out."""
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("hog-token,hog,1\njane-token,jane,2\n")
    limits = Limits(connections_max=12)
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0, limits=limits, token_auth_file=tokens)
    )
    server = Server(plane)

    def ask(user: str, connection: http.client.HTTPSConnection | None = None) -> int:
        bearer = f"Bearer {user}-token"
        return server.request(
            "GET", "/version", connection=connection, certificate=False, Authorization=bearer
        ).code

    with ExitStack() as stack:
        stack.callback(end)
        kept = [stack.enter_context(closing(server.connect(certificate=False))) for _ in range(7)]
        codes = [ask("hog", connection) for connection in kept]
        # Half of what is left of the 12, without the tenth for nodes; a connection of the plane's
        # own may be open.
        assert codes in ([200] * 6 + [429], [200] * 5 + [429] * 2)
        assert kept[6].sock is None, "it is closed with its answer"
        assert ask("hog", kept[0]) == 200, "those that it has go on"
        assert ask("jane") == 200
        assert server.get("/version").code == 200
        kept[0].close()
        deadline = time.monotonic() + 60
        while ask("hog") == 429:
            assert time.monotonic() < deadline, "a closed one makes room"
