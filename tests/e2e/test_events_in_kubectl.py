"""Events of controllers as ``kubectl get events``, ``events`` and ``describe`` show them: Age, From
and the count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from tests.e2e.running import Plane, kubectl, running_plane
from tests.waiting import until

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(120)]

WAIT_S = 90.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running_plane(tmp_path_factory.mktemp("events")) as running:
        yield running


def both_forms(plane: Plane) -> tuple[Any, Any] | None:
    """The Event in either API group, of one version; ``None`` if it was written between the two
    reads.
    """
    core = json.loads(kubectl(plane, "get", "events", "-o", "json"))["items"][0]
    newer = json.loads(kubectl(plane, "get", "events.v1.events.k8s.io", "-o", "json"))["items"][0]
    return (core, newer) if core["metadata"] == newer["metadata"] else None


def test_an_error_that_comes_back_is_one_line_with_a_count(plane: Plane) -> None:
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}], "publishNotReadyAddresses": False}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    ghost = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "ghost", "labels": {"app": "web"}},
        "spec": {"nodeName": "nowhere", "containers": [{"name": "main", "image": "web"}]},
    }
    line = r"Warning +FailedToUpdateEndpointSlices +\d+s \(x\d+ over \d+s\) +endpoint-slice-controller +Error updating"

    def missed() -> bool:
        return '"reason": "FailedToUpdateEndpointSlices"' in kubectl(
            plane, "get", "events", "-o", "json"
        )

    def missed_anew() -> bool:
        kubectl(plane, "delete", "pod", "ghost", "--force", "--grace-period=0")
        appears()
        return re.search(line, kubectl(plane, "describe", "service", "web")) is not None

    def appears() -> None:
        kubectl(plane, "create", "-f", "-", document=ghost)
        status = json.dumps(
            {"status": {"phase": "Running", "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}]}}
        )
        kubectl(
            plane, "patch", "pod", "ghost", "--subresource=status", "--type=merge", "-p", status
        )

    kubectl(plane, "create", "-f", "-", document=service)
    appears()
    until(missed)
    until(missed_anew)
    listed = kubectl(plane, "get", "events", "-o", "wide")
    assert len(re.findall("FailedToUpdateEndpointSlices", listed)) == 1
    assert re.search(
        r"service/web +endpoint-slice-controller, endpoint-slice-controller-\S+ +Error updating",
        listed,
    )
    assert re.search(
        r"\d+s \(x\d+ over \d+s\) +Warning +FailedToUpdateEndpointSlices", kubectl(plane, "events")
    )
    core, newer = until(lambda: both_forms(plane))
    assert core["series"] == newer["series"]
    assert (core["message"], core["involvedObject"]) == (newer["note"], newer["regarding"])
    assert core["reportingComponent"] == newer["reportingController"] == "endpoint-slice-controller"


def test_an_owner_in_another_namespace_is_told_about(plane: Plane) -> None:
    kubectl(plane, "create", "namespace", "shop")
    kubectl(plane, "create", "configmap", "owner")
    uid = kubectl(plane, "get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    metadata = {
        "name": "child",
        "namespace": "shop",
        "finalizers": ["x.io/hold"],
        "ownerReferences": [owner],
    }
    kubectl(
        plane,
        "create",
        "-f",
        "-",
        document={"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata},
    )
    said = re.escape(
        f"ownerRef [v1/ConfigMap, namespace: shop, name: owner, uid: {uid}] does not exist in "
        'namespace "shop"'
    )
    line = rf"Warning +OwnerRefInvalidNamespace +\d+s +garbage-collector-controller +{said}"
    until(lambda: re.search(line, kubectl(plane, "describe", "configmap", "child", "-n", "shop")))
    found = kubectl(
        plane,
        "get",
        "events",
        "-A",
        "--field-selector=reason=OwnerRefInvalidNamespace",
        "-o",
        "name",
    )
    assert len(found.split()) == 1
