"""The real kubectl with a manifest of ``discovery.k8s.io/v1beta1``, topology kept in the
annotation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.serving import Server, run_plane
from tests.server.test_kubectl_smoke import kubectl

from sliceplane.server.io.plane import PlaneConfig
from sliceplane.server.registry.config import served_resources

pytestmark = pytest.mark.kubectl

MANIFEST = """
apiVersion: discovery.k8s.io/v1beta1
kind: EndpointSlice
metadata: {name: old-1, labels: {kubernetes.io/service-name: old}}
addressType: IPv4
ports: [{port: 80, name: http}]
endpoints: [{addresses: [10.1.2.3], topology: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: z}}]
"""
OLD = "endpointslices.v1beta1.discovery.k8s.io"


@pytest.fixture
def old() -> Iterator[Server]:
    served = served_resources("discovery.k8s.io/v1beta1=true")
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0, served=served, topology_storage="annotation")
    )
    yield Server(plane)
    end()


def test_apply_get_explain_delete(old: Server, tmp_path: Path) -> None:
    applied = kubectl(old, tmp_path, "apply", "-f", "-", stdin=MANIFEST)
    assert applied == "endpointslice.discovery.k8s.io/old-1 created\n"
    found = json.loads(kubectl(old, tmp_path, "get", OLD, "old-1", "-o", "json"))
    topology = {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "z"}
    assert (found["apiVersion"], found["endpoints"][0]["topology"]) == (
        "discovery.k8s.io/v1beta1",
        topology,
    )
    current = json.loads(kubectl(old, tmp_path, "get", "endpointslice", "old-1", "-o", "json"))
    annotation = current["metadata"]["annotations"]["endpointslice.kubernetes.io/v1beta1-topology"]
    assert (annotation, current["endpoints"][0]["zone"]) == (
        '{"0":{"kubernetes.io/hostname":"n1"}}',
        "z",
    )
    assert "old-1" in kubectl(old, tmp_path, "get", OLD)
    explained = kubectl(
        old,
        tmp_path,
        "explain",
        "endpointslices.endpoints.topology",
        "--api-version",
        "discovery.k8s.io/v1beta1",
    )
    assert "map[string]string" in explained
    kubectl(old, tmp_path, "label", OLD, "old-1", "a=b")
    assert kubectl(old, tmp_path, "delete", "-f", "-", stdin=MANIFEST).startswith(
        "endpointslice.discovery.k8s.io"
    )
