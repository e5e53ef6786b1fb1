"""Rates of new connections by Service and zone, from the totals that nodes report
(``consume.demand``), and of requests from those of xDS servers.

Each reporter has a moving average for each Service, with a half-life of ``HALF_LIFE_S``. It starts at
zero and changes only with a report, so neither the time of a node's report within its interval nor
a late report changes the shares of zones.

**Steps.** After a step of demand, such an average is wrong for minutes. A second one with a half-life
of ``STEP_HALF_LIFE_S`` replaces it as soon as both differ by ``STEP`` of the larger and by
``STEP_ERRORS`` standard errors, for ``FOLLOWED_S`` until it has arrived. Noise of independent
connections, and demand that changes by less, never do that.

Totals become differences: the first total of a node counts nothing, since its connections may be
old; a total below the last one is that of a new counter and counts whole. The node of a report is
that of the Lease's name, which is the part that its account may write, and the zone is the Node's.

**Lies.** A node can report anything. A node whose connections to all Services together exceed
``CAP`` times the median of its zone counts as that much. The median is over nodes with connections,
and a zone with fewer than ``CAPPED_NODES_MIN`` of them has no cap: one node with a gateway is usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import log, sqrt
from statistics import median
from typing import Final

from sliceplane.consume.demand import read_demand
from sliceplane.consume.progress import LEASE_DURATION_S

HALF_LIFE_S: Final = 60.0
STEP_HALF_LIFE_S: Final = 15.0
STEP: Final = 0.25
STEP_ERRORS: Final = 6.0
FOLLOWED_S: Final = 4 * STEP_HALF_LIFE_S
#: a rate times these seconds is the number of connections that the average is based on
WINDOW_S: Final = HALF_LIFE_S / log(2)
CAP: Final = 3.0
CAPPED_NODES_MIN: Final = 3
#: minimum seconds between two computations of caps and coverage, which cost O(nodes)
REFRESH_S: Final = 1.0
#: connections per second below which a rate is forgotten
_RATE_MIN: Final = 1e-6


class _Reporter:
    """A node or a server with reports: the last totals and the rates, by the keys of
    ``consume.demand.Demand``.
    """

    __slots__ = ("followed_until", "rates", "recent_rates", "reported_at", "total_rate", "totals")

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.rates: dict[str, float] = {}
        self.recent_rates: dict[str, float] = {}
        #: until when the recent rates replace the others after a step
        self.followed_until: dict[str, float] = {}
        self.total_rate = 0.0
        self.reported_at = float("-inf")


class DemandMeter:
    """The rates of all nodes. Owned by one controller. Times are seconds since the epoch."""

    def __init__(self) -> None:
        #: Services to measure: number of Services by the start of the UID
        self._uids: Counter[str] = Counter()
        #: nodes and xDS servers, by name
        self._reporters: dict[str, _Reporter] = {}
        self._servers: dict[str, _Reporter] = {}
        self._zone_by_node: dict[str, str] = {}
        #: ready Nodes with a zone
        self._expected: set[str] = set()
        #: invalid entries of reports so far
        self.invalid = 0
        self._refreshed_at = float("-inf")
        self._caps: dict[str, float] = {}
        self._covered = 0

    def follow(self, uid: str, step: int = 1) -> None:
        """Measures the Service whose UID starts with *uid*; with *step* -1 not any more."""
        self._uids[uid] += step
        if not self._uids[uid]:
            del self._uids[uid]

    def on_node(self, name: str, zone: str, *, is_expected: bool) -> None:
        """Handles a Node; *zone* "": it has none, or is gone. *is_expected*: it should report."""
        self._refreshed_at = float("-inf")
        self._expected.discard(name)
        self._zone_by_node.pop(name, None)
        if zone:
            self._zone_by_node[name] = zone
            if is_expected:
                self._expected.add(name)

    def on_report(self, node: str, text: str | None, now: float) -> None:
        """Handles the annotation of a node's Lease; ``None`` or "": the node counts nothing."""
        self._on_report(self._reporters, node, text, now, has_zones=False)

    def on_server_report(self, server: str, text: str | None, now: float) -> None:
        """Handles the annotation of an xDS server's Lease, whose totals name the clients' zones."""
        self._on_report(self._servers, server, text, now, has_zones=True)

    def _on_report(
        self,
        reporters: dict[str, _Reporter],
        name: str,
        text: str | None,
        now: float,
        *,
        has_zones: bool,
    ) -> None:
        if not text:
            reporters.pop(name, None)
            return
        demand = read_demand(text)
        self.invalid += demand.invalid
        reporter = reporters.setdefault(name, _Reporter())
        span_s = now - reporter.reported_at
        if span_s <= 0:
            return
        totals = {
            key: count
            for key, count in demand.counts.items()
            if _uid(key) in self._uids and ("/" in key) == has_zones
        }
        present: dict[str, float] = {}
        for key, total in totals.items():
            before = reporter.totals.get(key, total)
            present[key] = (total - before if total >= before else total) / span_s
        # In the order of arrival, so that sums are the same in every process.
        kept = [key for key in reporter.rates if _uid(key) in self._uids]
        followed = tuple(dict.fromkeys((*kept, *present)))
        rates = _averaged(reporter.rates, present, followed, 0.5 ** (span_s / HALF_LIFE_S))
        recent = _averaged(
            reporter.recent_rates, present, followed, 0.5 ** (span_s / STEP_HALF_LIFE_S)
        )
        until = {key: end for key, end in reporter.followed_until.items() if now < end}
        for key, rate in rates.items():
            if _is_step(rate, recent.get(key, 0.0)):
                until[key] = now + FOLLOWED_S
        rates |= {key: recent.get(key, 0.0) for key in until}
        reporter.followed_until = until
        reporter.totals, reporter.rates, reporter.recent_rates = totals, rates, recent
        reporter.total_rate = sum(rates.values())
        reporter.reported_at = now

    def rates(self, uid: str, now: float) -> dict[str, float] | None:
        """Returns the connections per second from each zone; ``None`` if no node reports any. Costs
        O(nodes).
        """
        self._refresh(now)
        if not self._covered:
            return None
        rates: dict[str, float] = {}
        for node, reporter in self._reporters.items():
            rate = reporter.rates.get(uid, 0.0)
            zone = self._zone_by_node.get(node, "")
            if rate and zone and self._is_current(reporter, now):
                rates[zone] = rates.get(zone, 0.0) + rate * self._caps.get(node, 1.0)
        return rates

    def request_rates(self, uid: str, now: float) -> dict[str, float] | None:
        """Returns the requests per second from each zone; ``None`` if no xDS server reports any."""
        servers = [each for each in self._servers.values() if self._is_current(each, now)]
        rates: dict[str, float] = {}
        for server in servers:
            for key, rate in server.rates.items():
                zone, _, of = key.rpartition("/")
                if of == uid:
                    rates[zone] = rates.get(zone, 0.0) + rate
        return rates if servers else None

    def coverage(self, now: float) -> float | None:
        """Returns the part of the ready Nodes with a zone that report; ``None`` if no node does."""
        self._refresh(now)
        return self._covered / len(self._expected) if self._covered else None

    @property
    def capped(self) -> int:
        """Number of nodes whose reports were capped when rates were computed last."""
        return len(self._caps)

    @staticmethod
    def _is_current(reporter: _Reporter, now: float) -> bool:
        return now - reporter.reported_at <= LEASE_DURATION_S

    def _refresh(self, now: float) -> None:
        if 0 <= now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        self._covered = 0
        rates_by_zone: dict[str, dict[str, float]] = {}
        for node, reporter in self._reporters.items():
            if self._is_current(reporter, now):
                self._covered += node in self._expected
                if reporter.total_rate:
                    zone = self._zone_by_node.get(node, "")
                    rates_by_zone.setdefault(zone, {})[node] = reporter.total_rate
        self._caps = {}
        for rates in rates_by_zone.values():
            if len(rates) >= CAPPED_NODES_MIN:
                self._caps.update(_caps(rates))


def _averaged(
    averages: Mapping[str, float], present: Mapping[str, float], keys: Iterable[str], kept: float
) -> dict[str, float]:
    """Returns moving averages: *kept* of the former, the rest of the *present* rates."""
    found = {
        key: averages.get(key, 0.0) * kept + present.get(key, 0.0) * (1 - kept) for key in keys
    }
    return {key: rate for key, rate in found.items() if rate > _RATE_MIN}


def _is_step(average: float, recent: float) -> bool:
    largest = max(average, recent)
    # An average of independent events has the error of those in twice its window.
    error = sqrt(largest / (2 * STEP_HALF_LIFE_S / log(2)))
    return abs(recent - average) > max(STEP * largest, STEP_ERRORS * error)


def _uid(key: str) -> str:
    return key.rpartition("/")[2]


def _caps(rates: Mapping[str, float]) -> dict[str, float]:
    """Returns the factor of each node above the cap."""
    most = CAP * median(rates.values())
    return {node: most / rate for node, rate in rates.items() if rate > most}
