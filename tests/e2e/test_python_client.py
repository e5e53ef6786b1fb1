"""The official Python ``kubernetes`` client: typed create, list, watch and patch of
EndpointSlices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from tests.e2e.running import Plane, running_plane

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running_plane(tmp_path_factory.mktemp("python-client")) as plane:
        yield plane


@pytest.fixture
def discovery(plane: Plane) -> Iterator[client.DiscoveryV1Api]:
    with config.new_client_from_config(plane.kubeconfig) as api:
        yield client.DiscoveryV1Api(api)


def make_slice(name: str, *addresses: str) -> client.V1EndpointSlice:
    return client.V1EndpointSlice(
        api_version="discovery.k8s.io/v1",
        kind="EndpointSlice",
        metadata=client.V1ObjectMeta(name=name, labels={"kubernetes.io/service-name": "svc"}),
        address_type="IPv4",
        endpoints=[client.V1Endpoint(addresses=[address]) for address in addresses],
        ports=[client.DiscoveryV1EndpointPort(name="http", port=8080)],
    )


def test_create_read_patch_replace_delete(discovery: client.DiscoveryV1Api) -> None:
    made = discovery.create_namespaced_endpoint_slice(
        "default", make_slice("typed", "198.51.100.1")
    )
    assert made.metadata.uid
    assert made.metadata.generation == 1
    assert made.ports[0].protocol == "TCP"

    patched = discovery.patch_namespaced_endpoint_slice(
        "typed", "default", {"endpoints": [{"addresses": ["198.51.100.2"], "zone": "zone-a"}]}
    )
    assert patched.endpoints[0].zone == "zone-a"
    assert patched.metadata.generation == 2

    patched.endpoints[0].hints = client.V1EndpointHints(for_zones=[client.V1ForZone(name="zone-a")])
    replaced = discovery.replace_namespaced_endpoint_slice("typed", "default", patched)
    assert replaced.endpoints[0].hints.for_zones[0].name == "zone-a"

    with pytest.raises(ApiException) as stale:
        discovery.replace_namespaced_endpoint_slice("typed", "default", patched)
    assert stale.value.status == 409

    answer = discovery.delete_namespaced_endpoint_slice("typed", "default")
    assert answer["status"] == "Success", (
        answer
    )  # this client leaves the answer to a DELETE undecoded
    with pytest.raises(ApiException) as gone:
        discovery.read_namespaced_endpoint_slice("typed", "default")
    assert gone.value.status == 404


def test_list_in_pages_with_selector(discovery: client.DiscoveryV1Api) -> None:
    for number in range(7):
        discovery.create_namespaced_endpoint_slice(
            "default", make_slice(f"page-{number}", f"198.51.100.{number + 10}")
        )
    names: list[str] = []
    token: str | None = None
    while True:
        page = discovery.list_namespaced_endpoint_slice(
            "default",
            limit=3,
            label_selector="kubernetes.io/service-name=svc",
            **({"_continue": token} if token else {}),
        )
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert names == [f"page-{number}" for number in range(7)]
    discovery.delete_collection_namespaced_endpoint_slice(
        "default", label_selector="kubernetes.io/service-name=svc"
    )
    assert (
        discovery.list_endpoint_slice_for_all_namespaces(
            label_selector="kubernetes.io/service-name=svc"
        ).items
        == []
    )


def test_watch_sees_every_change_in_order(discovery: client.DiscoveryV1Api) -> None:
    version = discovery.list_namespaced_endpoint_slice("default").metadata.resource_version

    def change() -> None:
        discovery.create_namespaced_endpoint_slice("default", make_slice("watched", "198.51.100.1"))
        for number in range(2, 5):
            body = {"endpoints": [{"addresses": [f"198.51.100.{number}"]}]}
            discovery.patch_namespaced_endpoint_slice("watched", "default", body)
        discovery.delete_namespaced_endpoint_slice("watched", "default")

    writer = threading.Thread(target=change)
    writer.start()
    seen: list[tuple[str, str]] = []
    versions: list[int] = []
    stream = watch.Watch()
    for event in stream.stream(
        discovery.list_namespaced_endpoint_slice,
        "default",
        resource_version=version,
        timeout_seconds=30,
    ):
        item = event["object"]
        seen.append((event["type"], item.endpoints[0].addresses[0]))
        versions.append(int(item.metadata.resource_version))
        if event["type"] == "DELETED":
            stream.stop()
    writer.join()
    assert seen == [
        ("ADDED", "198.51.100.1"),
        ("MODIFIED", "198.51.100.2"),
        ("MODIFIED", "198.51.100.3"),
        ("MODIFIED", "198.51.100.4"),
        ("DELETED", "198.51.100.4"),
    ]
    assert versions == sorted(set(versions))
