"""An index of open watches by what their permission rests on, and the ones to authorize again.

A request is allowed or not when it comes; a watch may last for hours after that. A right that is
taken away ends the watches that rest on it, too. So each open watch is filed under what its
permission rests on: the identities whose bindings count (user and groups, and of a user who acts as
another also their own), the objects that its token needs (the account, and what the token is bound
to), and the time at which that ends by itself. A change of one of these puts the watches filed
there in doubt; ``authorization.attendance`` decides about them again.

A change costs what it touches; right or wrong is not decided here, so that doubting too much is
harmless.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from sliceplane.api.users import User
from sliceplane.server.store.types import Key

#: an identity, or an object
Support = str | Key


def identities(user: User) -> tuple[str, ...]:
    """Returns the keys of the subjects that count for *user*: ``u:NAME`` and ``g:NAME``."""
    return (f"u:{user.name}", *(f"g:{group}" for group in user.groups))


class Standing:
    """Owned by ``server.registry.core.Core``; one caller at a time."""

    def __init__(self) -> None:
        #: what each number rests on
        self._rests: dict[int, tuple[tuple[Support, ...], float | None]] = {}
        self._by_support: dict[Support, dict[int, None]] = {}
        self._doubted: dict[int, None] = {}
        #: (when, number); also of some that have left or rest on something else by now
        self._ends: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._rests)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rests)

    @property
    def doubted(self) -> int:
        return len(self._doubted)

    def admit(self, number: int, supports: Iterable[Support], until: float | None) -> None:
        """*number* rests on *supports* (identities and keys of objects), and on nothing after
        *until*.
        """
        self.leave(number)
        each = tuple(dict.fromkeys(supports))
        self._rests[number] = each, until
        for support in each:
            self._by_support.setdefault(support, {})[number] = None
        if until is not None:
            heapq.heappush(self._ends, (until, number))
            if len(self._ends) > 2 * len(self._rests) + 64:
                self._ends = [
                    (end, each) for each, (_, end) in self._rests.items() if end is not None
                ]
                heapq.heapify(self._ends)

    def leave(self, number: int) -> None:
        """Idempotent."""
        rests = self._rests.pop(number, None)
        self._doubted.pop(number, None)
        for support in rests[0] if rests else ():
            numbers = self._by_support[support]
            del numbers[number]
            if not numbers:
                del self._by_support[support]

    def doubt(self, supports: Iterable[Support]) -> None:
        """These are no longer what they were."""
        if self._rests:
            for support in supports:
                self._doubted.update(self._by_support.get(support, ()))

    def doubt_all(self) -> None:
        self._doubted.update(dict.fromkeys(self._rests))

    def take(self, now: float, most: int) -> tuple[int, ...]:
        """At most *most* of those in doubt, which are so no longer, first in doubt first."""
        while self._ends and self._ends[0][0] <= now:
            until, number = heapq.heappop(self._ends)
            if number in self._rests and self._rests[number][1] == until:
                self._doubted[number] = None
        taken = tuple(islice(self._doubted, most))
        for number in taken:
            del self._doubted[number]
        return taken

    def check(self) -> None:
        expected: dict[Support, dict[int, None]] = {}
        for number, (supports, until) in self._rests.items():
            for support in supports:
                expected.setdefault(support, {})[number] = None
            ended = number in self._doubted or until is None or (until, number) in self._ends
            assert ended, f"nothing reminds of the end of {number} at {until}"
        assert self._by_support == expected, (
            f"filed {self._by_support}, what is there says {expected}"
        )
        assert self._doubted.keys() <= self._rests.keys(), (
            f"in doubt and gone: {self._doubted.keys()}"
        )
