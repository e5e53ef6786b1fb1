"""The roles and bindings that every cluster has, as data (names and purposes as upstream's).

Only what this server serves is granted: a role of upstream that also speaks of certificates has the
rest of its rules here. There is no node authoriser, so that ``system:node`` is bound to the group
of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    RBAC_GROUP,
    ClusterRoleBindings,
    ClusterRoles,
    Resource,
    RoleBindings,
    Roles,
)
from sliceplane.server.registry.authorization.controller_roles import (
    CONTROLLER_ROLES,
    EVENTS,
    READ,
    on,
)
from sliceplane.server.registry.authorization.rules import ALL, PolicyRule, document_of_rule
from sliceplane.server.registry.kinds import KINDS
from sliceplane.server.registry.kinds.kind import Granted
from sliceplane.server.registry.types import AUTHENTICATED, MASTERS, UNAUTHENTICATED

_CONTROLLER = "system:controller:"
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_WRITE = ("create", "delete", "deletecollection", "patch", "update")


def _get(*urls: str) -> PolicyRule:
    return PolicyRule(verbs=("get",), urls=urls)


def _of_kinds(
    subresources_of: Callable[[Granted], tuple[str, ...]], *verbs: str
) -> tuple[PolicyRule, ...]:
    """One rule for each API group, of what its kinds say that a role grants."""
    granted: dict[str, list[str]] = {}
    for kind in KINDS:
        for subresource in subresources_of(kind.granted):
            plural = kind.resource.plural
            name = f"{plural}/{subresource}" if subresource else plural
            granted.setdefault(kind.resource.group, []).append(name)
    return tuple(on(group, tuple(names), *verbs) for group, names in granted.items())


ROLES: dict[str, tuple[PolicyRule, ...]] = {
    "admin": (),
    "cluster-admin": (on(ALL, ALL, ALL), PolicyRule(verbs=(ALL,), urls=(ALL,))),
    "edit": (),
    "system:aggregate-to-admin": (
        on("authorization.k8s.io", "localsubjectaccessreviews", "create"),
        *_of_kinds(lambda granted: granted.admin, *READ, *_WRITE),
    ),
    "system:aggregate-to-edit": (
        *_of_kinds(lambda granted: granted.edit_reads, *READ),
        on("", "serviceaccounts", "impersonate"),
        on("", ("pods/eviction", "serviceaccounts/token"), "create"),
        *_of_kinds(lambda granted: granted.edit, *_WRITE),
    ),
    "system:aggregate-to-view": _of_kinds(lambda granted: granted.view, *READ),
    "system:auth-delegator": (
        on("authentication.k8s.io", "tokenreviews", "create"),
        on("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
    "system:basic-user": (
        on(
            "authorization.k8s.io",
            ("selfsubjectaccessreviews", "selfsubjectrulesreviews"),
            "create",
        ),
        on("authentication.k8s.io", "selfsubjectreviews", "create"),
    ),
    **{f"{_CONTROLLER}{name}": rules for name, rules in CONTROLLER_ROLES.items()},
    "system:discovery": (
        _get(
            "/api",
            "/api/*",
            "/apis",
            "/apis/*",
            "/healthz",
            "/livez",
            "/openapi",
            "/openapi/*",
            "/readyz",
            "/version",
            "/version/",
        ),
    ),
    "system:kube-controller-manager": (
        EVENTS,
        on("coordination.k8s.io", "leases", "create", "get", "update"),
        on(ALL, ALL, "list", "watch"),
        on("", ("configmaps", "endpoints", "namespaces", "secrets", "serviceaccounts"), "get"),
        on("", ("secrets", "serviceaccounts", "serviceaccounts/token"), "create"),
        on("", ("secrets", "serviceaccounts"), "update"),
        on("", "secrets", "delete"),
        on("authentication.k8s.io", "tokenreviews", "create"),
        on("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
    "system:kube-scheduler": (
        EVENTS,
        on("coordination.k8s.io", "leases", "create", "get", "list", "update", "watch"),
        on("", ("namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes"), *READ),
        on("", ("replicationcontrollers", "services"), *READ),
        on("", "pods", "delete", *READ),
        on("", ("bindings", "pods/binding"), "create"),
        on("", "pods/status", "patch", "update"),
        on("apps", ("replicasets", "statefulsets"), *READ),
        on("policy", "poddisruptionbudgets", *READ),
        on("resource.k8s.io", ("deviceclasses", "resourceclaims", "resourceslices"), *READ),
        on(
            "storage.k8s.io",
            ("csidrivers", "csinodes", "csistoragecapacities", "volumeattachments"),
            *READ,
        ),
        on("authentication.k8s.io", "tokenreviews", "create"),
        on("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
    "system:monitoring": (
        _get(
            "/healthz",
            "/healthz/*",
            "/livez",
            "/livez/*",
            "/metrics",
            "/metrics/slis",
            "/readyz",
            "/readyz/*",
        ),
    ),
    "system:node": (
        on("", "services", *READ),
        on("", "nodes", "create", "delete", "get", "list", "patch", "update", "watch"),
        on("", "nodes/status", "patch", "update"),
        on("", "pods", "create", "delete", "get", "list", "watch"),
        on("", "pods/status", "patch", "update"),
        on("", "configmaps", *READ),
        on("", ("persistentvolumeclaims", "persistentvolumes"), "get"),
        on("storage.k8s.io", "volumeattachments", "get"),
        on("storage.k8s.io", "csidrivers", *READ),
        on("storage.k8s.io", "csinodes", "create", "delete", "get", "patch", "update"),
        on("coordination.k8s.io", "leases", "create", "delete", "get", "patch", "update"),
        EVENTS,
    ),
    "system:node-proxier": (
        on("", ("endpoints", "services"), "list", "watch"),
        on("", "nodes", *READ),
        on("discovery.k8s.io", "endpointslices", "list", "watch"),
        on("networking.k8s.io", "servicecidrs", "list", "watch"),
        EVENTS,
    ),
    "system:persistent-volume-provisioner": (
        on("", "persistentvolumes", "create", "delete", *READ),
        on("", "persistentvolumeclaims", "update", *READ),
        on("storage.k8s.io", "storageclasses", *READ),
        on("", "events", "watch"),
        EVENTS,
    ),
    # Whose preStop hooks a node proxy answers (docs/drain.md); kube-proxy's own role knows no Pods.
    "sliceplane:drain-hooks": (on("", "pods", "list", "watch"),),
    "system:public-info-viewer": (_get("/healthz", "/livez", "/readyz", "/version", "/version/"),),
    "system:service-account-issuer-discovery": (
        _get(
            "/.well-known/openid-configuration",
            "/.well-known/openid-configuration/",
            "/openid/v1/jwks",
            "/openid/v1/jwks/",
        ),
    ),
    "system:volume-scheduler": (
        on("", ("persistentvolumeclaims", "persistentvolumes"), "patch", "update", *READ),
        on("storage.k8s.io", "storageclasses", *READ),
    ),
    "view": (),
}
#: roles of one namespace: (namespace, name) -> rules, and the user that has them. A proxy tells in
#: a Lease how far it is (``consume.progress``), in the namespace where the kubelets' Leases are;
#: rules cannot name objects that are created.
NAMESPACED_ROLES: dict[tuple[str, str], tuple[tuple[PolicyRule, ...], str]] = {
    ("kube-node-lease", "sliceplane:node-proxier"): (
        (on("coordination.k8s.io", "leases", "create", "patch"),),
        "system:kube-proxy",
    )
}
#: what a role is gathered by, and for what
_AGGREGATE_TO = "rbac.authorization.k8s.io/aggregate-to-"
#: roles that gather others, and those by which they are gathered in turn
AGGREGATED = {"admin": "", "edit": "admin", "view": "edit"}
#: roles of the time before aggregation, and where rules that were added to them are kept
SOURCES = {f"system:aggregate-to-{name}": name for name in AGGREGATED}
_GATHERED = {"admin": ("admin", "edit", "view"), "edit": ("edit", "view"), "view": ("view",)}

_GROUPS = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:monitoring": ("system:monitoring",),
    "system:node": ("system:nodes",),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
    "system:service-account-issuer-discovery": ("system:serviceaccounts",),
}
_USERS = {
    "system:kube-controller-manager": "system:kube-controller-manager",
    "sliceplane:drain-hooks": "system:kube-proxy",
    "system:kube-scheduler": "system:kube-scheduler",
    "system:node-proxier": "system:kube-proxy",
    "system:volume-scheduler": "system:kube-scheduler",
}


def objects() -> Iterator[tuple[Resource, Document]]:
    """Every bootstrap role and binding, roles first."""
    # What is gathered comes before what gathers.
    for name, rules in sorted(ROLES.items(), key=lambda role: (role[0] not in SOURCES, role[0])):
        role: Document = {"metadata": _head(name)}
        gathered_by = AGGREGATED.get(name, SOURCES.get(name, ""))
        if gathered_by:
            role["metadata"]["labels"][f"{_AGGREGATE_TO}{gathered_by}"] = "true"
        if name in AGGREGATED:
            selector = {"matchLabels": {f"{_AGGREGATE_TO}{name}": "true"}}
            role["aggregationRule"] = {"clusterRoleSelectors": [selector]}
        else:
            role["rules"] = [document_of_rule(rule) for rule in rules]
        yield ClusterRoles, role
    for name in ROLES:
        subjects = _subjects(name)
        if subjects:
            reference = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name}
            yield (
                ClusterRoleBindings,
                {"metadata": _head(name), "subjects": subjects, "roleRef": reference},
            )
    for (namespace, name), (granted, user) in NAMESPACED_ROLES.items():
        head = {**_head(name), "namespace": namespace}
        yield Roles, {"metadata": head, "rules": [document_of_rule(rule) for rule in granted]}
        subject = {"kind": "User", "apiGroup": RBAC_GROUP, "name": user}
        reference = {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name}
        yield RoleBindings, {"metadata": dict(head), "subjects": [subject], "roleRef": reference}


def gathered_rules(name: str) -> tuple[PolicyRule, ...]:
    """What the bootstrap role *name* of ``AGGREGATED`` gathers at a first start."""
    return tuple(
        rule for source in _GATHERED[name] for rule in ROLES[f"system:aggregate-to-{source}"]
    )


def _head(name: str) -> Document:
    return {"name": name, "labels": dict(_LABELS), "annotations": {AUTOUPDATE: "true"}}


def _subjects(name: str) -> list[Document]:
    if name.startswith(_CONTROLLER):
        account = name.removeprefix(_CONTROLLER)
        return [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]
    subjects: list[Document] = []
    if name in _USERS:
        subjects.append({"kind": "User", "apiGroup": RBAC_GROUP, "name": _USERS[name]})
    subjects += [
        {"kind": "Group", "apiGroup": RBAC_GROUP, "name": group} for group in _GROUPS.get(name, ())
    ]
    return subjects
