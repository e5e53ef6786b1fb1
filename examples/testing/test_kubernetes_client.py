"""A consumer's tests with the official ``kubernetes`` client: a loop of list and watch must survive
410 and 429.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from sliceplane.testing import Plane

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"


def follow(
    discovery: client.DiscoveryV1Api, held: dict[str, set[str]], going_on: Callable[[], bool]
) -> None:
    """What is tested here: keep *held*, addresses by slice, as the cluster has them."""
    selector = "kubernetes.io/service-name=web"
    while going_on():
        try:
            page = discovery.list_namespaced_endpoint_slice("default", label_selector=selector)
            fresh = {item.metadata.name: addresses(item) for item in page.items}
            held.clear()
            held.update(fresh)
            for event in watch.Watch().stream(
                discovery.list_namespaced_endpoint_slice,
                "default",
                label_selector=selector,
                resource_version=page.metadata.resource_version,
                timeout_seconds=1,
            ):
                name = event["object"].metadata.name
                if event["type"] == "DELETED":
                    held.pop(name, None)
                else:
                    held[name] = addresses(event["object"])
        except ApiException as error:
            if error.status not in (410, 429):
                raise
        except Exception as error:  # urllib3's, of connections that break
            print("once more:", error)


def addresses(item: client.V1EndpointSlice) -> set[str]:
    return {address for endpoint in item.endpoints or () for address in endpoint.addresses}


@pytest.fixture
def held(sliceplane: Plane) -> Iterator[dict[str, set[str]]]:
    """What a follower in a thread of its own holds."""
    endpoints: dict[str, set[str]] = {}
    ended = threading.Event()
    settings = client.Configuration()
    config.load_kube_config(str(sliceplane.kubeconfig), client_configuration=settings)
    with client.ApiClient(settings) as api:
        thread = threading.Thread(
            target=follow, args=(client.DiscoveryV1Api(api), endpoints, lambda: not ended.is_set())
        )
        thread.start()
        yield endpoints
        ended.set()
        thread.join()


def known(held: dict[str, set[str]]) -> set[str]:
    return {address for addresses in tuple(held.values()) for address in addresses}


def test_it_follows(sliceplane: Plane, held: dict[str, set[str]]) -> None:
    sliceplane.apply(SERVICE)
    sliceplane.set_endpoints("web", ["10.0.0.1:8080", "10.0.0.2:8081"])
    sliceplane.wait_for(lambda: known(held) == {"10.0.0.1", "10.0.0.2"})
    sliceplane.set_endpoints("web", ["10.0.0.2:8081"])
    sliceplane.wait_for(lambda: known(held) == {"10.0.0.2"})


def test_it_survives_what_servers_do(sliceplane: Plane, held: dict[str, set[str]]) -> None:
    sliceplane.apply(SERVICE)
    sliceplane.set_endpoints("web", ["10.0.0.1:8080"])
    sliceplane.wait_for(lambda: known(held) == {"10.0.0.1"})
    busy = sliceplane.faults.refuse(429, times=2, where="/endpointslices")
    sliceplane.faults.expire()
    sliceplane.set_endpoints("web", ["10.0.0.2:8080"])
    sliceplane.wait_for(lambda: known(held) == {"10.0.0.2"}, timeout=30)
    assert busy.hits == 2
