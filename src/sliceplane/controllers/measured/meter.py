"""Rates of new connections by Service and zone, from the totals that nodes report
(``consume.demand``), and of requests from those of xDS servers and views.

Totals become differences: the first total of a node counts nothing, since its connections may be
old; a total below the last one is that of a new counter and counts whole. A report gives the node's
rates since the one before, which hold until the next one. The node of a report is that of the
Lease's name, which is the part that its account may write, and the zone is the Node's.

The rates of a zone are summed, as integers: a report costs O(its Services), and sums are the same in
any order. Each sum has a moving average with a half-life of ``HALF_LIFE_S``, which starts at zero. A
rate that is reported now was true since the report before, so averages catch up with that time.

**Steps.** After a step of demand, such an average is wrong for minutes. A second one with a half-life
of ``STEP_HALF_LIFE_S`` replaces it as soon as both differ by ``STEP`` of the larger and by
``STEP_ERRORS`` standard errors, for ``FOLLOWED_S`` until it has arrived. Noise of independent
connections, and demand that changes by less, never do that. Sums have steps that the few connections
of each of a thousand nodes do not show.

**Lies.** A node can report anything. A node whose connections to all Services together exceed
``CAP`` times the median of its zone counts as that much. The median is over nodes with connections,
and a zone with fewer than ``CAPPED_NODES_MIN`` of them has no cap: one node with a gateway is usual.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp2, inf, log, sqrt
from statistics import fmean, median
from typing import Final

from sliceplane.consume.demand import count_since, read_demand
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
#: minimum seconds between two updates of averages, caps and coverage, which cost O(nodes)
REFRESH_S: Final = 1.0
#: connections per second below which a rate is none, and forgotten
_RATE_MIN: Final = 1e-6
#: rates of reports are integers, in millionths of a connection per second
_UNITS: Final = 1_000_000

#: for both averages: the weights of the time since they were updated, and of the time that the
#: reports since then are about
_Weights = list[tuple[float, float]]


@dataclass(slots=True)
class _Reporter:
    """A node, server or view with reports. ``totals`` and ``rates`` are those of the last report, by the
    keys of ``consume.demand.Demand``; ``load`` is the moving average of all rates together.
    """

    zone: str
    totals: dict[str, int] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)
    load: float = 0.0
    reported_at: float = -inf

    def is_current(self, now: float) -> bool:
        return now - self.reported_at <= LEASE_DURATION_S


def _weight(half_life_s: float, span_s: float) -> float:
    """Returns the weight of the last *span_s* in a moving average."""
    return 1 - exp2(-span_s / half_life_s)


@dataclass(slots=True)
class _Average:
    """The moving averages of ``total``, the sum of all reporters' rates, in their units.
    ``followed_until``: when ``recent`` no longer replaces ``rate``.
    """

    total: int = 0
    present: float = 0.0
    rate: float = 0.0
    recent: float = 0.0
    followed_until: float = -inf

    def update(self, weights: _Weights, now: float) -> None:
        before, self.present = self.present, self.total / _UNITS
        change = self.present - before
        # Reports of one interval may be about times of different lengths, hence max().
        self.rate, self.recent = (
            max(0.0, average + (before - average) * passed + change * reported)
            for average, (passed, reported) in zip((self.rate, self.recent), weights, strict=True)
        )
        largest = max(self.rate, self.recent)
        # An average of independent events has the error of those in twice its window.
        error = sqrt(largest / (2 * STEP_HALF_LIFE_S / log(2)))
        if abs(self.recent - self.rate) > max(STEP * largest, STEP_ERRORS * error):
            self.followed_until = now + FOLLOWED_S
        if now < self.followed_until:
            self.rate = self.recent


class _Source:
    """The reports of nodes, or of requests: averages by zone, then by key. Keys of requests have the
    zone, so that they are in the zone "".
    """

    def __init__(self) -> None:
        self.reporters: dict[str, _Reporter] = {}
        self._averages: defaultdict[str, defaultdict[str, _Average]] = defaultdict(
            lambda: defaultdict(_Average)
        )
        self._averaged_at = -inf
        #: seconds that the reports since then are about
        self._spans_s: list[float] = []

    def on_rates(self, reporter: _Reporter, rates: dict[str, int], span_s: float) -> None:
        """Handles the rates since the last report, *span_s* ago."""
        self.set_rates(reporter, rates)
        if span_s < inf:  # the first report is about no time
            self._spans_s.append(span_s)

    def set_rates(self, reporter: _Reporter, rates: dict[str, int]) -> None:
        averages, before = self._averages[reporter.zone], reporter.rates
        for key, rate in rates.items():
            averages[key].total += rate - before.pop(key, 0)
        for key, rate in before.items():
            averages[key].total -= rate
        reporter.rates = rates

    def move(self, name: str, zone: str) -> None:
        """Counts the reporter *name* in *zone* from now on."""
        reporter = self.reporters.get(name)
        if reporter is not None and reporter.zone != zone:
            rates = dict(reporter.rates)
            self.set_rates(reporter, {})
            reporter.zone = zone
            self.set_rates(reporter, rates)

    def remove(self, name: str) -> None:
        reporter = self.reporters.pop(name, None)
        if reporter is not None:
            self.set_rates(reporter, {})
        if not self.reporters:
            self._averages.clear()

    def forget(self, uid: str) -> None:
        """Forgets the Service *uid*."""
        for averages in self._averages.values():
            for key in [key for key in averages if _uid(key) == uid]:
                del averages[key]
                for reporter in self.reporters.values():
                    reporter.rates.pop(key, None)
                    reporter.totals.pop(key, None)

    def refresh(self, now: float) -> None:
        """Ends the rates of reporters that do not report any more, and updates the averages."""
        for reporter in self.reporters.values():
            if reporter.rates and not reporter.is_current(now):
                self.set_rates(reporter, {})
        passed_s, self._averaged_at = max(0.0, now - self._averaged_at), now
        reported_s = fmean(self._spans_s) if self._spans_s else 0.0
        self._spans_s.clear()
        weights = [
            (_weight(half_life_s, passed_s), _weight(half_life_s, reported_s))
            for half_life_s in (HALF_LIFE_S, STEP_HALF_LIFE_S)
        ]
        for averages in self._averages.values():
            for key, average in list(averages.items()):
                average.update(weights, now)
                if not average.total and max(average.rate, average.recent) < _RATE_MIN:
                    del averages[key]

    def rates(self, uid: str) -> dict[str, float]:
        """Returns the averages of the Service *uid* by zone."""
        found: dict[str, float] = {}
        for zone, averages in self._averages.items():
            for key in [uid] if zone else [key for key in averages if _uid(key) == uid]:
                average = averages.get(key)
                name = zone or key.rpartition("/")[0]
                if name and average is not None and average.rate > _RATE_MIN:
                    found[name] = average.rate
        return found


class DemandMeter:
    """The rates of all nodes. Owned by one controller. Times are seconds since the epoch."""

    def __init__(self) -> None:
        #: Services to measure: their namespaces by the start of the UID
        self._uids: dict[str, list[str]] = {}
        self._nodes = _Source()
        self._requests = _Source()
        self._zone_by_node: dict[str, str] = {}
        #: number of Nodes
        self._zones: Counter[str] = Counter()
        #: ready Nodes with a zone
        self._expected: set[str] = set()
        #: invalid entries of reports so far
        self.invalid = 0
        self._refreshed_at = -inf
        #: the most that a node's connections count, by zone, in the units of rates
        self._limits: dict[str, float] = {}
        #: the nodes whose last reports were capped
        self.capped: set[str] = set()
        self._covered = 0

    def follow(self, uid: str, namespace: str) -> None:
        """Measures the Service in *namespace* whose UID starts with *uid*."""
        self._uids.setdefault(uid, []).append(namespace)

    def forget(self, uid: str, namespace: str) -> None:
        """Does not measure that Service any more."""
        self._uids[uid].remove(namespace)
        if not self._uids[uid]:
            del self._uids[uid]
            self._nodes.forget(uid)
            self._requests.forget(uid)

    def on_node(self, name: str, zone: str, *, is_expected: bool) -> None:
        """Handles a Node; *zone* "": it has none, or is gone. *is_expected*: it should report."""
        self._refreshed_at = -inf
        self._expected.discard(name)
        self._zones -= Counter(filter(None, [self._zone_by_node.pop(name, "")]))
        if zone:
            self._zone_by_node[name] = zone
            self._zones[zone] += 1
            if is_expected:
                self._expected.add(name)
        self._nodes.move(name, zone)

    def on_report(self, node: str, text: str | None, now: float) -> None:
        """Handles the annotation of a node's Lease; ``None`` or "": the node counts nothing."""
        self._on_report(self._nodes, node, text, now, self._uids.__contains__)

    def on_requests(self, client: str, text: str | None, now: float, namespace: str = "") -> None:
        """Handles the annotation of an xDS server's or view's Lease, whose totals name the clients'
        zones. *namespace*: of the Services that it may report for; "": all.
        """

        def is_counted(key: str) -> bool:
            zone, _, uid = key.rpartition("/")
            namespaces = self._uids.get(uid, ())
            allowed = namespace in namespaces if namespace else bool(namespaces)
            return allowed and zone in self._zones

        self._on_report(self._requests, client, text, now, is_counted)

    def _on_report(
        self,
        source: _Source,
        name: str,
        text: str | None,
        now: float,
        is_counted: Callable[[str], bool],
    ) -> None:
        if not text:
            source.remove(name)
            self.capped.discard(name)
            return
        demand = read_demand(text)
        self.invalid += demand.invalid
        zone = self._zone_by_node.get(name, "")
        reporter = source.reporters.setdefault(name, _Reporter(zone))
        span_s = now - reporter.reported_at
        if span_s <= 0:
            return
        counts = demand.counts
        if not counts.keys() <= self._uids.keys():  # most nodes report followed Services alone
            counts = {key: total for key, total in counts.items() if is_counted(key)}
        rates = _take_rates(reporter, counts, now)
        if source is self._nodes:
            rates = self._capped_rates(name, reporter, rates, span_s)
        source.on_rates(reporter, rates, span_s)
        self._refresh(now)

    def _capped_rates(
        self, node: str, reporter: _Reporter, rates: dict[str, int], span_s: float
    ) -> dict[str, int]:
        """Returns *rates*, which the node reports, or what counts of them."""
        total = sum(rates.values())
        reporter.load += (total - reporter.load) * _weight(HALF_LIFE_S, span_s)
        limit = self._limits.get(reporter.zone)
        if limit is None or reporter.load <= limit:
            self.capped.discard(node)
            return rates
        self.capped.add(node)
        part = limit / max(reporter.load, total)
        return {key: int(rate * part) for key, rate in rates.items()}

    def rates(self, uid: str, now: float) -> dict[str, float] | None:
        """Returns the connections per second from each zone; ``None`` if no node reports any."""
        self._refresh(now)
        return self._nodes.rates(uid) if self._covered else None

    def request_rates(self, uid: str, now: float) -> dict[str, float] | None:
        """Returns the requests per second from each zone; ``None`` if nobody reports any."""
        self._refresh(now)
        if not any(each.is_current(now) for each in self._requests.reporters.values()):
            return None
        return self._requests.rates(uid)

    def coverage(self, now: float) -> float | None:
        """Returns the part of the ready Nodes with a zone that report; ``None`` if no node does."""
        self._refresh(now)
        return self._covered / len(self._expected) if self._covered else None

    def _refresh(self, now: float) -> None:
        if 0 <= now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        self._nodes.refresh(now)
        self._requests.refresh(now)
        self._covered = 0
        loads_by_zone: dict[str, list[float]] = {}
        for node, reporter in self._nodes.reporters.items():
            if reporter.is_current(now):
                self._covered += node in self._expected
                if reporter.load:
                    loads_by_zone.setdefault(reporter.zone, []).append(reporter.load)
        self._limits = {
            zone: CAP * median(loads)
            for zone, loads in loads_by_zone.items()
            if len(loads) >= CAPPED_NODES_MIN
        }


def _take_rates(reporter: _Reporter, totals: dict[str, int], now: float) -> dict[str, int]:
    """Returns the rates since the last report, without zeros, and notes this one."""
    before, per_s = reporter.totals, _UNITS / (now - reporter.reported_at)
    reporter.totals, reporter.reported_at = totals, now
    rates = {}
    for key, total in totals.items():
        if rate := int(count_since(before.get(key, total), total) * per_s):
            rates[key] = rate
    return rates


def _uid(key: str) -> str:
    return key.rpartition("/")[2]
