"""Node: pod ranges, taints, and what stays once set."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sliceplane.api.errors import FieldErrors, forbidden_field
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes
from sliceplane.kit.names import check_label_value, check_qualified_name
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Column,
    Printer,
    condition,
    flag,
    mapping,
    objects,
    text,
    text_or,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.load_balancers import NOT_A_CIDR
from sliceplane.server.registry.validation.rules import Field, Rules, check_unique, each, fill

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
_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"


def _default(document: Document) -> None:
    """A Node shows a nodeInfo from the start, with nothing in it."""
    info = dict.fromkeys(_NODE_INFO, "")
    fill(document, {"+spec": {}, "+status": {"+nodeInfo": info}})
    document["status"].setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})


_NOT_READY_TAINT: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def _prepare_create(_core: Core, _target: Target, new: Document) -> None:
    """A kubelet registers its Node together with a status; only the taint is the server's."""
    taints = new.setdefault("spec", {}).setdefault("taints", [])
    if not any(taint.get("key") == _NOT_READY_TAINT["key"] for taint in taints):
        taints.append(dict(_NOT_READY_TAINT))


_TAINT: Final = Rules(
    Field("key", form=check_qualified_name, always=True),
    Field("value", form=check_label_value),
    Field("effect", required=True, choices=TAINT_EFFECTS),
)


def _taints(path: str, taints: list[Document]) -> FieldErrors:
    seen: set[tuple[str, str]] = set()

    def taint_errors(where: str, taint: Document) -> FieldErrors:
        return _TAINT(where, taint) + check_unique(
            where, (taint.get("key", ""), taint.get("effect", "")), seen, taint
        )

    return each(path, taints, taint_errors)


def _kept(new: Document, old: Document) -> FieldErrors:
    """The complaints about members that stay once they are set."""
    spec = new.get("spec", {})
    before = old.get("spec", {})
    return [
        forbidden_field(
            f"spec.{member}", f'node updates may not change {display_name} except from "" to valid'
        )
        for member, display_name in (("podCIDRs", "podCIDR"), ("providerID", "providerID"))
        if before.get(member) and spec.get(member) != before[member]
    ]


def _cidr_problems(cidr: str) -> tuple[str, ...]:
    try:
        ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return (NOT_A_CIDR,)
    return () if "/" in cidr else (NOT_A_CIDR,)


def _kernel(node: Document) -> str:
    info = mapping(node, "status", "nodeInfo")
    kernel = text(info, "kernelVersion")
    architecture = text(info, "architecture")
    return f"{kernel} ({architecture})" if kernel and architecture else kernel or UNKNOWN


def _node_status(node: Document) -> str:
    ready = condition(node, "Ready")
    status = "Unknown" if not ready else "Ready" if ready.get("status") == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if flag(node, "spec", "unschedulable") else status


def _roles(node: Document) -> list[str]:
    labels = mapping(node, "metadata", "labels")
    roles = {label.removeprefix(_ROLE_PREFIX) for label in labels if label.startswith(_ROLE_PREFIX)}
    roles.add(text(labels, _ROLE_LABEL))
    return sorted(roles - {""})


def _address(kind: str) -> Callable[[Document], str]:
    def render(node: Document) -> str:
        addresses = objects(node, "status", "addresses")
        return next((text(item, "address") for item in addresses if item.get("type") == kind), NONE)

    return render


NODE: Final = kind.Kind(
    resource=Nodes,
    defaults=_default,
    prepare_create=_prepare_create,
    rules=Rules(
        Field("spec.podCIDRs", form=_cidr_problems),
        Field("spec.taints", whole=_taints),
    ),
    change_rules=_kept,
    columns=Printer(
        (
            NAME,
            Column(
                "Status",
                "Whether the node is ready, and whether pods may be bound to it.",
                _node_status,
            ),
            Column(
                "Roles",
                "Roles of the node, from its labels.",
                lambda node: ",".join(_roles(node)) or NONE,
            ),
            AGE,
            Column("Version", "Version of the node's kubelet.", "status.nodeInfo.kubeletVersion"),
            Column("Internal-IP", "First internal address.", _address("InternalIP"), priority=1),
            Column("External-IP", "First external address.", _address("ExternalIP"), priority=1),
            Column(
                "OS-Image",
                "Operating system.",
                text_or(UNKNOWN, "status.nodeInfo.osImage"),
                priority=1,
            ),
            Column(
                "Kernel-Version", "Kernel, and architecture where it is known.", _kernel, priority=1
            ),
            Column(
                "Container-Runtime",
                "Container runtime and its version.",
                text_or(UNKNOWN, "status.nodeInfo.containerRuntimeVersion"),
                priority=1,
            ),
        )
    ),
)
