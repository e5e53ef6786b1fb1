"""Estimates the cost of a Service that does not exist yet: a what-if over a synthetic cluster
(KEP-0752, "Estimation").

The production controllers create one object of each kind on virtual time; the others are copies.
Then the Service is created, one of its Pods changes, and it is rolled out: the resulting writes are
run, as in any what-if.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.discovery import LABEL_HOSTNAME
from sliceplane.api.findings.wording import count
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Deployments, Nodes, Pods, ReplicaSets, Services
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.kit.columns import table
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.lab.whatif.changes import Running, checked, parse
from sliceplane.lab.whatif.document import written_document
from sliceplane.lab.whatif.prediction import Written, sum_up
from sliceplane.lab.whatif.state import ClusterState, of_lists
from sliceplane.lab.whatif.world import WhatIfWorld
from sliceplane.lab.wire import human_bytes

#: maximum Pods of a rollout that is run: more would take minutes
ROLLED_MAX: Final = 500
#: number of Pods for which a Node has addresses
_ROOM: Final = 200
_NAME: Final = "web"
_NAMESPACE: Final = "default"
_ZONES: Final = ("zone-a", "zone-b", "zone-c")
_ROLLOUT: Final = "rollout=yes"
_ROWS: Final = (
    "slices",
    "writes of slices",
    "watch events",
    "bytes sent, protobuf",
    "  as JSON",
    "in",
)


class EstimateQuestion(msgspec.Struct, frozen=True, kw_only=True):
    pods: int
    nodes: int
    per_slice: int = 100
    traffic_distribution: str = ""


class EstimatedStep(msgspec.Struct, frozen=True):
    """One step. ``slices``: their number afterwards. ``written`` ``None``: the step was not run."""

    name: str
    what: str
    slices: int
    written: Written | None


def estimate(
    question: EstimateQuestion, report: Callable[[str], None] | None = None
) -> tuple[EstimatedStep, ...]:
    state = build_state(question)
    service = state.service(_NAMESPACE, _NAME)
    running = Running(
        max_endpoints_per_slice=question.per_slice, ready_delay_s=5.0, termination_s=30.0
    )
    world = WhatIfWorld(state, service, running, report=report)
    steps: list[EstimatedStep] = []

    def step(name: str, what: str, change: Callable[[], object] | None = None) -> None:
        world.events.clear()
        began = world.cluster.now
        if change is not None:
            change()
        world.converge()
        slices = len(world.state.slices(_NAMESPACE, _NAME))
        steps.append(
            EstimatedStep(name, what, slices, sum_up(world.events, service.metadata.key, began))
        )

    step("created", "it is made")
    step("changed", "one Pod changes", lambda: _break_one(world))
    if question.pods <= min(ROLLED_MAX, _ROOM * question.nodes):
        changes = checked((parse(_ROLLOUT, ("rollout",)),), state, service)
        step("rolledOut", "it is rolled out", lambda: world.apply(changes))
    else:
        steps.append(EstimatedStep("rolledOut", "it is rolled out", 0, None))
    return tuple(steps)


def as_text(question: EstimateQuestion, steps: tuple[EstimatedStep, ...], width: int | None) -> str:
    columns = [_column(step) for step in steps]
    rows = list(zip(_ROWS, *columns, strict=True))
    title = (
        f"A Service of {count(question.pods, 'Pod')}, watched by {count(question.nodes, 'Node')}"
    )
    lines = [title, "", *table(("", *(step.what for step in steps)), rows, width=width)]
    changed = steps[1].written
    if steps[-1].written is None and changed is not None:
        most = 2 * question.pods
        lines += [
            "",
            *textwrap.wrap(
                "A rollout of so many is not run here. Each Pod that comes or goes is a write at "
                f"most: {most:,} writes, "
                f"{human_bytes(most * changed.protobuf)} in protobuf.",
                width or 100,
            ),
        ]
    return "\n".join(lines)


def _column(step: EstimatedStep) -> tuple[str, ...]:
    written = step.written
    if written is None:
        return ("",) * len(_ROWS)
    sizes = (human_bytes(written.protobuf), human_bytes(written.json))
    return (
        f"{step.slices:,}",
        f"{written.writes:,}",
        f"{written.events:,}",
        *sizes,
        f"{written.took_s:.0f} s",
    )


def as_document(question: EstimateQuestion, steps: tuple[EstimatedStep, ...]) -> dict[str, Any]:
    return {
        "pods": question.pods,
        "nodes": question.nodes,
        "maxEndpointsPerSlice": question.per_slice,
        "trafficDistribution": question.traffic_distribution,
        **{
            step.name: None
            if step.written is None
            else {"slices": step.slices, **written_document(step.written)}
            for step in steps
        },
    }


def build_state(question: EstimateQuestion) -> ClusterState:
    """Returns the synthetic cluster without slices."""
    cluster = Cluster(
        DeploymentController(),
        ReplicaSetController(),
        KubeletController(EmulationConfig(nodes=make_nodes(len(_ZONES), _ZONES))),
    )
    cluster.converge()
    labels = {"app": _NAME}
    containers = [
        {"name": "main", "image": _NAME, "ports": [{"name": "http", "containerPort": 8080}]}
    ]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    of_pods = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    cluster.create(Deployments, {"metadata": {"name": _NAME}, "spec": of_pods})
    of_service: Document = {
        "selector": labels,
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    }
    if question.traffic_distribution:
        of_service["trafficDistribution"] = question.traffic_distribution
    cluster.create(Services, {"metadata": {"name": _NAME}, "spec": of_service})
    cluster.converge()
    nodes = cluster.list(Nodes)
    (pod,) = cluster.list(Pods)
    owners = [(resource, cluster.list(resource)) for resource in (Deployments, ReplicaSets)]
    for _, (owner,) in owners:
        owner["spec"]["replicas"] = question.pods
    documents = {
        Services: [item for item in cluster.list(Services) if item["metadata"]["name"] == _NAME],
        Nodes: [_node(nodes[number % len(nodes)], number) for number in range(question.nodes)],
        Pods: [_pod(pod, number, question.nodes) for number in range(question.pods)],
        **dict(owners),
    }
    lists = {resource: [encode(item) for item in items] for resource, items in documents.items()}
    return of_lists(lists, cluster.store.revision, "a cluster that is made up")


def _node(document: Document, number: int) -> Document:
    metadata = document["metadata"]
    name = f"node-{number + 1}"
    labels = {**metadata["labels"], LABEL_HOSTNAME: name}
    spec = {
        key: value
        for key, value in document.get("spec", {}).items()
        if not key.startswith("podCIDR")
    }
    return {
        **document,
        "metadata": {**metadata, "name": name, "uid": _uid(1, number), "labels": labels},
        "spec": spec,
    }


def _pod(document: Document, number: int, nodes: int) -> Document:
    metadata = document["metadata"]
    name = f"{metadata['name'].rpartition('-')[0]}-{number:05x}"
    address = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    return {
        **document,
        "metadata": {**metadata, "name": name, "uid": _uid(2, number)},
        "spec": {**document["spec"], "nodeName": f"node-{number % nodes + 1}"},
        "status": {**document["status"], "podIP": address, "podIPs": [{"ip": address}]},
    }


def _uid(kind: int, number: int) -> str:
    return f"5a1e000{kind}-0000-4000-8000-{number:012x}"


def _break_one(world: WhatIfWorld) -> None:
    """Makes one Pod not ready."""
    name = world.state.pods(_NAMESPACE)[0].metadata.name
    conditions = world.cluster.get(Pods, name)["status"]["conditions"]
    change = [
        {**item, "status": "False"} if item["type"] == "Ready" else item for item in conditions
    ]
    world.cluster.patch(Pods, name, {"status": {"conditions": change}}, subresource="status")
