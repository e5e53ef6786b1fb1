"""Who asks, and may they: the two questions that come before every other (reference B17).

Authentication: a client certificate of our authority (CN = user, O = groups), else a bearer token of the
static token file, else nobody in particular (``system:anonymous``).  A bad token is a 401 even where
anonymous users may read.

Authorisation is one function, ``authorize``: ``system:masters`` may do everything, everybody may read
health and version, every authenticated user may discover what the server offers.  Roles come later and
replace nothing but that function's last line.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sliceplane.api.errors import StatusError, forbidden, show, unauthorized
from sliceplane.registry.types import User
from sliceplane.shell.start_error import StartError

AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"
ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))

_PUBLIC_ROOTS = ("/healthz", "/livez", "/readyz", "/version")
_DISCOVERY_ROOTS = (*_PUBLIC_ROOTS, "/api", "/apis", "/openapi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What a request wants to do, in the terms that rules are written in.

    ``verb`` is a resource verb (get, list, watch, create, ...) or, where ``resource`` is "", the method in
    lower case, and ``path`` says on what.
    """

    verb: str
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class Tokens:
    """Static bearer tokens: ``token,user,uid,"group1,group2"`` a line, upstream's ``--token-auth-file``.

    Kept as digests, so that looking one up takes the same time however much of it was guessed right.
    """

    def __init__(self, users: Mapping[str, User] | None = None) -> None:
        self._users = {_digest(token): user for token, user in (users or {}).items()}

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Raises ``StartError`` if the file cannot be read or a line has fewer than three columns."""
        users: dict[str, User] = {}
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for number, row in enumerate(csv.reader(file), 1):
                    if not row:
                        continue
                    if len(row) < 3 or not row[0]:
                        raise StartError(f"token file {path}, line {number}: expected token,user,uid[,groups]")
                    groups = tuple(group.strip() for group in row[3].split(",") if group.strip()) if row[3:] else ()
                    users[row[0]] = User(name=row[1], uid=row[2], groups=(*groups, AUTHENTICATED))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise StartError(f"cannot read the token file {path}: {error}") from error
        return cls(users)

    def find(self, token: str) -> User | None:
        return self._users.get(_digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def user_of_certificate(peer: Mapping[str, Any] | None) -> User | None:
    """The user that a verified certificate names, from ``ssl.SSLSocket.getpeercert()``'s dictionary."""
    if not peer:
        return None
    name, groups = "", []
    for relative_name in peer.get("subject", ()):
        for attribute, value in relative_name:
            if attribute == "commonName":
                name = value
            elif attribute == "organizationName":
                groups.append(value)
    return User(name=name, groups=(*groups, AUTHENTICATED)) if name else None


def authenticate(certificate_user: User | None, authorization: bytes, tokens: Tokens) -> User:
    """The user of a request.  Raises the 401 ``StatusError`` for a bearer token that we do not know."""
    if certificate_user is not None:
        return certificate_user
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        return ANONYMOUS
    user = tokens.find(token)
    if user is None:
        raise unauthorized()
    return user


def authorize(user: User, wanted: Attributes) -> None:
    """Raises the 403 ``StatusError`` if *user* may not do what is *wanted*."""
    if MASTERS in user.groups:
        return
    if not wanted.resource and wanted.verb in ("get", "head"):
        roots = _DISCOVERY_ROOTS if AUTHENTICATED in user.groups else _PUBLIC_ROOTS
        if any(wanted.path == root or wanted.path.startswith(root + "/") for root in roots):
            return
    raise _refusal(user, wanted)


def _refusal(user: User, wanted: Attributes) -> StatusError:
    who = f"User {show(user.name)} cannot {wanted.verb}"
    if not wanted.resource:
        return StatusError(403, "Forbidden", f"forbidden: {who} path {show(wanted.path)}", {})
    what = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    # Upstream speaks of the namespace of a Namespace object as its own.
    namespace = wanted.name if wanted.resource == "namespaces" else wanted.namespace
    where = f"in the namespace {show(namespace)}" if namespace else "at the cluster scope"
    name = wanted.name if wanted.verb not in ("list", "watch", "create", "deletecollection") else ""
    why = f"{who} resource {show(what)} in API group {show(wanted.group)} {where}"
    return forbidden(wanted.resource, wanted.group, name, why)
