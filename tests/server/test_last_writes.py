"""The server remembers who wrote an object last, and tells it to those alone who have the right."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.server.serving import Server, run_plane

from sliceplane.server.io.plane import PlaneConfig
from sliceplane.server.io.requests.last_writes import (
    OBJECTS_MAX,
    PATH,
    WRITES_PER_OBJECT_MAX,
    LastWrites,
    NotedWrite,
)
from sliceplane.server.registry.types import Attributes

SERVICES = "/api/v1/namespaces/default/services"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


def told(server: Server, name: str) -> list[tuple[str, str]]:
    answer = server.get(f"{PATH}/services/default/{name}")
    assert answer.code == 200
    return [(write["user"], write["verb"]) for write in answer.json]


def test_users_and_verbs_of_the_last_writes_are_told(server: Server) -> None:
    body = {"metadata": {"generateName": "web-"}, "spec": {"ports": [{"port": 80}]}}
    name = server.request("POST", SERVICES, body).json["metadata"]["name"]
    masters = {"Impersonate_User": "alice", "Impersonate_Group": "system:masters"}
    patch = {"metadata": {"labels": {"a": "b"}}}
    merge = {"Content_Type": "application/merge-patch+json"}
    assert server.request("PATCH", f"{SERVICES}/{name}", patch, **merge, **masters).code == 200
    assert server.request("PATCH", f"{SERVICES}/{name}?dryRun=All", patch, **merge).code == 200
    assert (
        server.request("PATCH", f"{SERVICES}/{name}", {"spec": {"ports": "none"}}, **merge).code
        >= 400
    )
    (first, verb), last = told(server, name)
    assert (verb, last) == ("create", ("alice", "patch"))
    assert first != "alice"


def test_who_may_read_the_object_may_not_read_who_wrote_it(server: Server) -> None:
    viewer = {"Impersonate_User": "jane"}
    binding = {
        "metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    assert server.request("POST", bindings, binding).code == 201
    assert server.request("GET", f"{SERVICES}/kubernetes", **viewer).code == 200
    assert server.request("GET", f"{PATH}/services/default/kubernetes", **viewer).code == 403


def test_no_more_is_remembered_than_the_bounds_say() -> None:
    writes = LastWrites()
    for number in range(OBJECTS_MAX + 3):
        for time in range(WRITES_PER_OBJECT_MAX + 1 if number == OBJECTS_MAX else 1):
            wanted = Attributes(
                verb="update", path="", resource="pods", namespace="a", name=f"p{number}"
            )
            writes.note(wanted, b"", NotedWrite(float(time), "u", "update", "x" * 500))
    kept = [writes.page(f"{PATH}/pods/a/p{number}") for number in range(OBJECTS_MAX + 3)]
    assert sum(page != b"[]\n" for page in kept) == OBJECTS_MAX
    last = json.loads(kept[OBJECTS_MAX] or b"")
    assert [write["time"] for write in last] == [1.0, 2.0, 3.0, 4.0]
    assert len(last[0]["agent"]) < 100
    assert writes.page("/sliceplane/writesx/pods/a/p1") is None
