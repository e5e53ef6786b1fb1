"""The roles and bindings of every cluster: rows of ``roles.toml``, and the grants of the kinds.

Roles grant only resources that this server serves: a role of upstream with rules about certificates
has only its other rules here. There is no node authorizer, so ``system:node`` is bound to the group
of all nodes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Final

import msgspec

from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    RBAC_GROUP,
    ClusterRoleBindings,
    ClusterRoles,
    Resource,
    RoleBindings,
    Roles,
)
from sliceplane.server.registry.authorization.rules import PolicyRule, document_of_rule
from sliceplane.server.registry.kinds import KINDS
from sliceplane.server.registry.kinds.kind import Granted

_CONTROLLER: Final = "system:controller:"
AUTOUPDATE: Final = "rbac.authorization.kubernetes.io/autoupdate"
_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")


class _Role(msgspec.Struct, forbid_unknown_fields=True):
    """A row of ``roles.toml``: rules as (API groups, resources, verbs), and the subjects."""

    rules: list[tuple[str, str, str]]
    groups: list[str] = []
    users: list[str] = []


def _rule(groups: str, resources: str, verbs: str) -> PolicyRule:
    if groups == "urls":
        return PolicyRule(verbs=tuple(verbs.split()), urls=tuple(resources.split()))
    return PolicyRule(
        verbs=tuple(verbs.split()),
        groups=tuple("" if group == "core" else group for group in groups.split()),
        resources=tuple(resources.split()),
    )


def _rules_of_kinds(
    subresources_of: Callable[[Granted], tuple[str, ...]], *verbs: str
) -> tuple[PolicyRule, ...]:
    """Returns one rule for each API group, from the grants that the kinds declare."""
    granted: dict[str, list[str]] = {}
    for kind in KINDS:
        for subresource in subresources_of(kind.granted):
            plural = kind.resource.plural
            name = f"{plural}/{subresource}" if subresource else plural
            granted.setdefault(kind.resource.group, []).append(name)
    return tuple(
        PolicyRule(verbs=verbs, groups=(group,), resources=tuple(names))
        for group, names in granted.items()
    )


_ROWS: Final = msgspec.convert(
    tomllib.loads(files(__package__).joinpath("roles.toml").read_text(encoding="utf-8")),
    dict[str, _Role],
)
ROLES: Final[dict[str, tuple[PolicyRule, ...]]] = {
    "admin": (),
    "edit": (),
    "system:aggregate-to-admin": (
        _rule("authorization.k8s.io", "localsubjectaccessreviews", "create"),
        *_rules_of_kinds(lambda granted: granted.admin, *_READ, *_WRITE),
    ),
    "system:aggregate-to-edit": (
        *_rules_of_kinds(lambda granted: granted.edit_reads, *_READ),
        _rule("core", "serviceaccounts", "impersonate"),
        _rule("core", "pods/eviction serviceaccounts/token", "create"),
        *_rules_of_kinds(lambda granted: granted.edit, *_WRITE),
    ),
    "system:aggregate-to-view": _rules_of_kinds(lambda granted: granted.view, *_READ),
    **{name: tuple(_rule(*rule) for rule in role.rules) for name, role in _ROWS.items()},
    "view": (),
}
#: roles of one namespace: (namespace, name) -> rules, and the user that has them. A proxy reports
#: its progress in a Lease (``consume.progress``), in the namespace of the kubelets' Leases; a rule
#: for create cannot name objects.
NAMESPACED_ROLES: dict[tuple[str, str], tuple[tuple[PolicyRule, ...], str]] = {
    ("kube-node-lease", "sliceplane:node-proxier"): (
        (_rule("coordination.k8s.io", "leases", "create patch"),),
        "system:kube-proxy",
    )
}
#: prefix of the labels by which roles are gathered; the target role follows
_AGGREGATE_TO = "rbac.authorization.k8s.io/aggregate-to-"
#: aggregated roles, and the roles that gather them in turn
AGGREGATED = {"admin": "", "edit": "admin", "view": "edit"}
#: roles that keep the rules which users added to a role before aggregation
SOURCES = {f"system:aggregate-to-{name}": name for name in AGGREGATED}
_GATHERED = {"admin": ("admin", "edit", "view"), "edit": ("edit", "view"), "view": ("view",)}


def objects() -> Iterator[tuple[Resource, Document]]:
    """Yields every bootstrap role and binding, roles first."""
    # Gathered roles come before those that gather them.
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
    """Returns the rules that the bootstrap role *name* of ``AGGREGATED`` gathers at a first
    start.
    """
    return tuple(
        rule for source in _GATHERED[name] for rule in ROLES[f"system:aggregate-to-{source}"]
    )


def _head(name: str) -> Document:
    return {"name": name, "labels": dict(_LABELS), "annotations": {AUTOUPDATE: "true"}}


def _subjects(name: str) -> list[Document]:
    if name.startswith(_CONTROLLER):
        account = name.removeprefix(_CONTROLLER)
        return [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]
    role = _ROWS.get(name, _Role([]))
    return [
        {"kind": kind, "apiGroup": RBAC_GROUP, "name": subject}
        for kind, names in (("User", role.users), ("Group", role.groups))
        for subject in names
    ]
