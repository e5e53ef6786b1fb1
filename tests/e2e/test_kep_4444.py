"""KEP-4444, "Test Plan": its integration test and the first of its e2e tests (the second is about
packets: ``tests/kernel/test_kep_4444_packets.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.e2e.running import Plane, running_plane
from tests.e2e.test_kill9 import Api
from tests.waiting import until

CORE = "/api/v1/namespaces/default"
FLAGS = ("--emulate", "--emulate-nodes", "3", "--zones", "zone-a,zone-b,zone-c")
AUTO = "service.kubernetes.io/topology-mode"
WAIT_S = 90.0
OWN, NONE = "own zone", "none"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Two Pods, in two of three zones."""
    with running_plane(tmp_path_factory.mktemp("kep"), *FLAGS) as plane:
        api = api_of(plane)
        template = {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        }
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        post(
            api,
            "/apis/apps/v1/namespaces/default/deployments",
            {"metadata": {"name": "web"}, "spec": spec},
        )
        yield api
        api.close()


def api_of(plane: Plane) -> Api:
    return Api(plane)


def post(api: Api, path: str, body: dict[str, Any]) -> None:
    status, answer = api.call("POST", path, body)
    assert status == 201, answer


def service(api: Api, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    whole = {"selector": {"app": "web"}, "ports": [{"port": 80}], **spec}
    post(
        api,
        f"{CORE}/services",
        {"metadata": {"name": name, "annotations": annotations or {}}, "spec": whole},
    )


def endpoints(api: Api, name: str) -> list[dict[str, Any]]:
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    _, found = api.call("GET", f"{path}?labelSelector=kubernetes.io%2Fservice-name%3D{name}")
    items: Any = found["items"]
    return [row for item in items for row in item["endpoints"] if row["conditions"]["ready"]]


def hints(api: Api, name: str) -> str:
    """What the two endpoints are for: their own zone, or nothing."""
    rows = endpoints(api, name)
    found = [
        (row["zone"], [zone["name"] for zone in row.get("hints", {}).get("forZones", [])])
        for row in rows
    ]
    if len(found) == 2 and all(zones == [zone] for zone, zones in found):
        return OWN
    return NONE if len(found) == 2 and not any(zones for _, zones in found) else f"neither: {found}"


def becomes(told: Callable[[], object], wanted: object) -> None:
    until(told, lambda found: found == wanted, within_s=WAIT_S)


def test_hints_are_populated_when_traffic_distribution_is_prefer_close(api: Api) -> None:
    service(api, "close", trafficDistribution="PreferClose")
    becomes(lambda: hints(api, "close"), OWN)
    patch(api, "close", {"spec": {"trafficDistribution": None}})
    becomes(lambda: hints(api, "close"), NONE)


def test_the_annotation_takes_precedence_over_the_field(api: Api) -> None:
    """Two endpoints over three zones are too few for topology-mode Auto, which then gives none; the
    field, which would, is passed over while the annotation is there.
    """
    service(api, "both", annotations={AUTO: "Auto"}, trafficDistribution="PreferClose")
    becomes(lambda: hints(api, "both"), NONE)

    def reasons() -> set[str]:
        _, found = api.call("GET", f"{CORE}/events")
        items: Any = found["items"]
        return {each["reason"] for each in items if each["involvedObject"]["name"] == "both"}

    becomes(lambda: "TopologyAwareHintsDisabled" in reasons(), True)
    assert hints(api, "both") == NONE
    patch(api, "both", {"metadata": {"annotations": {AUTO: None}}})
    becomes(lambda: hints(api, "both"), OWN)
    patch(api, "both", {"metadata": {"annotations": {AUTO: "Auto"}}})
    becomes(lambda: hints(api, "both"), NONE)


def patch(api: Api, name: str, body: dict[str, Any]) -> None:
    headers = api._headers
    api._headers = {**headers, "Content-Type": "application/merge-patch+json"}
    status, answer = api.call("PATCH", f"{CORE}/services/{name}", body)
    api._headers = headers
    assert status == 200, answer
