"""The rest of core/v1, and Lease: Node, Namespace, ConfigMap, Secret, ServiceAccount, ResourceQuota."""

from __future__ import annotations

from typing import Final

from sliceplane.api.meta import Document
from sliceplane.documents.table.ages import age
from sliceplane.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Cell,
    Column,
    Printer,
    condition,
    flag,
    mapping,
    name_of,
    objects,
    text,
)

_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"


def _node(node: Document, now: float) -> tuple[Cell, ...]:
    info = mapping(node, "status", "nodeInfo")
    kernel = text(info, "kernelVersion")
    architecture = text(info, "architecture")
    if kernel and architecture:
        kernel = f"{kernel} ({architecture})"
    return (
        name_of(node),
        _node_status(node),
        ",".join(_roles(node)) or NONE,
        age(node, now),
        text(info, "kubeletVersion"),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        text(info, "osImage") or UNKNOWN,
        kernel or UNKNOWN,
        text(info, "containerRuntimeVersion") or UNKNOWN,
    )


def _node_status(node: Document) -> str:
    ready = condition(node, "Ready")
    status = "Unknown" if not ready else "Ready" if ready.get("status") == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if flag(node, "spec", "unschedulable") else status


def _roles(node: Document) -> list[str]:
    labels = mapping(node, "metadata", "labels")
    roles = {label.removeprefix(_ROLE_PREFIX) for label in labels if label.startswith(_ROLE_PREFIX)}
    roles.add(text(labels, _ROLE_LABEL))
    return sorted(roles - {""})


def _address(node: Document, kind: str) -> str:
    addresses = objects(node, "status", "addresses")
    return next((text(item, "address") for item in addresses if item.get("type") == kind), NONE)


def _namespace(namespace: Document, now: float) -> tuple[Cell, ...]:
    return name_of(namespace), text(namespace, "status", "phase"), age(namespace, now)


def _config_map(config_map: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(config_map),
        len(mapping(config_map, "data")) + len(mapping(config_map, "binaryData")),
        age(config_map, now),
    )


def _secret(secret: Document, now: float) -> tuple[Cell, ...]:
    return name_of(secret), text(secret, "type"), len(mapping(secret, "data")), age(secret, now)


def _service_account(account: Document, now: float) -> tuple[Cell, ...]:
    return name_of(account), age(account, now)


def _lease(lease: Document, now: float) -> tuple[Cell, ...]:
    return name_of(lease), text(lease, "spec", "holderIdentity"), age(lease, now)


def _quota(quota: Document, now: float) -> tuple[Cell, ...]:
    used = mapping(quota, "status", "used")
    requests: list[str] = []
    limits: list[str] = []
    for resource, hard in sorted(mapping(quota, "status", "hard").items()):
        shown = f"{resource}: {used.get(resource, 0)}/{hard}"
        (limits if resource.startswith("limits.") else requests).append(shown)
    return name_of(quota), ", ".join(requests), ", ".join(limits), age(quota, now)


PRINTERS: Final = {
    "nodes": Printer(
        (
            NAME,
            Column(name="Status", description="Whether the node is ready, and whether pods may be bound to it."),
            Column(name="Roles", description="Roles of the node, from its labels."),
            AGE,
            Column(name="Version", description="Version of the node's kubelet."),
            Column(name="Internal-IP", priority=1, description="First internal address."),
            Column(name="External-IP", priority=1, description="First external address."),
            Column(name="OS-Image", priority=1, description="Operating system."),
            Column(name="Kernel-Version", priority=1, description="Kernel, and architecture where it is known."),
            Column(name="Container-Runtime", priority=1, description="Container runtime and its version."),
        ),
        _node,
    ),
    "namespaces": Printer((NAME, Column(name="Status", description="Phase of the namespace."), AGE), _namespace),
    "configmaps": Printer((NAME, Column(name="Data", description="How many entries there are."), AGE), _config_map),
    "secrets": Printer(
        (
            NAME,
            Column(name="Type", description="What the data is for."),
            Column(name="Data", description="How many entries there are."),
            AGE,
        ),
        _secret,
    ),
    "serviceaccounts": Printer((NAME, AGE), _service_account),
    "leases.coordination.k8s.io": Printer(
        (NAME, Column(name="Holder", description="Who holds the lease."), AGE), _lease
    ),
    "resourcequotas": Printer(
        (
            NAME,
            Column(name="Request", description="Used and allowed amounts of everything but limits."),
            Column(name="Limit", description="Used and allowed amounts of limits."),
            AGE,
        ),
        _quota,
    ),
}
