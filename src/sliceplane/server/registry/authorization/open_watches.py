"""Open watches, which are authorized again whenever their permission may have changed.

Upstream lets an authorized watch run to its timeout, half an hour or more. Here it ends soon after
its account, token, role or binding is removed, with the 401 or 403 of a new request. The check is
that of a request: whether the token is valid, whether its user may impersonate the user of the
headers, and whether that user may watch the resource. ``authorization.dependencies`` knows when to
check.
"""

from __future__ import annotations

import msgspec

from sliceplane.api.errors import StatusError, unauthorized
from sliceplane.api.users import MASTERS, User
from sliceplane.server.registry.authentication import bearer
from sliceplane.server.registry.authentication.impersonation import Impersonation, impersonate
from sliceplane.server.registry.authorization.dependencies import Dependency, identities
from sliceplane.server.registry.authorization.index import require
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.types import Attributes


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was authorized: user, token, the identity to act as, and the action."""

    #: the authenticated user; with a token, its user at the time of the request
    user: User
    #: "": authenticated by a certificate, or anonymous
    token: str = ""
    acting: Impersonation | None = None
    attributes: Attributes


class OpenWatches:
    """The claims of open watches, by number.  Owned by ``Registry``; ``core.dependencies`` has the
    same numbers.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._claims: dict[int, Claim] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def stale(self) -> int:
        """Number of watches that await a check, without those that expired meanwhile."""
        return self._core.dependencies.stale

    def begin(self, claim: Claim, now: float) -> int:
        """Returns the number to pass to ``end``; 0 for a permission that cannot be revoked.  Raises
        the 401 or 403 ``StatusError``.
        """
        dependencies, until = self._authorize(claim, now)
        if not dependencies and until is None:
            return 0
        self._last += 1
        self._claims[self._last] = claim
        self._core.dependencies.admit(self._last, dependencies, until)
        return self._last

    def end(self, number: int) -> None:
        """Idempotent."""
        self._claims.pop(number, None)
        self._core.dependencies.discard(number)

    def review(self, now: float, most: int) -> tuple[tuple[int, StatusError], ...]:
        """Checks at most *most* stale watches.  Returns the refused ones with the error; they are
        removed here.
        """
        refused = []
        for number in self._core.dependencies.take_stale(now, most):
            try:
                dependencies, until = self._authorize(self._claims[number], now)
            except StatusError as error:
                self.end(number)
                refused.append((number, error))
            else:
                self._core.dependencies.admit(number, dependencies, until)
        return tuple(refused)

    def _authorize(self, claim: Claim, now: float) -> tuple[tuple[Dependency, ...], float | None]:
        """Returns the dependencies of *claim*, and its expiry time.  Raises the 401 or 403
        ``StatusError`` if it is refused.
        """
        policy = self._core.policy
        user = claim.user
        dependencies: tuple[Dependency, ...] = ()
        until: float | None = None
        if claim.token:
            authenticated = bearer.authenticate(self._core, claim.token, (), now)
            if authenticated is None:
                raise unauthorized()
            user = authenticated.user
            dependencies = authenticated.dependencies
            until = authenticated.until
        if claim.acting is not None:
            dependencies += _rights(user)
            user = impersonate(policy, user, claim.acting)
        require(policy, user, claim.attributes)
        return dependencies + _rights(user), until

    def check(self) -> None:
        self._core.dependencies.check()
        assert set(self._core.dependencies) == set(self._claims), (
            "claims and dependencies have the same numbers"
        )


def _rights(user: User) -> tuple[Dependency, ...]:
    return () if MASTERS in user.groups else identities(user)
