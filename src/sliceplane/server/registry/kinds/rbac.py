"""Roles and bindings: rules that can mean something, subjects of known kinds, a role that stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sliceplane.api.errors import FieldErrors, invalid_value, not_supported
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, RoleBindings, Roles
from sliceplane.kit.names import check_dns_subdomain, check_path_segment
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, objects, text
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import check_label_selector
from sliceplane.server.registry.validation.rules import Field, Rules, among, fill, needs, of_form

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

_NO_SELECTOR: Final = "at least one clusterRoleSelector required if aggregationRule is non-nil"


def _default_binding(document: Document) -> None:
    fill(document, {"+roleRef": {"apiGroup": RBAC_GROUP, "kind?": "", "name?": ""}})
    for subject in document.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            fill(subject, {"apiGroup": RBAC_GROUP})


def _same_role(new: Document, old: Document) -> FieldErrors:
    role = new.get("roleRef", {})
    return (
        []
        if role == old.get("roleRef", {})
        else [invalid_value("roleRef", role, "cannot change roleRef")]
    )


def _rule(path: str, rule: Document, *, namespaced: bool) -> FieldErrors:
    errors = needs("verbs", detail="verbs must contain at least one value")(path, rule)
    urls = rule.get("nonResourceURLs")
    if not urls:
        return errors + _RESOURCE_RULE(path, rule)
    where = f"{path}.nonResourceURLs"
    if namespaced:
        errors.append(
            invalid_value(where, urls, "namespaced rules cannot apply to non-resource URLs")
        )
    if any(rule.get(member) for member in ("apiGroups", "resources", "resourceNames")):
        detail = "rules cannot apply to both regular resources and non-resource URLs"
        errors.append(invalid_value(where, urls, detail))
    return errors


_RESOURCE_RULE: Final = Rules(
    Field("apiGroups", required="resource rules must supply at least one api group"),
    Field("resources", required="resource rules must supply at least one resource"),
)


def _subject(path: str, subject: Document, *, namespaced: bool) -> FieldErrors:
    name = subject.get("name", "")
    kind = subject.get("kind", "")
    group = subject.get("apiGroup", "")
    errors = needs("name")(path, subject)
    if kind in ("User", "Group"):
        return errors + among(f"{path}.apiGroup", group, (RBAC_GROUP,))
    if kind != "ServiceAccount":
        return [*errors, not_supported(f"{path}.kind", kind, ("Group", "ServiceAccount", "User"))]
    if name:
        errors += of_form(f"{path}.name", name, check_dns_subdomain)
    errors += among(f"{path}.apiGroup", group, ("",))
    return errors if namespaced else errors + needs("namespace")(path, subject)


def _role_rules(*, namespaced: bool) -> Field:
    return Field("rules", rows=lambda path, rule: _rule(path, rule, namespaced=namespaced))


def _binding_rules(*kinds: str, namespaced: bool) -> Rules:
    return Rules(
        Field("roleRef.apiGroup", choices=(RBAC_GROUP,), always=True),
        Field("roleRef.kind", choices=kinds, always=True),
        Field("roleRef.name", required=True, form=check_path_segment),
        Field(
            "subjects", rows=lambda path, subject: _subject(path, subject, namespaced=namespaced)
        ),
    )


def _fill(core: Core, new: Document, _old: Document | None) -> None:
    """A role that gathers others has their rules, whatever it came with."""
    core.fill(new)


def _names(kind: str) -> Callable[[Document], str]:
    return lambda binding: ", ".join(
        text(subject, "name")
        for subject in objects(binding, "subjects")
        if text(subject, "kind") == kind
    )


def _accounts(binding: Document) -> str:
    accounts = (
        subject
        for subject in objects(binding, "subjects")
        if text(subject, "kind") == "ServiceAccount"
    )
    return ", ".join(
        f"{text(subject, 'namespace')}/{text(subject, 'name')}" for subject in accounts
    )


_COLUMNS: Final = Printer(
    (
        NAME,
        Column(
            "Role",
            "Kind and name of the role that is granted.",
            lambda binding: (
                f"{text(binding, 'roleRef', 'kind')}/{text(binding, 'roleRef', 'name')}"
            ),
        ),
        AGE,
        Column("Users", "Users that the role is granted to.", _names("User"), priority=1),
        Column("Groups", "Groups that the role is granted to.", _names("Group"), priority=1),
        Column(
            "ServiceAccounts",
            "Service accounts that the role is granted to.",
            _accounts,
            priority=1,
        ),
    )
)
ROLE: Final = kind.Kind(
    resource=Roles,
    rules=Rules(_role_rules(namespaced=True)),
    quota=kind.Quota(),
    granted=kind.ADMINISTERED,
)
CLUSTER_ROLE: Final = kind.Kind(
    resource=ClusterRoles,
    rules=Rules(
        _role_rules(namespaced=False),
        Field(
            "aggregationRule?.clusterRoleSelectors",
            required=_NO_SELECTOR,
            rows=check_label_selector,
        ),
    ),
    admission=kind.Admission(admit=_fill),
)
ROLE_BINDING: Final = kind.Kind(
    resource=RoleBindings,
    defaults=_default_binding,
    rules=_binding_rules("ClusterRole", "Role", namespaced=True),
    change_rules=_same_role,
    quota=kind.Quota(),
    granted=kind.ADMINISTERED,
    columns=_COLUMNS,
)
CLUSTER_ROLE_BINDING: Final = kind.Kind(
    resource=ClusterRoleBindings,
    defaults=_default_binding,
    rules=_binding_rules("ClusterRole", namespaced=False),
    change_rules=_same_role,
    columns=_COLUMNS,
)
