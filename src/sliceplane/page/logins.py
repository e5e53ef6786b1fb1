"""Who is logged in at the page of a server: sessions in memory, each for a time, and no more than so many.

A *login* is named by a secret that only its browser has, or by the certificate that the browser shows; of a secret the
digest is kept.  It ends when it was idle for half an hour, eight hours after it began, or by a word.  What it may see
is asked of the server each time; ``rights`` is the answer of the last time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

LOGINS_MAX: Final = 16
IDLE_S: Final = 1800.0
LAST_S: Final = 8 * 3600.0


@dataclass(slots=True, eq=False)
class Login:
    """Changed by ``Logins`` and by its owner.  ``token`` or ``certificate`` is what its requests show."""

    key: Hashable
    user: Any
    namespace: str
    began: float
    token: str = ""
    certificate: Any = None
    seen: float = 0.0
    rights: Hashable = None
    #: streams that are open: such a login is not idle
    tabs: int = 0
    #: what was made for it; its owner's
    viewer: Any = None


class Logins:
    """One caller at a time; *now* in seconds on a clock of the caller's."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Login] = {}

    def __iter__(self) -> Any:
        return iter(tuple(self._by_key.values()))

    def admit(self, login: Login, now: float) -> Login | None:
        """*login* is there from now on.  Returns the one that has to go for it, which is the one unused for longest.

        Raises ``OverflowError`` where all have open tabs."""
        gone = None
        if len(self._by_key) >= LOGINS_MAX:
            unused = [other for other in self._by_key.values() if not other.tabs]
            if not unused:
                raise OverflowError(f"{LOGINS_MAX} logins have open tabs, and that is the most")
            gone = min(unused, key=lambda other: other.seen)
            self.end(gone)
        login.seen = now
        self._by_key[login.key] = login
        return gone

    def find(self, key: Hashable, now: float) -> Login | None:
        """The login of that name, which is used *now*."""
        login = self._by_key.get(key)
        if login is None or self.is_over(login, now):
            return None
        login.seen = now
        return login

    def is_over(self, login: Login, now: float) -> bool:
        idle = not login.tabs and now - login.seen > IDLE_S
        return idle or now - login.began > LAST_S

    def end(self, login: Login) -> None:
        """Idempotent."""
        if self._by_key.get(login.key) is login:
            del self._by_key[login.key]
