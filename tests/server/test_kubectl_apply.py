"""Server-side apply as the real kubectl does it: create, conflicts, force, pruning, diff, taking
over, managers.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import Server
from tests.server.test_kubectl_smoke import command, kubectl

from sliceplane.server.documents.protobuf import decode

pytestmark = pytest.mark.kubectl

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def config_map(name: str, **data: str) -> str:
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    )


def service(name: str, *ports: int) -> str:
    listed = [{"name": f"p{port}", "port": port} for port in ports]
    document = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": listed},
    }
    return json.dumps(document)


def run(
    server: Server, home: Path, *arguments: str, stdin: str = "", editor: str = "false"
) -> subprocess.CompletedProcess[str]:
    line = command(server, home, *arguments)
    environment = {**os.environ, "KUBE_EDITOR": editor}
    return subprocess.run(
        line, input=stdin, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def apply(server: Server, home: Path, document: str, *flags: str) -> str:
    return kubectl(server, home, "apply", "--server-side", *flags, "-f", "-", stdin=document)


def entries(server: Server, path: str) -> dict[tuple[str, str], Any]:
    head = server.get(path).json["metadata"]
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"]
        for entry in head.get("managedFields", [])
    }


def test_create_unchanged_conflict_force_and_removal(server: Server, tmp_path: Path) -> None:
    assert (
        apply(server, tmp_path, config_map("one", a="1", b="1"))
        == "configmap/one serverside-applied\n"
    )
    path = "/api/v1/namespaces/default/configmaps/one"
    version = server.get(path).json["metadata"]["resourceVersion"]
    assert (
        apply(server, tmp_path, config_map("one", a="1", b="1"))
        == "configmap/one serverside-applied\n"
    )
    assert server.get(path).json["metadata"]["resourceVersion"] == version
    other = run(
        server,
        tmp_path,
        *("apply", "--server-side", "--field-manager=other", "-f", "-"),
        stdin=config_map("one", a="2", b="2"),
    )
    assert other.returncode == 1
    assert other.stderr.startswith(
        'error: Apply failed with 2 conflicts: conflicts with "kubectl":\n- .data.a\n- .data.b\n'
    )
    assert "--force-conflicts" in other.stderr
    one = run(
        server,
        tmp_path,
        *("apply", "--server-side", "--field-manager=other", "-f", "-"),
        stdin=config_map("one", a="2"),
    )
    assert one.stderr.startswith(
        'error: Apply failed with 1 conflict: conflict with "kubectl": .data.a\n'
    )
    apply(server, tmp_path, config_map("one", a="2"), "--field-manager=other", "--force-conflicts")
    assert server.get(path).json["data"] == {"a": "2", "b": "1"}
    assert entries(server, path) == {
        ("kubectl", "Apply"): {"f:data": {"f:b": {}}},
        ("other", "Apply"): {"f:data": {"f:a": {}}},
    }
    apply(server, tmp_path, config_map("one"))
    assert server.get(path).json["data"] == {"a": "2"}


def test_diff(server: Server, tmp_path: Path) -> None:
    apply(server, tmp_path, service("d", 80))
    for flags in ((), ("--server-side",)):
        same = run(server, tmp_path, "diff", *flags, "-f", "-", stdin=service("d", 80))
        assert (same.returncode, same.stdout) == (0, ""), same.stdout + same.stderr
        changed = run(server, tmp_path, "diff", *flags, "-f", "-", stdin=service("d", 80, 81))
        assert changed.returncode == 1
        assert "+  - name: p81" in changed.stdout
        assert "managedFields" not in changed.stdout
    assert len(server.get("/api/v1/namespaces/default/services/d").json["spec"]["ports"]) == 1
    conflict = ("diff", "--server-side", "--field-manager=other", "-f", "-")
    refused = run(server, tmp_path, *conflict, stdin=service("d", 80).replace("p80", "px"))
    assert refused.returncode > 1
    assert 'conflict with "kubectl": .spec.ports[port=80,protocol="TCP"].name' in refused.stderr


def test_from_client_side_to_server_side(server: Server, tmp_path: Path) -> None:
    path = "/api/v1/namespaces/default/configmaps/moved"
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=config_map("moved", a="1", b="1"))
    assert list(entries(server, path)) == [("kubectl-client-side-apply", "Update")]
    apply(server, tmp_path, config_map("moved", a="2"))
    moved = server.get(path).json
    assert moved["data"] == {"a": "2"}
    assert json.loads(moved["metadata"]["annotations"][LAST_APPLIED])["data"] == {"a": "2"}
    owners = entries(server, path)
    assert owners["kubectl", "Apply"] == {"f:data": {"f:a": {}}}
    assert ("kubectl-client-side-apply", "Update") not in owners
    assert (
        apply(server, tmp_path, config_map("moved", a="3"))
        == "configmap/moved serverside-applied\n"
    )
    # And back: plain apply finds its annotation as it left it.
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=config_map("moved", b="4"))
    assert server.get(path).json["data"] == {"b": "4"}


def test_each_command_is_a_manager_and_only_on_request_shown(
    server: Server, tmp_path: Path
) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i:1"}]},
            },
        },
    }
    kubectl(server, tmp_path, "create", "-f", "-", stdin=json.dumps(deployment))
    kubectl(server, tmp_path, "label", "deployment", "web", "x=y")
    kubectl(server, tmp_path, "annotate", "deployment", "web", "note=original")
    kubectl(server, tmp_path, "scale", "deployment", "web", "--replicas=2")
    kubectl(server, tmp_path, "set", "image", "deployment/web", "c=i:2")
    kubectl(server, tmp_path, "patch", "deployment", "web", "-p", '{"spec":{"paused":true}}')
    edited = run(server, tmp_path, "edit", "deployment", "web", editor="sed -i s/original/edited/")
    assert edited.returncode == 0, edited.stderr
    owners = entries(server, "/apis/apps/v1/namespaces/default/deployments/web")
    container = owners["kubectl-set", "Update"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert container == {'k:{"name":"c"}': {"f:image": {}}}
    assert owners["kubectl-label", "Update"] == {"f:metadata": {"f:labels": {".": {}, "f:x": {}}}}
    assert owners["kubectl-annotate", "Update"] == {"f:metadata": {"f:annotations": {}}}
    assert owners["kubectl-edit", "Update"] == {"f:metadata": {"f:annotations": {"f:note": {}}}}
    assert owners["kubectl-patch", "Update"] == {"f:spec": {"f:paused": {}}}
    assert owners["kubectl", "Update"] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owners["kubectl-create", "Update"]["f:spec"]
    assert "managedFields" not in kubectl(
        server, tmp_path, "get", "deployment", "web", "-o", "yaml"
    )
    shown = json.loads(
        kubectl(server, tmp_path, "get", "deployment", "web", "-o", "json", "--show-managed-fields")
    )
    assert {
        entry["manager"]: entry.get("subresource") for entry in shown["metadata"]["managedFields"]
    } == {
        "kubectl": "scale",
        "kubectl-annotate": None,
        "kubectl-create": None,
        "kubectl-edit": None,
        "kubectl-label": None,
        "kubectl-patch": None,
        "kubectl-set": None,
    }


def test_over_http(server: Server) -> None:
    path = "/api/v1/namespaces/default/configmaps/raw"
    yaml = {"Content-Type": "application/apply-patch+yaml"}
    body = b"apiVersion: v1\nkind: ConfigMap\ndata:\n  a: one\nmetadata:\n  name: raw\n"
    missing = server.request("PATCH", path, body, **yaml)
    assert (missing.code, missing.json["message"]) == (
        422,
        (
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for '
            "apply patch"
        ),
    )
    cbor = server.request(
        "PATCH", f"{path}?fieldManager=m", body, **{"Content-Type": "application/apply-patch+cbor"}
    )
    assert cbor.code == 415
    assert server.request("PATCH", f"{path}?fieldManager=m", body, **yaml).code == 201
    assert server.request("PATCH", f"{path}?fieldManager=m", body, **yaml).code == 200
    agent = {"User-Agent": "robot/1.0 (x)", "Content-Type": "application/merge-patch+json"}
    server.request("PATCH", path, {"data": {"b": "1"}}, **agent)
    assert set(entries(server, path)) == {("m", "Apply"), ("robot", "Update")}
    protobuf = server.get(path, Accept="application/vnd.kubernetes.protobuf")
    read = decode(protobuf.body, api_version="v1", kind="ConfigMap")
    assert read["metadata"]["managedFields"] == server.get(path).json["metadata"]["managedFields"]
    # The set is on the wire as the text that it is in JSON: FieldsV1{Raw: ...}.
    text = b'{"f:data":{"f:a":{}}}'
    assert bytes([0x0A, len(text)]) + text in protobuf.body


def test_the_servers_own_objects_have_managers(server: Server) -> None:
    assert list(entries(server, "/api/v1/namespaces/default")) == [("kube-apiserver", "Update")]
    assert list(entries(server, "/api/v1/namespaces/default/services/kubernetes")) == [
        ("kube-apiserver", "Update")
    ]
