"""The time and size of writes, as a core: coalescing, a pause between writes, retries, portions.

One write runs at a time. Changes that arrive while it runs, or within ``min_period_s`` after the
*end* of the last write, are combined in the next one. After a failure the next write is due after
the back-off at the latest, and never before the pause ends; a successful write resets the failures.
With ``min_period_s`` 0 (the default) a change is written immediately if no write runs.

All times are seconds since the epoch. If the clock is set back, later changes are not delayed: a
planned time that is further ahead than it can be is computed again with the next change. Owned by
one data plane.

**Portions.**  A Service of many ports is written port by port, so that other Services do not wait
for all of them. A write has every change of ordinary Services, and at most ``PORTION`` destinations
and targets of large ones together. The remaining ones are written later, after the changes that
arrived by then; large Services take turns. Between two portions a Service has some ports in their
old state and some in their new one, each complete; endpoints are always the newest. A Service of few
ports and very many endpoints is *heavy*: it is a portion of its own.

**Rest.**  If one endpoint changed a thousand times a second, its large or heavy Service would be
computed and written without a pause. After a portion the large and heavy Services of its namespace
pause for ``REST`` times the duration of the write. So they take at most a fifth of the event loop, of
the CPU and of the kernel, and all other Services continue.

**Damage.**  Rules that are missing from the kernel although this proxy did not remove them: they are
detected, restored, and reported for a while. A new write repairs the table within a moment, but
hides the cause: a firewall's reload, a second proxy, a person. So each time is counted, and health
reports it for ``RECENT_S`` although the node works.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

import msgspec

from sliceplane.consume.model import ServedPort, ServiceKey
from sliceplane.kit.delays import Backoff
from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_time

RETRY = Backoff(base_s=0.5, cap_s=30.0)


class Freshness(msgspec.Struct, frozen=True):
    """Times for health checks and metrics.  ``None``: never, or no write is pending."""

    last_success: float | None
    last_failure: float | None
    #: arrival time of the oldest change that the kernel has not applied yet
    pending_since: float | None
    failures: int

    def staleness_s(self, now: float) -> float:
        """Returns how long the oldest change has been waiting; 0 if the kernel has applied all."""
        return 0.0 if self.pending_since is None else max(0.0, now - self.pending_since)


class Schedule:
    """States: idle, waiting (a write is due at ``next_deadline``), running."""

    def __init__(self, *, min_period_s: float = 0.0, retry: Backoff = RETRY) -> None:
        assert min_period_s >= 0, f"min_period_s is {min_period_s}"
        self._min_period_s = min_period_s
        self._retry = retry
        self._running = False
        self._write_at: float | None = None  # when a write is due, without the pause
        self._not_before = 0.0
        self._waiting_since: float | None = None  # arrival of the oldest change in no write
        self._running_since: float | None = (
            None  # arrival of the oldest change in the running write
        )
        self._failures = 0
        self._last_success: float | None = None
        self._last_failure: float | None = None

    def on_change(self, now: float) -> None:
        """Notes a change to write."""
        if self._waiting_since is None:
            self._waiting_since = now
        self._not_before = min(self._not_before, now + self._min_period_s)
        self.request_write(now)

    def on_remaining(self, now: float, at: float) -> None:
        """Schedules a write of remaining changes at *at*."""
        if self._waiting_since is None:
            self._waiting_since = now
        self.request_write(at)

    def request_write(self, at: float) -> None:
        """Schedules a write at *at* that does not count as a pending change (the removal of retired
        objects).
        """
        self._write_at = at if self._write_at is None else min(self._write_at, at)

    @property
    def running(self) -> bool:
        """Returns True if a write runs."""
        return self._running

    def next_deadline(self) -> float | None:
        if self._running or self._write_at is None:
            return None
        return max(self._write_at, self._not_before)

    def due(self, now: float) -> bool:
        deadline = self.next_deadline()
        return deadline is not None and deadline <= now

    def on_start(self) -> None:
        """Notes that a write begins, with every change reported so far."""
        assert not self._running, "two writes at once"
        self._running = True
        self._running_since = self._waiting_since
        self._waiting_since = None
        self._write_at = None

    def on_success(self, now: float) -> None:
        assert self._running, "no write runs"
        self._running = False
        self._not_before = now + self._min_period_s
        self._running_since = None
        self._last_success = now
        self._failures = 0

    def on_failure(self, now: float) -> None:
        """Notes that the running write failed; another is due after the back-off, or with the next
        change.
        """
        assert self._running, "no write runs"
        self._running = False
        self._not_before = now + self._min_period_s
        waiting = [
            since for since in (self._running_since, self._waiting_since) if since is not None
        ]
        self._waiting_since = min(waiting, default=now)
        self._running_since = None
        self._last_failure = now
        delay_s = self._retry.delay_s(self._failures)
        self._failures += 1
        self.request_write(now + delay_s)

    @property
    def freshness(self) -> Freshness:
        return Freshness(self._last_success, self._last_failure, self.pending_since, self._failures)

    @property
    def pending_since(self) -> float | None:
        """Returns the member of ``Freshness``."""
        if self._running_since is None or self._waiting_since is None:
            return self._waiting_since if self._running_since is None else self._running_since
        return min(self._running_since, self._waiting_since)


#: a Service with more ports is large; with fewer ports ``bounds`` limit its size
LARGE: Final = 16
#: destinations and targets of large Services in one write; some 0.3 s of the kernel's time. Each
#: portion reads its whole Service again, so it must not be small compared with the largest Service
#: that ``bounds`` allow
PORTION: Final = 4_000
#: the same if each target is a chain (iptables): the kernel's cost grows with the square
PORTION_OF_CHAINS: Final = 500
#: pause of a namespace's large and heavy Services, in multiples of the write's duration
REST: Final = 4
#: maximum pause, well below the time after which a waiting change makes the proxy unhealthy
REST_MAX_S: Final = 20.0
#: shorter pauses are skipped, so that Services of ordinary size are not delayed
REST_MIN_S: Final = 0.05
#: endpoints read a second; a portion counts at least as the time to read its endpoints, since a
#: change may not need a write
READ_PER_S: Final = 250_000

Ports = tuple[ServedPort, ...]


class Portions:
    """Progress of large and heavy Services.  ``ServiceTracker`` and the owner of its plane read it;
    only the tracker changes it.
    """

    def __init__(self) -> None:
        #: large Services, and their ports that were passed to the rules
        self.delivered: dict[ServiceKey, Ports] = {}
        #: large and heavy Services with remaining changes, the next one first; and the number of the
        #: write since which they wait
        self.behind: dict[ServiceKey, int] = {}
        #: the number of the last write
        self.number = 0
        #: sizes of heavy Services when they were last passed to the rules
        self._bulk_sizes: dict[ServiceKey, int] = {}
        #: size of the running write's large and heavy Services, by namespace; and the ends of pauses
        self._carried: dict[str, int] = {}
        self._resting: dict[str, float] = {}

    def begin(
        self,
        marked: Iterable[ServiceKey],
        sizes: Mapping[ServiceKey, int],
        present: Container[ServiceKey],
    ) -> list[ServiceKey]:
        """Begins a write and returns the Services of *marked* that need no portion; the others are
        queued. *sizes*: numbers of endpoints to read, by Service. A Service that is not *present*
        cannot wait: its addresses may belong to another one now.
        """
        self.number += 1
        self._carried = {}
        ordinary = []
        for key in marked:
            if key in self.delivered or (
                (sizes.get(key, 0) > PORTION or key in self._bulk_sizes) and key in present
            ):
                self.behind.setdefault(key, self.number)
                continue
            ordinary.append(key)
            if self._bulk_sizes or self.behind:
                self._bulk_sizes.pop(key, None)
                self.behind.pop(key, None)
        return ordinary

    def rests(self, key: ServiceKey, now: float) -> bool:
        return self._resting.get(key.namespace, 0.0) > now

    def on_carried(self, key: ServiceKey, size: int, *, whole: bool) -> None:
        """Notes that the running write has *key*, or a portion of it; a full write (*whole*) causes no
        pause.
        """
        if not whole:
            self._carried[key.namespace] = self._carried.get(key.namespace, 0) + size
        self._bulk_sizes.pop(key, None)
        if size > PORTION and key not in self.delivered:
            self._bulk_sizes[key] = size

    def on_written(
        self, began: float, now: float, is_removed: Callable[[ServiceKey], bool]
    ) -> float | None:
        """Notes that the kernel has applied the write that began at *began*. Returns when the
        remaining portions may continue; ``None`` if there are none.
        """
        if not (self._carried or self._resting or self.behind):
            return None
        self._resting = {
            namespace: until for namespace, until in self._resting.items() if until > now
        }
        for namespace, size in self._carried.items():
            rest_s = min(REST * max(now - began, size / READ_PER_S), REST_MAX_S)
            if rest_s >= REST_MIN_S:
                self._resting[namespace] = now + rest_s
        self._carried = {}
        resumes = (
            now if is_removed(key) else self._resting.get(key.namespace, now) for key in self.behind
        )
        return min(resumes, default=None)

    @property
    def complete(self) -> int:
        """Returns the number of the newest write up to which every change was written."""
        return min(self.behind.values(), default=self.number + 1) - 1

    def on_service(self, key: ServiceKey, old: Callable[[], Ports], new: Ports) -> None:
        """Must be called before a Service changes: *old* returns its ports that were passed to the
        rules, if it was not large.
        """
        if len(new) > LARGE and key not in self.delivered:
            self.delivered[key] = old()

    def advance(
        self,
        key: ServiceKey,
        desired: Ports,
        size: Callable[[ServedPort], int],
        budget: int,
        since: int,
    ) -> tuple[Ports, int]:
        """Returns the ports of a large Service to write next, and their cost: at least one changed
        port, and further ones within *budget*.  *size* returns the number of endpoints of a port;
        *since* is as in ``behind``.
        """
        before = {port.name: port for port in self.delivered[key]}
        names = {port.name for port in desired}
        result: list[ServedPort] = []
        spent = 0
        complete = True
        for port in desired:
            current = before.get(port.name)
            if current == port:
                result.append(port)
                continue
            cost = _destinations(port) + (size(port) if current is None else _destinations(current))
            if spent and spent + cost > budget:
                complete = False
                if current is not None:
                    result.append(current)
                continue
            spent += cost
            result.append(port)
        for name, current in before.items():
            if name in names:
                continue
            cost = _destinations(current) + size(current)
            if spent and spent + cost > budget:
                complete = False
                result.append(current)
            else:
                spent += cost
        if not complete:
            self.behind[key] = since
        self._note(key, tuple(result), complete=complete)
        return tuple(result), spent

    def finish(self, key: ServiceKey, desired: Ports) -> Ports:
        """Returns all ports at once, for a full write."""
        if key in self.delivered:
            self._note(key, desired, complete=True)
        return desired

    def _note(self, key: ServiceKey, ports: Ports, *, complete: bool) -> None:
        if complete and len(ports) <= LARGE:
            del self.delivered[key]
        else:
            self.delivered[key] = ports

    def check(self) -> None:
        late = {key: since for key, since in self.behind.items() if not 0 < since <= self.number}
        assert not late, f"{late} are behind since a write that did not begin"


def _destinations(port: ServedPort) -> int:
    return 1 + len(port.external_ips) + len(port.vips) + bool(port.node_port)


RECENT_S: Final = 600.0


class Damage:
    """Owned by one node proxy.  Times are seconds since the epoch."""

    def __init__(self) -> None:
        #: times at which missing rules were detected
        self._missing_since: dict[Family, float] = {}
        #: times at which rules were last restored
        self._restored_at: dict[Family, float] = {}
        self._times: dict[Family, int] = {}

    def on_missing(self, family: Family, now: float) -> bool:
        """Notes that rules are missing; returns True if that was not known before."""
        news = family not in self._missing_since
        self._missing_since.setdefault(family, now)
        return news

    def on_full_write(self, family: Family, now: float) -> bool:
        """Notes a full write of *family*; returns True if it restored missing rules."""
        if self._missing_since.pop(family, None) is None:
            return False
        self._restored_at[family] = now
        self._times[family] = self._times.get(family, 0) + 1
        return True

    def times(self, family: Family) -> int:
        """Returns how often rules of *family* were restored."""
        return self._times.get(family, 0)

    def warnings(self, now: float) -> tuple[str, ...]:
        """Returns a sentence for each family whose rules were restored lately."""
        return tuple(
            f"{family} rules were gone and were put back at {format_time(at)} "
            f"({self._times[family]} times since the"
            " start): look for who deletes them"
            for family, at in sorted(self._restored_at.items())
            if now - at < RECENT_S
        )
