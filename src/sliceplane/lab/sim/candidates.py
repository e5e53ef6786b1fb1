"""Several instances of one controller, of which only the leader works:
``watch.controller.election`` over the network.

It does the same as the production host (``watch.io.hosting.election``), on virtual time. A term
begins with a new process without state, and its end kills the process; an instance whose requests
get no answer notices it by its clock. There must be at most one leader: the beginning of a term is
checked against all other instances.

To the simulation, all instances together are one part, like a process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sliceplane.api.errors import StatusError, unreachable
from sliceplane.api.scheme import Resource
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.network import Actor, Network
from sliceplane.lab.sim.process import Process
from sliceplane.lab.sim.scheduler import Alarm
from sliceplane.lab.sim.server import Server
from sliceplane.watch.controller.election import Election, ElectionConfig
from sliceplane.watch.controller.loop import PAST_DEADLINE_S

#: seconds between the end of an instance and the start of its replacement
RESTART_S: Final = 5.0

Spawn = Callable[[str], Process]


class SimulatedCandidate(Actor):
    """One instance. Owned by ``Candidates``; *claim* is called when a term begins, and raises if
    another instance leads.
    """

    def __init__(
        self,
        actor: str,
        lease: str,
        network: Network,
        rng: Rng,
        *,
        spawn: Spawn,
        claim: Callable[[SimulatedCandidate], None],
    ) -> None:
        super().__init__(actor, network)
        self.process: Process | None = None
        self._config = ElectionConfig(identity=actor, name=lease)
        self._core = Election(self._config, rng)
        self._spawn = spawn
        self._claim = claim
        #: number of the newest request; answers to older ones are dropped
        self._request = 0
        self._alarm = Alarm(self._scheduler, self._advance, self._receive)

    def leading(self) -> bool:
        """Returns True if it leads by its own clock. A paused instance cannot act."""
        return self.alive and self._core.leading(self._scheduler.now)

    def start(self) -> None:
        self._advance()

    def kill(self) -> None:
        self.alive = False
        self._end_term()

    def resign(self) -> None:
        """Stops in order: first the work, then the Lease is released."""
        self._end_term()
        self._core.stop()
        self._advance()

    def pause(self, seconds: float) -> None:
        super().pause(seconds)
        if self.process is not None:
            self.process.pause(seconds)

    def wake(self) -> None:
        super().wake()
        if self.process is not None:
            self.process.wake()

    def _resume(self) -> None:
        if self._scheduler.now >= self._paused_until:
            self._advance()  # checks the clock before handling what arrived
        super()._resume()

    def _advance(self) -> None:
        """Updates the term and sends the next request. Called after every change that may affect
        the leader.
        """
        if not self.alive:
            return
        now = self._scheduler.now
        if self._core.leading(now) and self.process is None:
            self._claim(self)
            self._trace.note(now, self.actor, "lead", self._config.name)
            self.process = self._spawn(self.actor)
            self.process.start()
        elif not self._core.leading(now):
            self._end_term()
        request = self._core.take_request(now)
        if request is not None:
            self._request += 1
            number = self._request
            self._network.send(
                self.actor,
                request,
                lambda answer: self._receive(lambda: self._on_answer(number, answer)),
            )
            due = self._core.next_deadline()
            remaining_s = self._config.renew_deadline_s if due is None else max(0.0, due - now)
            self._scheduler.after(
                remaining_s,
                lambda: self._receive(lambda: self._on_answer(number, unreachable("timeout"))),
            )
        due = self._core.next_deadline()
        if due is not None:
            self._alarm.set(max(due, now + PAST_DEADLINE_S))

    def _on_answer(self, number: int, answer: bytes | StatusError) -> None:
        if number != self._request:
            return
        self._request += 1
        if isinstance(answer, StatusError):
            self._core.on_error(answer, self._scheduler.now)
        else:
            self._core.on_answer(answer, self._scheduler.now)
        self._advance()

    def _end_term(self) -> None:
        if self.process is not None:
            self._trace.note(self._scheduler.now, self.actor, "stop-leading", self._config.name)
            self.process.kill()
            self.process = None

    def check(self) -> None:
        self._core.check()
        if self.process is not None:
            self.process.check()


class Candidates:
    """All instances of one controller. Owned by one simulation, which treats them as
    one process.
    """

    def __init__(self, name: str, count: int, network: Network, rng: Rng, *, spawn: Spawn) -> None:
        assert count > 1, f"{count} instances need no election"
        self.actor = name
        self.alive = True
        #: number of terms
        self.terms = 0
        self._network = network
        self._rng = rng
        self._spawn = spawn
        self._started = 0
        self._candidates = [self._make() for _ in range(count)]

    def _make(self) -> SimulatedCandidate:
        self._started += 1
        return SimulatedCandidate(
            f"{self.actor}@{self._started}",
            self.actor,
            self._network,
            self._rng.fork(),
            spawn=self._spawn,
            claim=self._begin_term,
        )

    def _begin_term(self, candidate: SimulatedCandidate) -> None:
        self.terms += 1
        for other in self._candidates:
            if other is not candidate and other.leading():
                raise Broken(
                    "one-leader",
                    other.actor,
                    f"{candidate.actor} comes to lead, and {other.actor} leads",
                )

    @property
    def leader(self) -> SimulatedCandidate:
        """The instance that works; the first if none does."""
        working = (candidate for candidate in self._candidates if candidate.process is not None)
        return next(working, self._candidates[0])

    def start(self) -> None:
        for candidate in self._candidates:
            candidate.start()

    def kill(self) -> None:
        self.alive = False
        for candidate in self._candidates:
            candidate.kill()

    def crash(self) -> None:
        """Kills the leader without a hand-over; another instance starts a little later."""
        leader = self.leader
        leader.kill()
        self._replace(leader)

    def hand_over(self) -> None:
        """Stops the leader in order, as in a rolling update."""
        leader = self.leader
        leader.resign()
        self._replace(leader)

    def _replace(self, old: SimulatedCandidate) -> None:
        fresh = self._make()
        self._candidates[self._candidates.index(old)] = fresh
        self._network.scheduler.after(RESTART_S, lambda: fresh.start() if self.alive else None)

    def pause(self, seconds: float) -> None:
        self.leader.pause(seconds)

    def wake(self) -> None:
        for candidate in self._candidates:
            candidate.wake()

    def silence(self, resource: Resource) -> None:
        process = self.leader.process
        if process is not None:
            process.silence(resource)

    def cut_watches(self) -> None:
        process = self.leader.process
        if process is not None:
            process.cut_watches()

    def check(self) -> None:
        for candidate in self._candidates:
            candidate.check()
        acting = [
            other.actor
            for other in self._candidates
            if other.process is not None and other.leading()
        ]
        if len(acting) != 1:
            raise Broken(
                "one-leader", self.actor, f"{self.actor} has the leaders {acting or 'none'}"
            )

    def stale(self, server: Server) -> str:
        process = self.leader.process
        return f"{self.actor} has no leader" if process is None else process.stale(server)
