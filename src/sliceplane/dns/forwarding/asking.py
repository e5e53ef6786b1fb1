"""Queries to upstreams for one question: the choice of upstreams, retries, transports, and the
checks of replies.

A *flight* is one question in progress. It makes *attempts*, one upstream after the other, each with
a random ID, the name in random case (draft-vixie-dnsext-dns0x20) and a socket of its own with a
random port (RFC 5452). While a later attempt is open, an earlier one may still succeed.

A datagram whose ID, question or spelling does not match suggests a forged reply: the attempt
continues over TCP, which an off-path attacker cannot answer. After a truncated reply it continues
over TCP, too, and after FORMERR without EDNS (RFC 6891, 6.2.2). After an error of a server
(SERVFAIL, REFUSED, a referral) the flight tries the next one. It fails if no server remains, or at
its deadline.

Deadlines are a constant time after their creation, so dictionaries in order of creation are the
queues, and nothing is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sliceplane.dns.forwarding.cache import DENIAL_TTL_MAX_S, TTL_MAX_S, CacheKey
from sliceplane.dns.forwarding.counts import PROXY, ForwardCounts
from sliceplane.dns.forwarding.message import (
    Content,
    Reply,
    encode_query,
    read_reply,
    select_content,
)
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

#: seconds until the next attempt starts beside an unanswered one, and until a probe has failed
TRY_S: Final = 1.0
#: seconds after which no attempt starts, so that the client has an answer ``TRY_S`` later: it
#: retries, or tries another server, after 5 s (resolv.conf(5), timeout)
FLIGHT_S: Final = 3.5
TRIES_MAX: Final = 6


class SendQuery(NamedTuple):
    """Send ``packet`` to ``server`` from a new socket with a random port; for TCP the length is to
    be added.  Report a reply by ``on_reply``, and a failure by ``on_failed``.
    """

    attempt: int
    server: SocketAddress
    tcp: bool
    packet: bytes


class EndAttempt(NamedTuple):
    """Close the socket of ``attempt``."""

    attempt: int


class FlightOutcome(NamedTuple):
    """The outcome of one flight.  If it failed, ``content`` is ``None``, ``part`` the content of a
    truncated reply, and ``error`` an extended error from an upstream.
    """

    key: CacheKey
    zone: UpstreamZone
    content: Content | None
    part: Content | None
    error: int | None


@dataclass(slots=True, eq=False)
class _Flight:
    """A question in progress."""

    key: CacheKey
    zone: UpstreamZone
    #: in the order in which they are tried
    candidates: list[Upstream]
    deadline: float
    attempts: list[int] = field(default_factory=list)
    tries: int = 0
    part: Content | None = None
    error: int | None = None


class _Attempt(NamedTuple):
    """One query to an upstream.  ``flight`` is ``None`` for a probe."""

    upstream: Upstream
    flight: _Flight | None
    id: int
    name: bytes
    kind: int
    tcp: bool
    edns: bool
    began_at: float


class QueryScheduler:
    """The flights, attempts and probes.  Owned by the forwarder.  *random_bits* returns 64 random
    bits.
    """

    def __init__(self, random_bits: Callable[[], int], counts: ForwardCounts) -> None:
        self._random_bits = random_bits
        self._counts = counts
        self._flights: dict[CacheKey, _Flight] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._last_number = 0
        #: deadlines in ascending order: of flights by question, of probes by attempt
        self._flights_due: dict[CacheKey, float] = {}
        self._probes_due: dict[int, float] = {}
        #: the upstreams that are probed
        self._probed: dict[SocketAddress, Upstream] = {}
        self._actions: list[SendQuery | EndAttempt] = []
        self._outcomes: list[FlightOutcome] = []

    @property
    def flight_count(self) -> int:
        return len(self._flights)

    def is_in_flight(self, key: CacheKey) -> bool:
        return key in self._flights

    def take_actions(self) -> list[SendQuery | EndAttempt]:
        """Returns new actions in the order of the decisions."""
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
            upstream.probe_at for upstream in self._probed.values() if upstream.probe_at is not None
        ]
        return min(due, default=None)

    def retain_probes(self, upstreams: Iterable[Upstream]) -> None:
        """Stops probing all upstreams except *upstreams*."""
        kept = {upstream.address for upstream in upstreams}
        self._probed = {
            address: upstream for address, upstream in self._probed.items() if address in kept
        }

    def start_flight(self, key: CacheKey, zone: UpstreamZone, now: float) -> None:
        assert key not in self._flights, f"{key} is in flight already"
        candidates = zone.order(self._random_bits)
        if candidates[0].is_dead:
            self._counts.broken.value += 1
        flight = self._flights[key] = _Flight(key, zone, candidates, now + FLIGHT_S)
        self._try_next(flight, now)

    def on_reply(self, number: int, packet: bytes, source: SocketAddress, now: float) -> None:
        """Handles *packet*, which may be arbitrary bytes, from *source* at the socket of attempt
        *number*.
        """
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
        self._probed.pop(upstream.address, None)
        if attempt.flight is None:
            self._end_attempt(number)
            self._probes_due.pop(number, None)
        else:
            self._on_matching_reply(number, attempt, attempt.flight, reply, now)

    def _on_matching_reply(
        self, number: int, attempt: _Attempt, flight: _Flight, reply: Reply, now: float
    ) -> None:
        """Finishes or continues the flight after a reply whose question and ID match."""
        name, kind, do, _ = flight.key
        content = select_content(
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
            self._abandon(number, attempt, flight, now)

    def on_failed(self, number: int, now: float) -> None:
        """Handles a failed socket of attempt *number*: refused, unreachable, or closed by the peer."""
        attempt = self._attempts.get(number)
        if attempt is None:
            return
        self._note_failure(attempt.upstream, now)
        if attempt.flight is None:
            self._fail_probe(number, attempt)
        else:
            self._abandon(number, attempt, attempt.flight, now)

    def on_time(self, now: float) -> None:
        """Handles all deadlines up to *now*."""
        while self._flights_due and next(iter(self._flights_due.values())) <= now:
            flight = self._flights[next(iter(self._flights_due))]
            if flight.attempts:
                self._note_failure(self._attempts[flight.attempts[-1]].upstream, now)
            if now >= flight.deadline:
                self._finish(flight, None)
            else:
                self._try_next(flight, now)
        while self._probes_due and next(iter(self._probes_due.values())) <= now:
            number = next(iter(self._probes_due))
            attempt = self._attempts[number]
            attempt.upstream.unanswered += 1
            self._fail_probe(number, attempt)
        for upstream in self._probed.values():
            if upstream.probe_at is not None and upstream.probe_at <= now:
                upstream.on_probe(now)
                number = self._attempt(upstream, None, ROOT, NS, now=now)
                self._probes_due[number] = now + TRY_S

    def _try_next(self, flight: _Flight, now: float) -> None:
        """Tries the next upstream; finishes the flight as failed if none remains and no attempt is
        open.
        """
        if now >= flight.deadline:
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
        flight: _Flight | None,
        name: bytes,
        kind: int,
        *,
        now: float,
        tcp: bool = False,
        edns: bool = True,
    ) -> int:
        if upstream.keeps_case:
            name = self._randomize_case(name)
        attempt = _Attempt(
            upstream, flight, self._random_bits() & 0xFFFF, name, kind, tcp, edns, now
        )
        self._last_number += 1
        self._attempts[self._last_number] = attempt
        do, cd = (flight.key.do, flight.key.cd) if flight is not None else (False, False)
        packet = encode_query(attempt.id, name, kind, edns=edns, do=do, flags=CD if cd else 0)
        self._actions.append(SendQuery(self._last_number, upstream.address, tcp, packet))
        return self._last_number

    def _randomize_case(self, name: bytes) -> bytes:
        """Returns *name* with each letter in random case."""
        bits = 0
        for _ in range(0, len(name), 64):
            bits = bits << 64 | self._random_bits()
        upper = name.upper()
        return bytes(upper[at] if bits >> at & 1 else octet for at, octet in enumerate(name))

    def _retry(
        self,
        number: int,
        attempt: _Attempt,
        flight: _Flight,
        *,
        tcp: bool,
        edns: bool,
        now: float,
    ) -> None:
        """Retries the same upstream with another transport, if time remains."""
        if now >= flight.deadline:
            self._abandon(number, attempt, flight, now)
            return
        self._end_attempt(number)
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
            return  # a probe only waits for its own answer
        if attempt.tcp:
            self._note_failure(attempt.upstream, now)
            self._abandon(number, attempt, attempt.flight, now)
        else:
            self._retry(number, attempt, attempt.flight, tcp=True, edns=attempt.edns, now=now)

    def _abandon(self, number: int, attempt: _Attempt, flight: _Flight, now: float) -> None:
        """Ends the attempt: its upstream will not answer this question."""
        self._end_attempt(number)
        flight.attempts.remove(number)
        if attempt.upstream in flight.candidates:
            flight.candidates.remove(attempt.upstream)
        self._try_next(flight, now)

    def _note_failure(self, upstream: Upstream, now: float) -> None:
        upstream.on_failure(now)
        self._probed[upstream.address] = upstream

    def _fail_probe(self, number: int, attempt: _Attempt) -> None:
        self._end_attempt(number)
        self._probes_due.pop(number, None)
        self._counts.probe_failures.of(PROXY, str(attempt.upstream.address)).value += 1

    def _finish(self, flight: _Flight, content: Content | None) -> None:
        for number in flight.attempts:
            self._end_attempt(number)
        del self._flights[flight.key]
        del self._flights_due[flight.key]
        self._outcomes.append(
            FlightOutcome(flight.key, flight.zone, content, flight.part, flight.error)
        )

    def _end_attempt(self, number: int) -> None:
        del self._attempts[number]
        self._actions.append(EndAttempt(number))

    def check(self) -> None:
        assert self._flights.keys() == self._flights_due.keys()
        for queue in (self._flights_due, self._probes_due):
            due = list(queue.values())
            assert due == sorted(due), "a later deadline is first"
        owned = [number for flight in self._flights.values() for number in flight.attempts]
        assert sorted([*owned, *self._probes_due]) == sorted(self._attempts), (
            "an attempt belongs to no flight and no probe"
        )
        for key, flight in self._flights.items():
            assert flight.key == key
            assert flight.attempts, f"no attempt is open for {key}"
            assert flight.tries <= TRIES_MAX, key
        for upstream in self._probed.values():
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
    """Returns True if the server does not recurse, and refers to other servers (RFC 1034, 4.3.1)."""
    kinds = {record.type for record in reply.authority}
    return reply.rcode == NOERROR and not content.answer and NS in kinds and SOA not in kinds
