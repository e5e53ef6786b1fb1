"""A bounded amount of a resource that accounts share and may keep for any time: bytes, streams,
watches.

An account may take at most as much as remains free. So a later account always finds room: one
account alone gets half, two get a third each, and no account needs to know the others. (Choudhury
and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998, share the
memory of a switch in this way.) The last tenth is for vital accounts; exempt ones may take all that
remains.

The owner takes an amount before it stores something for an account, and returns it on removal. A
cost is the size in memory, not on the wire, so the sum of all amounts bounds the memory of the
process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

#: ``vital``: keeps the cluster alive, may use the last tenth; ``exempt``: an administrator, may use
#: all that remains
Standing = Literal["ordinary", "vital", "exempt"]


class Shares:
    """Amounts by account.  One owner, one thread.

    ``total`` is the amount in use, ``refused`` counts refused requests for more.
    """

    def __init__(self, most: int, *, most_each: int | None = None) -> None:
        """*most*: the bound of the total; *most_each*: the bound of one account, however much
        remains.
        """
        self.most = most
        self._most_each = most_each
        self._amounts: dict[str, int] = {}
        self.total = 0
        self.refused = 0

    def take(self, account: str, amount: int = 1, standing: Standing = "ordinary") -> bool:
        """Charges *account* with *amount* more and returns True, or returns False and charges
        nothing.

        If nothing is in use, any amount is granted: something larger than the bound would otherwise
        never get in.
        """
        used = self._amounts.get(account, 0)
        if self.total and not self._may_take(used, amount, standing):
            self.refused += 1
            return False
        self._amounts[account] = used + amount
        self.total += amount
        return True

    def add(self, account: str, amount: int) -> None:
        """Charges *account* with *amount*, which may be negative, without any bound: the owner
        called ``has_room`` before.
        """
        used = self._amounts.get(account, 0) + amount
        if used:
            self._amounts[account] = used
        else:
            self._amounts.pop(account, None)
        self.total += amount

    def has_room(self, account: str, standing: Standing = "ordinary") -> bool:
        """Returns True if *account* may take more; counts as refused otherwise."""
        if self._may_take(self._amounts.get(account, 0), 1, standing):
            return True
        self.refused += 1
        return False

    def _may_take(self, used: int, amount: int, standing: Standing) -> bool:
        if standing == "exempt":
            return amount <= self.most - self.total
        if self._most_each is not None and used + amount > self._most_each:
            return False
        most = self.most if standing == "vital" else self.most - self.most // 10
        return used + amount <= most - self.total

    def release(self, account: str, amount: int = 1) -> None:
        """Returns *amount* that ``take`` charged *account* with."""
        remaining = self._amounts[account] - amount
        assert remaining >= 0, f"{account} returns {amount} and has {self._amounts[account]}"
        if remaining:
            self._amounts[account] = remaining
        else:
            del self._amounts[account]
        self.total -= amount

    def release_all(self, account: str) -> None:
        """Returns all that *account* has; idempotent."""
        self.total -= self._amounts.pop(account, 0)

    def __iter__(self) -> Iterator[str]:
        """The accounts that have something."""
        return iter(tuple(self._amounts))

    def used_by(self, account: str) -> int:
        return self._amounts.get(account, 0)

    def check(self) -> None:
        assert all(amount > 0 for amount in self._amounts.values()), (
            f"an account with no amount is kept: {self._amounts}"
        )
        assert sum(self._amounts.values()) == self.total, (
            f"the amounts {self._amounts} do not add up to {self.total}"
        )
