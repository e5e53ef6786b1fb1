"""An index of open watches by the dependencies of their permission, and the stale ones.

A request is authorized once, when it arrives; a watch may last for hours after that. A revoked
right ends the watches that depend on it, too. So each open watch is indexed by its dependencies:
the identities whose bindings apply (user and groups, with impersonation also those of the
impersonating user), and the objects that its token needs (the account, and the bound object). The
permission may also expire at a time. A change of a dependency makes its watches stale;
``authorization.open_watches`` authorizes them again.

A change costs time proportional to the affected watches. Nothing is decided here, so a superfluous
invalidation is harmless.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from sliceplane.api.users import User
from sliceplane.server.store.types import Key

#: an identity, or the key of an object
Dependency = str | Key


def identities(user: User) -> tuple[str, ...]:
    """Returns the keys of the subjects that include *user*: ``u:NAME`` and ``g:NAME``."""
    return (f"u:{user.name}", *(f"g:{group}" for group in user.groups))


class Dependencies:
    """The dependencies of open watches.  Owned by ``server.registry.core.Core``; one caller at a
    time.
    """

    def __init__(self) -> None:
        #: dependencies and expiry time of each watch, by number
        self._watches: dict[int, tuple[tuple[Dependency, ...], float | None]] = {}
        self._by_dependency: dict[Dependency, dict[int, None]] = {}
        self._stale: dict[int, None] = {}
        #: (expiry time, number); also outdated entries of ended or changed watches
        self._ends: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._watches)

    def __iter__(self) -> Iterator[int]:
        return iter(self._watches)

    @property
    def stale(self) -> int:
        return len(self._stale)

    def admit(self, number: int, dependencies: Iterable[Dependency], until: float | None) -> None:
        """Sets the dependencies of *number* (identities and keys of objects), and its expiry
        time.
        """
        self.discard(number)
        each = tuple(dict.fromkeys(dependencies))
        self._watches[number] = each, until
        for dependency in each:
            self._by_dependency.setdefault(dependency, {})[number] = None
        if until is not None:
            heapq.heappush(self._ends, (until, number))
            if len(self._ends) > 2 * len(self._watches) + 64:
                self._ends = [
                    (end, each) for each, (_, end) in self._watches.items() if end is not None
                ]
                heapq.heapify(self._ends)

    def discard(self, number: int) -> None:
        """Idempotent."""
        watch = self._watches.pop(number, None)
        self._stale.pop(number, None)
        for dependency in watch[0] if watch else ():
            numbers = self._by_dependency[dependency]
            del numbers[number]
            if not numbers:
                del self._by_dependency[dependency]

    def invalidate(self, dependencies: Iterable[Dependency]) -> None:
        """Makes the watches that depend on one of *dependencies* stale."""
        if self._watches:
            for dependency in dependencies:
                self._stale.update(self._by_dependency.get(dependency, ()))

    def invalidate_all(self) -> None:
        self._stale.update(dict.fromkeys(self._watches))

    def take_stale(self, now: float, most: int) -> tuple[int, ...]:
        """Takes out at most *most* stale watches, in the order in which they became stale."""
        while self._ends and self._ends[0][0] <= now:
            until, number = heapq.heappop(self._ends)
            if number in self._watches and self._watches[number][1] == until:
                self._stale[number] = None
        taken = tuple(islice(self._stale, most))
        for number in taken:
            del self._stale[number]
        return taken

    def check(self) -> None:
        expected: dict[Dependency, dict[int, None]] = {}
        for number, (dependencies, until) in self._watches.items():
            for dependency in dependencies:
                expected.setdefault(dependency, {})[number] = None
            ended = number in self._stale or until is None or (until, number) in self._ends
            assert ended, f"{number} has no entry for its end at {until}"
        assert self._by_dependency == expected, (
            f"indexed {self._by_dependency}, expected {expected}"
        )
        assert self._stale.keys() <= self._watches.keys(), f"stale and ended: {self._stale.keys()}"
