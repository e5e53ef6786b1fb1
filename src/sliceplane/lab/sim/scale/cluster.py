"""The initial state of a large cluster: the registry creates one object of each kind, the others
are copies.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.discovery import LABEL_HOSTNAME, LABEL_ZONE
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Namespaces, Nodes, Pods, Resource, Services
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.scale.plan import ScalePlan, node_name, zone_name
from sliceplane.lab.sim.scheduler import Scheduler
from sliceplane.lab.sim.server import Server, request
from sliceplane.lab.sim.users.documents import pod_status
from sliceplane.server.registry.documents import make_record
from sliceplane.server.store.types import Record

SERVICES_PER_NAMESPACE: Final = 100
_UID: Final = "5a1e000{kind}-0000-4000-8000-{number:012x}"


def namespace_of(service: int) -> str:
    return f"team-{service // SERVICES_PER_NAMESPACE:03}"


def service_name(service: int) -> str:
    return f"web-{service:05}"


def pod_name(pod: int) -> str:
    return f"web-7d4b9c6f5d-{pod:07}"


def pod_address(pod: int) -> str:
    """Returns the Pod's address; 10.128.0.0/9 has eight million of them."""
    return f"10.{128 + (pod >> 16) % 128}.{pod >> 8 & 255}.{pod & 255}"


def pod_document(pod: int, service: int, node: int) -> Document:
    """Returns a Pod without status."""
    ports = [{"name": "http", "containerPort": 8080}]
    container = {"name": "main", "image": "registry.example/web:1", "ports": ports}
    return {
        "metadata": {"name": pod_name(pod), "labels": {"app": service_name(service)}},
        "spec": {
            "nodeName": node_name(node),
            "containers": [container],
            "terminationGracePeriodSeconds": 30,
        },
    }


def pods_of(plan: ScalePlan, service: int) -> range:
    """Returns the numbers of the initial Pods of a Service."""
    return range(service * plan.pods // plan.services, (service + 1) * plan.pods // plan.services)


def build_records(plan: ScalePlan, scheduler: Scheduler) -> tuple[Record, ...]:
    """Returns all initial objects except slices."""
    patterns = _patterns(scheduler)
    records: list[Record] = []

    def add(resource: Resource, document: Document) -> None:
        revision = len(records) + 2
        metadata = document["metadata"]
        metadata["uid"] = _UID.format(kind=len(resource.kind) % 10, number=len(records))
        metadata["resourceVersion"] = str(revision)
        records.append(make_record(resource, document, revision))

    for first in range(0, plan.services, SERVICES_PER_NAMESPACE):
        add(Namespaces, _named(patterns[Namespaces], namespace_of(first)))
    for number in range(plan.nodes):
        node = _named(patterns[Nodes], node_name(number))
        node["metadata"]["labels"] = {
            LABEL_HOSTNAME: node_name(number),
            LABEL_ZONE: zone_name(number % plan.zones),
        }
        add(Nodes, node)
    for number in range(plan.services):
        service = _named(patterns[Services], service_name(number), namespace_of(number))
        address = f"10.{96 + (number + 256 >> 16)}.{number + 256 >> 8 & 255}.{number & 255}"
        service["spec"] |= {
            "selector": {"app": service_name(number)},
            "clusterIP": address,
            "clusterIPs": [address],
        }
        add(Services, service)
    for number in range(plan.services):
        for pod_number in pods_of(plan, number):
            pod = _named(patterns[Pods], pod_name(pod_number), namespace_of(number))
            pod["metadata"]["labels"] = {"app": service_name(number)}
            pod["spec"]["nodeName"] = node_name(pod_number % plan.nodes)
            address = pod_address(pod_number)
            pod["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
            add(Pods, pod)
    return tuple(records)


def _patterns(scheduler: Scheduler) -> dict[Resource, bytes]:
    server = Server(scheduler, Rng(0))

    def create(resource: Resource, namespace: str, document: Document) -> bytes:
        return _bare(server.execute(request("create", resource, namespace, document)))

    node = create(
        Nodes, "", {"metadata": {"name": node_name(0)}, "status": node_status(ready=True)}
    )
    namespace = create(Namespaces, "", {"metadata": {"name": "team"}})
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    service = create(
        Services,
        "default",
        {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}},
    )
    create(Pods, "default", pod_document(0, 0, 0))
    status = pod_status([pod_address(0)], ready=True)
    patch = request("patch", Pods, "default", status, name=pod_name(0), subresource="status")
    return {
        Namespaces: namespace,
        Nodes: node,
        Services: service,
        Pods: _bare(server.execute(patch)),
    }


def _bare(body: bytes) -> bytes:
    document = decode_document(body)
    document["metadata"].pop("managedFields", None)
    return encode(document)


def node_status(*, ready: bool) -> Document:
    return {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}


def _named(pattern: bytes, name: str, namespace: str = "") -> Document:
    document = decode_document(pattern)
    metadata = document["metadata"]
    metadata["name"] = name
    if namespace:
        metadata["namespace"] = namespace
    return document
