"""Writes: preconditions, identity, names, patches, strictness, dryRun, complaints."""
# messages are whole: they are searched for

from __future__ import annotations

from typing import Any

import pytest
from tests.server.serving import Server
from tests.server.surface import (
    CONFIG_MAPS,
    LEASES,
    MERGE_PATCH,
    NAMESPACES,
    SLICES,
    Case,
    cases,
    check,
    config_map,
    make,
)

KEPT = f"{CONFIG_MAPS}/kept"
GENERIC = "the server rejected our request due to an error in our request"


#: none of these changes the object that they speak of
CASES = cases(__file__)


@pytest.fixture(scope="module")
def kept(server: Server) -> dict[str, Any]:
    return make(server, "kept")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_writes(server: Server, kept: dict[str, Any], case: Case) -> None:
    reply = check(server, case)
    if case.code == 500:
        assert "reason" not in reply.json
    if case.told == GENERIC:
        assert (reply.json["reason"], reply.json["details"]) == ("Invalid", {})
    assert server.get(KEPT).json == kept


def test_what_warns_is_done(server: Server) -> None:
    raw = b'{"metadata":{"name":"warned","foo":1},"data":{"a":"b","a":"c"},"Data":{}}'
    reply = server.request("POST", CONFIG_MAPS, raw)
    assert sorted(reply.values("Warning")) == [
        '299 - "duplicate field \\"data.a\\""',
        '299 - "unknown field \\"Data\\""',
        '299 - "unknown field \\"metadata.foo\\""',
    ]
    assert reply.json["data"] == {"a": "c"}
    quiet = server.request("PUT", f"{CONFIG_MAPS}/warned?fieldValidation=Ignore", raw)
    assert (quiet.code, quiet.values("Warning")) == (200, [])


def test_a_no_op_writes_nothing(server: Server) -> None:
    version = make(server, "same")["metadata"]["resourceVersion"]
    before = server.plane.store.revision
    for reply in (
        server.request("PUT", f"{CONFIG_MAPS}/same?fieldManager=other", config_map("same")),
        server.request("PUT", f"{CONFIG_MAPS}/same", config_map("same", resourceVersion=version)),
        server.request(
            "PATCH", f"{CONFIG_MAPS}/same", {"data": {"a": "b"}}, Content_Type=MERGE_PATCH
        ),
    ):
        assert (reply.code, reply.json["metadata"]["resourceVersion"]) == (200, version)
    assert server.plane.store.revision == before


#: made by PUT (B6): path, body
CREATED_BY_PUT = [
    (f"{LEASES}/made", {"spec": {}}),
    (f"{NAMESPACES}/default/endpoints/made", {}),
    (f"{NAMESPACES}/default/events/made", {"involvedObject": {"namespace": "default"}}),
    (f"{NAMESPACES}/default/services/made", {"spec": {"ports": [{"port": 80}]}}),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles/made", {"rules": []}),
]


@pytest.mark.parametrize(("path", "body"), CREATED_BY_PUT)
def test_kinds_that_a_put_creates(server: Server, path: str, body: dict[str, Any]) -> None:
    """A given version is ignored then."""
    wanted = {"metadata": {"name": "made", "resourceVersion": "7"}, **body}
    assert server.request("PUT", path, wanted).code == 201
    again = server.request("PUT", path, {**wanted, "metadata": {"name": "made"}})
    if "leases" not in path:
        assert again.code == 200
        return
    assert (again.code, again.json["details"]["kind"]) == (422, "leases")
    assert again.json["message"] == (
        'leases.coordination.k8s.io "made" is invalid: metadata.resourceVersion: Invalid value: '
        "0: must be specified for "
        "an update"
    )


def test_generated_names(server: Server) -> None:
    """The base is cut to 58; a bad prefix is told twice; what stays taken is told with advice."""
    prefix = "g" * 70
    made = server.request("POST", CONFIG_MAPS, {"metadata": {"generateName": prefix}}).json[
        "metadata"
    ]
    assert (made["name"][:58], len(made["name"]), made["generateName"]) == ("g" * 58, 63, prefix)
    assert set(made["name"][58:]) <= set("bcdfghjklmnpqrstvwxz2456789")
    refused = server.request("POST", CONFIG_MAPS, {"metadata": {"generateName": "Bad_"}}).json
    assert [cause["field"] for cause in refused["details"]["causes"]] == [
        "metadata.generateName",
        "metadata.name",
    ]


#: a change to a slice and whether it counts as a generation (B6)
GENERATIONS = [
    ({"endpoints": [{"addresses": ["10.0.0.9"]}]}, 1),
    ({"metadata": {"labels": {"a": "b"}}}, 1),
    ({"metadata": {"annotations": {"a": "b"}}}, 0),
    ({"metadata": {"finalizers": ["x.io/f"]}}, 0),
    (
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
            }
        },
        0,
    ),
    ({"metadata": {"generation": 99}}, 0),
]


def test_generations(server: Server) -> None:
    body = {"metadata": {"name": "counted"}, "addressType": "IPv4", "endpoints": [], "ports": []}
    generation = server.request("POST", SLICES, body).json["metadata"]["generation"]
    assert generation == 1
    for change, step in GENERATIONS:
        reply = server.request("PATCH", f"{SLICES}/counted", change, Content_Type=MERGE_PATCH)
        generation += step
        assert (change, reply.json["metadata"]["generation"]) == (change, generation)
    assert (
        server.request("DELETE", f"{SLICES}/counted").json["metadata"]["generation"]
        == generation + 1
    )
    kept = {
        "selfLink": "x",
        "uid": "1",
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "generation": 7,
    }
    made = make(
        server,
        "own",
        deletionTimestamp="2020-01-01T00:00:00Z",
        deletionGracePeriodSeconds=3,
        **kept,
    )
    head = made["metadata"]
    assert head["generation"] == 7
    assert head["uid"] != "1"
    assert not {"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} & set(head)
    assert not head["creationTimestamp"].startswith("2020")
