"""What tests of emulated workloads have in common: documents, and what one looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sliceplane.api.core import Pod
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Pods
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Controller, ControllerInfo, Done, Selection, Work


def make(*more: Controller, nodes: int = 3, **config: Any) -> Cluster:
    emulated = make_nodes(nodes, ["zone-a", "zone-b"])
    kubelet = KubeletController(EmulationConfig(nodes=emulated, **config))
    return Cluster(ReplicaSetController(), kubelet, *more)


def deployment(replicas: int = 3, image: str = "web:1", **spec: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template,
            **spec,
        },
    }


def replica_set(replicas: int = 2, name: str = "web", **spec: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "web:1"}]},
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template,
            **spec,
        },
    }


def bare_pod(name: str, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def owners(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["kind"], one["uid"]) for one in document["metadata"].get("ownerReferences", ())]


def names(cluster: Cluster) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in cluster.list(Pods)
        if not pod["metadata"].get("deletionTimestamp")
    }


def said(cluster: Cluster, kind: str = "Warning") -> list[tuple[str, str]]:
    """The notes of controllers of workloads; those of the kubelet have their own tests."""
    return [
        (note.reason, note.note)
        for note in cluster.notes
        if note.type == kind and note.reason not in ("Scheduled", "Started", "Killing")
    ]


def condition(document: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next(
        (one for one in document["status"].get("conditions", ()) if one["type"] == kind), None
    )


class Spy:
    """A controller that writes nothing and is shown all Pods at each change of one."""

    def __init__(self, look: Callable[[dict[str, Pod]], None]) -> None:
        self.info = ControllerInfo("spy", (Selection(Pods),))
        self._look = look
        self._pods: dict[str, Pod] = {}

    def on_change(self, change: Change[Object], now: float) -> None:
        self._pods.pop(change.object.metadata.name, None)
        if isinstance(change.new, Pod):
            self._pods[change.new.metadata.name] = change.new
        self._look(self._pods)

    def on_synced(self, now: float) -> None: ...

    def take_work(self, now: float, max_jobs: int) -> Work:
        return Work()

    def on_done(self, done: Done, now: float) -> None: ...

    def next_deadline(self) -> float | None:
        return None

    def check(self) -> None: ...
