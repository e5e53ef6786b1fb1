"""Acting as another user: which one, and whether it is allowed (kubernetes.io, User impersonation).

Every part of the identity that is asked for needs the verb ``impersonate`` on a resource of its
own: users, serviceaccounts, groups, and in the group authentication.k8s.io uids and userextras/KEY.
The user that results has what was asked for and no rights besides, but for the group that all
authenticated users are in.
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
_EXTRA = "impersonate-extra-"


class Impersonation(msgspec.Struct, frozen=True):
    """The identity that headers ask for, in their order.  ``extra`` has keys in lower case, values
    as sent.
    """

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


def wanted(headers: Iterable[tuple[str, str]]) -> Impersonation | None:
    """Returns what (lower-case name, value) pairs ask for; ``None`` if nothing.

    Raises the 400 StatusError if something is asked for without a user.
    """
    first: dict[str, str] = {}
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
    for name, value in headers:
        if name == "impersonate-group":
            groups.append(value)
        elif name.startswith(_EXTRA):
            extra.setdefault(_unescaped(name.removeprefix(_EXTRA)), []).append(value)
        elif name in ("impersonate-user", "impersonate-uid"):
            first.setdefault(name, value)
    found = Impersonation(
        user=first.get("impersonate-user", ""),
        uid=first.get("impersonate-uid", ""),
        groups=tuple(groups),
        extra=tuple((key, tuple(values)) for key, values in sorted(extra.items())),
    )
    if found == Impersonation():
        return None
    if not found.user:
        # As Go shows a list of ObjectReferences: kind, namespace, name, uid, version,
        # resourceVersion, fieldPath.
        shown = [f"{{Group  {group}    }}" for group in found.groups]
        shown += [
            f"{{UserExtra  {each}  {_GROUP}/v1  {key}}}"
            for key, values in found.extra
            for each in values
        ]
        shown += [f"{{UID  {found.uid}  {_GROUP}/v1  }}"] if found.uid else []
        raise bad_request(f"requested [{' '.join(shown)}] without impersonating a user")
    return found


def _unescaped(key: str) -> str:
    """A key with its %XX decoded: header names cannot hold a slash.  What is not escaped well stays
    as it is.
    """
    if re.search("%(?![0-9A-Fa-f]{2})", key):
        return key
    raw = re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), key.encode()
    )
    return raw.decode(errors="replace")


def impersonate(policy: PolicyIndex, user: User, asked: Impersonation) -> User:
    """The user that *user* acts as.  Raises the 403 StatusError for the first thing that is not
    granted.
    """
    for attributes in _attributes(asked):
        require(policy, user, attributes)
    account = _account(asked.user)
    groups = asked.groups
    if account is not None and not groups:
        groups = account_groups(account[0])
    if asked.user == ANONYMOUS_NAME:
        if UNAUTHENTICATED not in groups:
            groups = (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return User(name=asked.user, uid=asked.uid, groups=groups, extra=asked.extra)


def _attributes(asked: Impersonation) -> Iterator[Attributes]:
    account = _account(asked.user)
    if account is None:
        yield Attributes(verb="impersonate", resource="users", name=asked.user)
    else:
        yield Attributes(
            verb="impersonate", resource="serviceaccounts", namespace=account[0], name=account[1]
        )
    for group in asked.groups:
        yield Attributes(verb="impersonate", resource="groups", name=group)
    for key, values in asked.extra:
        for value in values:
            yield Attributes(
                verb="impersonate", group=_GROUP, resource="userextras", subresource=key, name=value
            )
    if asked.uid:
        yield Attributes(verb="impersonate", group=_GROUP, resource="uids", name=asked.uid)


def _account(name: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that is called *name*; ``None`` for everybody else,
    and for a name that only looks like one: no account can be called so.
    """
    if not name.startswith(USER_PREFIX):
        return None
    namespace, colon, account = name.removeprefix(USER_PREFIX).partition(":")
    if not colon or check_dns_label(namespace) or check_dns_subdomain(account):
        return None
    return namespace, account
