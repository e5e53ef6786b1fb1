"""A script: one rollout with everything that runs in a plane, on virtual time; prints its trace.

``test_determinism.py`` runs it under different hash seeds.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.scheme import Deployments, EndpointSlices, Namespaces, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.namespace import NamespaceController
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.lab.sim.cluster import Cluster


def controllers() -> tuple[Any, ...]:
    nodes = make_nodes(3, ["zone-a", "zone-b"])
    return (
        EndpointSliceController(),
        GarbageCollector(),
        NamespaceController(),
        DeploymentController(),
        ReplicaSetController(),
        KubeletController(EmulationConfig(nodes=nodes, ready_s=1.0)),
    )


def deployment(name: str, replicas: int, image: str) -> dict[str, Any]:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [
                {"name": "c", "image": image, "ports": [{"name": "web", "containerPort": 8080}]}
            ]
        },
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def service(name: str) -> dict[str, Any]:
    ports = [{"name": "a", "port": 80, "targetPort": "web"}, {"name": "b", "port": 81}]
    spec = {
        "selector": {"app": name},
        "ports": ports,
        "trafficDistribution": "PreferSameZone",
        "ipFamilyPolicy": "PreferDualStack",
    }
    return {"metadata": {"name": name}, "spec": spec}


def run() -> Cluster:
    cluster = Cluster(*controllers(), seed=7)
    cluster.create(Namespaces, {"metadata": {"name": "team"}})
    for namespace in ("default", "team"):
        for name in ("web", "db"):
            cluster.create(Services, service(name), namespace)
            cluster.create(Deployments, deployment(name, 12, "image:1"), namespace)
    cluster.converge(limit_s=30)
    cluster.patch(Deployments, "web", deployment("web", 9, "image:2"))
    cluster.converge(limit_s=2)
    cluster.replace(*controllers())  # a crash in the middle of the rollout
    cluster.converge(limit_s=60)
    for pod in cluster.list(Pods)[::4]:
        cluster.delete(Pods, pod["metadata"]["name"])
    cluster.delete(Services, "db")
    cluster.delete(Namespaces, "team")
    cluster.converge(limit_s=120)
    cluster.check()
    return cluster


def main() -> None:
    cluster = run()
    for resource in cluster.store.resources():
        for event in cluster.store.events_since(cluster.store.compacted, resource):
            print(event.revision, event.type.value, event.record.body.decode())
    for outcome, write in cluster.writes:
        print(
            outcome,
            write.verb,
            write.resource.key,
            write.namespace,
            write.name,
            write.body.decode(),
        )
    slices = cluster.list(EndpointSlices)
    print(
        len(slices),
        sorted(item["metadata"]["labels"]["kubernetes.io/service-name"] for item in slices),
    )


if __name__ == "__main__":
    main()
