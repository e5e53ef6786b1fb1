"""Watches: where they start, bookmarks, transitions, forms, ends and every complaint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.serving import Server, watching
from tests.server.surface import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    TABLE,
    Case,
    check,
    config_map,
    make,
)

from sliceplane.server.documents import protobuf

WATCH = f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1"
LIST = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
INVALID = 'ListOptions.meta.k8s.io "" is invalid: '
MATCH = "resourceVersionMatch: "
NEEDS = f"{MATCH}Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
ALONE = (
    f"{MATCH}Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is "
    "provided"
)
ONLY = f'{MATCH}Unsupported value: "Exact": supported values: "NotOlderThan"'
STREAMS = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
GONE = "the server does not allow this method on the requested resource"


def refused(line: str, query: str, code: int, told: str, **sent: str) -> Case:
    return Case(line, "GET", f"{WATCH}&{query}", code, told, sent=sent)


CASES = [
    refused("B5 no match", "sendInitialEvents=true", 422, f"{INVALID}{NEEDS}"),
    refused("B5 no match", "sendInitialEvents=false", 422, f"{INVALID}{NEEDS}"),
    refused("B5 match alone", "resourceVersionMatch=NotOlderThan", 422, f"{INVALID}{ALONE}"),
    refused("B5 Exact alone", "resourceVersionMatch=Exact", 422, f"{INVALID}[{ALONE}, {ONLY}]"),
    refused(
        "B5 Exact",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        422,
        f"{INVALID}[{NEEDS}, {ONLY}]",
    ),
    refused(
        "B5 no number",
        "resourceVersion=abc",
        500,
        'resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax',
    ),
    refused(
        "B3 YAML",
        "",
        406,
        f"only the following media types are accepted: {STREAMS}",
        Accept="application/yaml",
    ),
    Case(
        "B5 timeout",
        "GET",
        f"{CONFIG_MAPS}?watch=1&timeoutSeconds=x",
        400,
        'strconv.ParseInt: parsing "x": invalid syntax',
    ),
    Case(
        "B5 name",
        "GET",
        "/api/v1/watch/namespaces/default/configmaps/a?fieldSelector=metadata.name%3Db",
        400,
        "fieldSelector metadata.name doesn't match requested name",
    ),
    Case(
        "B1 not watched",
        "GET",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?watch=1",
        405,
        GONE,
    ),
    Case("B5 legacy", "POST", "/api/v1/watch/configmaps", 405, GONE, headers={"Allow": "GET"}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_refused(server: Server, case: Case) -> None:
    check(server, case)


def brief(event: dict[str, Any]) -> str:
    head = event["object"]["metadata"]
    end = "!" if "k8s.io/initial-events-end" in head.get("annotations", {}) else ""
    return f"{event['type']} {head.get('name', '')}{end}".strip()


#: parameters of a watch of a namespace with the objects "a" and "b", and all that it shows at once
#: (B5)
STARTS = [
    ("", ["ADDED a", "ADDED b"]),
    ("resourceVersion=0", ["ADDED a", "ADDED b"]),
    ("resourceVersion=FIRST", ["ADDED b"]),
    ("resourceVersion=99999999", []),
    ("allowWatchBookmarks=true", ["ADDED a", "ADDED b", "BOOKMARK !"]),
    ("allowWatchBookmarks=true&resourceVersion=0", ["ADDED a", "ADDED b", "BOOKMARK !"]),
    ("allowWatchBookmarks=true&resourceVersion=FIRST", ["ADDED b"]),
    (f"{LIST}&allowWatchBookmarks=true", ["ADDED a", "ADDED b", "BOOKMARK !"]),
    (
        f"{LIST}&allowWatchBookmarks=true&resourceVersion=FIRST",
        ["ADDED a", "ADDED b", "BOOKMARK !"],
    ),
    (f"{LIST}&allowWatchBookmarks=true&labelSelector=none", ["BOOKMARK !"]),
    (LIST, ["ADDED a", "ADDED b"]),
    (LIST.replace("true", "false"), []),
    (f"{LIST.replace('true', 'false')}&resourceVersion=0", []),
    ("fieldSelector=metadata.name%3Da", ["ADDED a"]),
    ("fieldSelector=metadata.name%3Dnone", []),
    ("limit=1&continue=nonsense", ["ADDED a", "ADDED b"]),
    ("timeout=1ms&shardSelector=anything", ["ADDED a", "ADDED b"]),
]


def test_where_watches_start(server: Server) -> None:
    server.request("POST", NAMESPACES, {"metadata": {"name": "starts"}})
    path = f"{NAMESPACES}/starts/configmaps"
    first = server.request("POST", path, config_map("a")).json["metadata"]["resourceVersion"]
    server.request("POST", path, config_map("b"))
    for query, expected in STARTS:
        with watching(
            server, f"{path}?watch=1&timeoutSeconds=30&{query.replace('FIRST', first)}"
        ) as stream:
            assert stream.response.headers["Content-Type"] == "application/json"
            shown = [brief(stream.next()) for _ in expected]
        assert (query, shown) == (query, expected)


def test_bookmarks_are_of_the_kind_and_say_how_far(server: Server) -> None:
    with watching(server, f"{WATCH}&{LIST}&allowWatchBookmarks=true&labelSelector=none") as stream:
        bookmark = stream.next()["object"]
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("ConfigMap", "v1")
    assert int(bookmark["metadata"]["resourceVersion"]) == server.plane.store.revision


def test_selector_transitions(server: Server) -> None:
    """Leaving shows the old object under the change's version; what is deleted unseen is not
    told.
    """
    query = "watch=1&timeoutSeconds=30&labelSelector=on"
    with watching(server, f"{CONFIG_MAPS}?{query}") as stream:
        make(server, "moving")
        entered = server.request(
            "PUT", f"{CONFIG_MAPS}/moving", config_map("moving", labels={"on": "1"})
        ).json
        left = server.request("PUT", f"{CONFIG_MAPS}/moving", config_map("moving")).json[
            "metadata"
        ]["resourceVersion"]
        server.request("DELETE", f"{CONFIG_MAPS}/moving")
        make(server, "next", labels={"on": "1"})
        assert stream.next() == {"type": "ADDED", "object": entered}
        gone = stream.next()
        assert (gone["type"], gone["object"]["metadata"]["labels"]) == ("DELETED", {"on": "1"})
        assert gone["object"]["metadata"]["resourceVersion"] == left
        assert brief(stream.next()) == "ADDED next"


def test_deletions_carry_their_own_version(server: Server) -> None:
    version = make(server, "ending", finalizers=["x.io/f"])["metadata"]["resourceVersion"]
    with watching(
        server, f"{CONFIG_MAPS}?watch=1&timeoutSeconds=30&resourceVersion={version}"
    ) as stream:
        server.request("DELETE", f"{CONFIG_MAPS}/ending")
        server.request("PUT", f"{CONFIG_MAPS}/ending", config_map("ending"))
        marked, deleted = stream.next(), stream.next()
        assert (marked["type"], deleted["type"]) == ("MODIFIED", "DELETED")
        assert deleted["object"]["metadata"]["finalizers"] == ["x.io/f"]
        versions = [
            int(event["object"]["metadata"]["resourceVersion"]) for event in (marked, deleted)
        ]
        assert versions == [int(version) + 1, int(version) + 2]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (CONFIG_MAPS, "too old resource version: 3 (OLDEST)"),
        (EVENTS, "The resourceVersion for the provided watch is too old."),
    ],
)
def test_too_old_is_an_event_and_the_end(server: Server, path: str, message: str) -> None:
    server.plane.store.compact(server.plane.store.revision)
    with watching(server, f"{path}?watch=1&resourceVersion=3") as stream:
        assert stream.response.status == 200
        event = stream.next()
        assert stream.ended()
    wanted = message.replace("OLDEST", str(server.plane.store.compacted))
    assert event == {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": wanted,
            "reason": "Expired",
            "code": 410,
        },
    }


def test_tables_and_metadata(server: Server) -> None:
    make(server, "shown-1", "shown-2", labels={"shown": "yes"})
    query = f"watch=1&timeoutSeconds=1&labelSelector=shown&{LIST}&allowWatchBookmarks=true"
    tables = [
        json.loads(line)
        for line in server.get(f"{CONFIG_MAPS}?{query}", Accept=TABLE).body.splitlines()
    ]
    assert [event["type"] for event in tables] == ["ADDED", "ADDED", "BOOKMARK"]
    assert [event["object"]["columnDefinitions"] is None for event in tables] == [False, True, True]
    assert [row["cells"][0] for event in tables for row in event["object"]["rows"]] == [
        "shown-1",
        "shown-2",
        "",
    ]
    assert "annotations" in tables[2]["object"]["rows"][0]["object"]["metadata"]
    partial = TABLE.replace("Table", "PartialObjectMetadata")
    lines = server.get(f"{CONFIG_MAPS}?{query}", Accept=partial).body.splitlines()
    assert {json.loads(line)["object"]["kind"] for line in lines} == {"PartialObjectMetadata"}


def test_protobuf_frames(server: Server) -> None:
    make(server, "framed", labels={"framed": "yes"})
    path = f"{WATCH}&labelSelector=framed&allowWatchBookmarks=true"
    accept = "application/vnd.kubernetes.protobuf"
    for wanted in (accept, f"{accept};stream=watch"):
        reply = server.get(path, Accept=wanted)
        assert reply.headers["Content-Type"] == f"{accept};stream=watch"
        size = int.from_bytes(reply.body[:4], "big")
        frame = reply.body[4 : 4 + size]
        assert b"ADDED" in frame[:8]
        found = protobuf.decode(frame[frame.index(b"k8s\0") :])
        assert found["metadata"]["name"] == "framed"


def test_an_upgrade_to_websocket_is_not_taken(server: Server) -> None:
    reply = server.get(
        f"{WATCH}&labelSelector=none",
        Upgrade="websocket",
        Connection="Upgrade",
        Sec_WebSocket_Version="13",
    )
    assert (reply.code, reply.body) == (200, b"")
