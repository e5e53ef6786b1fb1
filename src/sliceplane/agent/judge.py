"""Decides which agents are alive, and which silent agents are lost.

An agent is alive as long as its Lease *changes*: the judge measures the time since it observed the
last change on its own clock, and never uses a time that another machine wrote. A judge that starts,
or that could not reach the server, therefore restarts the count for all agents (``on_reachable``).
It never decides on a cache alone: the controller queries the server first (``needs_query``,
``on_confirmed``).

**Mass expiry**: a partition looks like the death of many agents, and the endpoints of living agents
are worth more than a clean list. Expired agents are *retained* for ``RETAIN_S`` if, within one
duration, at least 3 agents and more than half of a Service's are silent, or at least 5 and more
than a third of their namespace's. After that a tenth is released every ``STEP_S``
(``consume.removal_hold.RemovalRetention``), for each namespace separately. A partition of the whole
cluster may affect few agents in each namespace. Their agents are also retained if more than a third
are silent in each of at least 3 namespaces, and these are more than half of all namespaces with
agents. So one namespace cannot cause a retention in another.

Agents that missed two renewals count as silent; otherwise the first victims would be withdrawn
before the third completes the pattern. Only an agent with a Lease *and* an endpoint counts: any
editor of a namespace can write a Lease, but a slice needs an account with a grant or with that
right. Endpoints that a living agent reports as failing or draining are never retained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from sliceplane.consume.agents.registration import LEASE_S
from sliceplane.consume.removal_hold import RemovalRetention

#: a Lease is overdue after this fraction of its duration: two renewals are missing
OVERDUE_FRACTION: Final = 2 / 3
#: seconds beyond the duration: a renewal may be in flight
GRACE_S: Final = 1.0
RETAIN_S: Final = 120.0
STEP_S: Final = 10.0
OF_SERVICE_MIN: Final = 3
OF_SERVICE_SHARE: Final = 0.5
OF_NAMESPACE_MIN: Final = 5
OF_NAMESPACE_SHARE: Final = 1 / 3
NAMESPACES_MIN: Final = 3
NAMESPACES_SHARE: Final = 0.5
#: stands for the version of a missing Lease
ABSENT: Final = ""


@dataclass(slots=True)
class _Agent:
    """``changed_at``: when a change of its Lease was last observed; ``confirmed``: it has expired,
    and the server confirmed it. ``released_at``: when a user ended a retention of its namespace.
    """

    namespace: str
    version: str
    duration_s: float
    changed_at: float
    services: frozenset[str] = field(default_factory=frozenset)
    queried_at: float = -inf
    confirmed: bool = False
    is_lost: bool = False
    released_at: float = -inf

    @property
    def counts(self) -> bool:
        """Returns True if its silence is evidence of a partition."""
        return bool(self.services) and self.version != ABSENT


class LeaseJudge:
    """Agents are keyed ``namespace/name`` of their Lease.  Owned by one controller."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        #: changes before this time do not count
        self._counts_from = 0.0
        self._reachable = True
        #: whether each retained agent was probed; in the order in which they fell silent
        self._retained: dict[str, bool] = {}
        #: by namespace
        self._retentions: dict[str, RemovalRetention] = {}
        #: number of changes of the retained agents or of their Services
        self.retention_changes = 0

    # -- events

    def on_lease(self, key: str, version: str, duration_s: float, now: float) -> bool:
        """Stores a Lease; returns True if a lost or retained agent came back."""
        agent = self._agents.get(key)
        if agent is None:
            self._agents[key] = _Agent(_namespace(key), version, duration_s, now)
            return False
        agent.duration_s = duration_s
        if agent.version == version:
            return False
        was_away = agent.is_lost or key in self._retained
        agent.version = version
        agent.changed_at = now
        agent.confirmed = agent.is_lost = False
        self._stop_retaining(key)
        return was_away

    def on_absent(self, key: str, now: float) -> None:
        """Stores an agent that has slices and no Lease: it is silent from now on, and stays lost if
        it was.
        """
        agent = self._agents.get(key)
        if agent is None:
            self._agents[key] = _Agent(_namespace(key), ABSENT, LEASE_S, now)
        elif agent.version != ABSENT:
            agent.version = ABSENT
            agent.duration_s = LEASE_S
            agent.changed_at = now
            agent.confirmed = False
            self._stop_retaining(key)

    def on_services(self, key: str, services: Iterable[str]) -> None:
        """Stores the Services for which an agent has endpoints."""
        if key in self._agents:
            self._agents[key].services = frozenset(services)
            self.retention_changes += key in self._retained

    def on_removed(self, key: str) -> None:
        self._agents.pop(key, None)
        self._stop_retaining(key)

    def on_unreachable(self) -> None:
        self._reachable = False

    def on_reachable(self, now: float) -> None:
        """Records an answer of the server. After an outage every agent gets a full duration again."""
        if self._reachable:
            return
        self._reachable = True
        self._counts_from = now
        for agent in self._agents.values():
            if not agent.is_lost:
                agent.confirmed = False

    def on_confirmed(self, key: str, version: str, now: float) -> bool:
        """Takes *version*, the newest that the server has. Returns False if the cache had an older
        one: then the agent is alive.
        """
        agent = self._agents.get(key)
        if agent is None:
            return False  # its Lease was deleted in the meantime
        if agent.version != version:
            if version == ABSENT:
                self.on_absent(key, now)
            else:
                self.on_lease(key, version, agent.duration_s, now)
            return False
        agent.queried_at = now
        agent.confirmed = self._expires_at(agent) <= now
        return True

    def release(self, namespace: str, now: float) -> None:
        """Ends the retention of *namespace* at the request of a user."""
        if self._retentions.pop(namespace, None) is None:
            return
        for key in self.retained_in(namespace):
            del self._retained[key]
        for agent in self._agents.values():
            if agent.namespace == namespace:
                agent.released_at = now
        self.retention_changes += 1

    def take_probe(self, key: str) -> bool:
        """Returns True if the agent is retained and was not probed yet: a probe may prove that its
        processes ended.
        """
        is_due = self._retained.get(key) is False
        if is_due:
            self._retained[key] = True
        return is_due

    def on_refused(self, key: str) -> None:
        """Ends the retention of an agent all of whose ports refuse connections: its processes
        ended.
        """
        if key in self._retained:
            self._stop_retaining(key)
            self._agents[key].is_lost = True

    # -- decisions

    def needs_query(self, key: str, now: float) -> bool:
        """Returns True if the server must be queried for its Lease: once when it is overdue, so
        that outages are noticed, and when it expires.
        """
        agent = self._agents.get(key)
        if agent is None or agent.is_lost or key in self._retained:
            return False
        if now >= self._expires_at(agent):
            return not agent.confirmed
        return now >= self._overdue_at(agent) > agent.queried_at

    def is_lost(self, key: str) -> bool:
        agent = self._agents.get(key)
        return agent is not None and agent.is_lost

    def silent_s(self, key: str, now: float) -> float:
        return now - self._agents[key].changed_at

    def judge(self, key: str, now: float) -> bool:
        """Returns True if *key* is lost; call it after ``on_confirmed``. It stays lost until it
        renews.
        """
        agent = self._agents.get(key)
        if agent is None or not agent.confirmed or self._expires_at(agent) > now or agent.is_lost:
            return agent is not None and agent.is_lost
        is_new = (
            key not in self._retained
            and agent.counts
            and agent.released_at < agent.changed_at + agent.duration_s
        )
        if is_new and self._is_mass_expiry(agent, now):
            self._retained[key] = False
            self.retention_changes += 1
            self._extend_retention(agent.namespace, now)
        if key not in self._retained:
            agent.is_lost = True
        return agent.is_lost

    def take_released(self, now: float) -> tuple[str, ...]:
        """Returns the agents whose retention ended: they are lost."""
        released: list[str] = []
        for namespace, retention in tuple(self._retentions.items()):
            retained = self.retained_in(namespace)
            released += retained[: max(0, len(retained) - retention.keeps(now))]
        for key in released:
            self._agents[key].is_lost = True
            self._stop_retaining(key)
        return tuple(released)

    def get_retention(self, namespace: str) -> RemovalRetention | None:
        return self._retentions.get(namespace)

    def retained_in(self, namespace: str) -> tuple[str, ...]:
        """Returns the retained agents in the order in which they fell silent."""
        return tuple(key for key in self._retained if self._agents[key].namespace == namespace)

    @property
    def retained(self) -> tuple[str, ...]:
        return tuple(self._retained)

    def count_retained(self, service: str) -> int:
        return sum(service in self._agents[key].services for key in self._retained)

    def next_deadline(self, key: str, now: float) -> float | None:
        """Returns when *key* needs a check although no event arrives; ``None``: never."""
        agent = self._agents.get(key)
        if agent is None or agent.is_lost:
            return None
        if key in self._retained:
            return self._retentions[agent.namespace].next_step(now)
        overdue_at = self._overdue_at(agent)
        return overdue_at if now < overdue_at else max(now, self._expires_at(agent))

    def _overdue_at(self, agent: _Agent) -> float:
        return max(agent.changed_at, self._counts_from) + OVERDUE_FRACTION * agent.duration_s

    def _expires_at(self, agent: _Agent) -> float:
        return max(agent.changed_at, self._counts_from) + agent.duration_s + GRACE_S

    def _is_mass_expiry(self, agent: _Agent, now: float) -> bool:
        """Returns True if *agent* is part of a mass expiry. O(agents), but only at an expiry."""
        counted = [other for other in self._agents.values() if other.counts]
        silent = {id(other) for other in counted if self._is_newly_silent(other, now)}
        own = [other for other in counted if other.namespace == agent.namespace]
        if _exceeds_share(own, silent, OF_NAMESPACE_MIN, OF_NAMESPACE_SHARE):
            return True
        for service in agent.services:
            members = [other for other in own if service in other.services]
            if _exceeds_share(members, silent, OF_SERVICE_MIN, OF_SERVICE_SHARE):
                return True
        by_namespace: dict[str, list[_Agent]] = {}
        for other in counted:
            by_namespace.setdefault(other.namespace, []).append(other)
        cut_off = {
            namespace
            for namespace, members in by_namespace.items()
            if _exceeds_share(members, silent, 1, OF_NAMESPACE_SHARE)
        }
        return (
            agent.namespace in cut_off
            and len(cut_off) >= NAMESPACES_MIN
            and len(cut_off) > NAMESPACES_SHARE * len(by_namespace)
            and len(silent) >= OF_NAMESPACE_MIN
        )

    def _is_newly_silent(self, agent: _Agent, now: float) -> bool:
        overdue_at = self._overdue_at(agent)
        return overdue_at <= now < overdue_at + 2 * agent.duration_s

    def _extend_retention(self, namespace: str, now: float) -> None:
        count = len(self.retained_in(namespace))
        retention = self._retentions.get(namespace)
        if retention is None:
            peak = sum(agent.namespace == namespace for agent in self._agents.values())
            self._retentions[namespace] = RemovalRetention(now, peak, count, RETAIN_S, STEP_S)
        elif count > retention.count and now < retention.until:
            self._retentions[namespace] = RemovalRetention(
                retention.since, retention.peak, count, RETAIN_S, STEP_S
            )

    def _stop_retaining(self, key: str) -> None:
        if key in self._retained:
            del self._retained[key]
            self.retention_changes += 1
            namespace = _namespace(key)
            if not any(_namespace(other) == namespace for other in self._retained):
                del self._retentions[namespace]

    def check(self) -> None:
        assert self._retained.keys() <= self._agents.keys(), "retained agents that do not exist"
        retained = {_namespace(key) for key in self._retained}
        assert retained == self._retentions.keys(), (
            "a retention without agents, or agents without one"
        )
        for key, agent in self._agents.items():
            assert not (agent.is_lost and key in self._retained), f"{key} is lost and retained"


def _exceeds_share(members: list[_Agent], silent: set[int], minimum: int, share: float) -> bool:
    """Returns True if at least *minimum* and more than *share* of the members are silent.  *silent*:
    by ``id``.
    """
    count = sum(id(member) in silent for member in members)
    return count >= minimum and count > share * len(members)


def _namespace(key: str) -> str:
    return key.partition("/")[0]
