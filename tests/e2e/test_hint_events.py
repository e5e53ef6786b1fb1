"""Why a Service has no hints, as ``kubectl get events`` and ``kubectl describe service`` tell
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.e2e.running import Plane, kubectl, running_plane
from tests.waiting import until

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(120)]

WAIT_S = 90.0
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 4,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "web"}]},
        },
    },
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}], "publishNotReadyAddresses": True},
}
GHOST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "ghost", "labels": {"app": "web"}},
    "spec": {"nodeName": "nowhere", "containers": [{"name": "main", "image": "web"}]},
}
STRANGE_NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "strange"}}
READY = {
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}}
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("hints")
    with running_plane(
        folder, "--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b"
    ) as running:
        yield running


def told(plane: Plane) -> list[tuple[str, str, str]]:
    found = json.loads(
        kubectl(plane, "get", "events", "--field-selector=involvedObject.name=web", "-o", "json")
    )
    return [
        (each["type"], each["reason"], each["message"])
        for each in found["items"]
        if each["involvedObject"]["kind"] == "Service"
        and each["reportingComponent"] == "endpoint-slice-controller"
    ]


def wait_for(plane: Plane, message: str, *, warning: bool = True) -> None:
    reason = "TopologyAwareHintsDisabled" if warning else "TopologyAwareHintsEnabled"
    expected = ("Warning" if warning else "Normal", reason, f"{message}, addressType: IPv4")
    until(lambda: told(plane), lambda events: expected in events, within_s=WAIT_S)


def hinted(plane: Plane) -> list[bool]:
    slices = json.loads(
        kubectl(
            plane, "get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "json"
        )
    )
    return ["hints" in each for one in slices["items"] for each in one["endpoints"]]


def test_every_reason_reaches_the_user(plane: Plane) -> None:
    kubectl(plane, "apply", "-f", "-", document=DEPLOYMENT)
    kubectl(plane, "rollout", "status", "deployment/web")
    kubectl(plane, "apply", "-f", "-", document=SERVICE)
    wait_for(plane, "Topology Aware Hints has been enabled", warning=False)
    assert hinted(plane) == [True] * 4
    kubectl(plane, "scale", "deployment/web", "--replicas=1")
    wait_for(plane, "Insufficient number of endpoints (1 endpoints, 2 zones)")
    kubectl(plane, "scale", "deployment/web", "--replicas=3")
    words = (
        "Unable to allocate minimum required endpoints to each zone without exceeding overload "
        "threshold"
    )
    wait_for(plane, f"{words} (3 endpoints, 2 zones)")
    # The words may be those of the way down, when three were left for a moment.
    until(lambda: hinted(plane), lambda seen: seen == [False] * 3, within_s=WAIT_S)
    kubectl(plane, "create", "-f", "-", document=GHOST)
    kubectl(
        plane, "patch", "pod", "ghost", "--subresource=status", "--type=merge", "-p", ghost_status()
    )
    wait_for(plane, "One or more endpoints do not have a zone specified")
    kubectl(plane, "create", "-f", "-", document=STRANGE_NODE)
    kubectl(
        plane,
        "patch",
        "node",
        "strange",
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps(READY),
    )
    wait_for(
        plane,
        "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes",
    )
    kubectl(plane, "delete", "node", "strange")
    kubectl(plane, "delete", "pod", "ghost", "--force", "--grace-period=0")
    kubectl(plane, "scale", "deployment/web", "--replicas=4")
    until(lambda: hinted(plane), lambda hints: hints == [True] * 4, within_s=WAIT_S)
    kubectl(plane, "annotate", "service", "web", "service.kubernetes.io/topology-mode-")
    wait_for(plane, "Topology Aware Hints has been disabled")
    assert hinted(plane) == [False] * 4
    described = kubectl(plane, "describe", "service", "web")
    for line in (
        "TopologyAwareHintsEnabled",
        "TopologyAwareHintsDisabled",
        "endpoint-slice-controller",
    ):
        assert line in described, described


def ghost_status() -> str:
    return json.dumps(
        {"status": {"phase": "Running", "podIP": "10.99.0.9", "podIPs": [{"ip": "10.99.0.9"}]}}
    )
