"""What tests of emulated workloads have in common: documents, and what one looks at."""

from __future__ import annotations

from typing import Any

from sliceplane.api.scheme import Pods
from sliceplane.controllers.base import Controller
from sliceplane.controllers.emulation.kubelet import KubeletController
from sliceplane.controllers.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.controllers.emulation.replicaset import ReplicaSetController
from sliceplane.sim.cluster import Cluster


def make(*more: Controller, nodes: int = 3, **config: Any) -> Cluster:
    emulated = make_nodes(nodes, ["zone-a", "zone-b"])
    kubelet = KubeletController(EmulationConfig(nodes=emulated, **config))
    return Cluster(ReplicaSetController(), kubelet, *more)


def replica_set(replicas: int = 2, name: str = "web", **spec: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "web:1"}]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec},
    }


def bare_pod(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def owners(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["kind"], one["uid"]) for one in document["metadata"].get("ownerReferences", ())]


def names(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.list(Pods) if not pod["metadata"].get("deletionTimestamp")}


def said(cluster: Cluster, kind: str = "Warning") -> list[tuple[str, str]]:
    return [(note.reason, note.note) for note in cluster.notes if note.type == kind]


def condition(document: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((one for one in document["status"].get("conditions", ()) if one["type"] == kind), None)
