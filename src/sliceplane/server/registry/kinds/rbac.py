"""Roles and bindings: rules that can mean something, subjects of known kinds, a role that stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sliceplane.api.errors import FieldError, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, RoleBindings, Roles
from sliceplane.kit.names import check_dns_subdomain, check_path_segment
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    PLAIN,
    Cell,
    Column,
    Printer,
    age,
    name_of,
    objects,
    text,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import check_label_selector

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core


def _default_binding(document: Document) -> None:
    role = document.setdefault("roleRef", {})
    role["apiGroup"] = role.get("apiGroup") or RBAC_GROUP
    role.setdefault("kind", "")
    role.setdefault("name", "")
    for subject in document.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = subject.get("apiGroup") or RBAC_GROUP


def _validate_role(document: Document) -> list[FieldError]:
    return _rules(document, namespaced=True)


def _validate_cluster_role(document: Document) -> list[FieldError]:
    errors = _rules(document, namespaced=False)
    aggregation = document.get("aggregationRule")
    if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
        detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        errors.append(required("aggregationRule.clusterRoleSelectors", detail))
    for index, selector in enumerate((aggregation or {}).get("clusterRoleSelectors", ())):
        errors += check_label_selector(f"aggregationRule.clusterRoleSelectors[{index}]", selector)
    return errors


def _validate_role_binding(document: Document) -> list[FieldError]:
    return _binding(document, namespaced=True)


def _validate_role_binding_update(new: Document, old: Document) -> list[FieldError]:
    return [*_validate_role_binding(new), *_same_role(new, old)]


def _validate_cluster_role_binding(document: Document) -> list[FieldError]:
    return _binding(document, namespaced=False)


def _validate_cluster_role_binding_update(new: Document, old: Document) -> list[FieldError]:
    return [*_validate_cluster_role_binding(new), *_same_role(new, old)]


def _same_role(new: Document, old: Document) -> list[FieldError]:
    role = new.get("roleRef", {})
    return [] if role == old.get("roleRef", {}) else [invalid_value("roleRef", role, "cannot change roleRef")]


def _rules(document: Document, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, rule in while_few(errors, enumerate(document.get("rules", ()))):
        errors += _rule(f"rules[{index}]", rule, namespaced=namespaced)
    return errors


def _rule(path: str, rule: Document, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    if not rule.get("verbs"):
        errors.append(required(f"{path}.verbs", "verbs must contain at least one value"))
    urls = rule.get("nonResourceURLs")
    if urls:
        where = f"{path}.nonResourceURLs"
        if namespaced:
            errors.append(invalid_value(where, urls, "namespaced rules cannot apply to non-resource URLs"))
        if any(rule.get(member) for member in ("apiGroups", "resources", "resourceNames")):
            detail = "rules cannot apply to both regular resources and non-resource URLs"
            errors.append(invalid_value(where, urls, detail))
        return errors
    if not rule.get("apiGroups"):
        errors.append(required(f"{path}.apiGroups", "resource rules must supply at least one api group"))
    if not rule.get("resources"):
        errors.append(required(f"{path}.resources", "resource rules must supply at least one resource"))
    return errors


def _binding(document: Document, *, namespaced: bool) -> list[FieldError]:
    role = document.get("roleRef", {})
    errors: list[FieldError] = []
    if role.get("apiGroup", "") != RBAC_GROUP:
        errors.append(not_supported("roleRef.apiGroup", role.get("apiGroup", ""), (RBAC_GROUP,)))
    kinds = ("ClusterRole", "Role") if namespaced else ("ClusterRole",)
    if role.get("kind", "") not in kinds:
        errors.append(not_supported("roleRef.kind", role.get("kind", ""), kinds))
    name = role.get("name", "")
    if not name:
        errors.append(required("roleRef.name"))
    else:
        errors += [invalid_value("roleRef.name", name, problem) for problem in check_path_segment(name)]
    for index, subject in while_few(errors, enumerate(document.get("subjects", ()))):
        errors += _subject(f"subjects[{index}]", subject, namespaced=namespaced)
    return errors


def _subject(path: str, subject: Document, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    name = subject.get("name", "")
    kind = subject.get("kind", "")
    group = subject.get("apiGroup", "")
    if not name:
        errors.append(required(f"{path}.name"))
    if kind == "ServiceAccount":
        if name:
            errors += [invalid_value(f"{path}.name", name, problem) for problem in check_dns_subdomain(name)]
        if group:
            errors.append(not_supported(f"{path}.apiGroup", group, ("",)))
        if not namespaced and not subject.get("namespace"):
            errors.append(required(f"{path}.namespace"))
    elif kind in ("User", "Group"):
        if group != RBAC_GROUP:
            errors.append(not_supported(f"{path}.apiGroup", group, (RBAC_GROUP,)))
    else:
        errors.append(not_supported(f"{path}.kind", kind, ("Group", "ServiceAccount", "User")))
    return errors


def _fill(core: Core, new: Document, _old: Document | None) -> None:
    """A role that gathers others has their rules, whatever it came with."""
    core.fill(new)


def _cells(binding: Document, now: float) -> tuple[Cell, ...]:
    subjects = objects(binding, "subjects")
    accounts = (subject for subject in subjects if text(subject, "kind") == "ServiceAccount")
    return (
        name_of(binding),
        f"{text(binding, 'roleRef', 'kind')}/{text(binding, 'roleRef', 'name')}",
        age(binding, now),
        _names(subjects, "User"),
        _names(subjects, "Group"),
        ", ".join(f"{text(subject, 'namespace')}/{text(subject, 'name')}" for subject in accounts),
    )


def _names(subjects: list[Document], kind: str) -> str:
    return ", ".join(text(subject, "name") for subject in subjects if text(subject, "kind") == kind)


_COLUMNS: Final = Printer(
    (
        NAME,
        Column(name="Role", description="Kind and name of the role that is granted."),
        AGE,
        Column(name="Users", priority=1, description="Users that the role is granted to."),
        Column(name="Groups", priority=1, description="Groups that the role is granted to."),
        Column(name="ServiceAccounts", priority=1, description="Service accounts that the role is granted to."),
    ),
    _cells,
)
ROLE: Final = kind.stored_as_sent(
    resource=Roles,
    defaults=kind.no_defaults,
    validate=_validate_role,
    validate_update=kind.as_new(_validate_role),
    warnings=kind.no_warnings,
    quota=kind.COUNTED,
    granted=kind.ADMINISTERED,
    columns=PLAIN,
)
CLUSTER_ROLE: Final = kind.Kind(
    resource=ClusterRoles,
    defaults=kind.no_defaults,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate_cluster_role,
    validate_update=kind.as_new(_validate_cluster_role),
    warnings=kind.no_warnings,
    status=kind.NO_STATUS,
    parts=kind.NO_PARTS,
    admission=replace(kind.ADMITTED, admit=_fill),
    deletion=kind.AT_ONCE,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=PLAIN,
)
ROLE_BINDING: Final = kind.stored_as_sent(
    resource=RoleBindings,
    defaults=_default_binding,
    validate=_validate_role_binding,
    validate_update=_validate_role_binding_update,
    warnings=kind.no_warnings,
    quota=kind.COUNTED,
    granted=kind.ADMINISTERED,
    columns=_COLUMNS,
)
CLUSTER_ROLE_BINDING: Final = kind.stored_as_sent(
    resource=ClusterRoleBindings,
    defaults=_default_binding,
    validate=_validate_cluster_role_binding,
    validate_update=_validate_cluster_role_binding_update,
    warnings=kind.no_warnings,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=_COLUMNS,
)
