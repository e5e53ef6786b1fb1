"""Seats: the number of requests that execute at a time, their order, and which are refused.

Each level has a *nominal* number of seats in proportion to its shares, and keeps the part of it
that it does not lend (``guaranteed``) at all times. What levels lend and do not use is *spare*, and
any level may use it; when a seat gets free, the level that has the least of its nominal number goes
first. No request loses its seat. Upstream moves the borders between levels every ten seconds; here
a seat is lent when it is requested.

Within a level each flow has a line of its own (upstream: a hand of queues that it may share with
others), and the line with the earliest *tag* goes first (Zhang, "VirtualClock", 1990). A tag is the
time at which a request came, or later if its flow has used up more: each seat moves the flow's tag
by the time that the seat was occupied. So a flow of few requests passes those of many, and since a
later request has a later tag, no flow starves.

A flow may have ``flow_queue_capacity`` requests in line, and no more than the others leave free.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from math import ceil
from typing import Final, Literal

from sliceplane.kit.metrics import Histogram
from sliceplane.server.fairness.types import Flow, Level

#: upstream's buckets of apiserver_flowcontrol_request_wait_duration_seconds
WAIT_BUCKETS: Final = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0)
#: minimum cost of a seat, and maximum penalty of a flow
COST_S_MIN: Final = 0.003
AHEAD_S_MAX: Final = 1.0
#: the heap of lines is rebuilt when it has so many times more entries than there are lines
_HEAP_SLACK: Final = 4
_HEAP_MIN: Final = 64

Reason = Literal["concurrency-limit", "queue-full", "time-out", "cancelled"]


class SchemaTally:
    """Counts of the requests of one flow schema. Kept by ``Seats``, read for monitoring."""

    __slots__ = ("abandoned_waits", "dispatched", "executing", "refused", "waited", "waiting")

    def __init__(self) -> None:
        self.executing = 0
        self.waiting = 0
        self.dispatched = 0
        self.refused: dict[Reason, int] = {}
        #: seconds in line of requests that got a seat, and of those that did not
        self.waited = Histogram(WAIT_BUCKETS)
        self.abandoned_waits = Histogram(WAIT_BUCKETS)

    def refuse(self, reason: Reason) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1


class SeatTicket:
    """A request in line, on a seat, or over.  ``Seats`` alone changes it."""

    __slots__ = ("flow", "since", "state")

    def __init__(self, flow: Flow, now: float) -> None:
        self.flow = flow
        #: when it came, and when it got its seat
        self.since = now
        self.state: Literal["waiting", "seated", "over"] = "over"


class _Line:
    """A flow that waits, or did a moment ago.  ``number`` is that of its entry in the heap; 0: it
    has none.
    """

    __slots__ = ("number", "tag", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[SeatTicket] = deque()
        self.tag = 0.0
        self.number = 0


class _LevelPool:
    """One level's seats and lines."""

    __slots__ = (
        "guaranteed",
        "heap",
        "in_use",
        "level",
        "lines",
        "lines_kept",
        "nominal",
        "waiting",
    )

    def __init__(self, level: Level, nominal: int) -> None:
        self.level = level
        self.nominal = nominal
        lent = round(nominal * level.lendable_percent / 100)
        self.guaranteed = max(nominal - lent, min(nominal, 1))
        self.in_use = 0
        self.waiting = 0
        self.lines: dict[tuple[str, str], _Line] = {}
        #: how many were there after lines of the past had last been cleared away
        self.lines_kept = 0
        #: (tag, number, line); entries whose number is not the line's are stale
        self.heap: list[tuple[float, int, _Line]] = []


class Seats:
    """Owned by the server.  Times are seconds of one clock that does not go back."""

    def __init__(
        self, total: int, levels: Iterable[Level], tallies: dict[str, SchemaTally]
    ) -> None:
        """*total* seats are shared out; each level that has shares gets at least one of them."""
        limited = tuple(levels)
        shares = sum(level.shares for level in limited)
        self._pools = {
            level.name: _LevelPool(
                level, 0 if level.exempt else ceil(total * level.shares / shares)
            )
            for level in limited
        }
        self._tallies = tallies
        self._spare = sum(pool.nominal - pool.guaranteed for pool in self._pools.values())
        self._waiting = 0
        self._number = 0
        self.in_use = 0

    def nominal(self, level: str) -> int:
        return self._pools[level].nominal

    def acquire(self, flow: Flow, now: float) -> tuple[SeatTicket, Reason | None]:
        """Returns a ticket that is seated, or waiting, or (with the reason) refused."""
        ticket = SeatTicket(flow, now)
        pool = self._pools[flow.level.name]
        if pool.level.exempt or (
            not pool.waiting and (pool.in_use < pool.guaranteed or self._spare)
        ):
            self._seat(pool, ticket, now)
            return ticket, None
        reason = self._enqueue(pool, ticket)
        if reason is not None:
            self._tallies[flow.schema.name].refuse(reason)
        return ticket, reason

    def release(
        self, ticket: SeatTicket, now: float, *, reason: Reason = "cancelled"
    ) -> tuple[SeatTicket, ...]:
        """The request is done, or stops waiting for *reason*.  Returns the tickets that get a seat
        in exchange.
        """
        if ticket.state == "waiting":
            self._abandon(ticket, now, reason)
            return ()
        if ticket.state == "over":
            return ()
        ticket.state = "over"
        flow = ticket.flow
        self._tallies[flow.schema.name].executing -= 1
        self.in_use -= 1
        pool = self._pools[flow.level.name]
        if pool.level.exempt:
            return ()
        if pool.in_use > pool.guaranteed:
            self._spare += 1
        pool.in_use -= 1
        if not self._waiting:
            return ()
        line = pool.lines.get((flow.schema.name, flow.distinguisher))
        if line is not None:
            line.tag = min(line.tag + max(now - ticket.since - COST_S_MIN, 0.0), now + AHEAD_S_MAX)
        return self._dispatch(now)

    def _seat(self, pool: _LevelPool, ticket: SeatTicket, now: float) -> None:
        if not pool.level.exempt:
            if pool.in_use >= pool.guaranteed:
                self._spare -= 1
            pool.in_use += 1
        self.in_use += 1
        tally = self._tallies[ticket.flow.schema.name]
        tally.executing += 1
        tally.dispatched += 1
        tally.waited.observe(now - ticket.since)
        ticket.since = now
        ticket.state = "seated"

    # Lines

    def _enqueue(self, pool: _LevelPool, ticket: SeatTicket) -> Reason | None:
        level = pool.level
        flow = ticket.flow
        if not level.queues or not pool.nominal:
            return "concurrency-limit"
        key = (flow.schema.name, flow.distinguisher)
        line = pool.lines.get(key)
        if line is None:
            self._drop_idle_lines(pool, ticket.since)
            line = pool.lines[key] = _Line()
        queued = len(line.waiting)
        if queued >= min(level.flow_queue_capacity, level.queue_capacity - pool.waiting):
            return "queue-full"
        ticket.state = "waiting"
        line.waiting.append(ticket)
        pool.waiting += 1
        self._waiting += 1
        self._tallies[flow.schema.name].waiting += 1
        if not queued:
            self._enter(pool, line)
        return None

    def _enter(self, pool: _LevelPool, line: _Line) -> None:
        """Pushes *line*, which has a waiting ticket, to the heap."""
        self._number += 1
        line.number = self._number
        line.tag = max(line.tag, line.waiting[0].since)
        heapq.heappush(pool.heap, (line.tag, line.number, line))
        if len(pool.heap) > max(_HEAP_MIN, _HEAP_SLACK * len(pool.lines)):
            pool.heap = [entry for entry in pool.heap if entry[2].number == entry[1]]
            heapq.heapify(pool.heap)

    def _drop_idle_lines(self, pool: _LevelPool, now: float) -> None:
        """Forgets flows without waiting requests and without a penalty, once there are many."""
        if len(pool.lines) < 2 * pool.lines_kept + _HEAP_MIN:
            return
        pool.lines = {
            key: line for key, line in pool.lines.items() if line.waiting or line.tag > now
        }
        pool.lines_kept = len(pool.lines)

    def _abandon(self, ticket: SeatTicket, now: float, reason: Reason) -> None:
        ticket.state = "over"
        flow = ticket.flow
        pool = self._pools[flow.level.name]
        line = pool.lines[(flow.schema.name, flow.distinguisher)]
        was_first = line.waiting[0] is ticket
        line.waiting.remove(ticket)
        if was_first:
            line.number = 0
            if line.waiting:
                self._enter(pool, line)
        self._on_dequeued(pool, ticket)
        tally = self._tallies[flow.schema.name]
        tally.abandoned_waits.observe(now - ticket.since)
        tally.refuse(reason)

    def _on_dequeued(self, pool: _LevelPool, ticket: SeatTicket) -> None:
        pool.waiting -= 1
        self._waiting -= 1
        self._tallies[ticket.flow.schema.name].waiting -= 1

    def _dispatch(self, now: float) -> tuple[SeatTicket, ...]:
        """Fill the seats that are free."""
        seated = []
        while self._waiting:
            able = [
                pool
                for pool in self._pools.values()
                if pool.waiting and (pool.in_use < pool.guaranteed or self._spare)
            ]
            if not able:
                break
            pool = min(able, key=lambda pool: pool.in_use / pool.nominal)
            ticket = self._first(pool, now)
            self._on_dequeued(pool, ticket)
            self._seat(pool, ticket, now)
            seated.append(ticket)
        return tuple(seated)

    def _first(self, pool: _LevelPool, now: float) -> SeatTicket:
        """Takes the first ticket of the line with the earliest tag."""
        while True:
            tag, number, line = heapq.heappop(pool.heap)
            if line.number == number:
                break
        ticket = line.waiting.popleft()
        line.tag = min(max(line.tag, tag) + COST_S_MIN, now + AHEAD_S_MAX)
        line.number = 0
        if line.waiting:
            self._enter(pool, line)
        return ticket

    # For monitoring and tests

    def in_use_by(self, level: str) -> int:
        return self._pools[level].in_use

    def waiting_in(self, level: str) -> int:
        return self._pools[level].waiting

    def check(self) -> None:
        limited = [pool for pool in self._pools.values() if not pool.level.exempt]
        reserved = sum(max(pool.in_use, pool.guaranteed) for pool in limited)
        assert self._spare == sum(pool.nominal for pool in limited) - reserved >= 0, (
            f"{self._spare} seats are spare"
        )
        assert self._waiting == sum(pool.waiting for pool in limited), f"{self._waiting} wait"
        for pool in limited:
            name = pool.level.name
            assert pool.waiting == sum(len(line.waiting) for line in pool.lines.values()), (
                f"{name}: who waits?"
            )
            assert pool.waiting <= pool.level.queue_capacity, f"{name}: {pool.waiting} wait"
            free = pool.in_use < pool.guaranteed or self._spare
            assert not (pool.waiting and free), f"{name}: a seat is free and {pool.waiting} wait"
            entered = {id(line): tag for tag, number, line in pool.heap if line.number == number}
            for key, line in pool.lines.items():
                assert bool(line.waiting) == (id(line) in entered), f"{name}: {key} is in no line"
                assert all(ticket.state == "waiting" for ticket in line.waiting), f"{name}: {key}"
