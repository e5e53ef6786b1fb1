"""Deletes: options in body and query, codes, replies, preconditions, collections."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.serving import Server
from tests.server.surface import (
    CONFIG_MAPS,
    NAMESPACES,
    PROTOBUF,
    TABLE,
    Case,
    check,
    config_map,
    make,
)

INVALID = 'DeleteOptions.meta.k8s.io "" is invalid: '
KEPT = f"{CONFIG_MAPS}/kept"
MEDIA = (
    "the body of the request was in an unknown format - accepted media types include: "
    "application/json, application/yaml, application/vnd.kubernetes.protobuf"
)
POLICY = (
    f'{INVALID}propagationPolicy: Unsupported value: "Foo": supported values: "Foreground", '
    '"Background", '
)
DRY_RUN = f"{INVALID}dryRun: Unsupported value: "
BOTH = (
    f'{INVALID}propagationPolicy: Invalid value: "Orphan": orphanDependents and '
    "deletionPropagation cannot be both set"
)
UNKNOWN = (
    "cannot be handled as a DeleteOptions: converting (v1.Pod) to (v1.DeleteOptions): unknown "
    "conversion"
)


def deleted(
    line: str, query: str, code: int, told: str = "", body: Any = None, **sent: str
) -> Case:
    return Case(line, "DELETE", f"{KEPT}{query}", code, told, body, sent)


#: none of these removes anything
CASES = [
    deleted("B9 policy", "?propagationPolicy=Foo", 422, f'{POLICY}"Orphan", "nil"'),
    deleted("B9 policy, body", "", 422, f'{POLICY}"Orphan", "nil"', {"propagationPolicy": "Foo"}),
    deleted("B9 both", "?propagationPolicy=Orphan&orphanDependents=true", 422, BOTH),
    deleted(
        "B9 both, body", "", 422, BOTH, {"propagationPolicy": "Orphan", "orphanDependents": False}
    ),
    deleted("B9 body wins", "?dryRun=foo", 200, '"status":"Success"', {"dryRun": ["All"]}),
    deleted("B9 dryRun", "?dryRun=All", 200, '"status":"Success"'),
    *(
        deleted("B10 dryRun", f"?dryRun={bad}", 422, f'{DRY_RUN}["{bad}"]: supported values: "All"')
        for bad in ("", "foo")
    ),
    deleted("B9 unknown fields", "", 200, '"status":"Success"', {"foo": 1, "dryRun": ["All"]}),
    *(
        deleted(
            "B9 kind",
            "",
            200,
            "Success",
            {"kind": "DeleteOptions", "apiVersion": version, "dryRun": ["All"]},
        )
        for version in ("v1", "meta.k8s.io/v1")
    ),
    deleted(
        "B9 other kind",
        "",
        400,
        f'Pod in version "v1" {UNKNOWN}',
        {"kind": "Pod", "apiVersion": "v1"},
    ),
    deleted(
        "B9 bad JSON",
        "",
        400,
        "the object provided is unrecognized (must be of type DeleteOptions): couldn't get "
        "version/kind; json parse error: unexpected end of JSON input",
        b"{",
    ),
    deleted(
        "B9 types",
        "",
        400,
        'DeleteOptions in version "v1" cannot be handled as a DeleteOptions: json: cannot '
        "unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds",
        {"gracePeriodSeconds": "x"},
    ),
    deleted(
        "B9 grace", "?gracePeriodSeconds=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'
    ),
    deleted("B3 media type", "", 415, MEDIA, b"{}", Content_Type="text/plain"),
    deleted("B3 empty body", "?dryRun=All", 200, "Success", b"", Content_Type="text/plain"),
    deleted(
        "B3 parameters",
        "",
        200,
        "Success",
        {"dryRun": ["All"]},
        Content_Type="application/json; charset=utf-8",
    ),
    Case("B9 missing", "DELETE", f"{CONFIG_MAPS}/none", 404, 'configmaps "none" not found'),
    Case("B9 empty match", "DELETE", f"{CONFIG_MAPS}?labelSelector=none", 200, '"items":[]'),
    Case(
        "B9 collection",
        "DELETE",
        f"{CONFIG_MAPS}?limit=x",
        400,
        'strconv.ParseInt: parsing "x": invalid syntax',
    ),
    Case(
        "B9 collection",
        "DELETE",
        f"{CONFIG_MAPS}?dryRun=foo",
        422,
        f'{INVALID}dryRun: Unsupported value: ["foo"]: supported values: "All"',
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_deletes(server: Server, case: Case) -> None:
    server.request("POST", CONFIG_MAPS, config_map("kept"))
    check(server, case)
    assert server.get(KEPT).code == 200


#: what holds the object back, how it is deleted, the code, the finalizers that are left (``None``:
#: it is gone)
LEFT: list[tuple[list[str], str, Any, int, list[str] | None]] = [
    (["x.io/f"], "", None, 200, ["x.io/f"]),
    (["x.io/f"], "?orphanDependents=false", None, 202, ["x.io/f"]),
    (["x.io/f"], "", {"orphanDependents": False}, 202, ["x.io/f"]),
    (["x.io/f"], "?orphanDependents=true", None, 200, ["x.io/f", "orphan"]),
    (["x.io/f"], "", {"orphanDependents": True}, 200, ["x.io/f", "orphan"]),
    ([], "?orphanDependents=false", None, 200, None),
    ([], "?propagationPolicy=Foreground", None, 200, ["foregroundDeletion"]),
    ([], "?propagationPolicy=Orphan", None, 200, ["orphan"]),
    ([], "", {"propagationPolicy": "Background"}, 200, None),
    ([], "?propagationPolicy=Foreground", {}, 200, None),
    ([], "?gracePeriodSeconds=30", None, 200, None),
]


@pytest.mark.parametrize("case", range(len(LEFT)))
def test_what_is_left(server: Server, case: int) -> None:
    finalizers, query, body, code, left = LEFT[case]
    path = f"{CONFIG_MAPS}/left-{case}"
    uid = make(server, f"left-{case}", finalizers=finalizers)["metadata"]["uid"]
    reply = server.request("DELETE", f"{path}{query}", body)
    assert reply.code == code
    if left is None:
        details = {"name": f"left-{case}", "kind": "configmaps", "uid": uid}
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
        assert reply.json == status
        assert server.get(path).code == 404
        return
    head = reply.json["metadata"]
    assert (
        head["finalizers"],
        head["deletionGracePeriodSeconds"],
        "deletionTimestamp" in head,
    ) == (left, 0, True)
    again = server.request("DELETE", f"{path}{query}", body)
    assert (again.code, again.json["metadata"]) == (code, head)
    # The options of a second delete still count; without a finalizer of somebody else the object
    # goes now.
    if not finalizers:
        last = server.request("DELETE", f"{path}?propagationPolicy=Background")
        assert (last.code, last.json["kind"]) == (200, "Status")


def test_the_last_finalizer(server: Server) -> None:
    made = make(server, "last", finalizers=["x.io/f"])
    server.request("DELETE", f"{CONFIG_MAPS}/last")
    refused = server.request(
        "PUT", f"{CONFIG_MAPS}/last", config_map("last", finalizers=["x.io/f", "y.io/f"])
    )
    assert refused.json["message"] == (
        'ConfigMap "last" is invalid: metadata.finalizers: Forbidden: no new finalizers can be '
        "added if the object is "
        'being deleted, found new finalizers []string{"y.io/f"}'
    )
    gone = server.request("PUT", f"{CONFIG_MAPS}/last", config_map("last"))
    assert (gone.code, gone.json["metadata"]["uid"]) == (200, made["metadata"]["uid"])
    assert server.get(f"{CONFIG_MAPS}/last").code == 404


@pytest.mark.parametrize("where", ["body", "query"])
def test_preconditions(server: Server, where: str) -> None:
    name = f"guarded-{where}"
    head = make(server, name)["metadata"]
    start = f'Operation cannot be fulfilled on ConfigMap "{name}": the '

    def delete(**wanted: str) -> Any:
        query = "?" + "&".join(f"{key}={value}" for key, value in wanted.items())
        if where == "query":
            return server.request("DELETE", f"{CONFIG_MAPS}/{name}{query}")
        return server.request("DELETE", f"{CONFIG_MAPS}/{name}", {"preconditions": wanted})

    reply = delete(uid="nope")
    assert (reply.code, reply.json["reason"], reply.json["details"]) == (
        409,
        "Conflict",
        {"name": name, "kind": "ConfigMap"},
    )
    assert reply.json["message"] == (
        f"{start}UID in the precondition (nope) does not match the UID in record ({head['uid']}). "
        "The object might "
        "have been deleted and then recreated"
    )
    reply = delete(uid=head["uid"], resourceVersion="1")
    assert reply.json["message"] == (
        f"{start}ResourceVersion in the precondition (1) does not match the ResourceVersion in "
        "record "
        f"({head['resourceVersion']}). The object might have been modified"
    )
    assert delete(uid=head["uid"], resourceVersion=head["resourceVersion"]).code == 200


def test_replies_by_kind(server: Server) -> None:
    """The object for a Service and a Namespace, which is Terminating at once; a Status for most
    (see above).
    """
    service = {"metadata": {"name": "gone"}, "spec": {"ports": [{"port": 80}]}}
    server.request("POST", f"{NAMESPACES}/default/services", service)
    assert server.request("DELETE", f"{NAMESPACES}/default/services/gone").json["kind"] == "Service"
    server.request("POST", NAMESPACES, {"metadata": {"name": "leaving"}})
    for query, code in (("", 200), ("", 200), ("?orphanDependents=false", 202)):
        reply = server.request("DELETE", f"{NAMESPACES}/leaving{query}")
        assert (reply.code, reply.json["status"]["phase"]) == (code, "Terminating")
        assert "deletionGracePeriodSeconds" not in reply.json["metadata"]
    refused = server.request("POST", f"{NAMESPACES}/leaving/configmaps", config_map("x"))
    assert refused.json["details"]["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": "namespace leaving is being terminated",
            "field": "metadata.namespace",
        }
    ]


def test_collections(server: Server) -> None:
    make(server, "many-1", "many-2", "many-3", labels={"many": "yes"})
    path = f"{CONFIG_MAPS}?labelSelector=many"
    tried = server.request("DELETE", f"{path}&dryRun=All")
    assert [item["metadata"]["name"] for item in tried.json["items"]] == [
        "many-1",
        "many-2",
        "many-3",
    ]
    page = server.request("DELETE", f"{path}&limit=2")
    assert (page.json["kind"], len(page.json["items"])) == ("ConfigMapList", 2)
    assert page.json["metadata"]["continue"]
    assert [item["metadata"]["name"] for item in server.get(path).json["items"]] == ["many-3"]
    rest = server.request("DELETE", f"{path}&continue={page.json['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest.json["items"]] == ["many-3"]
    assert server.get(path).json["items"] == []
    for accept in (TABLE, PROTOBUF):
        assert server.request("DELETE", path, Accept=accept).code == 200
