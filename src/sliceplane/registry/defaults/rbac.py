"""Bindings: the API group of the role and of users and groups may be left out."""

from __future__ import annotations

from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP


def default_binding(document: Document) -> None:
    role = document.setdefault("roleRef", {})
    role["apiGroup"] = role.get("apiGroup") or RBAC_GROUP
    role.setdefault("kind", "")
    role.setdefault("name", "")
    for subject in document.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = subject.get("apiGroup") or RBAC_GROUP
