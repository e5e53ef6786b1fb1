"""Open watches, which are authorized again whenever their permission may have changed.

Upstream lets a watch that was authorised run to its time-out, half an hour or more; here it ends
soon after its account, token, role or binding is gone, with the 401 or 403 that a new request would
get. The question is the very one of a request, from the token on: is it (still) worth something,
may its user act as the user whom the headers name, may that user watch this.
``authorization.standing`` knows when to ask it.
"""

from __future__ import annotations

import msgspec

from sliceplane.api.errors import StatusError, unauthorized
from sliceplane.api.users import MASTERS, User
from sliceplane.server.registry.authentication import bearer
from sliceplane.server.registry.authentication.impersonation import Impersonation, impersonate
from sliceplane.server.registry.authorization.index import require
from sliceplane.server.registry.authorization.standing import Support, identities
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.types import Attributes


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was authorized: user, token, the identity to act as, and the action."""

    #: as authenticated; with a token, who that was when the request came
    user: User
    #: "": a certificate, or nothing
    token: str = ""
    acting: Impersonation | None = None
    wanted: Attributes


class Attendance:
    """The claims of what goes on, by number.  Owned by ``Registry``; ``core.standing`` has the same
    numbers.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._claims: dict[int, Claim] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def doubted(self) -> int:
        """Returns how many watches await a check, without those whose time has come since."""
        return self._core.standing.doubted

    def begin(self, claim: Claim, now: float) -> int:
        """A number to give to ``end``; 0 for what nothing can take away.  Raises the 401 or 403
        ``StatusError``.
        """
        supports, until = self._supports(claim, now)
        if not supports and until is None:
            return 0
        self._last += 1
        self._claims[self._last] = claim
        self._core.standing.admit(self._last, supports, until)
        return self._last

    def end(self, number: int) -> None:
        """Idempotent."""
        self._claims.pop(number, None)
        self._core.standing.leave(number)

    def review(self, now: float, most: int) -> tuple[tuple[int, StatusError], ...]:
        """Ask about at most *most* of those in doubt.  Returns who must stop, and why; they have
        ended here.
        """
        refused = []
        for number in self._core.standing.take(now, most):
            try:
                supports, until = self._supports(self._claims[number], now)
            except StatusError as error:
                self.end(number)
                refused.append((number, error))
            else:
                self._core.standing.admit(number, supports, until)
        return tuple(refused)

    def _supports(self, claim: Claim, now: float) -> tuple[tuple[Support, ...], float | None]:
        """Returns what *claim* rests on, and until when.  Raises the 401 or 403 ``StatusError`` if
        it is not good.
        """
        policy = self._core.policy
        user = claim.user
        supports: tuple[Support, ...] = ()
        until: float | None = None
        if claim.token:
            authenticated = bearer.authenticate(self._core, claim.token, (), now)
            if authenticated is None:
                raise unauthorized()
            user = authenticated.user
            supports = authenticated.supports
            until = authenticated.until
        if claim.acting is not None:
            supports += _rights(user)
            user = impersonate(policy, user, claim.acting)
        require(policy, user, claim.wanted)
        return supports + _rights(user), until

    def check(self) -> None:
        self._core.standing.check()
        assert set(self._core.standing) == set(self._claims), (
            "claims and what is filed have the same numbers"
        )


def _rights(user: User) -> tuple[Support, ...]:
    return () if MASTERS in user.groups else identities(user)
