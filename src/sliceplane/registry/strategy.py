"""Per-kind rules on what a request may touch: which part of the body counts (reference B6, B10, B14).

``prepare_create`` and ``prepare_update`` change the new document in place, after defaults and before
validation, so that a client's attempt to change what is not its own is silently undone.
"""

from __future__ import annotations

from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    Deployments,
    EndpointSlices,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    ResourceQuotas,
    ServiceCIDRs,
    Services,
)
from sliceplane.registry import endpoint_slices, gated_fields
from sliceplane.registry.types import Target

_NOT_READY_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_FIRST_STATUS: dict[str, Document] = {
    Pods.key: {"phase": "Pending"},
    Services.key: {"loadBalancer": {}},
    Namespaces.key: {"phase": "Active"},
    Deployments.key: {},
    ReplicaSets.key: {"replicas": 0},
    ResourceQuotas.key: {},
    ServiceCIDRs.key: {},
}


def prepare_create(gates: Gates, target: Target, document: Document) -> None:
    resource = target.resource
    if resource is EndpointSlices:
        endpoint_slices.prepare(gates, target, document, None)
    elif resource is Nodes:
        # A kubelet registers its Node together with a status; only the taint is the server's.
        taints = document.setdefault("spec", {}).setdefault("taints", [])
        if not any(taint.get("key") == _NOT_READY_TAINT["key"] for taint in taints):
            taints.append(dict(_NOT_READY_TAINT))
    if resource is Services:
        gated_fields.drop_from_service(gates, document, None)
    if resource is Services and document["spec"].get("clusterIP"):
        # Addresses are given as one or as a list; the list counts, and must agree (validation).
        document["spec"].setdefault("clusterIPs", [document["spec"]["clusterIP"]])
    if resource.has_status and resource is not Nodes:
        document["status"] = dict(_FIRST_STATUS[resource.key])
        if resource is Pods:
            document["status"]["qosClass"] = _qos_class(document["spec"])
        if resource is Namespaces:
            finalizers = document.setdefault("spec", {}).setdefault("finalizers", [])
            if "kubernetes" not in finalizers:
                finalizers.append("kubernetes")


def prepare_update(gates: Gates, target: Target, new: Document, old: Document) -> None:
    """*new* becomes what the request may make of *old*: the main endpoint leaves status alone, ``status``
    touches little else, ``finalize`` (Namespace) sets spec.finalizers."""
    resource, subresource = target.resource, target.subresource
    if subresource == "status":
        _only_status(resource, new, old)
        return
    if resource.has_status:
        _keep(new, old, "status")
    if resource is Namespaces and subresource != "finalize":
        _keep(new, old, "spec")
    if resource is EndpointSlices:
        endpoint_slices.prepare(gates, target, new, old)
    elif resource is Services:
        gated_fields.drop_from_service(gates, new, old)


def _qos_class(spec: Document) -> str:
    """Who is evicted first: BestEffort asks for nothing, Guaranteed has a cpu and memory limit equal to its request."""
    guaranteed, asks = True, False
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        asks = asks or bool(requests or limits)
        guaranteed = guaranteed and all(
            name in limits and limits[name] == requests.get(name, limits[name]) for name in ("cpu", "memory")
        )
    if not asks:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _keep(new: Document, old: Document, member: str) -> None:
    if member in old:
        new[member] = old[member]
    else:
        new.pop(member, None)


def _only_status(resource: Resource, new: Document, old: Document) -> None:
    for member in sorted((new.keys() | old.keys()) - {"kind", "apiVersion", "metadata", "status"}):
        _keep(new, old, member)
    kept = {Deployments.key: "labels", Pods.key: "ownerReferences"}.get(resource.key)
    if kept:
        _keep(new["metadata"], old["metadata"], kept)
