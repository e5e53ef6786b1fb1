"""Bugs that Endpoints and their mirror had elsewhere, over a real registry."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Nodes, Pods, Services
from sliceplane.controllers.endpoints import EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import EndpointSliceMirroringController
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.service_syncs import FirstSync
from sliceplane.lab.sim.cluster import Cluster

OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
SERVICE = {
    "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
}


def begin(*, pods: int = 0) -> Cluster:
    first_sync = FirstSync()
    controllers = (EndpointSliceController(), EndpointsController(None, first_sync))
    cluster = Cluster(
        *controllers, EndpointSliceMirroringController(None, first_sync), GarbageCollector()
    )
    cluster.create(Nodes, {"metadata": {"name": "n1"}})
    cluster.create(Services, SERVICE)
    for number in range(pods):
        pod(cluster, number)
    cluster.converge()
    return cluster


def pod(cluster: Cluster, number: int, *, ready: bool = True) -> None:
    spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]}
    cluster.create(
        Pods, {"metadata": {"name": f"p-{number}", "labels": {"app": "web"}}, "spec": spec}
    )
    status(cluster, number, ready=ready)


def status(cluster: Cluster, number: int, *, ready: bool, phase: str = "Running") -> None:
    ip = address(number)
    told: Document = {"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]}
    told["conditions"] = [{"type": "Ready", "status": str(ready)}]
    cluster.patch(Pods, f"p-{number}", {"status": told}, subresource="status")


def address(number: int) -> str:
    return f"10.0.{number >> 8}.{number & 255}"


def endpoints(cluster: Cluster) -> Document:
    return cluster.get(EndpointsObjects, "web")


def addresses(cluster: Cluster, member: str = "addresses") -> list[str]:
    return [
        each["ip"]
        for subset in endpoints(cluster).get("subsets") or ()
        for each in subset.get(member) or ()
    ]


def told_capacity(cluster: Cluster) -> Any:
    return (endpoints(cluster)["metadata"].get("annotations") or {}).get(OVER_CAPACITY)


def test_kubernetes_127370_over_a_thousand_addresses_and_back() -> None:
    """Beyond the limit the object is still kept true, and on the way back down everything is in it
    again.
    """
    cluster = begin(pods=1000)
    assert (len(addresses(cluster)), told_capacity(cluster)) == (1000, None)
    pod(cluster, 1000)
    cluster.converge()
    assert (len(addresses(cluster)), told_capacity(cluster)) == (1000, "truncated")
    left_out = ({address(number) for number in range(1001)} - set(addresses(cluster))).pop()
    status(cluster, 7, ready=False)
    cluster.converge()
    assert address(7) not in addresses(cluster), "it must leave although the object is full"
    assert left_out in addresses(cluster), "and makes room"
    assert (len(addresses(cluster)), told_capacity(cluster)) == (1000, "truncated"), (
        "1,001 with the one that is not ready"
    )
    assert addresses(cluster, "notReadyAddresses") == [], "ready ones fill the object"
    cluster.delete(Pods, "p-8", gracePeriodSeconds=0)
    cluster.converge()
    assert (len(addresses(cluster)), told_capacity(cluster)) == (999, None)
    assert addresses(cluster, "notReadyAddresses") == [address(7)]
    status(cluster, 7, ready=True)
    cluster.converge()
    assert sorted(addresses(cluster)) == sorted(
        address(number) for number in range(1001) if number != 8
    )
    total = sum(len(each["endpoints"]) for each in cluster.list(EndpointSlices))
    assert total == 1000, "slices know of no limit"


def test_llmkube_895_a_mirror_ends_with_its_service_and_does_not_come_back() -> None:
    """A forgotten Endpoints object without a Service is fed to nobody, however often its slice is
    looked for.
    """
    cluster = begin()
    cluster.create(Services, {"metadata": {"name": "model"}, "spec": {"ports": [{"port": 80}]}})
    own = {
        "metadata": {"name": "model"},
        "subsets": [{"addresses": [{"ip": "192.0.2.9"}], "ports": [{"port": 80}]}],
    }
    cluster.create(EndpointsObjects, own)
    cluster.converge()

    def mirrored() -> list[Document]:
        found = cluster.list(EndpointSlices)
        return [
            each
            for each in found
            if each["metadata"]["labels"]["kubernetes.io/service-name"] == "model"
        ]

    assert len(mirrored()) == 1
    cluster.delete(Services, "model")
    cluster.converge()
    assert mirrored() == []
    if not [each for each in cluster.list(EndpointsObjects) if each["metadata"]["name"] == "model"]:
        cluster.create(EndpointsObjects, own)
    cluster.converge()
    cluster.patch(EndpointsObjects, "model", {"metadata": {"annotations": {"touched": "1"}}})
    cluster.converge()
    assert mirrored() == []


def test_kubernetes_107927_a_pod_on_an_unknown_node_is_an_address_as_any() -> None:
    """Endpoints have no zones: nothing is missing."""
    cluster = begin(pods=2)
    spec = {"nodeName": "nowhere", "containers": [{"name": "main", "image": "x"}]}
    cluster.create(Pods, {"metadata": {"name": "p-2", "labels": {"app": "web"}}, "spec": spec})
    status(cluster, 2, ready=True)
    cluster.converge()
    assert addresses(cluster) == [address(0), address(1), address(2)]


def test_kubernetes_109414_the_address_of_a_failed_pod_is_not_told() -> None:
    cluster = begin(pods=2)
    status(cluster, 0, ready=True, phase="Failed")
    cluster.converge()
    assert addresses(cluster) == [address(1)]


def test_nacos_10209_a_restart_shows_no_empty_list_and_writes_nothing() -> None:
    cluster = begin(pods=5)
    before = endpoints(cluster)
    revision = cluster.store.revision
    first_sync = FirstSync()
    again = (EndpointSliceController(), EndpointsController(None, first_sync))
    cluster.replace(*again, EndpointSliceMirroringController(None, first_sync), GarbageCollector())
    cluster.converge()
    assert (endpoints(cluster), cluster.store.revision) == (before, revision)


def test_kubernetes_102106_special_addresses_are_refused_and_nobody_mirrors_them() -> None:
    cluster = begin()
    cluster.create(Services, {"metadata": {"name": "own"}, "spec": {"ports": [{"port": 80}]}})
    for special in ("127.0.0.1", "169.254.1.1", "224.0.0.1", "::1", "fe80::1", "ff02::1"):
        subsets = [{"addresses": [{"ip": special}], "ports": [{"port": 80}]}]
        with pytest.raises(StatusError, match="Invalid value"):
            cluster.create(EndpointsObjects, {"metadata": {"name": "own"}, "subsets": subsets})
    cluster.converge()
    assert [
        each["metadata"]["name"]
        for each in cluster.list(EndpointSlices)
        if "own" in each["metadata"]["name"]
    ] == []
