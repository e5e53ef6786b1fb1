"""The real kubectl and the kinds around discovery: Secret, ServiceAccount, and what describes addresses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.apiserver.serving import Server
from tests.apiserver.test_kubectl_smoke import kubectl

pytestmark = pytest.mark.kubectl


def test_secrets_and_service_accounts(server: Server, tmp_path: Path) -> None:
    kubectl(server, tmp_path, "create", "secret", "generic", "word", "--from-literal=a=x", "--from-literal=b=yy")
    assert json.loads(kubectl(server, tmp_path, "get", "secret", "word", "-o", "json"))["data"] == {
        "a": "eA==",
        "b": "eXk=",
    }
    table = kubectl(server, tmp_path, "get", "secrets", "--field-selector=type=Opaque")
    assert table.splitlines()[1].split()[:3] == ["word", "Opaque", "2"]
    assert "a:  1 bytes" in kubectl(server, tmp_path, "describe", "secret", "word")
    login = ("--docker-server=r", "--docker-username=u", "--docker-password=p")
    kubectl(server, tmp_path, "create", "secret", "docker-registry", "login", *login)
    kubectl(server, tmp_path, "create", "serviceaccount", "robot")
    assert kubectl(server, tmp_path, "get", "sa", "robot", "--no-headers").split()[0] == "robot"
    assert 'serviceaccount "robot" deleted' in kubectl(server, tmp_path, "delete", "sa", "robot")


def test_addresses_and_ranges(server: Server, tmp_path: Path) -> None:
    manifest = """
apiVersion: networking.k8s.io/v1
kind: IPAddress
metadata: {name: "2001:db8::1"}
spec: {parentRef: {resource: services, namespace: default, name: other}}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: more}
spec: {cidrs: [10.7.0.0/16]}
"""
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=manifest)
    line = kubectl(server, tmp_path, "get", "ip", "2001:db8::1", "--no-headers")
    assert line.split()[:2] == ["2001:db8::1", "services/default/other"]
    assert kubectl(server, tmp_path, "get", "servicecidr", "more", "--no-headers").split()[:2] == [
        "more",
        "10.7.0.0/16",
    ]
    assert "10.7.0.0/16" in kubectl(server, tmp_path, "describe", "servicecidr", "more")
    assert "services" in kubectl(server, tmp_path, "describe", "ipaddress", "2001:db8::1")
