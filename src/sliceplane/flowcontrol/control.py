"""Priority and fairness put together: who a request is to it, its seat, and the figures.

Reads and writes have seats of their own, so that storage which stands still keeps no client from reading what is in
memory.  (Upstream adds the two limits up and makes no difference between them.)
"""

from __future__ import annotations

from sliceplane.flowcontrol.classify import Classifier
from sliceplane.flowcontrol.defaults import LEVELS, SCHEMAS
from sliceplane.flowcontrol.seats import Seats, Tally
from sliceplane.flowcontrol.types import Asked, Flow, Kind
from sliceplane.kit.metrics import Metrics

_PREFIX = "apiserver_flowcontrol_"


class FlowControl:
    """Owned by the server, as are its parts."""

    def __init__(self, *, reads: int, writes: int) -> None:
        """*reads* and *writes*: how many are worked on at a time."""
        self._classifier = Classifier(SCHEMAS, LEVELS)
        self._tallies = {schema.name: Tally() for schema in SCHEMAS}
        self.seats: dict[Kind, Seats] = {
            "read": Seats(reads, LEVELS, self._tallies),
            "write": Seats(writes, LEVELS, self._tallies),
        }
        self.metrics = Metrics()
        self._declare()

    def classify(self, name: str, groups: tuple[str, ...], asked: Asked) -> Flow:
        return self._classifier.classify(name, groups, asked)

    def tally(self, schema: str) -> Tally:
        return self._tallies[schema]

    def _declare(self) -> None:
        """Under upstream's names and labels, where upstream has the thing."""
        add = self.metrics.computed
        of_schema = ("priority_level", "flow_schema")
        tallies = [((schema.level, schema.name), self._tallies[schema.name]) for schema in SCHEMAS]
        add(
            "gauge",
            f"{_PREFIX}current_executing_requests",
            "Requests that have a seat.",
            lambda: [(labels, tally.executing) for labels, tally in tallies],
            *of_schema,
        )
        add(
            "gauge",
            f"{_PREFIX}current_inqueue_requests",
            "Requests that wait for a seat.",
            lambda: [(labels, tally.waiting) for labels, tally in tallies],
            *of_schema,
        )
        add(
            "counter",
            f"{_PREFIX}dispatched_requests_total",
            "Requests that got a seat.",
            lambda: [(labels, tally.dispatched) for labels, tally in tallies],
            *of_schema,
        )
        add(
            "gauge",
            f"{_PREFIX}nominal_limit_seats",
            "Seats of a priority level before any are lent, for reads and writes together.",
            lambda: [((level.name,), self._nominal(level.name)) for level in LEVELS],
            "priority_level",
        )
        add(
            "counter",
            f"{_PREFIX}rejected_requests_total",
            "Requests that got no seat.",
            lambda: [
                ((*labels, reason), count)
                for labels, tally in tallies
                for reason, count in sorted(tally.refused.items())
            ],
            *(*of_schema, "reason"),
        )
        add(
            "histogram",
            f"{_PREFIX}request_wait_duration_seconds",
            "How long requests waited for a seat; execute says whether they got it.",
            lambda: [
                ((*labels, execute), waits.read())
                for labels, tally in tallies
                if tally.dispatched or tally.refused
                for execute, waits in (("true", tally.waited), ("false", tally.left))
            ],
            *(*of_schema, "execute"),
        )

    def _nominal(self, level: str) -> int:
        return sum(seats.nominal(level) for seats in self.seats.values())

    def check(self) -> None:
        for seats in self.seats.values():
            seats.check()
