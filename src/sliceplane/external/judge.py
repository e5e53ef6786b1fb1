"""Which agents live, and which of those that fell silent are believed to be gone.

An agent lives as long as its Lease *changes*: what counts is the time since a change was seen here, on our own clock,
never a time that another machine wrote.  So a judge that starts, or that could not reach the server, begins to count
anew for all (``on_reachable``), and nothing is judged by a cache alone: the server is asked again before (``asks``,
``on_confirmed``).

**Mass expiry**: a partition looks like the death of many agents, and the endpoints of those that live are worth more
than a clean list.  If within one duration at least 3 agents and more than half of a Service's are silent, or at least
5 and more than a third of all, those that are over are *held* for ``HOLD_S``, and then given up at a tenth each
``STEP_S`` (``slices.guard.Hold``).  Agents that are overdue by two renewals count as silent, or the first victims
would be gone before the third shows the pattern.  What an agent says of itself (failing checks, a drain) is never
held: it lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from sliceplane.slices.guard import Hold

#: a Lease is doubtful after this part of its duration: two renewals are missing
DOUBT_SHARE: Final = 2 / 3
#: beyond the duration: a renewal may be under way
GRACE_S: Final = 1.0
HOLD_S: Final = 120.0
STEP_S: Final = 10.0
OF_SERVICE_MIN: Final = 3
OF_SERVICE_SHARE: Final = 0.5
OF_ALL_MIN: Final = 5
OF_ALL_SHARE: Final = 1 / 3


@dataclass(slots=True)
class _Agent:
    """``seen_at``: when its Lease was seen to change; ``confirmed``: it is over, and the server says so, too."""

    version: str
    duration_s: float
    seen_at: float
    services: frozenset[str] = field(default_factory=frozenset)
    asked_at: float = -inf
    confirmed: bool = False
    is_lost: bool = False


class LeaseJudge:
    """Agents are keyed ``namespace/name`` of their Lease.  Owned by one controller."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        #: nothing that was seen before counts
        self._counts_from = 0.0
        self._reachable = True
        #: those that are over and held, the first that fell silent first, and whether they were probed
        self._held: dict[str, bool] = {}
        self.hold: Hold | None = None
        #: how often who is held, or of which Services, has changed
        self.held_changes = 0
        self._released_at = 0.0

    # -- what is seen -----------------------------------------------------------------------------------

    def on_lease(self, key: str, version: str, duration_s: float, now: float) -> bool:
        """Whether an agent came back that was lost or held."""
        agent = self._agents.get(key)
        if agent is None:
            self._agents[key] = _Agent(version, duration_s, now)
            return False
        agent.duration_s = duration_s
        if agent.version == version:
            return False
        was_away = agent.is_lost or key in self._held
        agent.version = version
        agent.seen_at = now
        agent.confirmed = agent.is_lost = False
        self._let_go(key)
        return was_away

    def on_services(self, key: str, services: Iterable[str]) -> None:
        """Which Services it has endpoints of."""
        if key in self._agents:
            self._agents[key].services = frozenset(services)
            self.held_changes += key in self._held

    def on_gone(self, key: str) -> None:
        self._agents.pop(key, None)
        self._let_go(key)

    def on_unreachable(self) -> None:
        self._reachable = False

    def on_reachable(self, now: float) -> None:
        """The server answered.  After it did not, everybody has a whole duration again."""
        if self._reachable:
            return
        self._reachable = True
        self._counts_from = now
        for agent in self._agents.values():
            if not agent.is_lost:
                agent.confirmed = False

    def on_confirmed(self, key: str, version: str, now: float) -> bool:
        """The server says that *version* is the newest.  False: the cache had an older one, so it lives."""
        agent = self._agents.get(key)
        if agent is None:
            return False  # its Lease went meanwhile
        if agent.version != version:
            self.on_lease(key, version, agent.duration_s, now)
            return False
        agent.asked_at = now
        agent.confirmed = self._over_at(agent) <= now
        return True

    def release(self, now: float) -> None:
        """What is held is given up: somebody asked for it."""
        if self.hold is not None:
            self._released_at = now
            self.hold = None
            self._held.clear()
            self.held_changes += 1

    def take_probe(self, key: str) -> bool:
        """Whether it is held and was not probed yet: from here its processes may be seen to be gone."""
        is_due = self._held.get(key) is False
        if is_due:
            self._held[key] = True
        return is_due

    def on_refused(self, key: str) -> None:
        """All its ports refuse connections: it is gone, so it is not held."""
        if key in self._held:
            self._let_go(key)
            self._agents[key].is_lost = True

    # -- what follows -----------------------------------------------------------------------------------

    def asks(self, key: str, now: float) -> bool:
        """The server is to be asked about it: when it becomes doubtful, so that outages are noticed, and at its end."""
        agent = self._agents.get(key)
        if agent is None or agent.is_lost or key in self._held:
            return False
        if now >= self._over_at(agent):
            return not agent.confirmed
        return now >= self._doubtful_at(agent) > agent.asked_at

    def is_lost(self, key: str) -> bool:
        agent = self._agents.get(key)
        return agent is not None and agent.is_lost

    def silent_s(self, key: str, now: float) -> float:
        return now - self._agents[key].seen_at

    def judge(self, key: str, now: float) -> bool:
        """Whether *key* is lost, to be asked after ``on_confirmed``.  It stays so until it renews."""
        agent = self._agents.get(key)
        if agent is None or not agent.confirmed or self._over_at(agent) > now or agent.is_lost:
            return agent is not None and agent.is_lost
        if (
            key not in self._held
            and self._released_at < agent.seen_at + agent.duration_s
            and self._are_many(agent, now)
        ):
            self._held[key] = False
            self.held_changes += 1
            self._grow(now)
        if key not in self._held:
            agent.is_lost = True
        return agent.is_lost

    def take_released(self, now: float) -> tuple[str, ...]:
        """Of those that are held, the ones whose time is over by now: they are lost."""
        if self.hold is None:
            return ()
        keeps = self.hold.keeps(now)
        released = tuple(self._held)[: max(0, len(self._held) - keeps)]
        for key in released:
            self._agents[key].is_lost = True
            self._let_go(key)
        return released

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(self._held)

    def held_of(self, service: str) -> int:
        return sum(service in self._agents[key].services for key in self._held)

    def due(self, key: str, now: float) -> float | None:
        """When *key* is to be looked at next without anything happening; ``None``: never."""
        agent = self._agents.get(key)
        if agent is None or agent.is_lost:
            return None
        if key in self._held:
            return None if self.hold is None else self.hold.next_step(now)
        doubtful_at = self._doubtful_at(agent)
        return doubtful_at if now < doubtful_at else max(now, self._over_at(agent))

    def _doubtful_at(self, agent: _Agent) -> float:
        return max(agent.seen_at, self._counts_from) + DOUBT_SHARE * agent.duration_s

    def _over_at(self, agent: _Agent) -> float:
        return max(agent.seen_at, self._counts_from) + agent.duration_s + GRACE_S

    def _are_many(self, agent: _Agent, now: float) -> bool:
        """O(agents), at each expiry alone."""
        silent = {key for key, other in self._agents.items() if self._is_newly_silent(other, now)}
        if len(silent) >= OF_ALL_MIN and len(silent) > OF_ALL_SHARE * len(self._agents):
            return True
        for service in agent.services:
            members = [key for key, other in self._agents.items() if service in other.services]
            gone = sum(key in silent for key in members)
            if gone >= OF_SERVICE_MIN and gone > OF_SERVICE_SHARE * len(members):
                return True
        return False

    def _is_newly_silent(self, agent: _Agent, now: float) -> bool:
        doubtful_at = self._doubtful_at(agent)
        return doubtful_at <= now < doubtful_at + 2 * agent.duration_s

    def _grow(self, now: float) -> None:
        count = len(self._held)
        if self.hold is None:
            self.hold = Hold(now, len(self._agents), count, HOLD_S, STEP_S)
        elif count > self.hold.count and now < self.hold.until:
            self.hold = Hold(self.hold.since, self.hold.peak, count, HOLD_S, STEP_S)

    def _let_go(self, key: str) -> None:
        if key in self._held:
            del self._held[key]
            self.held_changes += 1
        if not self._held:
            self.hold = None

    def check(self) -> None:
        assert self._held.keys() <= self._agents.keys(), "held agents that are gone"
        assert bool(self._held) == (self.hold is not None), "a hold without agents, or agents without a hold"
        for key, agent in self._agents.items():
            assert not (agent.is_lost and key in self._held), f"{key} is lost and held"
