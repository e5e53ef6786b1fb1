"""Impersonation: the requested user, and whether it is allowed (kubernetes.io, User impersonation).

Each part of the requested identity needs the verb ``impersonate`` on a resource of its own: users,
serviceaccounts, groups, and in the group authentication.k8s.io uids and userextras/KEY. The
resulting user has the requested identity, and in addition only the group of all authenticated
users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from sliceplane.api.errors import bad_request
from sliceplane.api.users import ANONYMOUS_NAME, AUTHENTICATED, UNAUTHENTICATED, User
from sliceplane.kit.names import check_dns_label, check_dns_subdomain
from sliceplane.server.registry.authentication.bearer import USER_PREFIX, account_groups
from sliceplane.server.registry.authorization.index import PolicyIndex, require
from sliceplane.server.registry.types import Attributes

_GROUP = "authentication.k8s.io"


class Impersonation(msgspec.Struct, frozen=True):
    """The identity that headers request, in their order.  ``extra`` has keys in lower case, values
    as sent.
    """

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


def parse_headers(headers: Iterable[tuple[str, str]]) -> Impersonation | None:
    """Returns the identity that (lower-case name, value) pairs request, or ``None``.

    Raises the 400 StatusError if they request anything without a user.
    """
    requested = read_identity(headers, "impersonate-")
    if requested == Impersonation():
        return None
    if not requested.user:
        # As Go prints a list of ObjectReferences: kind, namespace, name, uid, version,
        # resourceVersion, fieldPath.
        parts = [f"{{Group  {group}    }}" for group in requested.groups]
        parts += [
            f"{{UserExtra  {each}  {_GROUP}/v1  {key}}}"
            for key, values in requested.extra
            for each in values
        ]
        parts += [f"{{UID  {requested.uid}  {_GROUP}/v1  }}"] if requested.uid else []
        raise bad_request(f"requested [{' '.join(parts)}] without impersonating a user")
    return requested


def read_identity(headers: Iterable[tuple[str, str]], prefix: str) -> Impersonation:
    """Returns the identity in the (lower-case name, value) pairs whose name begins with *prefix*."""
    first: dict[str, str] = {}
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
    for name, value in headers:
        part = name.removeprefix(prefix) if name.startswith(prefix) else ""
        if part == "group":
            groups.append(value)
        elif part.startswith("extra-"):
            extra.setdefault(_unescaped(part.removeprefix("extra-")), []).append(value)
        elif part in ("user", "uid"):
            first.setdefault(part, value)
    return Impersonation(
        user=first.get("user", ""),
        uid=first.get("uid", ""),
        groups=tuple(groups),
        extra=tuple((key, tuple(values)) for key, values in sorted(extra.items())),
    )


def _unescaped(key: str) -> str:
    """Returns a key with %XX decoded, as header names cannot contain a slash; a key with an invalid
    escape is unchanged.
    """
    if re.search("%(?![0-9A-Fa-f]{2})", key):
        return key
    raw = re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), key.encode()
    )
    return raw.decode(errors="replace")


def impersonate(policy: PolicyIndex, user: User, requested: Impersonation) -> User:
    """Returns the user that *user* impersonates.  Raises the 403 StatusError for the first part
    that is not allowed.
    """
    for attributes in _attributes(requested):
        require(policy, user, attributes)
    account = _account(requested.user)
    groups = requested.groups
    if account is not None and not groups:
        groups = account_groups(account[0])
    if requested.user == ANONYMOUS_NAME:
        if UNAUTHENTICATED not in groups:
            groups = (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return User(name=requested.user, uid=requested.uid, groups=groups, extra=requested.extra)


def _attributes(requested: Impersonation) -> Iterator[Attributes]:
    account = _account(requested.user)
    if account is None:
        yield Attributes(verb="impersonate", resource="users", name=requested.user)
    else:
        yield Attributes(
            verb="impersonate", resource="serviceaccounts", namespace=account[0], name=account[1]
        )
    for group in requested.groups:
        yield Attributes(verb="impersonate", resource="groups", name=group)
    for key, values in requested.extra:
        for value in values:
            yield Attributes(
                verb="impersonate", group=_GROUP, resource="userextras", subresource=key, name=value
            )
    if requested.uid:
        yield Attributes(verb="impersonate", group=_GROUP, resource="uids", name=requested.uid)


def _account(name: str) -> tuple[str, str] | None:
    """Returns namespace and name of the service account with the user name *name*; ``None`` for
    other users, and for a name that no account can have.
    """
    if not name.startswith(USER_PREFIX):
        return None
    namespace, colon, account = name.removeprefix(USER_PREFIX).partition(":")
    if not colon or check_dns_label(namespace) or check_dns_subdomain(account):
        return None
    return namespace, account
