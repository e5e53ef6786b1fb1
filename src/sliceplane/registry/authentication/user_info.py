"""A user as documents tell of one: UserInfo of authentication.k8s.io, in reviews and in the audit log."""

from __future__ import annotations

from sliceplane.api.meta import Document
from sliceplane.registry.types import User


def user_info(user: User) -> Document:
    """Without empty members."""
    extra = {name: list(values) for name, values in user.extra}
    members = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    return {name: value for name, value in members.items() if value}
