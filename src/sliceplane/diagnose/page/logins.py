"""Logins at the page of a server: sessions in memory, bounded in number and time, shared by
account.

A *login* is identified by a secret that only its browser has, or by the browser's certificate; only
the digest of a secret is kept. It ends after half an hour without a request or a tab, eight hours
after it began, or on request. The owner queries the server for the rights of a login repeatedly;
``rights`` is the last answer.

If all slots are taken, a new login evicts another: of a lower standing, then one without tabs, then
one of an account with several. So no account can lock out one of a higher or equal standing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sliceplane.kit.delays import TokenBucket
from sliceplane.kit.shares import Shares, Standing

LOGINS_MAX: Final = 16
#: logins of one account, however many are free
LOGINS_EACH_MAX: Final = 4
IDLE_S: Final = 1800.0
LAST_S: Final = 8 * 3600.0
#: seconds in which the link that is printed at the start logs in
LINK_S: Final = 300.0
#: tries of a link by all clients: rate per second, and burst
LINK_TRIES_PER_S: Final = 1.0
LINK_TRIES: Final = 10

_RANKS: Final[dict[Standing, int]] = {"ordinary": 0, "vital": 1, "exempt": 2}


@dataclass(slots=True, eq=False)
class Login:
    """One login. Changed by ``Logins`` and by its owner. Its requests use ``token`` or
    ``certificate``.
    """

    key: Hashable
    user: Any
    account: str
    namespace: str
    began: float
    standing: Standing = "ordinary"
    token: str = ""
    certificate: Any = None
    last_used: float = 0.0
    rights: Hashable = None
    #: open streams: a login with one is not idle
    tabs: int = 0
    #: the owner's model of the cluster for this login
    viewer: Any = None


class LoginLink:
    """A secret that logs in once, until *ends*; only its *digest* is kept. *now*: as in ``Logins``.

    Tries are limited before the secret is compared, so at most a few hundred guesses are possible
    in all.
    """

    def __init__(self, digest: bytes, ends: float) -> None:
        self._digest = digest
        self._ends = ends
        self._is_used = False
        self._tries = TokenBucket(rate_per_s=LINK_TRIES_PER_S, burst=LINK_TRIES)

    def is_limited(self, now: float) -> bool:
        """Counts a try.  Returns True if there were too many, so that the secret must not be
        compared.
        """
        return not self._tries.try_take(now)

    def redeem(self, digest: bytes, now: float) -> str:
        """Uses up the link. Returns the reason, as a clause, why *digest* does not log in; "" if it
        does.
        """
        if digest != self._digest:
            return "this link is not of this start of the server, or a part of it is missing"
        if self._is_used:
            return "this link was used already: it logs in once"
        if now > self._ends:
            return f"this link has expired: it counts for {LINK_S / 60:.0f} minutes"
        self._is_used = True
        return ""


class Logins:
    """The logins. One caller at a time. *now*: seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Login] = {}
        self.shares = Shares(LOGINS_MAX)

    def __iter__(self) -> Iterator[Login]:
        return iter(tuple(self._by_key.values()))

    def admit(self, login: Login, now: float) -> tuple[Login, ...]:
        """Adds *login*. Returns the logins that it evicted.

        Raises ``OverflowError`` if no other login can be evicted.
        """
        ended = []
        while not self._take(login):
            victim = self._find_victim(login)
            if victim is None:
                raise OverflowError(f"{LOGINS_MAX} logins have open tabs, and that is the most")
            self.end(victim)
            ended.append(victim)
        login.last_used = now
        self._by_key[login.key] = login
        return tuple(ended)

    def _take(self, login: Login) -> bool:
        # Exempt accounts have no bound in ``Shares``; here each account has one.
        if self.shares.used_by(login.account) >= LOGINS_EACH_MAX:
            return False
        return self.shares.take(login.account, 1, login.standing)

    def _find_victim(self, login: Login) -> Login | None:
        own = [other for other in self if other.account == login.account]
        if len(own) >= LOGINS_EACH_MAX:
            return min(own, key=lambda other: (other.tabs > 0, other.last_used))
        count, rank = self.shares.used_by, _RANKS[login.standing]

        def yields(other: Login) -> bool:
            if other.account == login.account or _RANKS[other.standing] < rank:
                return True
            return _RANKS[other.standing] == rank and (not other.tabs or count(other.account) > 1)

        def order(other: Login) -> tuple[int, bool, bool, int, float]:
            is_other = other.account != login.account
            return (
                _RANKS[other.standing],
                other.tabs > 0,
                is_other,
                -count(other.account),
                other.last_used,
            )

        return min(filter(yields, self), key=order, default=None)

    def find(self, key: Hashable, now: float) -> Login | None:
        """Returns the login of that name and notes its use."""
        login = self._by_key.get(key)
        if login is None or self.is_over(login, now):
            return None
        login.last_used = now
        return login

    def is_over(self, login: Login, now: float) -> bool:
        idle = not login.tabs and now - login.last_used > IDLE_S
        return idle or now - login.began > LAST_S

    def end(self, login: Login) -> None:
        """Idempotent."""
        if self._by_key.get(login.key) is login:
            del self._by_key[login.key]
            self.shares.release(login.account)

    def check(self) -> None:
        self.shares.check()
        assert self.shares.total == len(self._by_key) <= LOGINS_MAX, f"{len(self._by_key)} logins"
