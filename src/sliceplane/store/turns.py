"""Turn-taking between servers that write to one log, so that none starves.

The winner of a race knows the newest state first, and would win the next race too.  So a server that lost, or that
waits with work in hand, *asks for a turn*: it puts a key of its own, and the order in which the log took these keys is
the order of turns.  All servers let the oldest of them go first; a batch takes its own server's key away in the same
transaction.  With two busy servers batches alternate, and nothing is executed that would have to be redone.

Turns are a courtesy, never a lock: no server waits longer than ``PATIENCE_S`` for one turn, and who lost patience takes
the key away with its next batch.  A server that died or hangs costs the others that time, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

#: time for another server to see the newest state, redo its work, and have it stored
PATIENCE_S: Final = 0.25


class _Turn(NamedTuple):
    #: where the log has it; older ones go first
    position: int
    seen_at: float


class Turns:
    """Owned by one ``Replica``."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._others: dict[str, _Turn] = {}
        #: where our key is; 0: there is none that we know of
        self.own_position = 0
        #: we asked, and the log has not shown it yet
        self.asking = False

    def on_asked(self, server: str, position: int, now: float) -> None:
        if server == self._own:
            self.own_position = position
            self.asking = False
        else:
            self._others[server] = _Turn(position, now)

    def on_gone(self, server: str) -> None:
        if server == self._own:
            self.own_position = 0
            self.asking = False
        else:
            self._others.pop(server, None)

    def reset(self, asked: Iterable[tuple[str, int]], now: float) -> None:
        self._others.clear()
        self.on_gone(self._own)
        for server, position in asked:
            self.on_asked(server, position, now)

    def next_deadline(self, now: float) -> float | None:
        """Until when another server goes first; ``None``: it is ours."""
        before_us = [
            turn.seen_at + PATIENCE_S
            for turn in self._others.values()
            if now < turn.seen_at + PATIENCE_S and not 0 < self.own_position < turn.position
        ]
        return max(before_us, default=None)

    def overdue(self, now: float) -> tuple[str, ...]:
        """Servers whose keys the next batch takes away."""
        return tuple(sorted(name for name, turn in self._others.items() if now >= turn.seen_at + PATIENCE_S))
