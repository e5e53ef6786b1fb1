"""Watches over the wire whose rights go: an ERROR event with the reason, and the end, within a
second or so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.server.serving import Server, Stream, run_plane, watching
from tests.waiting import until

from sliceplane.server.io.plane import PlaneConfig

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CORE = "/api/v1/namespaces/default"
WATCH = f"{CORE}/configmaps?watch=1&timeoutSeconds=60"
#: on a machine that is busy
SECONDS_MAX = 100.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.csv"
    tokens.write_text("ta,alice,ua\ntb,bob,ub\n")
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens))
    yield Server(plane)
    end()


def post(server: Server, path: str, document: dict[str, Any]) -> Any:
    reply = server.request("POST", path, document)
    assert reply.code == 201, reply.body
    return reply.json


def grant(server: Server, name: str, *subjects: dict[str, str]) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}
    post(server, f"{RBAC}/namespaces/default/roles", {"metadata": {"name": name}, "rules": [rule]})
    reference = {"kind": "Role", "name": name}
    document = {"metadata": {"name": name}, "roleRef": reference, "subjects": list(subjects)}
    post(server, f"{RBAC}/namespaces/default/rolebindings", document)


class Shown(Stream):
    """A watch by a token alone."""

    def __init__(self, server: Server, token: str, **headers: str) -> None:
        self._connection = server.connect(certificate=False)
        self._connection.request(
            "GET", WATCH, headers={"authorization": f"Bearer {token}", **headers}
        )
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()


def ends(stream: Stream, change: Callable[[], Any]) -> dict[str, Any]:
    """The Status that the stream ends with, soon after *change*."""
    change()
    began = time.monotonic()
    event = stream.next()
    assert stream.ended()
    assert time.monotonic() - began < SECONDS_MAX
    assert event["type"] == "ERROR"
    status: dict[str, Any] = event["object"]
    return status


def test_a_binding_that_is_deleted(server: Server) -> None:
    grant(server, "one", {"kind": "User", "name": "alice"})
    stream = Shown(server, "ta")
    try:
        with watching(server, WATCH) as of_admin:
            status = ends(
                stream,
                lambda: server.request("DELETE", f"{RBAC}/namespaces/default/rolebindings/one"),
            )
            assert (status["code"], status["reason"]) == (403, "Forbidden")
            assert 'User "alice" cannot watch resource "configmaps"' in status["message"]
            post(server, f"{CORE}/configmaps", {"metadata": {"name": "later"}})
            assert of_admin.next()["object"]["metadata"]["name"] == "later", "others go on"
            server.request("DELETE", f"{CORE}/configmaps/later")
    finally:
        stream.close()
    metrics = server.get("/metrics").body.decode().splitlines()
    assert [line for line in metrics if line.startswith("sliceplane_revoked_watches")] == [
        "sliceplane_revoked_watches_total 1.0"
    ]


def test_an_account_that_is_deleted(server: Server) -> None:
    post(server, f"{CORE}/serviceaccounts", {"metadata": {"name": "robot"}})
    grant(server, "two", {"kind": "ServiceAccount", "name": "robot", "namespace": "default"})
    token = post(server, f"{CORE}/serviceaccounts/robot/token", {"spec": {}})["status"]["token"]
    stream = Shown(server, token)
    try:
        status = ends(stream, lambda: server.request("DELETE", f"{CORE}/serviceaccounts/robot"))
        assert (status["code"], status["reason"]) == (401, "Unauthorized")
    finally:
        stream.close()


def test_who_acts_as_another(server: Server) -> None:
    grant(server, "three", {"kind": "User", "name": "carol"})
    rule = {
        "apiGroups": [""],
        "resources": ["users"],
        "resourceNames": ["carol"],
        "verbs": ["impersonate"],
    }
    post(server, f"{RBAC}/clusterroles", {"metadata": {"name": "acts"}, "rules": [rule]})
    reference = {"kind": "ClusterRole", "name": "acts"}
    subjects = [{"kind": "User", "name": "bob"}]
    post(
        server,
        f"{RBAC}/clusterrolebindings",
        {"metadata": {"name": "acts"}, "roleRef": reference, "subjects": subjects},
    )
    stream = Shown(server, "tb", **{"impersonate-user": "carol"})
    try:
        status = ends(stream, lambda: server.request("DELETE", f"{RBAC}/clusterroles/acts"))
        assert status["code"] == 403
        assert 'users "carol" is forbidden: User "bob" cannot impersonate' in status["message"]
    finally:
        stream.close()


def test_a_watch_that_ends_by_itself_leaves_nothing_behind(server: Server) -> None:
    grant(server, "four", {"kind": "User", "name": "alice"})
    for _ in range(3):
        Shown(server, "ta").close()
    until(lambda: len(server.plane.registry.open_watches), lambda count: count == 0)
