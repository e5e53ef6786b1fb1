"""A cluster of documents for questions: healthy as it is made, until a fault is planted.

``World`` answers a ``Selection`` as an API server does (namespace, labels, fields), and refuses
what it is told to. ``healthy`` makes a Service with Pods on three nodes in three zones, its slice
as the controller writes it, and all that stands around.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sliceplane.api.findings.finding import Finding
from sliceplane.api.requests import ProbeOutcome, Selection
from sliceplane.api.scheme import Resource
from sliceplane.diagnose.audit.audit import AUDITED, Auditor
from sliceplane.diagnose.audit.verdict import Report, report
from sliceplane.diagnose.explain import objects
from sliceplane.diagnose.explain.investigation import FORBIDDEN, Investigation
from sliceplane.diagnose.explain.kernel import KernelFacts
from sliceplane.diagnose.explain.question import ExplainQuestion, Explanation
from sliceplane.kit.times import format_time

Doc = dict[str, Any]
NOW = 1_790_000_000.0
READINGS_MAX = 12
_KINDS = {readable.resource.kind: readable.resource for readable in objects.READABLES}


@dataclass(frozen=True)
class Fault:
    """``plant`` changes a healthy world, and returns the question where it is not "why does cart of
    shop not work?".
    """

    code: str
    plant: Callable[[World], object]

    def answer(self) -> Explanation:
        world = healthy()
        return world.ask(self.plant(world) or ExplainQuestion("service", "cart", "shop"))

    @property
    def looks_at_kernel(self) -> bool:
        world = healthy()
        self.plant(world)
        return world.kernel is not None

    def findings(self) -> tuple[Finding, ...]:
        return self.answer().findings

    def __str__(self) -> str:
        return f"{self.code}-{self.plant.__name__}"


@dataclass(frozen=True)
class AuditFault(Fault):
    """One that ``sliceplane endpoints audit`` names, and ``explain`` does not look for."""

    def report(self) -> Report:
        world = healthy()
        self.plant(world)
        auditor = Auditor()
        for resource in AUDITED:
            for document in world.all(resource.kind):
                auditor.on_object(resource.plural, msgspec.json.encode(document))
        return report(auditor, auditor.findings(), None)

    def findings(self) -> tuple[Finding, ...]:
        return self.report().findings


#: what ``faults`` plants, and what it nearly plants; the first of a code is the example on its page
PLANTED: list[Fault] = []
NEARLY: list[Fault] = []
#: ... and what cannot be told from a fault yet
YOUNG: list[Fault] = []


def ago(seconds: float) -> str:
    return format_time(NOW - seconds)


class World:
    """Documents by resource and key.  ``refuse``: plurals that the reader has no right to."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Doc]] = {
            readable.resource.key: {} for readable in objects.READABLES
        }
        #: how many were ever added: versions, and a source of numbers that differ
        self.added = 0
        self.refuse: set[str] = set()
        #: what ``explain --kernel`` read of the machine
        self.kernel: KernelFacts | None = None
        #: how connections of ``explain --probe`` end, by "IP:PORT", where they are not open;
        #: ``None``: none are tried
        self.unopened: dict[str, ProbeOutcome] | None = None
        #: what ``controllers --shadow`` told
        self.shadow: tuple[Finding, ...] = ()
        self.asked: list[Selection] = []

    def add(
        self,
        kind: str,
        namespace: str,
        name: str,
        /,
        *,
        labels: Any = None,
        meta: Any = None,
        **rest: Any,
    ) -> Doc:
        """*meta*: more members of metadata."""
        resource = _KINDS[kind]
        metadata = {
            "name": name,
            "uid": f"uid-{kind}-{namespace}-{name}",
            "resourceVersion": str(self.added + 1),
            "creationTimestamp": ago(7200),
            **(meta or {}),
        }
        if namespace:
            metadata["namespace"] = namespace
        if labels:
            metadata["labels"] = dict(labels)
        document = {"apiVersion": resource.api_version, "kind": kind, "metadata": metadata, **rest}
        self.documents[resource.key][f"{namespace}/{name}"] = document
        self.added += 1
        return document

    def get(self, kind: str, namespace: str, name: str) -> Doc:
        return self.documents[_KINDS[kind].key][f"{namespace}/{name}"]

    def drop(self, kind: str, namespace: str, name: str) -> None:
        del self.documents[_KINDS[kind].key][f"{namespace}/{name}"]

    def all(self, kind: str) -> Iterator[Doc]:
        return iter(self.documents[_KINDS[kind].key].values())

    def count(self, kind: str) -> int:
        return len(self.documents[_KINDS[kind].key])

    def list(self, selection: Selection) -> list[bytes]:
        self.asked.append(selection)
        # Items of a list do not name their kind.
        return [
            msgspec.json.encode({**document, "kind": "", "apiVersion": ""})
            for document in self._selected(selection)
        ]

    def _selected(self, selection: Selection) -> Iterator[Doc]:
        resource: Resource = selection.resource
        for _, document in sorted(self.documents[resource.key].items()):
            metadata = document["metadata"]
            if selection.namespace not in ("", metadata.get("namespace", "")):
                continue
            if _has(metadata.get("labels", {}), selection.label_selector) and _fits(
                document, selection.field_selector
            ):
                yield document

    # Questions

    def ask(self, question: ExplainQuestion) -> Explanation:
        investigation = Investigation(question, NOW, self.kernel, self.shadow)
        for _ in range(READINGS_MAX):
            wanted = investigation.pending_reads()
            if not wanted and self.unopened is not None and investigation.facts.tried is None:
                targets = investigation.to_try()
                investigation.on_tried(
                    {target: self.unopened.get(str(target), "open") for target in targets}
                )
                continue
            if not wanted:
                return investigation.answer()
            for selection in wanted:
                if selection.resource.plural in self.refuse:
                    investigation.on_refused(selection, FORBIDDEN)
                else:
                    investigation.on_list(
                        selection, investigation.decoded(selection, self.list(selection))
                    )
        raise AssertionError(f"{question}: still wants {wanted}")

    def explain(self, name: str = "cart", namespace: str = "shop", **more: Any) -> Explanation:
        return self.ask(ExplainQuestion("service", name, namespace, **more))

    def codes(self, name: str = "cart", namespace: str = "shop", **more: Any) -> list[str]:
        """In the order of the answer: the first is the cause."""
        return [finding.code for finding in self.explain(name, namespace, **more).findings]

    def copy(self) -> World:
        other = World()
        other.documents = copy.deepcopy(self.documents)
        return other


def _has(labels: dict[str, str], selector: str) -> bool:
    """Only ``key=value`` pairs, or one ``key in (a,b)``: that is all that explanations ask by."""
    key, among, values = selector.partition(" in ")
    if among:
        return labels.get(key) in values.strip("()").split(",")
    assert not any(mark in selector for mark in "!()"), selector
    pairs = [part.split("=", 1) for part in selector.split(",") if part]
    return all(labels.get(key) == value for key, value in pairs)


def _fits(document: Doc, selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        path, _, wanted = part.partition("=")
        value: Any = document
        for step in path.split("."):
            value = value.get(step, "") if isinstance(value, dict) else ""
        if value != wanted:
            return False
    return True


def healthy(replicas: int = 3, *, name: str = "cart", namespace: str = "shop") -> World:
    """Deployment > ReplicaSet > *replicas* ready Pods, one a node, Service and slice, all in
    order.
    """
    world = World()
    world.add(
        "Namespace", "", namespace, status={"phase": "Active"}, spec={"finalizers": ["kubernetes"]}
    )
    world.add("ServiceCIDR", "", "kubernetes", spec={"cidrs": ["10.96.0.0/16"]})
    for number in range(3):
        add_node(world, f"node-{number}", f"zone-{'abc'[number]}")
    add_service(world, name, namespace)
    add_workload(world, name, namespace, replicas)
    write_slice(world, name, namespace)
    return world


def add_node(world: World, name: str, zone: str, **more: Any) -> Doc:
    number = world.count("Node") + 1
    world.add(
        "Lease",
        "kube-node-lease",
        name,
        spec={
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": f"{ago(3)[:-1]}.000000Z",
        },
    )
    conditions = [
        {
            "type": "Ready",
            "status": "True",
            "lastHeartbeatTime": ago(10),
            "lastTransitionTime": ago(7000),
        }
    ]
    status = {
        "conditions": conditions,
        "allocatable": {"cpu": "4"},
        "addresses": [
            {"type": "InternalIP", "address": f"192.168.0.{number}"},
            {"type": "Hostname", "address": name},
        ],
    }
    labels = {
        "kubernetes.io/hostname": name,
        **({"topology.kubernetes.io/zone": zone} if zone else {}),
    }
    return world.add(
        "Node",
        "",
        name,
        labels=labels,
        spec={"podCIDR": f"10.244.{number}.0/24"},
        status=status,
        **more,
    )


def add_service(world: World, name: str, namespace: str = "shop", **spec: Any) -> Doc:
    number = world.count("Service") + 1
    ip = f"10.96.{number // 250}.{number % 250 + 1}"
    default = {
        "type": "ClusterIP",
        "clusterIP": ip,
        "clusterIPs": [ip],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "selector": {"app": name},
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "None",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
    }
    managed = [
        {
            "manager": "helm",
            "operation": "Update",
            "time": ago(3600),
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:selector": {}, "f:ports": {}, "f:type": {}}},
        }
    ]
    return world.add(
        "Service",
        namespace,
        name,
        meta={"managedFields": managed},
        spec={**default, **spec},
        status={"loadBalancer": {}},
    )


def add_workload(
    world: World, name: str, namespace: str = "shop", replicas: int = 3, **labels: str
) -> None:
    labels = labels or {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec()}
    status = {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas}
    deployment = world.add(
        "Deployment",
        namespace,
        name,
        status=status,
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
            },
        },
    )
    replica_set = world.add(
        "ReplicaSet",
        namespace,
        f"{name}-7d9f",
        labels=labels,
        meta={"ownerReferences": [owner(deployment)]},
        status=status,
        spec={"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    )
    nodes = [document["metadata"]["name"] for document in world.all("Node")]
    for number in range(replicas):
        of_pod = {**labels, "pod-template-hash": "7d9f"}
        add_pod(
            world, f"{name}-{number}", namespace, nodes[number % len(nodes)], of_pod, replica_set
        )


def owner(document: Doc) -> Doc:
    metadata = document["metadata"]
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def pod_spec() -> Doc:
    probe = {
        "httpGet": {"path": "/ready", "port": 8080},
        "periodSeconds": 10,
        "failureThreshold": 3,
    }
    container = {
        "name": "web",
        "image": "web:v1",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "readinessProbe": probe,
        "lifecycle": {"preStop": {"sleep": {"seconds": 15}}},
    }
    return {
        "containers": [container],
        "terminationGracePeriodSeconds": 60,
        "dnsPolicy": "ClusterFirst",
    }


def add_pod(
    world: World, name: str, namespace: str, node: str, labels: Any, owned_by: Doc | None = None
) -> Doc:
    number = world.count("Pod") + 1
    ip = f"10.244.{number // 250}.{number % 250 + 2}"
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": ago(3500)}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    statuses = [
        {
            "name": "web",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "image": "web:v1",
            "state": {"running": {"startedAt": ago(3600)}},
        }
    ]
    meta = {"ownerReferences": [owner(owned_by)]} if owned_by else None
    return world.add(
        "Pod",
        namespace,
        name,
        labels=labels,
        meta=meta,
        spec={"nodeName": node, **pod_spec()},
        status={
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "hostIP": "192.168.0.1",
            "conditions": conditions,
            "containerStatuses": statuses,
            "startTime": ago(3600),
        },
    )


def write_slice(world: World, name: str, namespace: str = "shop") -> Doc:
    """The slice of the Service as the controller would write it for the Pods as they are now."""
    service = world.get("Service", namespace, name)
    selector = service["spec"].get("selector") or {}
    zones = {
        node["metadata"]["name"]: node["metadata"]
        .get("labels", {})
        .get("topology.kubernetes.io/zone", "")
        for node in world.all("Node")
    }
    endpoints = [
        endpoint_of(pod, zones)
        for pod in world.all("Pod")
        if pod["metadata"]["namespace"] == namespace
        and selector
        and selector.items() <= pod["metadata"].get("labels", {}).items()
        and pod["status"].get("podIP")
        and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    ports = [
        {"name": port.get("name", ""), "port": 8080, "protocol": port.get("protocol", "TCP")}
        for port in service["spec"]["ports"]
    ]
    labels = {
        "kubernetes.io/service-name": name,
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    return world.add(
        "EndpointSlice",
        namespace,
        f"{name}-x7k2p",
        labels=labels,
        addressType="IPv4",
        endpoints=endpoints,
        meta={"ownerReferences": [owner(service)]},
        ports=ports,
    )


def endpoint_of(pod: Doc, zones: dict[str, str]) -> Doc:
    metadata, spec = pod["metadata"], pod["spec"]
    is_ready = any(
        entry["type"] == "Ready" and entry["status"] == "True"
        for entry in pod["status"].get("conditions", ())
    )
    is_going = "deletionTimestamp" in metadata
    endpoint = {
        "addresses": [pod["status"]["podIP"]],
        "nodeName": spec.get("nodeName", ""),
        "conditions": {
            "ready": is_ready and not is_going,
            "serving": is_ready,
            "terminating": is_going,
        },
        "targetRef": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
    zone = zones.get(spec.get("nodeName", ""), "")
    return {**endpoint, "zone": zone} if zone else endpoint
