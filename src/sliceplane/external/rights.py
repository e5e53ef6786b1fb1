"""What an account of an agent may do, and nothing else: documents to be applied by an administrator.

Rights are bound to names (``resourceNames``): the agent's Lease, its slices, its Services.  A create carries a name
only when it is an apply, so that is how the agent creates.  Lists and watches of one name are allowed by the field
selector ``metadata.name`` (kubernetes.io, "Using RBAC Authorization", "Referring to resources").

It may ask for tokens of its own: a short one that is copied to a machine is renewed there.

Which addresses its slices may have is beyond RBAC: a ValidatingAdmissionPolicy says it, and an annotation of the
account says the same to the plane's controllers, for servers without such policies.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.meta import Document
from sliceplane.external.registration import ANNOTATION_CIDRS, LABEL_AGENT, lease_name, slice_name
from sliceplane.kit.ip import FAMILIES
from sliceplane.proxy.progress import LEASE_NAMESPACE

_WRITES: Final = ["get", "list", "watch", "create", "update", "patch", "delete"]
_RBAC: Final = "rbac.authorization.k8s.io/v1"
_POLICY: Final = "admissionregistration.k8s.io/v1"


def account_name(agent: str) -> str:
    return f"agent-{agent}"


def grants(
    agent: str, namespace: str, services: tuple[str, ...], *, cidrs: tuple[str, ...] = (), sees_nodes: bool = False
) -> tuple[Document, ...]:
    """In the order in which they are to be applied.  *sees_nodes*: it may ask whether node proxies followed a drain."""
    name = account_name(agent)
    labels = {LABEL_AGENT: agent}
    metadata: Document = {"name": name, "namespace": namespace, "labels": labels}
    annotations = {"annotations": {ANNOTATION_CIDRS: ",".join(cidrs)}} if cidrs else {}
    slices = [slice_name(service, agent, family) for service in services for family in FAMILIES]
    rules = [
        _rule("coordination.k8s.io", "leases", _WRITES, lease_name(agent)),
        _rule("discovery.k8s.io", "endpointslices", _WRITES, *slices),
        _rule("", "services", ["get", "list", "watch"], *services),
        _rule("", "serviceaccounts/token", ["create"], name),
    ]
    documents: list[Document] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata, **annotations}},
        {"apiVersion": _RBAC, "kind": "Role", "metadata": metadata, "rules": rules},
        _binding("RoleBinding", metadata, "Role", name, namespace),
    ]
    if sees_nodes:
        documents += _node_rights(agent, namespace, labels)
    if cidrs:
        documents += _policy(agent, namespace, cidrs)
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
        {"apiVersion": _RBAC, "kind": "ClusterRole", "metadata": of_nodes, "rules": [_rule("", "nodes", ["list"])]},
        _binding("ClusterRoleBinding", of_nodes, "ClusterRole", name, namespace),
        {
            "apiVersion": _RBAC,
            "kind": "Role",
            "metadata": of_leases,
            "rules": [_rule("coordination.k8s.io", "leases", ["list", "watch"])],
        },
        _binding("RoleBinding", of_leases, "Role", name, namespace),
    ]


def _policy(agent: str, namespace: str, cidrs: tuple[str, ...]) -> list[Document]:
    name = f"sliceplane-{namespace}-{account_name(agent)}"
    user = f"system:serviceaccount:{namespace}:{account_name(agent)}"
    inside = " || ".join(f"cidr('{cidr}').containsIP(ip(address))" for cidr in cidrs)
    rule = {
        "apiGroups": ["discovery.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["endpointslices"],
    }
    validation = {
        "expression": f"object.endpoints.all(endpoint, endpoint.addresses.all(address, {inside}))",
        "message": f"agent {agent} may use addresses of {', '.join(cidrs)} alone",
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "its-account", "expression": f"request.userInfo.username == '{user}'"}],
        "validations": [validation],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": _POLICY, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": _POLICY,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": binding,
        },
    ]
