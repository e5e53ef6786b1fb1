"""When to write, and how much at once: coalescing, a pause between writes, retries, portions, as a
core.

One write runs at a time. Changes that arrive meanwhile, or within ``min_period_s`` after the *end*
of the last write, go together into the next one. After a failure the next write comes no later than
the back-off says, and never earlier than the pause; a write that succeeds forgets the failures.
With ``min_period_s`` 0 (the default) a change that finds nothing running is written at once.

All times are seconds since the epoch. A clock that was set back does not delay what changes from
then on: whatever was planned by the old one and lies further ahead than it could, is planned anew
with the next change. Owned by one data plane.

**Portions.**  A Service of many ports is served port by port, so that no other waits for all of
them. A write carries every change of ordinary Services, and of large ones together at most
``PORTION``: so many destinations and targets. What is left goes with the next write, behind
whatever has changed by then; large Services take turns. Between two portions a Service has some
ports as they were and some as they are to be, each whole; endpoints are always the newest. A
Service of few ports and very many endpoints is *heavy*: it is a portion of its own.

**Rest.**  One endpoint that changes a thousand times a second would have a large or heavy Service
computed and written without a pause. After a portion the large and heavy Services of its namespace
rest ``REST`` times as long as the write took: they have a fifth of the loop, of the CPU and of the
kernel at most, and all others go on meanwhile.

**Damage.**  Rules that were gone from the kernel although this proxy did not remove them: seen, put
back, told of for a while. That a table is written anew mends it within a moment, and hides who
deletes it: a firewall's reload, a second proxy, a person. So each time counts, and health speaks of
it for ``RECENT_S`` although the node is well.
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
    #: since when the oldest change that the kernel does not have yet has been waiting
    pending_since: float | None
    failures: int

    def staleness_s(self, now: float) -> float:
        """How long a change has been waiting: 0 if the kernel has them all."""
        return 0.0 if self.pending_since is None else max(0.0, now - self.pending_since)


class Schedule:
    """States: idle, waiting (a write is due at ``next_deadline``), running."""

    def __init__(self, *, min_period_s: float = 0.0, retry: Backoff = RETRY) -> None:
        assert min_period_s >= 0, f"min_period_s is {min_period_s}"
        self._min_period_s = min_period_s
        self._retry = retry
        self._running = False
        self._write_at: float | None = None  # when a write is wanted, before the pause is applied
        self._not_before = 0.0
        self._waiting_since: float | None = None  # oldest change not handed to a write
        self._running_since: float | None = None  # oldest change that the running write carries
        self._failures = 0
        self._last_success: float | None = None
        self._last_failure: float | None = None

    def on_change(self, now: float) -> None:
        """Something is to be written."""
        if self._waiting_since is None:
            self._waiting_since = now
        self._not_before = min(self._not_before, now + self._min_period_s)
        self.request_write(now)

    def on_remaining(self, now: float, at: float) -> None:
        """Some changes were left for a write of their own, at *at*."""
        if self._waiting_since is None:
            self._waiting_since = now
        self.request_write(at)

    def request_write(self, at: float) -> None:
        """Something may be written at *at*, which no reader need wait for (the removal of retired
        objects).
        """
        self._write_at = at if self._write_at is None else min(self._write_at, at)

    @property
    def running(self) -> bool:
        """A write is under way."""
        return self._running

    def next_deadline(self) -> float | None:
        if self._running or self._write_at is None:
            return None
        return max(self._write_at, self._not_before)

    def due(self, now: float) -> bool:
        deadline = self.next_deadline()
        return deadline is not None and deadline <= now

    def on_start(self) -> None:
        """A write begins; it carries every change reported so far."""
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
        """The running write failed; another is due when the back-off says, or with the next
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
        """As ``Freshness`` has it."""
        if self._running_since is None or self._waiting_since is None:
            return self._waiting_since if self._running_since is None else self._running_since
        return min(self._running_since, self._waiting_since)


#: more ports make a Service large; what fewer may ask for is bounded (``bounds``)
LARGE: Final = 16
#: what large Services may change in one write; some 0.3 s of the kernel's. Each portion looks at
#: its whole Service again, so it must not be small beside the largest Service that ``bounds`` allow
PORTION: Final = 4_000
#: the same where each target is a chain (iptables): its cost to the kernel grows with the square
PORTION_OF_CHAINS: Final = 500
#: the rest of a namespace's large and heavy Services, in lengths of the write that carried one
REST: Final = 4
#: no longer than this, well below the time after which a waiting change makes the proxy unhealthy
REST_MAX_S: Final = 20.0
#: a shorter one is none: Services of ordinary size are not delayed
REST_MIN_S: Final = 0.05
#: a portion counts at least as long as it takes to read its endpoints, so many a second: a change
#: may mean no write
READ_PER_S: Final = 250_000

Ports = tuple[ServedPort, ...]


class Portions:
    """Large Services.  Read by ``ServiceTracker`` and the owner of its plane, changed by the
    tracker alone.
    """

    def __init__(self) -> None:
        #: large Services, and what was told of them
        self.delivered: dict[ServiceKey, Ports] = {}
        #: large and heavy Services with more to tell, the next in turn first; and the number of the
        #: write since which
        self.behind: dict[ServiceKey, int] = {}
        #: the number of the last write
        self.number = 0
        #: sizes of heavy Services as they were told last
        self._bulk_sizes: dict[ServiceKey, int] = {}
        #: what the write under way carries of large and heavy Services, by namespace; and who rests
        #: until when
        self._carried: dict[str, int] = {}
        self._resting: dict[str, float] = {}

    def begin(
        self,
        marked: Iterable[ServiceKey],
        sizes: Mapping[ServiceKey, int],
        present: Container[ServiceKey],
    ) -> list[ServiceKey]:
        """A write begins: those of *marked* that need no portion; the others wait for their turn.
        *sizes*: of all that would have to be read of a Service. One that is not *present* cannot
        wait: its addresses may be another's.
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
        """The write under way carries *key*, or a portion of it; no rest follows from one that
        replaces everything.
        """
        if not whole:
            self._carried[key.namespace] = self._carried.get(key.namespace, 0) + size
        self._bulk_sizes.pop(key, None)
        if size > PORTION and key not in self.delivered:
            self._bulk_sizes[key] = size

    def on_written(
        self, began: float, now: float, is_removed: Callable[[ServiceKey], bool]
    ) -> float | None:
        """The kernel has what was carried since *began*; when those that are behind may go on;
        ``None``: none is.
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
        """The number of the newest write up to which every change was carried."""
        return min(self.behind.values(), default=self.number + 1) - 1

    def on_service(self, key: ServiceKey, old: Callable[[], Ports], new: Ports) -> None:
        """Before a Service becomes another one: *old* is what was told of it, if it was not
        large.
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
        """All at once, for a write that replaces everything."""
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
        #: since when rules are known to be gone
        self._missing_since: dict[Family, float] = {}
        #: when they were put back last
        self._restored_at: dict[Family, float] = {}
        self._times: dict[Family, int] = {}

    def on_missing(self, family: Family, now: float) -> bool:
        """True: it is news."""
        news = family not in self._missing_since
        self._missing_since.setdefault(family, now)
        return news

    def on_full_write(self, family: Family, now: float) -> bool:
        """All rules of *family* were written.  True: they had been gone, and count once more."""
        if self._missing_since.pop(family, None) is None:
            return False
        self._restored_at[family] = now
        self._times[family] = self._times.get(family, 0) + 1
        return True

    def times(self, family: Family) -> int:
        """How often rules of *family* were put back."""
        return self._times.get(family, 0)

    def warnings(self, now: float) -> tuple[str, ...]:
        """Sentences on what happened lately, by family."""
        return tuple(
            f"{family} rules were gone and were put back at {format_time(at)} "
            f"({self._times[family]} times since the"
            " start): look for who deletes them"
            for family, at in sorted(self._restored_at.items())
            if now - at < RECENT_S
        )
