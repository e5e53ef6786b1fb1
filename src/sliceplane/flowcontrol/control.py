"""Priority and fairness put together: who a request is to it, its seat, and the figures.

Reads and writes have seats of their own, so that storage which stands still keeps nobody from reading what is in
memory.  (Upstream adds the two limits up and makes no difference between them.)
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.flowcontrol.classify import Classifier
from sliceplane.flowcontrol.defaults import LEVELS, SCHEMAS
from sliceplane.flowcontrol.seats import Seats, Tally
from sliceplane.flowcontrol.types import Asked, Flow, Kind
from sliceplane.kit.samples import Family, Sample

_PREFIX = "apiserver_flowcontrol_"
_OF = ("priority_level", "flow_schema")


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

    def classify(self, name: str, groups: tuple[str, ...], asked: Asked) -> Flow:
        return self._classifier.classify(name, groups, asked)

    def tally(self, schema: str) -> Tally:
        return self._tallies[schema]

    def families(self) -> Iterator[Family]:
        """Under upstream's names and labels, where upstream has the thing."""
        rows = [((schema.level, schema.name), self._tallies[schema.name]) for schema in SCHEMAS]
        yield Family(
            f"{_PREFIX}current_executing_requests",
            "gauge",
            "Requests that have a seat.",
            _OF,
            tuple(Sample(labels, tally.executing) for labels, tally in rows),
        )
        yield Family(
            f"{_PREFIX}current_inqueue_requests",
            "gauge",
            "Requests that wait for a seat.",
            _OF,
            tuple(Sample(labels, tally.waiting) for labels, tally in rows),
        )
        yield Family(
            f"{_PREFIX}dispatched_requests_total",
            "counter",
            "Requests that got a seat.",
            _OF,
            tuple(Sample(labels, tally.dispatched) for labels, tally in rows),
        )
        yield Family(
            f"{_PREFIX}nominal_limit_seats",
            "gauge",
            "Seats of a priority level before any are lent, for reads and writes together.",
            _OF[:1],
            tuple(Sample((level.name,), self._nominal(level.name)) for level in LEVELS),
        )
        yield Family(
            f"{_PREFIX}rejected_requests_total",
            "counter",
            "Requests that got no seat.",
            (*_OF, "reason"),
            tuple(
                Sample((*labels, reason), count)
                for labels, tally in rows
                for reason, count in sorted(tally.refused.items())
            ),
        )
        yield Family(
            f"{_PREFIX}request_wait_duration_seconds",
            "histogram",
            "How long requests waited for a seat; execute says whether they got it.",
            (*_OF, "execute"),
            tuple(
                Sample((*labels, execute), waits.read())
                for labels, tally in rows
                if tally.dispatched or tally.refused
                for execute, waits in (("true", tally.waited), ("false", tally.left))
            ),
        )

    def _nominal(self, level: str) -> int:
        return sum(seats.nominal(level) for seats in self.seats.values())

    def check(self) -> None:
        for seats in self.seats.values():
            seats.check()
