"""Users as the API server authenticates them, and the credentials that name them."""

from __future__ import annotations

import msgspec

from sliceplane.api.meta import Document
from sliceplane.kit.shares import Standing

MASTERS = "system:masters"
NODES = "system:nodes"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
#: requests without credentials
ANONYMOUS_NAME = "system:anonymous"
#: longer bearer tokens are refused unread
TOKEN_CHARACTERS_MAX = 16 * 1024


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    #: (name, values), sorted by name
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


def standing_of(user: User) -> Standing:
    """The user's standing where accounts share something."""
    if MASTERS in user.groups:
        return "exempt"
    return "vital" if NODES in user.groups else "ordinary"


def user_info(user: User) -> Document:
    """A user as documents show one (UserInfo of authentication.k8s.io), without empty members."""
    extra = {name: list(values) for name, values in user.extra}
    members = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    return {name: value for name, value in members.items() if value}


def bearer_token(authorization: bytes) -> str:
    """Of an ``Authorization`` header; "" if it has none."""
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
