"""Writes: preconditions, identity, names, patches, strictness, dryRun, complaints."""
# messages are whole: they are searched for

from __future__ import annotations

from typing import Any

import pytest
from tests.server.serving import Server
from tests.server.surface import (
    CONFIG_MAPS,
    JSON_PATCH,
    LEASES,
    MERGE_PATCH,
    NAMESPACES,
    PROTOBUF,
    SLICES,
    STRATEGIC_PATCH,
    YAML,
    Case,
    check,
    config_map,
    make,
)

KEPT = f"{CONFIG_MAPS}/kept"
STALE = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
URL = "the name of the object (kept based on URL) was undeterminable: name must be provided"
NAME = 'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'
SPACE = "the namespace of the provided object does not match the namespace sent on the request"
GENERIC = "the server rejected our request due to an error in our request"
UNRECOGNIZED = "the object provided is unrecognized (must be of type ConfigMap): "
NOT_DECODED = ' "" is invalid: patch: Invalid value: '
NUMBER = "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"
PARSE = 'strconv.ParseUint: parsing "abc": invalid syntax'
SIZE = "Request entity too large: limit is 3145728"


def post(line: str, body: Any, code: int, told: str = "", query: str = "", **sent: str) -> Case:
    return Case(line, "POST", f"{CONFIG_MAPS}{query}", code, told, body, sent)


def put(line: str, body: Any, code: int, told: str = "", path: str = KEPT) -> Case:
    return Case(line, "PUT", path, code, told, body)


def patch(line: str, kind: str, body: Any, code: int, told: str = "", query: str = "") -> Case:
    return Case(
        line, "PATCH", f"{KEPT}{query}", code, told, body, {"Content-Type": kind} if kind else {}
    )


#: none of these changes the object that they speak of
CASES = [
    # Bodies
    post("B3 null", b"null", 422, NAME),
    put("B3 null", b"null", 400, URL),
    post(
        "B3 empty",
        b"",
        400,
        f"{UNRECOGNIZED}couldn't get version/kind; json parse error: unexpected end of JSON input "
        "(<empty>)",
    ),
    post(
        "B3 other version",
        {"kind": "ConfigMap", "apiVersion": "v2"},
        400,
        'ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is '
        'registered for version "v2" '
        'in scheme "sliceplane"',
    ),
    post(
        "B3 other kind",
        {"kind": "Pod", "apiVersion": "v1"},
        400,
        'Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to '
        "(core.ConfigMap): unknown conversion",
    ),
    post(
        "B3 type",
        {"data": {"a": 1}},
        400,
        f'ConfigMap in version "v1" cannot be handled as a ConfigMap: {NUMBER}',
    ),
    post(
        "B3 no magic",
        b"k8s",
        400,
        f"{UNRECOGNIZED}provided data does not appear to be a protobuf message, expected "
        "prefix [107 56 115 0] (6b3873)",
        Content_Type=PROTOBUF,
    ),
    post("B6 size", b" " * 3145729, 413, SIZE),
    put("B6 size", b" " * 3145729, 413, SIZE),
    patch("B6 size", MERGE_PATCH, b" " * 3145729, 413, SIZE),
    # Identity
    post(
        "B6 version",
        config_map("x", resourceVersion="5"),
        500,
        "resourceVersion should not be set on objects to be created",
    ),
    post("B6 version", config_map("x", resourceVersion="abc"), 500, PARSE),
    put("B6 version", config_map("kept", resourceVersion="abc"), 500, PARSE),
    put(
        "B6 stale",
        config_map("kept", resourceVersion="1"),
        409,
        f'Operation cannot be fulfilled on configmaps "kept": {STALE}',
    ),
    patch(
        "B7 stale",
        MERGE_PATCH,
        {"metadata": {"resourceVersion": "1"}},
        409,
        f'Operation cannot be fulfilled on configmaps "kept": {STALE}',
    ),
    patch(
        "B6 uid",
        MERGE_PATCH,
        {"metadata": {"uid": "1"}},
        422,
        'ConfigMap "kept" is invalid: metadata.uid: Invalid value: "1": field is immutable',
    ),
    put(
        "B6 name",
        config_map("other"),
        400,
        "the name of the object (other) does not match the name on the URL (kept)",
    ),
    put("B6 name", {"data": {}}, 400, URL),
    put("B6 namespace", config_map("kept", namespace="zz"), 400, SPACE),
    patch(
        "B6 name",
        MERGE_PATCH,
        {"metadata": {"name": "x"}},
        400,
        "the name of the object (x) does not match the name on the URL (kept)",
    ),
    patch("B6 namespace", MERGE_PATCH, {"metadata": {"namespace": "x"}}, 400, SPACE),
    put(
        "B6 no create-on-update",
        config_map("none"),
        404,
        'configmaps "none" not found',
        f"{CONFIG_MAPS}/none",
    ),
    post("B6 no name", {"data": {}}, 422, NAME),
    post("B6 taken", config_map("kept"), 409, 'configmaps "kept" already exists'),
    Case(
        "B14 namespace",
        "POST",
        f"{NAMESPACES}/none/configmaps",
        404,
        'namespaces "none" not found',
        config_map("x"),
    ),
    put(
        "B6 finalizer",
        config_map("kept", finalizers=["nodomain"]),
        422,
        'ConfigMap "kept" is invalid: metadata.finalizers[0]: Invalid value: "nodomain": name is '
        "neither a standard "
        "finalizer name nor is it fully qualified",
    ),
    post(
        "B6 annotations",
        config_map("x", annotations={"a": "x" * 262145}),
        422,
        'ConfigMap "x" is invalid: metadata.annotations: Too long: may not be more than 262144 '
        "bytes",
    ),
    post(
        "B6 data",
        {"metadata": {"name": "x"}, "data": {"a": "x" * 1048577}},
        422,
        'ConfigMap "x" is invalid: []: Too long: may not be more than 1048576 bytes',
    ),
    Case(
        "B6 lease",
        "PUT",
        f"{LEASES}/l2",
        409,
        'Operation cannot be fulfilled on leases.coordination.k8s.io "l2": StorageError: invalid '
        "object, Code: 4, Key: "
        "/registry/leases/default/l2, ResourceVersion: 0, AdditionalErrorMsg: Precondition "
        "failed: UID in precondition: "
        "u, UID in object meta: ",
        {"metadata": {"name": "l2", "uid": "u"}},
    ),
    # Patches
    patch("B7 none", "", {}, 415, "415: Unsupported Media Type"),
    patch("B7 plain", "application/json", {}, 415, "415: Unsupported Media Type"),
    patch("B7 parameters", f"{MERGE_PATCH};charset=utf-8", {}, 200),
    patch(
        "B6 operations",
        JSON_PATCH,
        [{"op": "add", "path": "/data/k", "value": ""}] * 10001,
        413,
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got "
        "10001",
    ),
    *(
        patch("B7 generic", JSON_PATCH, [operation], 422, GENERIC)
        for operation in (
            {"op": "test", "path": "/data/a", "value": "c"},
            {"op": "remove", "path": "/data/none"},
            {"op": "nope", "path": "/data/a"},
            {"op": "add", "value": 1},
            {"op": "add", "path": "/no/x", "value": "1"},
        )
    ),
    patch("B7 empty", JSON_PATCH, [], 200),
    patch(
        "B7 no array",
        JSON_PATCH,
        {},
        400,
        "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch",
    ),
    patch("B7 null", MERGE_PATCH, b"null", 400, "Invalid JSON Patch"),
    patch(
        "B7 no object",
        MERGE_PATCH,
        [],
        400,
        "error decoding patch: json: cannot unmarshal array into Go value of type "
        "map[string]interface {}",
    ),
    patch("B7 bad JSON", STRATEGIC_PATCH, b"{", 400, "unexpected end of JSON input"),
    patch(
        "B7 directive",
        STRATEGIC_PATCH,
        {"data": {"$patch": "bad"}},
        500,
        "unknown patch type: bad in map: map[$patch:bad]",
    ),
    patch(
        "B7 does not decode",
        STRATEGIC_PATCH,
        {"data": {"a": 1}},
        422,
        f'{NOT_DECODED}"map[data:map[a:1]]": {NUMBER}',
    ),
    patch(
        "B7 force",
        MERGE_PATCH,
        {},
        422,
        'PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for '
        "non-apply patch",
        "?force=false",
    ),
    Case(
        "B7 missing",
        "PATCH",
        f"{CONFIG_MAPS}/none",
        404,
        'configmaps "none" not found',
        {},
        {"Content-Type": MERGE_PATCH},
    ),
    # Options
    post(
        "B7 manager",
        config_map("x"),
        422,
        'CreateOptions.meta.k8s.io "" is invalid: fieldManager: Too long: may not be more than '
        "128 bytes",
        f"?fieldManager={'x' * 129}",
    ),
    post(
        "B7 manager",
        config_map("x"),
        422,
        'CreateOptions.meta.k8s.io "" is invalid: fieldManager: Invalid value: "a\\nb": invalid '
        "character U+000A (at "
        "position 1)",
        "?fieldManager=a%0Ab",
    ),
    post(
        "B7 validation",
        config_map("x"),
        422,
        'CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "strict": '
        'supported values: "", '
        '"Ignore", "Strict", "Warn"',
        "?fieldValidation=strict",
    ),
    post(
        "B10 dryRun",
        config_map("x"),
        422,
        'CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["foo"]: supported '
        'values: "All"',
        "?dryRun=foo",
    ),
    Case(
        "B10 dryRun",
        "PUT",
        f"{KEPT}?dryRun=",
        422,
        'UpdateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: [""]: supported '
        'values: "All"',
        config_map("kept"),
    ),
    post("B10 dryRun", config_map("tried"), 201, '"name":"tried"', "?dryRun=All&dryRun=All"),
    Case(
        "B10 dryRun",
        "PUT",
        f"{KEPT}?dryRun=All",
        200,
        '"data":{"z":"1"}',
        {"metadata": {"name": "kept"}, "data": {"z": "1"}},
    ),
    patch("B10 dryRun", MERGE_PATCH, {"data": {"z": "1"}}, 200, '"z":"1"', "?dryRun=All"),
    Case(
        "B10 Service",
        "POST",
        f"{NAMESPACES}/default/services?dryRun=All",
        201,
        '"nodePort":32769',
        {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}},
    ),
    # Strictness
    post(
        "B10 Strict",
        {"metadata": {"name": "x"}, "foo": 1, "Data": {}},
        400,
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
        'unknown field "foo", unknown '
        'field "Data"',
        "?fieldValidation=Strict",
    ),
    post(
        "B10 Strict, YAML",
        b"metadata: {name: x}\nfoo: 1\ndata: {a: b}\ndata: {c: d}\n",
        400,
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: yaml: '
        "unmarshal errors:\n"
        '  line 4: key "data" already set in map, unknown field "foo"',
        "?fieldValidation=Strict",
        Content_Type=YAML,
    ),
]


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
