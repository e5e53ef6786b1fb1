"""Seats: how many requests are worked on at a time, whose turn it is, and who has to come back.

Each level has a *nominal* number of seats in proportion to its shares, and keeps the part of it
that it does not lend (``least``) at all times. What levels lend and do not use is *spare*, and any
level may sit there; when a seat gets free, the level that has the least of its nominal number goes
first. No request is driven from a seat. Upstream moves the borders between levels every ten
seconds; here a seat is lent at the moment when it is asked for.

Within a level each flow has a line of its own (upstream: a hand of queues that it may share with
others), and the line with the earliest *tag* goes first (Zhang, "VirtualClock", 1990). A tag is the
time at which a request came, or later if its flow has used up more: each seat moves the flow's tag
by the time that the seat was held. So a flow that asks for little passes those that ask for much,
and since a later request has a later tag, none is passed for ever.

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
    """A request's place: in line, on a seat, or neither any more.  ``Seats`` alone changes it."""

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


class _Room:
    """One level's seats and lines."""

    __slots__ = ("heap", "in_use", "least", "level", "lines", "lines_kept", "nominal", "waiting")

    def __init__(self, level: Level, nominal: int) -> None:
        self.level = level
        self.nominal = nominal
        lent = round(nominal * level.lendable_percent / 100)
        self.least = max(nominal - lent, min(nominal, 1))
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
        self._rooms = {
            level.name: _Room(level, 0 if level.exempt else ceil(total * level.shares / shares))
            for level in limited
        }
        self._tallies = tallies
        self._spare = sum(room.nominal - room.least for room in self._rooms.values())
        self._waiting = 0
        self._number = 0
        self.in_use = 0

    def nominal(self, level: str) -> int:
        return self._rooms[level].nominal

    def ask(self, flow: Flow, now: float) -> tuple[SeatTicket, Reason | None]:
        """A ticket that is seated, or waiting, or (with the reason) neither."""
        ticket = SeatTicket(flow, now)
        room = self._rooms[flow.level.name]
        if room.level.exempt or (not room.waiting and (room.in_use < room.least or self._spare)):
            self._seat(room, ticket, now)
            return ticket, None
        reason = self._line_up(room, ticket)
        if reason is not None:
            self._tallies[flow.schema.name].refuse(reason)
        return ticket, reason

    def leave(
        self, ticket: SeatTicket, now: float, *, reason: Reason = "cancelled"
    ) -> tuple[SeatTicket, ...]:
        """The request is done, or gives up waiting for *reason*.  Returns who got a seat by
        that.
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
        room = self._rooms[flow.level.name]
        if room.level.exempt:
            return ()
        if room.in_use > room.least:
            self._spare += 1
        room.in_use -= 1
        if not self._waiting:
            return ()
        line = room.lines.get((flow.schema.name, flow.distinguisher))
        if line is not None:
            line.tag = min(line.tag + max(now - ticket.since - COST_S_MIN, 0.0), now + AHEAD_S_MAX)
        return self._dispatch(now)

    def _seat(self, room: _Room, ticket: SeatTicket, now: float) -> None:
        if not room.level.exempt:
            if room.in_use >= room.least:
                self._spare -= 1
            room.in_use += 1
        self.in_use += 1
        tally = self._tallies[ticket.flow.schema.name]
        tally.executing += 1
        tally.dispatched += 1
        tally.waited.observe(now - ticket.since)
        ticket.since = now
        ticket.state = "seated"

    # Lines

    def _line_up(self, room: _Room, ticket: SeatTicket) -> Reason | None:
        level = room.level
        flow = ticket.flow
        if not level.queues or not room.nominal:
            return "concurrency-limit"
        key = (flow.schema.name, flow.distinguisher)
        line = room.lines.get(key)
        if line is None:
            self._clear_away(room, ticket.since)
            line = room.lines[key] = _Line()
        queued = len(line.waiting)
        if queued >= min(level.flow_queue_capacity, level.queue_capacity - room.waiting):
            return "queue-full"
        ticket.state = "waiting"
        line.waiting.append(ticket)
        room.waiting += 1
        self._waiting += 1
        self._tallies[flow.schema.name].waiting += 1
        if not queued:
            self._enter(room, line)
        return None

    def _enter(self, room: _Room, line: _Line) -> None:
        """*line* has a first one who waits: into the heap with it."""
        self._number += 1
        line.number = self._number
        line.tag = max(line.tag, line.waiting[0].since)
        heapq.heappush(room.heap, (line.tag, line.number, line))
        if len(room.heap) > max(_HEAP_MIN, _HEAP_SLACK * len(room.lines)):
            room.heap = [entry for entry in room.heap if entry[2].number == entry[1]]
            heapq.heapify(room.heap)

    def _clear_away(self, room: _Room, now: float) -> None:
        """Forget flows that do not wait, once they are many: those that owe nothing any more."""
        if len(room.lines) < 2 * room.lines_kept + _HEAP_MIN:
            return
        room.lines = {
            key: line for key, line in room.lines.items() if line.waiting or line.tag > now
        }
        room.lines_kept = len(room.lines)

    def _abandon(self, ticket: SeatTicket, now: float, reason: Reason) -> None:
        ticket.state = "over"
        flow = ticket.flow
        room = self._rooms[flow.level.name]
        line = room.lines[(flow.schema.name, flow.distinguisher)]
        was_first = line.waiting[0] is ticket
        line.waiting.remove(ticket)
        if was_first:
            line.number = 0
            if line.waiting:
                self._enter(room, line)
        self._out_of_line(room, ticket)
        tally = self._tallies[flow.schema.name]
        tally.abandoned_waits.observe(now - ticket.since)
        tally.refuse(reason)

    def _out_of_line(self, room: _Room, ticket: SeatTicket) -> None:
        room.waiting -= 1
        self._waiting -= 1
        self._tallies[ticket.flow.schema.name].waiting -= 1

    def _dispatch(self, now: float) -> tuple[SeatTicket, ...]:
        """Fill the seats that are free."""
        seated = []
        while self._waiting:
            able = [
                room
                for room in self._rooms.values()
                if room.waiting and (room.in_use < room.least or self._spare)
            ]
            if not able:
                break
            room = min(able, key=lambda room: room.in_use / room.nominal)
            ticket = self._first(room, now)
            self._out_of_line(room, ticket)
            self._seat(room, ticket, now)
            seated.append(ticket)
        return tuple(seated)

    def _first(self, room: _Room, now: float) -> SeatTicket:
        """Take the one whose turn it is out of its line."""
        while True:
            tag, number, line = heapq.heappop(room.heap)
            if line.number == number:
                break
        ticket = line.waiting.popleft()
        line.tag = min(max(line.tag, tag) + COST_S_MIN, now + AHEAD_S_MAX)
        line.number = 0
        if line.waiting:
            self._enter(room, line)
        return ticket

    # For monitoring and tests

    def in_use_by(self, level: str) -> int:
        return self._rooms[level].in_use

    def waiting_in(self, level: str) -> int:
        return self._rooms[level].waiting

    def check(self) -> None:
        limited = [room for room in self._rooms.values() if not room.level.exempt]
        reserved = sum(max(room.in_use, room.least) for room in limited)
        assert self._spare == sum(room.nominal for room in limited) - reserved >= 0, (
            f"{self._spare} seats are spare"
        )
        assert self._waiting == sum(room.waiting for room in limited), f"{self._waiting} wait"
        for room in limited:
            name = room.level.name
            assert room.waiting == sum(len(line.waiting) for line in room.lines.values()), (
                f"{name}: who waits?"
            )
            assert room.waiting <= room.level.queue_capacity, f"{name}: {room.waiting} wait"
            free = room.in_use < room.least or self._spare
            assert not (room.waiting and free), f"{name}: a seat is free and {room.waiting} wait"
            entered = {id(line): tag for tag, number, line in room.heap if line.number == number}
            for key, line in room.lines.items():
                assert bool(line.waiting) == (id(line) in entered), f"{name}: {key} is in no line"
                assert all(ticket.state == "waiting" for ticket in line.waiting), f"{name}: {key}"
