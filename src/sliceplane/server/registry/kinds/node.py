"""Node: pod ranges, taints, and what stays once set."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from sliceplane.api.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    while_few,
)
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes
from sliceplane.kit.names import check_label_value, check_qualified_name
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Cell,
    Column,
    Printer,
    age,
    condition,
    flag,
    mapping,
    name_of,
    objects,
    text,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.types import Target

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
TAINT_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"


def _default(document: Document) -> None:
    """A Node shows a nodeInfo from the start, with nothing in it."""
    document.setdefault("spec", {})
    status = document.setdefault("status", {})
    info = status.setdefault("nodeInfo", {})
    for member in _NODE_INFO:
        info.setdefault(member, "")
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})


_NOT_READY_TAINT: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def _prepare_create(_core: Core, _target: Target, new: Document) -> None:
    """A kubelet registers its Node together with a status; only the taint is the server's."""
    taints = new.setdefault("spec", {}).setdefault("taints", [])
    if not any(taint.get("key") == _NOT_READY_TAINT["key"] for taint in taints):
        taints.append(dict(_NOT_READY_TAINT))


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document.get("spec", {})
    errors: list[FieldError] = []
    for index, cidr in while_few(errors, enumerate(spec.get("podCIDRs", ()))):
        if not _is_cidr(cidr):
            errors.append(invalid_value(f"spec.podCIDRs[{index}]", cidr, _CIDR))
    seen: set[tuple[str, str]] = set()
    for index, taint in while_few(errors, enumerate(spec.get("taints", ()))):
        path = f"spec.taints[{index}]"
        key = taint.get("key", "")
        effect = taint.get("effect", "")
        errors += [invalid_value(f"{path}.key", key, problem) for problem in check_qualified_name(key)]
        value = taint.get("value", "")
        errors += [invalid_value(f"{path}.value", value, problem) for problem in check_label_value(value)]
        if not effect:
            errors.append(required(f"{path}.effect"))
        elif effect not in TAINT_EFFECTS:
            errors.append(not_supported(f"{path}.effect", effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            errors.append(duplicate(path, taint))
        seen.add((key, effect))
    return errors


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    spec = new.get("spec", {})
    before = old.get("spec", {})
    errors = _validate(new)
    if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
        errors.append(forbidden_field("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid'))
    if before.get("providerID") and spec.get("providerID") != before["providerID"]:
        errors.append(
            forbidden_field("spec.providerID", 'node updates may not change providerID except from "" to valid')
        )
    return errors


def _is_cidr(cidr: str) -> bool:
    try:
        ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False
    return "/" in cidr


def _cells(node: Document, now: float) -> tuple[Cell, ...]:
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


NODE: Final = kind.Kind(
    resource=Nodes,
    defaults=_default,
    prepare_create=_prepare_create,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    status=kind.beside_spec(kind.status_as_sent, kind.no_update_rules),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=Printer(
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
        _cells,
    ),
)
