"""Something of which there is only so much, shared among users who hold it for as long as they like.

A user may hold as much as is left for all others, and no more: so a later user finds room, one user alone gets
half, two get a third each, and none has to be told who else there is.  (Choudhury and Hahne, "Dynamic queue length
thresholds for shared-memory packet switches", 1998, share the memory of a switch so.)  The last tenth is for what
keeps the cluster alive, and for who is exempt; these may take all that is left.
"""

from __future__ import annotations

from sliceplane.flowcontrol.defaults import VITAL
from sliceplane.flowcontrol.types import Level


class Shares:
    """Owned by the server.  ``total`` is what is held now, ``refused`` how often a user got none."""

    def __init__(self, most: int, *, most_each: int | None = None) -> None:
        """*most_each*: what one user may hold at most, however much is left."""
        self.most = most
        self._most_each = most_each
        self._held: dict[str, int] = {}
        self.total = 0
        self.refused = 0

    def take(self, user: str, level: Level, amount: int = 1) -> bool:
        """Whether *user* got *amount* more.  The first of all gets it, however much it is."""
        held = self._held.get(user, 0)
        if self.total and not self._may(held, amount, level):
            self.refused += 1
            return False
        self._held[user] = held + amount
        self.total += amount
        return True

    def _may(self, held: int, amount: int, level: Level) -> bool:
        if level.exempt:
            return amount <= self.most - self.total
        if self._most_each is not None and held + amount > self._most_each:
            return False
        most = self.most if level.name in VITAL else self.most - self.most // 10
        return held + amount <= most - self.total

    def give(self, user: str, amount: int = 1) -> None:
        """*user* has done with *amount*."""
        left = self._held[user] - amount
        if left:
            self._held[user] = left
        else:
            del self._held[user]
        self.total -= amount

    def held_by(self, user: str) -> int:
        return self._held.get(user, 0)

    def check(self) -> None:
        assert all(amount > 0 for amount in self._held.values()), f"a user holds nothing: {self._held}"
        assert sum(self._held.values()) == self.total, f"{self._held} are not {self.total}"
