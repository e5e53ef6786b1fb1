"""Seats against a model that keeps one list of requests and looks through all of it for every
answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.effort import machine

from sliceplane.server.fairness.seats import AHEAD_S_MAX, COST_S_MIN, SchemaTally, Seats, SeatTicket
from sliceplane.server.fairness.types import Flow, Level, Schema, Subject

LEVELS = (
    Level(name="lends", shares=4, lendable_percent=75, queues=2, hand_size=1, queue_length=3),
    Level(name="keeps", shares=2, lendable_percent=0, queues=1, hand_size=1, queue_length=4),
    Level(name="refuses", shares=1),
    Level(name="exempt", exempt=True),
)
TOTAL = 7
NOMINAL = {level.name: ceil(TOTAL * level.shares / 7) for level in LEVELS}
LEAST = {"lends": 1, "keeps": 2, "refuses": 1}
FLOWS = tuple(
    Flow(
        Schema(name=level.name, level=level.name, precedence=1, subjects=(Subject("User", "*"),)),
        level,
        user,
    )
    for level in LEVELS
    for user in "abc"
)


@dataclass(eq=False)
class Request:
    """The model's: ``place`` is "seat", "line" or "" for gone."""

    ticket: SeatTicket
    place: str
    since: float

    @property
    def level(self) -> str:
        return self.ticket.flow.level.name


class SeatsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.seats = Seats(TOTAL, LEVELS, {flow.schema.name: SchemaTally() for flow in FLOWS})
        self.requests: list[Request] = []
        #: by flow: its tag now, and the tag and number with which its first one came to the head of
        #: the line
        self.tags: dict[Flow, float] = {}
        self.entered: dict[Flow, tuple[float, int]] = {}
        self.number = 0

    def having(self, place: str, *, level: str = "", flow: Flow | None = None) -> list[Request]:
        return [
            each
            for each in self.requests
            if each.place == place
            and level in ("", each.level)
            and flow in (None, each.ticket.flow)
        ]

    def room(self, level: str) -> bool:
        """Whether a request of *level* may sit down."""
        if level == "exempt":
            return True
        used = {name: len(self.having("seat", level=name)) for name in LEAST}
        kept = sum(max(used[name], LEAST[name]) for name in LEAST)
        return used[level] < LEAST[level] or kept < sum(NOMINAL.values())

    def model_enter(self, flow: Flow) -> None:
        self.number += 1
        self.tags[flow] = max(self.tags.get(flow, 0.0), self.having("line", flow=flow)[0].since)
        self.entered[flow] = self.tags[flow], self.number

    def model_dispatch(self) -> list[SeatTicket]:
        seated = []
        while True:
            able = [
                level
                for level in LEVELS
                if self.having("line", level=level.name) and self.room(level.name)
            ]
            if not able:
                return seated
            level = min(
                able,
                key=lambda level: len(self.having("seat", level=level.name)) / NOMINAL[level.name],
            )
            heads = {each.ticket.flow for each in self.having("line", level=level.name)}
            flow = min(heads, key=lambda flow: self.entered[flow])
            request = self.having("line", flow=flow)[0]
            request.place, request.since = "seat", self.now
            self.tags[flow] = min(self.tags[flow] + COST_S_MIN, self.now + AHEAD_S_MAX)
            if self.having("line", flow=flow):
                self.model_enter(flow)
            seated.append(request.ticket)

    @initialize(flows=st.lists(st.sampled_from(FLOWS), min_size=8, max_size=20))
    def full(self, flows: list[Flow]) -> None:
        """Most histories begin where seats are scarce."""
        for flow in flows:
            self.ask(flow)

    @rule(flow=st.sampled_from(FLOWS))
    def ask(self, flow: Flow) -> None:
        ticket, reason = self.seats.acquire(flow, self.now)
        level = flow.level
        line, all_lines = self.having("line", flow=flow), self.having("line", level=level.name)
        if not all_lines and self.room(level.name):
            expected = None, "seat"
        elif not level.queues:
            expected = "concurrency-limit", ""
        elif len(line) >= level.flow_queue_capacity or len(line) >= level.queue_capacity - len(
            all_lines
        ):
            expected = "queue-full", ""
        else:
            expected = None, "line"
        state = {"seated": "seat", "waiting": "line", "over": ""}[ticket.state]
        assert (reason, state) == expected
        self.requests.append(Request(ticket, state, self.now))
        if state == "line" and not line:
            self.model_enter(flow)

    @precondition(lambda self: self.having("seat") or self.having("line"))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.having("seat") + self.having("line")))
        flow = gone.ticket.flow
        was_first = gone in self.having("line", flow=flow)[:1]
        was_seated, gone.place = gone.place == "seat", ""
        expected = []
        if was_seated:
            if self.having("line") and flow in self.tags:
                used = self.tags[flow] + max(self.now - gone.since - COST_S_MIN, 0.0)
                self.tags[flow] = min(used, self.now + AHEAD_S_MAX)
            expected = self.model_dispatch()
        elif was_first and self.having("line", flow=flow):
            self.model_enter(flow)
        assert list(self.seats.release(gone.ticket, self.now)) == expected
        assert self.seats.release(gone.ticket, self.now) == ()

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.5, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def same(self) -> None:
        self.seats.check()
        for level in LEVELS:
            assert self.seats.waiting_in(level.name) == len(self.having("line", level=level.name))
            if not level.exempt:
                assert self.seats.in_use_by(level.name) == len(
                    self.having("seat", level=level.name)
                )
        assert self.seats.in_use == len(self.having("seat"))


SeatsAgainstModel.TestCase.settings = machine(150)
TestSeatsAgainstModel = SeatsAgainstModel.TestCase
