"""Returns the user of a bearer token.

The token service verifies the signature. This module checks at every request, with a few lookups,
the time and the audiences of the token, and that its account and its bound object exist with the
uids in the token. So the tokens of a deleted account are invalid from the next request on.
"""

from __future__ import annotations

import math

import msgspec

from sliceplane.api.scheme import Nodes, Pods, Resource, Secrets, ServiceAccounts
from sliceplane.api.users import AUTHENTICATED, User
from sliceplane.kit.times import parse_time
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.types import Authenticated
from sliceplane.server.store.types import Key

#: tolerated clock skew, in seconds: a token is valid this much earlier and later, and an object
#: that is being deleted this much longer
LEEWAY_S = 60.0
#: the private claim of Kubernetes
PRIVATE_CLAIM = "kubernetes.io"
USER_PREFIX = "system:serviceaccount:"
ALL_ACCOUNTS = "system:serviceaccounts"
_EXTRA = "authentication.kubernetes.io/"


class _Reference(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""


class _Private(msgspec.Struct, frozen=True):
    namespace: str
    serviceaccount: _Reference
    secret: _Reference | None = None
    pod: _Reference | None = None
    node: _Reference | None = None


class _Claims(msgspec.Struct, frozen=True):
    iss: str
    sub: str
    aud: str | tuple[str, ...]
    exp: float
    private: _Private = msgspec.field(name=PRIVATE_CLAIM)
    nbf: float = 0
    jti: str = ""


def authenticate(
    core: Core, token: str, audiences: tuple[str, ...], now: float
) -> Authenticated | None:
    """Returns the user of *token*, or ``None`` if it is not valid for any of *audiences* (empty:
    the server's own).
    """
    own = core.tokens.audiences
    requested = audiences or own
    content = core.tokens.read(token)
    if content is None:
        return None
    if isinstance(content, User):
        # A static token has no audience: it is valid for all of the server's.
        shared = tuple(audience for audience in requested if audience in own)
        return Authenticated(content, shared) if shared or not requested else None
    try:
        claims = msgspec.convert(content, _Claims)
    except msgspec.ValidationError:
        # A token of another issuer with the same key: not one of a service account.
        return None
    token_audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    shared = tuple(audience for audience in requested if audience in token_audiences)
    in_time = claims.nbf - LEEWAY_S <= now <= claims.exp + LEEWAY_S
    if claims.iss != core.tokens.issuer or not in_time or not shared:
        return None
    return _authenticate_account(core, claims, shared, now)


def _authenticate_account(
    core: Core, claims: _Claims, audiences: tuple[str, ...], now: float
) -> Authenticated | None:
    private = claims.private
    namespace = private.namespace
    account = private.serviceaccount
    if claims.sub != f"{USER_PREFIX}{namespace}:{account.name}":
        return None
    bound: list[tuple[Resource, _Reference | None]] = [
        (ServiceAccounts, account),
        (Secrets, private.secret),
        (Pods, private.pod),
        # In a token bound to a Pod, the node is informative and not checked.
        (Nodes, None if private.pod else private.node),
    ]
    dependencies = []
    until = claims.exp
    for resource, reference in bound:
        if reference is not None:
            key = Key(
                resource.storage_key, namespace if resource.namespaced else "", reference.name
            )
            ends = _end_of(core, key, reference.uid)
            if ends is None or ends < now - LEEWAY_S:
                return None
            dependencies.append(key)
            until = min(until, ends)
    user = account_user(namespace, account.name, account.uid, _extra(claims))
    return Authenticated(user, audiences, tuple(dependencies), until + LEEWAY_S)


def account_user(
    namespace: str, name: str, uid: str = "", extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
) -> User:
    return User(
        name=f"{USER_PREFIX}{namespace}:{name}",
        uid=uid,
        groups=(*account_groups(namespace), AUTHENTICATED),
        extra=extra,
    )


def account_groups(namespace: str) -> tuple[str, ...]:
    return (ALL_ACCOUNTS, f"{ALL_ACCOUNTS}:{namespace}")


def _end_of(core: Core, key: Key, uid: str) -> float | None:
    """Returns the deletionTimestamp of the object with *uid* (``inf``: none), or ``None`` if it
    does not exist.
    """
    record = core.store.latest(key)
    if record is None or record.uid != uid:
        return None
    ends = document_of(record)["metadata"].get("deletionTimestamp")
    return math.inf if ends is None else parse_time(ends)


def _extra(claims: _Claims) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns the user's ``extra``, sorted by name."""
    entries = {"credential-id": f"JTI={claims.jti}" if claims.jti else ""}
    for member, reference in (("node", claims.private.node), ("pod", claims.private.pod)):
        if reference is not None:
            entries |= {f"{member}-name": reference.name, f"{member}-uid": reference.uid}
    return tuple((f"{_EXTRA}{name}", (value,)) for name, value in sorted(entries.items()) if value)
