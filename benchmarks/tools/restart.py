"""A controller that dies in the middle of a rolling update, on virtual time: what it writes when it
comes back.
"""

from __future__ import annotations

from math import ceil

from benchmarks.harness import Result
from benchmarks.tools.objects import (
    APP,
    NAMESPACE,
    PER_SLICE,
    PODS_PER_NODE,
    Document,
    namespace_document,
    node_document,
    node_name,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    service_document,
)
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.lab.sim.cluster import Cluster


def restart_in_the_middle(pods: int) -> list[Result]:
    """Half of *pods* are replaced, the controller dies, a quarter is replaced without it, it comes
    back.

    Asserts that no endpoint was lost or doubled.
    """
    cluster = Cluster(EndpointSliceController())
    cluster.create(Namespaces, namespace_document())
    for number in range((pods + PODS_PER_NODE - 1) // PODS_PER_NODE):
        cluster.create(Nodes, node_document(number))
    cluster.create(Services, service_document(), NAMESPACE)
    for number in range(pods):
        _add(cluster, number, number)
    cluster.converge()
    for number in range(pods // 2):
        _replace(cluster, number, pods)
        if number % 7 == 0:
            cluster.converge()
    # dies with everything before its last writes settled, in the middle of what it was about to do
    cluster.replace()
    for number in range(pods // 2, pods // 2 + pods // 4):
        _replace(cluster, number, pods)
    wanted = {
        pod_ip(number)
        for number in (
            *range(pods // 2 + pods // 4, pods),
            *range(pods, pods + pods // 2 + pods // 4),
        )
    }
    least = least_writes(cluster.list(EndpointSlices, NAMESPACE), wanted)
    cluster.writes.clear()
    cluster.replace(EndpointSliceController())
    cluster.converge()
    addresses = [address for slice_ in _slices(cluster) for address in _addresses(slice_)]
    assert sorted(addresses) == sorted(wanted), "an endpoint was lost or doubled"
    size = f"{pods:,} Pods, half replaced, a quarter meanwhile"
    return [
        Result(
            name="restart in a rolling update: writes",
            size=size,
            value=float(len(cluster.writes)),
            unit="writes",
            peer="least possible",
            peer_value=float(least),
        )
    ]


def least_writes(slices: list[Document], wanted: set[str]) -> int:
    """Slices that hold an address that has to go must be written; newcomers fit into what that
    frees, then into slices with room, then into new ones.
    """
    outdated = [slice_ for slice_ in slices if not set(_addresses(slice_)) <= wanted]
    newcomers = len(wanted - {address for slice_ in slices for address in _addresses(slice_)})
    room = sum(PER_SLICE - len(set(_addresses(slice_)) & wanted) for slice_ in outdated)
    left = max(0, newcomers - room)
    free = sorted(
        (PER_SLICE - len(_addresses(slice_)) for slice_ in slices if slice_ not in outdated),
        reverse=True,
    )
    extra = 0
    for places in free:
        if left <= 0 or not places:
            break
        left = left - places
        extra = extra + 1
    return len(outdated) + extra + ceil(max(0, left) / PER_SLICE)


def _add(cluster: Cluster, number: int, on: int) -> None:
    cluster.create(Pods, pod_document(number, node=node_name(on // PODS_PER_NODE)), NAMESPACE)
    status = pod_status(pod_ip(number), ready=True, turn=number)
    cluster.patch(Pods, pod_name(number), status, namespace=NAMESPACE, subresource="status")


def _replace(cluster: Cluster, number: int, pods: int) -> None:
    _add(cluster, pods + number, number)
    cluster.delete(Pods, pod_name(number), NAMESPACE, gracePeriodSeconds=0)


def _slices(cluster: Cluster) -> list[Document]:
    slices = cluster.list(EndpointSlices, NAMESPACE)
    assert all(
        slice_["metadata"]["labels"]["kubernetes.io/service-name"] == APP for slice_ in slices
    ), "only one service"
    return slices


def _addresses(each: Document) -> list[str]:
    return [endpoint["addresses"][0] for endpoint in each["endpoints"]]
