"""The roles and bindings that every cluster has, as data (names and purposes as upstream's).

Only what this server serves is granted: a role of upstream that also speaks of volumes or certificates has the rest of
its rules here.  There is no node authoriser, so that ``system:node`` is bound to the group of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, Resource, RoleBindings, Roles
from sliceplane.registry.authorization.rules import ALL, PolicyRule, document_of_rule
from sliceplane.registry.kinds import KINDS
from sliceplane.registry.kinds.kind import Granted
from sliceplane.registry.types import AUTHENTICATED, MASTERS, UNAUTHENTICATED

AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_READ = ("get", "list", "watch")
_WRITE = ("create", "delete", "deletecollection", "patch", "update")
_DISCOVERY = "discovery.k8s.io"


def _on(groups: str | tuple[str, ...], resources: str | tuple[str, ...], *verbs: str) -> PolicyRule:
    return PolicyRule(
        verbs=verbs,
        groups=(groups,) if isinstance(groups, str) else groups,
        resources=(resources,) if isinstance(resources, str) else resources,
    )


def _get(*urls: str) -> PolicyRule:
    return PolicyRule(verbs=("get",), urls=urls)


_EVENTS = _on(("", "events.k8s.io"), "events", "create", "patch", "update")


def _of_kinds(subresources_of: Callable[[Granted], tuple[str, ...]], *verbs: str) -> tuple[PolicyRule, ...]:
    """One rule for each API group, of what its kinds say that a role grants."""
    granted: dict[str, list[str]] = {}
    for kind in KINDS:
        for subresource in subresources_of(kind.granted):
            plural = kind.resource.plural
            name = f"{plural}/{subresource}" if subresource else plural
            granted.setdefault(kind.resource.group, []).append(name)
    return tuple(_on(group, tuple(names), *verbs) for group, names in granted.items())


ROLES: dict[str, tuple[PolicyRule, ...]] = {
    "admin": (),
    "cluster-admin": (_on(ALL, ALL, ALL), PolicyRule(verbs=(ALL,), urls=(ALL,))),
    "edit": (),
    "system:aggregate-to-admin": (
        _on("authorization.k8s.io", "localsubjectaccessreviews", "create"),
        *_of_kinds(lambda granted: granted.admin, *_READ, *_WRITE),
    ),
    "system:aggregate-to-edit": (
        *_of_kinds(lambda granted: granted.edit_reads, *_READ),
        _on("", "serviceaccounts", "impersonate"),
        _on("", ("pods/eviction", "serviceaccounts/token"), "create"),
        *_of_kinds(lambda granted: granted.edit, *_WRITE),
    ),
    "system:aggregate-to-view": _of_kinds(lambda granted: granted.view, *_READ),
    "system:auth-delegator": (
        _on("authentication.k8s.io", "tokenreviews", "create"),
        _on("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
    "system:basic-user": (
        _on("authorization.k8s.io", ("selfsubjectaccessreviews", "selfsubjectrulesreviews"), "create"),
        _on("authentication.k8s.io", "selfsubjectreviews", "create"),
    ),
    "system:controller:daemon-set-controller": (
        _on("apps", "daemonsets", *_READ),
        _on("apps", ("daemonsets/finalizers", "daemonsets/status"), "update"),
        _on("", "nodes", "list", "watch"),
        _on("", "pods", "create", "delete", "list", "patch", "watch"),
        _on("", "pods/binding", "create"),
        _on("apps", "controllerrevisions", "create", "delete", "get", "list", "patch", "update", "watch"),
        _EVENTS,
    ),
    "system:controller:deployment-controller": (
        _on("apps", "deployments", "get", "list", "update", "watch"),
        _on("apps", ("deployments/finalizers", "deployments/status"), "update"),
        _on("apps", "replicasets", "create", "delete", "get", "list", "patch", "update", "watch"),
        _on("", "pods", "get", "list", "update", "watch"),
        _EVENTS,
    ),
    "system:controller:disruption-controller": (
        _on("apps", ("deployments", "replicasets", "statefulsets"), *_READ),
        _on("", "replicationcontrollers", *_READ),
        _on("policy", "poddisruptionbudgets", *_READ),
        _on("policy", "poddisruptionbudgets/status", "update"),
        _on("", "pods/status", "patch", "update"),
        _on(ALL, "*/scale", "get"),
        _EVENTS,
    ),
    "system:controller:endpoint-controller": (
        _on("", ("pods", "services"), *_READ),
        _on("", "endpoints", "create", "delete", "get", "list", "update"),
        _on("", "endpoints/restricted", "create"),
        _EVENTS,
    ),
    "system:controller:endpointslice-controller": (
        _on("", ("nodes", "pods", "services"), *_READ),
        _on("", "services/finalizers", "update"),
        _on(_DISCOVERY, "endpointslices", "create", "delete", "get", "list", "update"),
        _on(_DISCOVERY, "endpointslices/restricted", "create"),
        _EVENTS,
    ),
    "system:controller:endpointslicemirroring-controller": (
        _on("", ("endpoints", "services"), *_READ),
        _on("", ("endpoints/finalizers", "services/finalizers"), "update"),
        _on(_DISCOVERY, "endpointslices", "create", "delete", "get", "list", "update"),
        _on(_DISCOVERY, "endpointslices/restricted", "create"),
        _EVENTS,
    ),
    "system:controller:generic-garbage-collector": (
        _EVENTS,
        _on(ALL, ALL, "delete", "get", "list", "patch", "update", "watch"),
    ),
    "system:controller:namespace-controller": (
        _on("", "namespaces", "delete", "get", "list", "watch"),
        _on("", ("namespaces/finalize", "namespaces/status"), "update"),
        _on(ALL, ALL, "delete", "deletecollection", "get", "list"),
    ),
    "system:controller:pod-garbage-collector": (
        _on("", "pods", "delete", "list", "watch"),
        _on("", "nodes", *_READ),
        _on("", "pods/status", "patch"),
    ),
    "system:controller:replicaset-controller": (
        _on("apps", "replicasets", "get", "list", "update", "watch"),
        _on("apps", ("replicasets/finalizers", "replicasets/status"), "update"),
        _on("", "pods", "create", "delete", "get", "list", "patch", "watch"),
        _EVENTS,
    ),
    "system:controller:replication-controller": (
        _on("", "replicationcontrollers", "get", "list", "update", "watch"),
        _on("", ("replicationcontrollers/finalizers", "replicationcontrollers/status"), "update"),
        _on("", "pods", "create", "delete", "list", "patch", "watch"),
        _EVENTS,
    ),
    "system:controller:resourcequota-controller": (
        _on(ALL, ALL, "list", "watch"),
        _on("", "resourcequotas/status", "update"),
        _EVENTS,
    ),
    "system:controller:root-ca-cert-publisher": (_on("", "configmaps", "create", "update"), _EVENTS),
    "system:controller:service-account-controller": (_on("", "serviceaccounts", "create"), _EVENTS),
    "system:controller:statefulset-controller": (
        _on("", "pods", *_READ, "create", "delete", "patch", "update"),
        _on("apps", "statefulsets", *_READ),
        _on("apps", ("statefulsets/finalizers", "statefulsets/status"), "update"),
        _on("apps", "controllerrevisions", "create", "delete", "get", "list", "patch", "update", "watch"),
        _EVENTS,
    ),
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
        _EVENTS,
        _on("coordination.k8s.io", "leases", "create", "get", "update"),
        _on(ALL, ALL, "list", "watch"),
        _on("", ("endpoints", "namespaces", "serviceaccounts"), "get"),
        _on("", ("serviceaccounts", "serviceaccounts/token"), "create"),
        _on("authentication.k8s.io", "tokenreviews", "create"),
        _on("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
    "system:monitoring": (
        _get("/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*"),
    ),
    "system:node": (
        _on("", "services", *_READ),
        _on("", "nodes", "create", "delete", "get", "list", "patch", "update", "watch"),
        _on("", "nodes/status", "patch", "update"),
        _on("", "pods", "create", "delete", "get", "list", "watch"),
        _on("", "pods/status", "patch", "update"),
        _on("", "configmaps", *_READ),
        _on("coordination.k8s.io", "leases", "create", "delete", "get", "patch", "update"),
        _EVENTS,
    ),
    "system:node-proxier": (
        _on("", ("endpoints", "services"), "list", "watch"),
        _on("", "nodes", *_READ),
        _on(_DISCOVERY, "endpointslices", "list", "watch"),
        _on("networking.k8s.io", "servicecidrs", "list", "watch"),
        _EVENTS,
    ),
    # Whose preStop hooks a node proxy answers (docs/drain.md); kube-proxy's own role knows no Pods.
    "sliceplane:drain-hooks": (_on("", "pods", "list", "watch"),),
    "system:public-info-viewer": (_get("/healthz", "/livez", "/readyz", "/version", "/version/"),),
    "system:service-account-issuer-discovery": (
        _get(
            "/.well-known/openid-configuration",
            "/.well-known/openid-configuration/",
            "/openid/v1/jwks",
            "/openid/v1/jwks/",
        ),
    ),
    "view": (),
}
#: roles of one namespace: (namespace, name) -> rules, and the user that has them.  A proxy tells in a Lease how far it
#: is (``proxy.progress``), in the namespace where the kubelets' Leases are; rules cannot name objects that are created.
NAMESPACED_ROLES: dict[tuple[str, str], tuple[tuple[PolicyRule, ...], str]] = {
    ("kube-node-lease", "sliceplane:node-proxier"): (
        (_on("coordination.k8s.io", "leases", "create", "patch"),),
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
    "system:node-proxier": "system:kube-proxy",
}
_CONTROLLER = "system:controller:"


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
            yield ClusterRoleBindings, {"metadata": _head(name), "subjects": subjects, "roleRef": reference}
    for (namespace, name), (granted, user) in NAMESPACED_ROLES.items():
        head = {**_head(name), "namespace": namespace}
        yield Roles, {"metadata": head, "rules": [document_of_rule(rule) for rule in granted]}
        subject = {"kind": "User", "apiGroup": RBAC_GROUP, "name": user}
        reference = {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name}
        yield RoleBindings, {"metadata": dict(head), "subjects": [subject], "roleRef": reference}


def gathered_rules(name: str) -> tuple[PolicyRule, ...]:
    """What the bootstrap role *name* of ``AGGREGATED`` gathers at a first start."""
    return tuple(rule for source in _GATHERED[name] for rule in ROLES[f"system:aggregate-to-{source}"])


def _head(name: str) -> Document:
    return {"name": name, "labels": dict(_LABELS), "annotations": {AUTOUPDATE: "true"}}


def _subjects(name: str) -> list[Document]:
    if name.startswith(_CONTROLLER):
        account = name.removeprefix(_CONTROLLER)
        return [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]
    subjects: list[Document] = []
    if name in _USERS:
        subjects.append({"kind": "User", "apiGroup": RBAC_GROUP, "name": _USERS[name]})
    subjects += [{"kind": "Group", "apiGroup": RBAC_GROUP, "name": group} for group in _GROUPS.get(name, ())]
    return subjects
