"""The rights of an agent's account as documents for an administrator to apply.

Rights are bound to names (``resourceNames``): the agent's Lease, its slices, its Services. A create
carries a name only when it is an apply, so that is how the agent creates. Lists and watches of one
name are allowed by the field selector ``metadata.name`` (kubernetes.io, "Using RBAC Authorization",
"Referring to resources").

The account may request its own tokens: the machine renews the short-lived token that was copied to
it.

RBAC cannot restrict labels and addresses of slices. Annotations of the Role record which Services
and networks belong to the agent; our server's admission and controllers read them
(``consume.agents.grants``). ValidatingAdmissionPolicies enforce the same on other API servers
(``agent.policies``).
"""

from __future__ import annotations

from typing import Final

from sliceplane.agent.policies import policies
from sliceplane.api.meta import Document
from sliceplane.consume.agents.registration import (
    ANNOTATION_CIDRS,
    ANNOTATION_SERVICES,
    LABEL_AGENT,
    account_name,
    lease_name,
    slice_name,
)
from sliceplane.consume.progress import LEASE_NAMESPACE
from sliceplane.kit.ip import FAMILIES

_WRITES: Final = ["get", "list", "watch", "create", "update", "patch", "delete"]
_RBAC: Final = "rbac.authorization.k8s.io/v1"


def grants(
    agent: str,
    namespace: str,
    services: tuple[str, ...],
    *,
    cidrs: tuple[str, ...] = (),
    sees_nodes: bool = False,
    with_policies: bool = True,
) -> tuple[Document, ...]:
    """Returns the documents in the order in which to apply them. *sees_nodes*: the account may
    query whether node proxies applied a drain.
    """
    name = account_name(agent)
    labels = {LABEL_AGENT: agent}
    metadata: Document = {"name": name, "namespace": namespace, "labels": labels}
    annotations = {ANNOTATION_SERVICES: ",".join(services)}
    if cidrs:
        annotations[ANNOTATION_CIDRS] = ",".join(cidrs)
    slices = [slice_name(service, agent, family) for service in services for family in FAMILIES]
    rules = [
        _rule("coordination.k8s.io", "leases", _WRITES, lease_name(agent)),
        _rule("discovery.k8s.io", "endpointslices", _WRITES, *slices),
        _rule("", "services", ["get", "list", "watch"], *services),
        _rule("", "serviceaccounts/token", ["create"], name),
    ]
    granting = {**metadata, "annotations": annotations}
    documents: list[Document] = [
        # The controllers read the Role; those of earlier versions read the networks here.
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": granting},
        {"apiVersion": _RBAC, "kind": "Role", "metadata": granting, "rules": rules},
        _binding("RoleBinding", metadata, "Role", name, namespace),
    ]
    if sees_nodes:
        documents += _node_rights(agent, namespace, labels)
    if with_policies:
        documents += policies(agent, namespace, services, cidrs)
    return tuple(documents)


def _rule(group: str, resource: str, verbs: list[str], *names: str) -> Document:
    rule: Document = {"apiGroups": [group], "resources": [resource], "verbs": verbs}
    return {**rule, "resourceNames": list(names)} if names else rule


def _binding(kind: str, metadata: Document, role_kind: str, role: str, namespace: str) -> Document:
    subject = {"kind": "ServiceAccount", "name": role.rpartition(":")[2], "namespace": namespace}
    return {
        "apiVersion": _RBAC,
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        "subjects": [subject],
    }


def _node_rights(agent: str, namespace: str, labels: dict[str, str]) -> list[Document]:
    name = f"sliceplane:{namespace}:{account_name(agent)}"
    of_nodes: Document = {"name": name, "labels": labels}
    of_leases: Document = {"name": name, "namespace": LEASE_NAMESPACE, "labels": labels}
    return [
        {
            "apiVersion": _RBAC,
            "kind": "ClusterRole",
            "metadata": of_nodes,
            "rules": [_rule("", "nodes", ["list"])],
        },
        _binding("ClusterRoleBinding", of_nodes, "ClusterRole", name, namespace),
        {
            "apiVersion": _RBAC,
            "kind": "Role",
            "metadata": of_leases,
            "rules": [_rule("coordination.k8s.io", "leases", ["list", "watch"])],
        },
        _binding("RoleBinding", of_leases, "Role", name, namespace),
    ]
