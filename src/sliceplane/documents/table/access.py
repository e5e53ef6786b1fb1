"""RoleBinding and ClusterRoleBinding: which role, and to whom.  Roles themselves have no columns of their own."""

from __future__ import annotations

from typing import Final

from sliceplane.api.meta import Document
from sliceplane.documents.table.ages import age
from sliceplane.documents.table.columns import AGE, NAME, Cell, Column, Printer, name_of, objects, text


def _binding(binding: Document, now: float) -> tuple[Cell, ...]:
    subjects = objects(binding, "subjects")
    accounts = (each for each in subjects if text(each, "kind") == "ServiceAccount")
    return (
        name_of(binding),
        f"{text(binding, 'roleRef', 'kind')}/{text(binding, 'roleRef', 'name')}",
        age(binding, now),
        _names(subjects, "User"),
        _names(subjects, "Group"),
        ", ".join(f"{text(each, 'namespace')}/{text(each, 'name')}" for each in accounts),
    )


def _names(subjects: list[Document], kind: str) -> str:
    return ", ".join(text(each, "name") for each in subjects if text(each, "kind") == kind)


_BINDING: Final = Printer(
    (
        NAME,
        Column(name="Role", description="Kind and name of the role that is granted."),
        AGE,
        Column(name="Users", priority=1, description="Users that the role is granted to."),
        Column(name="Groups", priority=1, description="Groups that the role is granted to."),
        Column(name="ServiceAccounts", priority=1, description="Service accounts that the role is granted to."),
    ),
    _binding,
)
PRINTERS: Final = {
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING,
    "rolebindings.rbac.authorization.k8s.io": _BINDING,
}
