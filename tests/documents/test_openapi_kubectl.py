"""The real kubectl reads our OpenAPI documents, from a server that knows just enough to be
discovered.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sliceplane.api.scheme import DESCRIBED, Resource
from sliceplane.server.documents import openapi

KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl in the environment or on PATH"),
]

V3 = "/openapi/v3"


def describe(resource: Resource) -> dict[str, Any]:
    return {
        "resource": resource.plural,
        "responseKind": {"group": "", "version": "", "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "shortNames": list(resource.short_names),
        "verbs": list(resource.verbs),
    }


def discovery(*, core: bool) -> dict[str, Any]:
    """Aggregated discovery (KEP-3352)."""
    groups: dict[str, list[Resource]] = {}
    for resource in DESCRIBED:
        if (resource.group == "") == core:
            groups.setdefault(resource.group, []).append(resource)
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": "v1",
                        "freshness": "Current",
                        "resources": list(map(describe, resources)),
                    }
                ],
            }
            for group, resources in groups.items()
        ],
    }


@dataclass
class FakeServer:
    """A read-only server with one object, that accepts patches and remembers them."""

    stored: dict[str, Any] | None = None
    patches: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in {"/api", "/apis"}:
            media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            return self.answer(200, json.dumps(discovery(core=path == "/api")).encode(), media)
        if path == V3:
            return self.answer(200, json.dumps(openapi.index()).encode())
        if path.startswith(f"{V3}/"):
            document = openapi.document(path.removeprefix(f"{V3}/"))
            return self.answer(200 if document else 404, document or b"")
        if path == "/openapi/v2":
            media = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
            return self.answer(200, openapi.v2_protobuf(), media)
        if self.fake.stored is not None and path.endswith(
            f"/{self.fake.stored['metadata']['name']}"
        ):
            return self.answer(200, json.dumps(self.fake.stored).encode())
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
        }
        return self.answer(404, json.dumps(status).encode())

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.fake.patches.append((self.headers["Content-Type"], json.loads(body)))
        self.answer(200, json.dumps(self.fake.stored).encode())

    def answer(self, code: int, body: bytes, media: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name in the base class
        """Quiet."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    handler = type("BoundHandler", (Handler,), {"fake": fake})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        fake.address = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield fake
        listener.shutdown()
        thread.join()


def kubectl(server: FakeServer, tmp_path: Path, *arguments: str, stdin: str = "") -> str:
    assert KUBECTL is not None
    run = subprocess.run(
        [KUBECTL, f"--server={server.address}", f"--cache-dir={tmp_path}/cache", *arguments],
        input=stdin,
        env={"HOME": str(tmp_path), "KUBECONFIG": f"{tmp_path}/none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_explain_a_kind(server: FakeServer, tmp_path: Path) -> None:
    text = kubectl(server, tmp_path, "explain", "endpointslice")
    assert "GROUP:      discovery.k8s.io" in text
    assert "KIND:       EndpointSlice" in text
    assert "A part of the endpoints of a Service." in text
    assert "addressType\t<string> -required-" in text
    assert "endpoints\t<[]Endpoint>" in text
    assert "The ports of every endpoint in this slice, by name." in text


def test_explain_a_field_within_lists(server: FakeServer, tmp_path: Path) -> None:
    text = kubectl(server, tmp_path, "explain", "endpointslice.endpoints.hints")
    assert "FIELD: hints <EndpointHints>" in text
    assert "forZones\t<[]ForZone>" in text
    assert "Zones whose consumers should use this endpoint" in text


def test_explain_a_large_kind_whole(server: FakeServer, tmp_path: Path) -> None:
    text = kubectl(server, tmp_path, "explain", "pod.spec.containers", "--recursive")
    lines = (
        "env\t<[]EnvVar>",
        "httpGet\t<HTTPGetAction>",
        "port\t<IntOrString> -required-",
        "limits\t<map[string]Quantity>",
    )
    for line in lines:
        assert line in text


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (
            "pod.spec.dnsPolicy",
            ("ENUM:", "    ClusterFirst", "    ClusterFirstWithHostNet", "    Default", "    None"),
        ),
        (
            "deployment.spec.strategy.type",
            ("ENUM:", "    Recreate", "    RollingUpdate", "DESCRIPTION:"),
        ),
        ("statefulset.spec", ("  podManagementPolicy\t<string>", "  enum: OrderedReady, Parallel")),
        (
            "node.spec.taints",
            ("  effect\t<string> -required-", "  enum: NoExecute, NoSchedule, PreferNoSchedule"),
        ),
        ("pvc.spec", ("  volumeMode\t<string>", "  enum: Block, Filesystem")),
        (
            "pod.spec.containers.livenessProbe",
            ("  httpGet\t<HTTPGetAction>", "FIELD: livenessProbe <Probe>"),
        ),
        (
            "pod.spec.securityContext",
            ("  fsGroupChangePolicy\t<string>", "  enum: Always, OnRootMismatch"),
        ),
        (
            "pod.spec.affinity.podAntiAffinity",
            ("    Rules that place the Pod away from other Pods.",),
        ),
        ("pod.spec.volumes.hostPath", ("  path\t<string> -required-",)),
    ],
)
def test_explain_a_field_with_its_values_and_a_text(
    server: FakeServer, tmp_path: Path, path: str, lines: tuple[str, ...]
) -> None:
    text = kubectl(server, tmp_path, "explain", path)
    for line in lines:
        assert line in text.splitlines()
    assert "<empty>" not in text
    assert "<no description>" not in text


def test_explain_shows_values_in_a_tree(server: FakeServer, tmp_path: Path) -> None:
    lines = kubectl(server, tmp_path, "explain", "deployment", "--recursive").splitlines()
    strategy = lines.index("    strategy\t<DeploymentStrategy>")
    kind = lines.index("      type\t<string>", strategy)
    assert lines[kind + 1].strip() == "enum: Recreate, RollingUpdate"


@pytest.mark.parametrize("resource", DESCRIBED, ids=lambda resource: resource.key)
def test_explain_knows_every_resource(
    server: FakeServer, tmp_path: Path, resource: Resource
) -> None:
    text = kubectl(
        server, tmp_path, "explain", resource.plural, f"--api-version={resource.api_version}"
    )
    assert f"KIND:       {resource.kind}" in text


def test_apply_validates_and_patches_by_our_documents(server: FakeServer, tmp_path: Path) -> None:
    """Validation finds the PATCH operation with fieldValidation; the patch itself merges ports by
    port.
    """

    def manifest(*ports: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": "web", "namespace": "default"}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": list(ports)},
        }

    old = manifest({"name": "http", "port": 80}, {"name": "dns", "port": 53})
    annotation = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(old)}
    server.stored = {
        **old,
        "metadata": {
            **old["metadata"],
            "annotations": annotation,
            "uid": "u",
            "resourceVersion": "7",
        },
    }
    new = manifest({"name": "http", "port": 80, "appProtocol": "http"})
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=json.dumps(new))
    [(media, patch)] = server.patches
    assert media == "application/strategic-merge-patch+json"
    assert patch["spec"] == {
        "$setElementOrder/ports": [{"port": 80}],
        "ports": [{"appProtocol": "http", "port": 80}, {"$patch": "delete", "port": 53}],
    }
