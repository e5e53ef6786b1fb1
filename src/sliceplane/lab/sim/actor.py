"""What processes of a simulation have in common: a name, a life, and times in which they stand
still.

A process that stands still (a paused machine, SIGSTOP) looks at nothing that comes; afterwards it
looks at everything in the order in which it came.
"""

from __future__ import annotations

from collections import deque

from sliceplane.lab.sim.agenda import Deed
from sliceplane.lab.sim.network import Network


class Actor:
    """Base of ``Process`` and ``SimulatedCandidate``."""

    def __init__(self, actor: str, network: Network) -> None:
        self.actor = actor
        self.alive = True
        self._network = network
        self._agenda = network.agenda
        self._trace = network.trace
        self._stands_until = 0.0
        self._put_off: deque[Deed] = deque()

    def pause(self, seconds: float) -> None:
        """Stand still: nothing that comes is looked at before the end."""
        until = self._stands_until = max(self._stands_until, self._agenda.now + seconds)
        self._agenda.at(until, self._go_on)

    def wake(self) -> None:
        """Stand still no longer than now."""
        self._stands_until = self._agenda.now
        self._go_on()

    def _receive(self, deed: Deed) -> None:
        if not self.alive:
            return
        if self._put_off or self._agenda.now < self._stands_until:
            self._put_off.append(deed)
        else:
            deed()

    def _go_on(self) -> None:
        """Look at what came while the process stood still, in its order."""
        while self.alive and self._put_off and self._agenda.now >= self._stands_until:
            self._put_off.popleft()()
