"""Authentication and authorisation, which come before everything else.

Authentication: a client certificate of our authority (CN = user, O = groups), else a bearer token
(of the static token file, or of a service account), else anonymous (``system:anonymous``). A bad
token, and a certificate that is over, is a 401 even where anonymous users may read. A connection
may live longer than its certificate, and TLS may resume a session without looking at one, so its
time is looked at for each request.

Authorisation is the registry's decision (``server.registry.authorization``).
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path

from sliceplane.api.errors import unauthorized
from sliceplane.api.users import ANONYMOUS_NAME, AUTHENTICATED, UNAUTHENTICATED, User, bearer_token
from sliceplane.kit.io.files import read_text
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.watch.io.certificates import Certificate

_log = get_logger("auth")

ANONYMOUS = User(name=ANONYMOUS_NAME, groups=(UNAUTHENTICATED,))


class Tokens:
    """Static bearer tokens: ``token,user,uid,"group1,group2"`` a line, upstream's
    ``--token-auth-file``.

    Lines without a token are passed over, and of a token that is there twice the last line counts,
    as upstream.

    Kept as digests, so that looking one up takes the same time however much of it was guessed
    right.
    """

    def __init__(self, users: Mapping[str, User] | None = None) -> None:
        self._users = {_digest(token): user for token, user in (users or {}).items()}

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Raises ``StartError`` if the file cannot be read or a line has fewer than three
        columns.
        """
        users: dict[str, User] = {}
        try:
            lines = io.StringIO(read_text(path), newline="")
            for number, row in enumerate(csv.reader(lines), 1):
                if not row:
                    continue
                if len(row) < 3:
                    raise StartError(
                        f"token file {path}, line {number}: expected token,user,uid[,groups]"
                    )
                if not row[0]:
                    _log.warning(
                        "a line of the token file has no token", path=str(path), line=number
                    )
                    continue
                groups = (
                    tuple(group.strip() for group in row[3].split(",") if group.strip())
                    if row[3:]
                    else ()
                )
                users[row[0]] = User(name=row[1], uid=row[2], groups=(*groups, AUTHENTICATED))
        except (OSError, csv.Error) as error:
            raise StartError(f"cannot read the token file {path}: {error}") from error
        return cls(users)

    def find(self, token: str) -> User | None:
        return self._users.get(_digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def authenticate(
    certificate: Certificate | None,
    authorization: bytes,
    find_user: Callable[[str], User | None],
    *,
    now: float,
    anonymous: bool = True,
) -> User:
    """The user of a request.

    Raises the 401 ``StatusError`` for a bearer token that *find_user* does not know, for a
    *certificate* that does not count *now*, without a token, and for no credentials at all where no
    user may be *anonymous*.
    """
    if certificate is not None and certificate.counts(now):
        return certificate.user
    token = bearer_token(authorization)
    if not token:
        if not anonymous or certificate is not None:
            raise unauthorized()
        return ANONYMOUS
    user = find_user(token)
    if user is None:
        raise unauthorized()
    return user
