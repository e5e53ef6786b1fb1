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
    cases,
    check,
    config_map,
    make,
)

KEPT = f"{CONFIG_MAPS}/kept"


#: none of these removes anything
CASES = cases(__file__)


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
