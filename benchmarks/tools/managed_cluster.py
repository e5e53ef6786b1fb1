"""The objects of a managed cluster, as a reader sees them who did not make it: Nodes without a proxy
of ours, Services over namespaces with a Deployment each, slices of upstream's controller and of
other managers, Events, ConfigMaps and Leases that no command needs. Always the same but for times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.tools.cluster import Wanted
from benchmarks.tools.objects import TRANSITION, ZONES, Document, pod_ip
from sliceplane.api.scheme import (
    ConfigMaps,
    DaemonSets,
    Deployments,
    EndpointSlices,
    EndpointsObjects,
    Events,
    Leases,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    Services,
)
from sliceplane.kit.times import format_micro_time

NODE_LEASES: Final = "kube-node-lease"
SYSTEM: Final = "kube-system"
CONTROLLER: Final = "endpointslice-controller.k8s.io"
#: of a multi-cluster mirror, a mesh, and somebody's own controller
OTHER_MANAGERS: Final = (
    "endpointslice-mirror.submariner.io",
    "mesh.example.org",
    "backends.example.com",
)
#: one Service in so many has a slice of another manager
OTHERS_EVERY: Final = 10
#: a Lease is renewed until so many seconds after the objects were made: writing them takes longer
#: than a kubelet may be silent
LEASES_LAST_S: Final = 7200.0
READY: Final = {"type": "Ready", "status": "True", "lastTransitionTime": TRANSITION}
#: of the only ReplicaSet of each Deployment
HASH: Final = "6f9c7d8b5"
HASH_LABEL: Final = {"pod-template-hash": HASH}
REVISION: Final = {"deployment.kubernetes.io/revision": "1"}


class Size(NamedTuple):
    """``slices`` of upstream's controller for each of the ``services``, ``pods`` in each slice."""

    nodes: int
    namespaces: int
    services: int
    slices: int
    pods: int

    @property
    def all_slices(self) -> int:
        return self.services * self.slices + -(-self.services // OTHERS_EVERY)

    @property
    def replicas(self) -> int:
        return self.slices * self.pods

    def service(self, number: int) -> tuple[str, str]:
        """Its namespace and name."""
        return f"team-{number % self.namespaces:03d}", f"svc-{number:05d}"

    def pod(self, service: int, number: int) -> str:
        return f"svc-{service:05d}-{HASH}-{number:05d}"

    def node(self, number: int) -> str:
        return f"ip-10-0-{number >> 8}-{number & 255}.ec2.internal"


def objects(size: Size, now: float) -> Iterator[Wanted]:
    """*now*: seconds since the epoch."""
    for number in range(size.namespaces):
        name = size.service(number)[0]
        yield Namespaces, "", _named(name), None
    for number in range(size.namespaces):
        name = size.service(number)[0]
        data = {"ca.crt": "-----BEGIN CERTIFICATE-----\n" + "A" * 1500}
        yield ConfigMaps, name, {**_named("kube-root-ca.crt"), "data": data}, None
    yield from _nodes(size, now)
    yield DaemonSets, SYSTEM, _workload("cilium", "cilium", 0), None
    cilium = {"kube-proxy-replacement": "true", "enable-k8s-endpoint-slice": "true"}
    yield ConfigMaps, SYSTEM, {**_named("cilium-config"), "data": cilium}, None
    for write in (_services, _deployments, _replica_sets, _pods, _slices, _others, _endpoints):
        yield from write(size)
    yield from _events(size, now)


def _named(name: str, **metadata: object) -> Document:
    return {"metadata": {"name": name, **metadata}}


def _nodes(size: Size, now: float) -> Iterator[Wanted]:
    for number in range(size.nodes):
        name = size.node(number)
        labels = {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": ZONES[number % len(ZONES)],
            "topology.kubernetes.io/region": "region-1",
            "node.kubernetes.io/instance-type": "m6i.2xlarge",
            "eks.amazonaws.com/nodegroup": "workers",
        }
        zone = ZONES[number % len(ZONES)]
        spec = {"providerID": f"aws:///{zone}/i-{number:017x}", "taints": []}
        status = {
            "addresses": [{"type": "InternalIP", "address": f"10.0.{number >> 8}.{number & 255}"}],
            "conditions": [READY],
            "nodeInfo": {"kubeletVersion": "v1.31.5-eks-1a2b3c4", "kernelVersion": "6.1.112"},
        }
        yield Nodes, "", {**_named(name, labels=labels), "spec": spec}, {"status": status}
    renewed = format_micro_time(now + LEASES_LAST_S)
    for name in ("kube-controller-manager", "kube-scheduler"):
        lease = {"holderIdentity": "ip-10-1-0-1_a", "leaseDurationSeconds": 15}
        yield Leases, SYSTEM, {**_named(name), "spec": lease | {"renewTime": renewed}}, None
    for number in range(size.nodes):
        name = size.node(number)
        lease = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}
        yield Leases, NODE_LEASES, {**_named(name), "spec": lease}, None


def _services(size: Size) -> Iterator[Wanted]:
    for number in range(size.services):
        namespace, name = size.service(number)
        ports = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]
        spec = {"selector": {"app": name}, "ports": ports}
        yield Services, namespace, {**_named(name), "spec": spec}, None


def _workload(name: str, app: str, replicas: int) -> Document:
    container = {
        "name": "main",
        "image": "registry.example/web:1",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 15}}},
    }
    spec: Document = {
        "selector": {"matchLabels": {"app": app}},
        "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container]}},
    }
    return {**_named(name), "spec": spec | ({"replicas": replicas} if replicas else {})}


def _owner(resource: Resource, name: str) -> list[Document]:
    """Without the uid, which ``populate`` adds."""
    made = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name}
    return [{**made, "controller": True, "blockOwnerDeletion": True}]


def _deployments(size: Size) -> Iterator[Wanted]:
    for number in range(size.services):
        namespace, name = size.service(number)
        made = _workload(name, name, size.replicas)
        made["metadata"]["annotations"] = REVISION
        yield Deployments, namespace, made, {"status": _counts(size, "updatedReplicas")}


def _replica_sets(size: Size) -> Iterator[Wanted]:
    """As the Deployments' controller writes them: it releases a set that its selector does not
    match, and makes another one.
    """
    most = size.replicas - -size.replicas // 4
    sizes = {"desired-replicas": size.replicas, "max-replicas": most}
    annotations = {f"deployment.kubernetes.io/{key}": str(value) for key, value in sizes.items()}
    for number in range(size.services):
        namespace, name = size.service(number)
        made = _workload(f"{name}-{HASH}", name, size.replicas)
        labels = {"app": name, **HASH_LABEL}
        made["metadata"] |= {
            "labels": labels,
            "annotations": annotations | REVISION,
            "ownerReferences": _owner(Deployments, name),
        }
        made["spec"]["selector"] = {"matchLabels": labels}
        made["spec"]["template"]["metadata"] = {"labels": labels}
        yield ReplicaSets, namespace, made, {"status": _counts(size, "fullyLabeledReplicas")}


def _counts(size: Size, also: str) -> Document:
    members = ("replicas", "readyReplicas", "availableReplicas", also)
    return {"observedGeneration": 1, **dict.fromkeys(members, size.replicas)}


def _place(size: Size, service: int, number: int) -> tuple[int, int]:
    """The Pod's number in the cluster, and its Node's."""
    overall = service * size.replicas + number
    return overall, overall % size.nodes


def _pods(size: Size) -> Iterator[Wanted]:
    for service in range(size.services):
        namespace, app = size.service(service)
        for number in range(size.replicas):
            overall, node = _place(size, service, number)
            name = size.pod(service, number)
            made = _workload(name, app, 0)["spec"]["template"]["spec"]
            owners = _owner(ReplicaSets, f"{app}-{HASH}")
            labels = {"app": app, **HASH_LABEL}
            pod = {
                **_named(name, labels=labels, ownerReferences=owners),
                "spec": {**made, "nodeName": size.node(node)},
            }
            status = {
                "phase": "Running",
                "podIP": pod_ip(overall),
                "podIPs": [{"ip": pod_ip(overall)}],
                "startTime": TRANSITION,
                "conditions": [READY],
            }
            yield Pods, namespace, pod, {"status": status}


def _slice(size: Size, service: int, name: str, manager: str, endpoints: list[Document]) -> Wanted:
    """One that upstream's controller takes for its own if it is the *manager*."""
    namespace, app = size.service(service)
    labels = {
        "kubernetes.io/service-name": app,
        "endpointslice.kubernetes.io/managed-by": manager,
    }
    made = {
        **_named(name, labels=labels, ownerReferences=_owner(Services, app)),
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }
    return EndpointSlices, namespace, made, None


def _endpoint(size: Size, service: int, number: int) -> Document:
    overall, node = _place(size, service, number)
    target = {"kind": "Pod", "namespace": size.service(service)[0]}
    return {
        "addresses": [pod_ip(overall)],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {**target, "name": size.pod(service, number)},
        "nodeName": size.node(node),
        "zone": ZONES[node % len(ZONES)],
    }


def _slices(size: Size) -> Iterator[Wanted]:
    for service in range(size.services):
        for part in range(size.slices):
            pods = range(part * size.pods, (part + 1) * size.pods)
            endpoints = [_endpoint(size, service, number) for number in pods]
            name = f"{size.service(service)[1]}-{part:03d}"
            yield _slice(size, service, name, CONTROLLER, endpoints)


def _others(size: Size) -> Iterator[Wanted]:
    """Slices of other managers, whose endpoints are outside of the cluster."""
    for turn, service in enumerate(range(0, size.services, OTHERS_EVERY)):
        manager = OTHER_MANAGERS[turn % len(OTHER_MANAGERS)]
        endpoint = {"addresses": [f"172.16.{turn >> 8 & 255}.{turn & 255}"]}
        name = f"{size.service(service)[1]}-other"
        yield _slice(size, service, name, manager, [endpoint])


def _endpoints(size: Size) -> Iterator[Wanted]:
    for service in range(size.services):
        namespace, name = size.service(service)
        addresses = [
            {"ip": pod_ip(_place(size, service, number)[0])} for number in range(size.replicas)
        ]
        ports = [{"name": "http", "protocol": "TCP", "port": 8080}]
        subsets = [{"addresses": addresses, "ports": ports}]
        yield EndpointsObjects, namespace, {**_named(name), "subsets": subsets}, None


def _events(size: Size, now: float) -> Iterator[Wanted]:
    """Two Normal Events for each Service, as a rollout leaves, and few others."""
    when = format_micro_time(now)[:19] + "Z"
    for number in range(2 * size.services):
        namespace, name = size.service(number % size.services)
        about = {"kind": "Pod", "namespace": namespace, "name": size.pod(number % size.services, 0)}
        event = {
            **_named(f"{name}.{number:016x}", namespace=namespace),
            "involvedObject": about,
            "type": "Warning" if number % 100 == 0 else "Normal",
            "reason": "Unhealthy" if number % 100 == 0 else "Pulled",
            "message": "Readiness probe failed" if number % 100 == 0 else "Container image pulled",
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        yield Events, namespace, event, None
