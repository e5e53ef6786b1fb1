"""Endpoints and their mirror in a running plane, over HTTPS: the end-to-end part of KEP-0752's test
plan.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import Plane, running_plane
from tests.e2e.test_controllers_command import add_pod
from tests.e2e.test_kill9 import Api
from tests.waiting import until

NAMESPACE = "/api/v1/namespaces/default"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder: Path = tmp_path_factory.mktemp("plane")
    with running_plane(folder) as running:
        yield running


@pytest.fixture(scope="module")
def api(plane: Plane) -> Iterator[Api]:
    connection = Api(plane)
    yield connection
    connection.close()


def slices(api: Api, service: str) -> list[dict[str, Any]]:
    _, found = api.call("GET", f"{SLICES}?labelSelector=kubernetes.io/service-name={service}")
    items: Any = found["items"]
    return sorted(items, key=lambda each: each["addressType"])


def addresses(api: Api, service: str) -> set[str]:
    return {
        a
        for each in slices(api, service)
        for endpoint in each["endpoints"]
        for a in endpoint["addresses"]
    }


def make_service(api: Api, name: str, **spec: Any) -> None:
    document = {
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80, "targetPort": 8080}], **spec},
    }
    code, answer = api.call("POST", f"{NAMESPACE}/services", document)
    assert code == 201, answer


def custom(name: str, *ips: str) -> dict[str, Any]:
    subset = {"addresses": [{"ip": ip} for ip in ips], "ports": [{"port": 8080}]}
    return {"metadata": {"name": name, "labels": {"team": "a"}}, "subsets": [subset]}


def test_custom_endpoints_are_mirrored_through_create_update_and_delete(api: Api) -> None:
    make_service(api, "custom")
    assert api.call("POST", f"{NAMESPACE}/endpoints", custom("custom", "192.0.2.1"))[0] == 201
    until(lambda: addresses(api, "custom") == {"192.0.2.1"})
    assert (
        api.call(
            "PUT", f"{NAMESPACE}/endpoints/custom", custom("custom", "192.0.2.2", "2001:db8::2")
        )[0]
        == 200
    )
    until(lambda: addresses(api, "custom") == {"192.0.2.2", "2001:db8::2"})
    assert api.call("DELETE", f"{NAMESPACE}/endpoints/custom", {})[0] == 200
    until(lambda: slices(api, "custom") == [])


def test_endpoints_of_the_controller_include_the_skip_label(api: Api) -> None:
    api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    make_service(api, "web", selector={"app": "web"})
    add_pod(api, "web", 0)

    def subsets() -> Any:
        return api.call("GET", f"{NAMESPACE}/endpoints/web")[1].get("subsets")

    until(lambda: bool(subsets()))
    ((address,),) = ([each["ip"] for each in subset["addresses"]] for subset in subsets())
    assert addresses(api, "web") == {address}
    _, found = api.call("GET", f"{NAMESPACE}/endpoints/web")
    labels: Any = found["metadata"]["labels"]  # type: ignore[index]  # an object
    assert labels["endpointslice.kubernetes.io/skip-mirror"] == "true"
    assert labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller"
    managers = {
        each["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"]
        for each in slices(api, "web")
    }
    assert managers == {"endpointslice-controller.k8s.io"}, "nothing of it is mirrored"


def test_kubectl_shows_addresses_and_says_what_to_use_instead(plane: Plane, api: Api) -> None:
    make_service(api, "shop", selector={"app": "shop"})
    add_pod(api, "shop", 0)
    until(lambda: "subsets" in api.call("GET", f"{NAMESPACE}/endpoints/shop")[1])
    command = [plane.kubectl, "get", "endpoints", "shop", "--no-headers"]
    done = subprocess.run(
        command, env=plane.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:2] == ["shop", "10.9.4.1:8080"]
    assert (
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice" in done.stderr
    )


def test_mirrored_slices_have_labels_endpoints_ports_and_references(api: Api) -> None:
    make_service(api, "shown")
    _, made = api.call("POST", f"{NAMESPACE}/endpoints", custom("shown", "192.0.2.1"))
    until(lambda: addresses(api, "shown") == {"192.0.2.1"})
    (found,) = slices(api, "shown")
    assert found["metadata"]["labels"] == {
        "team": "a",
        "kubernetes.io/service-name": "shown",
        "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
    }
    owner = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "name": "shown",
        "uid": made["metadata"]["uid"],
    }  # type: ignore[index]
    assert found["metadata"]["ownerReferences"] == [
        owner | {"controller": True, "blockOwnerDeletion": True}
    ]
    assert found["ports"] == [{"name": "", "port": 8080, "protocol": "TCP"}]
    assert found["endpoints"] == [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}]


def test_services_of_the_api_server_are_left_alone(api: Api) -> None:
    _, found = api.call("GET", f"{NAMESPACE}/endpoints/kubernetes")
    labels: Any = found.get("metadata", {}).get("labels") or {}  # type: ignore[attr-defined]  # an object
    assert "endpoints.kubernetes.io/managed-by" not in labels
    mirrored = "endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io"
    _, listed = api.call("GET", f"{SLICES}?labelSelector={mirrored}")
    items: Any = listed["items"]
    assert all(
        each["metadata"]["labels"]["kubernetes.io/service-name"] != "kubernetes" for each in items
    )
