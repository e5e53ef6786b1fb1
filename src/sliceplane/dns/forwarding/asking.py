"""Asking upstreams one question: which, how often, over what, and which reply is believed.

A *flight* is one question under way. It makes *attempts*, one upstream after the other, each with a
random number, the name in random case (draft-vixie-dnsext-dns0x20) and, in the shell, a socket of
its own with a random port (RFC 5452). While a later attempt is out, an earlier one may still win.

A datagram that is not the reply, by its number, question or spelling, means that the path is not to
be trusted: the attempt goes on over TCP, which nobody off the path can answer. A truncated reply
goes on over TCP, too, and one that does not understand EDNS without it (RFC 6891, 6.2.2). An error
of a server (SERVFAIL, REFUSED, a referral) asks the next one; where none is left, and where time is
over, the question failed.

Everything that is due comes in the order in which it was made, for it is due the same time after:
dictionaries are the queues, and nothing is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sliceplane.dns.forwarding.cache import DENIAL_TTL_MAX_S, TTL_MAX_S, CacheKey
from sliceplane.dns.forwarding.counts import PROXY, ForwardCounts
from sliceplane.dns.forwarding.message import Content, Reply, content_of, encode_query, read_reply
from sliceplane.dns.forwarding.upstreams import SocketAddress, Upstream, UpstreamZone
from sliceplane.dns.wire import (
    CD,
    FORMERR,
    NOERROR,
    NS,
    NXDOMAIN,
    RCODE_NAMES,
    ROOT,
    SOA,
    TC,
    WireError,
)

#: an attempt has so long before the next one is made beside it, and a probe altogether
TRY_S: Final = 1.0
#: after so long no attempt is begun, so that there is an answer ``TRY_S`` later: a client asks
#: again, or elsewhere, after 5 s (resolv.conf(5), timeout)
FLIGHT_S: Final = 3.5
TRIES_MAX: Final = 6


class SendQuery(NamedTuple):
    """Send *packet* to *server* from a new socket with a random port, over TCP without its length.
    What comes back is ``on_reply`` of *attempt*, what fails ``on_failed``.
    """

    attempt: int
    server: SocketAddress
    tcp: bool
    packet: bytes


class EndAttempt(NamedTuple):
    """Nothing more is wanted of *attempt*: close its socket."""

    attempt: int


class FlightOutcome(NamedTuple):
    """Of one flight. ``content`` is ``None`` if it failed; then ``part`` is what a truncated reply
    had, and ``error`` an extended error that an upstream gave.
    """

    key: CacheKey
    zone: UpstreamZone
    content: Content | None
    part: Content | None
    error: int | None


@dataclass(slots=True, eq=False)
class _UnderWay:
    key: CacheKey
    zone: UpstreamZone
    #: in the order in which they are asked
    candidates: list[Upstream]
    give_up_at: float
    attempts: list[int] = field(default_factory=list)
    tries: int = 0
    part: Content | None = None
    error: int | None = None


class _Attempt(NamedTuple):
    """``flight`` is ``None`` for a probe."""

    upstream: Upstream
    flight: _UnderWay | None
    id: int
    name: bytes
    kind: int
    tcp: bool
    edns: bool
    began_at: float


class Asker:
    """Owned by the forwarder.  *draw* gives 64 random bits."""

    def __init__(self, draw: Callable[[], int], counts: ForwardCounts) -> None:
        self._draw = draw
        self._counts = counts
        self._flights: dict[CacheKey, _UnderWay] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._made = 0
        #: what is due when, in that order: flights by question, probes by attempt
        self._flights_due: dict[CacheKey, float] = {}
        self._probes_due: dict[int, float] = {}
        #: those that are probed
        self._unwell: dict[SocketAddress, Upstream] = {}
        self._actions: list[SendQuery | EndAttempt] = []
        self._outcomes: list[FlightOutcome] = []

    @property
    def under_way(self) -> int:
        return len(self._flights)

    def is_asked(self, key: CacheKey) -> bool:
        return key in self._flights

    def take_actions(self) -> list[SendQuery | EndAttempt]:
        """In the order in which they were decided."""
        actions, self._actions = self._actions, []
        return actions

    def take_outcomes(self) -> list[FlightOutcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def next_deadline(self) -> float | None:
        due = [
            at for queue in (self._flights_due, self._probes_due) for at in list(queue.values())[:1]
        ]
        due += [
            upstream.probe_at for upstream in self._unwell.values() if upstream.probe_at is not None
        ]
        return min(due, default=None)

    def keep(self, upstreams: Iterable[Upstream]) -> None:
        """There are no others any more: others are not probed."""
        kept = {upstream.address for upstream in upstreams}
        self._unwell = {
            address: upstream for address, upstream in self._unwell.items() if address in kept
        }

    def ask(self, key: CacheKey, zone: UpstreamZone, now: float) -> None:
        assert key not in self._flights, f"{key} is under way"
        candidates = zone.order(self._draw)
        if candidates[0].is_dead:
            self._counts.broken.value += 1
        flight = self._flights[key] = _UnderWay(key, zone, candidates, now + FLIGHT_S)
        self._try_next(flight, now)

    def on_reply(self, number: int, packet: bytes, source: SocketAddress, now: float) -> None:
        """*packet* came from *source* to the socket of an attempt; it may be anything."""
        attempt = self._attempts.get(number)
        if attempt is None:
            return
        upstream = attempt.upstream
        if source != upstream.address:
            self._counts.ignored.of("source").value += 1
            return
        try:
            reply = read_reply(packet)
        except WireError:
            self._distrust(number, attempt, "malformed", now)
            return
        fault = _fault_of(reply, attempt)
        if fault is not None:
            self._distrust(number, attempt, fault, now)
            return
        if reply.name not in (None, attempt.name):
            upstream.keeps_case = False
        rcode = RCODE_NAMES.get(reply.rcode, str(reply.rcode))
        self._counts.durations.of(PROXY, str(upstream.address), rcode).observe(
            now - attempt.began_at
        )
        upstream.on_answer()
        self._unwell.pop(upstream.address, None)
        if attempt.flight is None:
            self._end(number)
            self._probes_due.pop(number, None)
        else:
            self._judge(number, attempt, attempt.flight, reply, now)

    def _judge(
        self, number: int, attempt: _Attempt, flight: _UnderWay, reply: Reply, now: float
    ) -> None:
        """What a reply of the upstream itself means for its flight."""
        name, kind, do, _ = flight.key
        content = content_of(
            reply, name, kind, do=do, ttl_max=TTL_MAX_S, denial_ttl_max=DENIAL_TTL_MAX_S
        )
        if reply.rcode == FORMERR and attempt.edns:
            self._retry(number, attempt, flight, tcp=attempt.tcp, edns=False, now=now)
        elif reply.flags & TC and not attempt.tcp:
            flight.part = content
            self._retry(number, attempt, flight, tcp=True, edns=attempt.edns, now=now)
        elif (
            reply.name is not None
            and reply.rcode in (NOERROR, NXDOMAIN)
            and not _is_referral(reply, content)
        ):
            self._finish(flight, content)
        else:
            flight.error = reply.error
            self._give_up_on(number, attempt, flight, now)

    def on_failed(self, number: int, now: float) -> None:
        """The socket of an attempt gives nothing more: it was refused, there is no way, TCP
        ended.
        """
        attempt = self._attempts.get(number)
        if attempt is None:
            return
        self._blame(attempt.upstream, now)
        if attempt.flight is None:
            self._miss_probe(number, attempt)
        else:
            self._give_up_on(number, attempt, attempt.flight, now)

    def on_time(self, now: float) -> None:
        """What is due by *now* happens."""
        while self._flights_due and next(iter(self._flights_due.values())) <= now:
            flight = self._flights[next(iter(self._flights_due))]
            if flight.attempts:
                self._blame(self._attempts[flight.attempts[-1]].upstream, now)
            if now >= flight.give_up_at:
                self._finish(flight, None)
            else:
                self._try_next(flight, now)
        while self._probes_due and next(iter(self._probes_due.values())) <= now:
            number = next(iter(self._probes_due))
            attempt = self._attempts[number]
            attempt.upstream.unanswered += 1
            self._miss_probe(number, attempt)
        for upstream in self._unwell.values():
            if upstream.probe_at is not None and upstream.probe_at <= now:
                upstream.on_probe(now)
                number = self._attempt(upstream, None, ROOT, NS, now=now)
                self._probes_due[number] = now + TRY_S

    def _try_next(self, flight: _UnderWay, now: float) -> None:
        """The next upstream is asked, if one may be; if none may and nothing is out, the flight
        failed.
        """
        if now >= flight.give_up_at:
            if not flight.attempts:
                self._finish(flight, None)
            return
        self._flights_due.pop(flight.key, None)
        self._flights_due[flight.key] = now + TRY_S
        if flight.candidates and flight.tries < TRIES_MAX:
            upstream = flight.candidates.pop(0)
            flight.candidates.append(upstream)
            flight.tries += 1
            flight.attempts.append(
                self._attempt(upstream, flight, flight.key.name, flight.key.kind, now=now)
            )
        elif not flight.attempts:
            self._finish(flight, None)

    def _attempt(
        self,
        upstream: Upstream,
        flight: _UnderWay | None,
        name: bytes,
        kind: int,
        *,
        now: float,
        tcp: bool = False,
        edns: bool = True,
    ) -> int:
        if upstream.keeps_case:
            name = self._spell(name)
        attempt = _Attempt(upstream, flight, self._draw() & 0xFFFF, name, kind, tcp, edns, now)
        self._made += 1
        self._attempts[self._made] = attempt
        do, cd = (flight.key.do, flight.key.cd) if flight is not None else (False, False)
        packet = encode_query(attempt.id, name, kind, edns=edns, do=do, flags=CD if cd else 0)
        self._actions.append(SendQuery(self._made, upstream.address, tcp, packet))
        return self._made

    def _spell(self, name: bytes) -> bytes:
        """*name* with the case of its letters drawn by lot."""
        bits = 0
        for _ in range(0, len(name), 64):
            bits = bits << 64 | self._draw()
        upper = name.upper()
        return bytes(upper[at] if bits >> at & 1 else octet for at, octet in enumerate(name))

    def _retry(
        self,
        number: int,
        attempt: _Attempt,
        flight: _UnderWay,
        *,
        tcp: bool,
        edns: bool,
        now: float,
    ) -> None:
        """The same upstream once more, in another way, if there is time."""
        if now >= flight.give_up_at:
            self._give_up_on(number, attempt, flight, now)
            return
        self._end(number)
        flight.attempts.remove(number)
        self._flights_due.pop(flight.key)
        self._flights_due[flight.key] = now + TRY_S
        name, kind, _, _ = flight.key
        flight.attempts.append(
            self._attempt(attempt.upstream, flight, name, kind, tcp=tcp, edns=edns, now=now)
        )

    def _distrust(self, number: int, attempt: _Attempt, reason: str, now: float) -> None:
        self._counts.ignored.of(reason).value += 1
        if attempt.flight is None:
            return  # of a probe anything but its answer says nothing
        if attempt.tcp:
            self._blame(attempt.upstream, now)
            self._give_up_on(number, attempt, attempt.flight, now)
        else:
            self._retry(number, attempt, attempt.flight, tcp=True, edns=attempt.edns, now=now)

    def _give_up_on(self, number: int, attempt: _Attempt, flight: _UnderWay, now: float) -> None:
        """This upstream will not answer this question."""
        self._end(number)
        flight.attempts.remove(number)
        if attempt.upstream in flight.candidates:
            flight.candidates.remove(attempt.upstream)
        self._try_next(flight, now)

    def _blame(self, upstream: Upstream, now: float) -> None:
        upstream.on_failure(now)
        self._unwell[upstream.address] = upstream

    def _miss_probe(self, number: int, attempt: _Attempt) -> None:
        self._end(number)
        self._probes_due.pop(number, None)
        self._counts.probe_failures.of(PROXY, str(attempt.upstream.address)).value += 1

    def _finish(self, flight: _UnderWay, content: Content | None) -> None:
        for number in flight.attempts:
            self._end(number)
        del self._flights[flight.key]
        del self._flights_due[flight.key]
        self._outcomes.append(
            FlightOutcome(flight.key, flight.zone, content, flight.part, flight.error)
        )

    def _end(self, number: int) -> None:
        del self._attempts[number]
        self._actions.append(EndAttempt(number))

    def check(self) -> None:
        assert self._flights.keys() == self._flights_due.keys()
        for queue in (self._flights_due, self._probes_due):
            due = list(queue.values())
            assert due == sorted(due), "what is due later stands first"
        owned = [number for flight in self._flights.values() for number in flight.attempts]
        assert sorted([*owned, *self._probes_due]) == sorted(self._attempts), (
            "an attempt is of no flight and no probe"
        )
        for key, flight in self._flights.items():
            assert flight.key == key
            assert flight.attempts, f"nothing is out for {key}"
            assert flight.tries <= TRIES_MAX, key
        for upstream in self._unwell.values():
            assert upstream.probe_at is not None, f"{upstream.address} is unwell and not probed"


def _fault_of(reply: Reply, attempt: _Attempt) -> str | None:
    """Why *reply* is none to *attempt*.  Only an error may lack the question; over TCP its case may
    differ.
    """
    if reply.id != attempt.id:
        return "id"
    if reply.name is None:
        return None if reply.rcode not in (NOERROR, NXDOMAIN) else "question"
    if reply.type != attempt.kind or reply.name.lower() != attempt.name.lower():
        return "question"
    return "case" if reply.name != attempt.name and not attempt.tcp else None


def _is_referral(reply: Reply, content: Content) -> bool:
    """The server does not recurse: it names others that may know (RFC 1034, 4.3.1)."""
    kinds = {record.type for record in reply.authority}
    return reply.rcode == NOERROR and not content.answer and NS in kinds and SOA not in kinds
