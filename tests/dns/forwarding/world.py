"""A forwarder on virtual time among upstreams that answer as a test wants: what shell, network and
servers would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from sliceplane.dns.forwarding.asking import EndAttempt, SendQuery
from sliceplane.dns.forwarding.configuration import ZoneServers, parse_server
from sliceplane.dns.forwarding.forwarder import Forwarder, ForwardNotice, SendAnswer
from sliceplane.dns.forwarding.upstreams import SocketAddress
from sliceplane.dns.wire import HINFO, ROOT, DnsQuestion, read_query
from sliceplane.kit.rng import Rng

UPSTREAM = parse_server("192.0.2.1")
OTHER = parse_server("192.0.2.2")
SOA = "example.org. 300 IN SOA ns.example.org. admin.example.org. 1 2 3 4 60"


@dataclass
class Coming:
    """A datagram on its way, from *source*; ``None``: the socket fails."""

    packet: bytes | None
    after_s: float = 0.01
    source: SocketAddress | None = None


#: what comes back for one that is sent
Behaviour = Callable[[SendQuery], Iterable[Coming]]


def zones(*servers: SocketAddress, zone: bytes = ROOT, random: bool = False) -> ZoneServers:
    return ZoneServers(zone, servers or (UPSTREAM,), "random" if random else "sequential")


def reply_to(
    packet: bytes, *answer: str, authority: Iterable[str] = (), rcode: int = 0, flags: int = 0
) -> dns.message.Message:
    """As a server would answer; names are spelled as they were asked."""
    query = dns.message.from_wire(packet)
    reply = dns.message.make_response(query, recursion_available=True)
    reply.set_rcode(dns.rcode.Rcode(rcode))
    reply.flags |= dns.flags.Flag(flags)
    for section, lines in ((reply.answer, answer), (reply.authority, authority)):
        for line in lines:
            owner, ttl, _, kind, data = line.split(None, 4)
            section.append(dns.rrset.from_text(owner, int(ttl), "IN", kind, data))
    return reply


def answering(
    *answer: str, authority: Iterable[str] = (), rcode: int = 0, flags: int = 0
) -> Behaviour:
    def behave(sent: SendQuery) -> list[Coming]:
        reply = reply_to(sent.packet, *answer, authority=authority, rcode=rcode, flags=flags)
        return [Coming(reply.to_wire(max_size=65535))]

    return behave


def silent(sent: SendQuery) -> list[Coming]:
    return []


def failing(sent: SendQuery) -> list[Coming]:
    return [Coming(None)]


@dataclass
class World:
    """``sent``: what was asked of upstreams for a client; ``probes``: what was asked to learn how
    they are; ``asked``: for each question, if the forwarder reported that it asks an upstream for
    it.
    """

    behaviours: dict[SocketAddress, Behaviour] = field(default_factory=dict)
    now: float = 1000.0
    seed: int = 1
    stale_s: float = 0.0
    max_concurrent: int = 1000
    is_own: Callable[[bytes], bool] = lambda _: False
    sent: list[SendQuery] = field(default_factory=list)
    asked: list[bool] = field(default_factory=list)
    probes: list[SendQuery] = field(default_factory=list)
    answers: dict[object, list[bytes]] = field(default_factory=dict)
    answered_at: dict[object, float] = field(default_factory=dict)
    notices: list[ForwardNotice] = field(default_factory=list)
    open: dict[int, SendQuery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forwarder = Forwarder(
            random_bits=Rng(self.seed).bits64,
            is_own=self.is_own,
            stale_s=self.stale_s,
            max_concurrent=self.max_concurrent,
        )
        self._coming: list[tuple[float, int, int, Coming]] = []
        self._count = 0

    def configure(self, *configured: ZoneServers) -> World:
        self.forwarder.on_zones(
            configured or (zones(*(self.behaviours or {UPSTREAM: silent})),), self.now
        )
        self.perform()
        return self

    def ask(
        self,
        name: str = "www.example.org.",
        kind: str = "A",
        *,
        size: int = 1232,
        flags: int = int(dns.flags.RD),
        dnssec: bool = False,
        edns: bool = True,
        token: object = None,
        **more: object,
    ) -> object:
        """Asks, and gives back the token under which the answer comes."""
        query = dns.message.make_query(
            name, kind, use_edns=0 if edns else False, want_dnssec=dnssec, id=0x4711
        )
        query.flags = dns.flags.Flag(flags)
        question = read_query(query.to_wire())
        assert isinstance(question, DnsQuestion)
        token = object() if token is None else token
        is_asked = self.forwarder.on_query(question, token, self.now, size=size, **more)  # type: ignore[arg-type]
        self.asked.append(is_asked)
        self.perform()
        return token

    def perform(self) -> None:
        self.forwarder.check()
        for action in self.forwarder.take_actions():
            match action:
                case SendQuery():
                    self.open[action.attempt] = action
                    (self.probes if is_probe(action.packet) else self.sent).append(action)
                    for coming in self.behaviours.get(action.server, silent)(action):
                        self._count += 1
                        heappush(
                            self._coming,
                            (self.now + coming.after_s, self._count, action.attempt, coming),
                        )
                case EndAttempt():
                    del self.open[action.attempt]
                case SendAnswer():
                    self.answers.setdefault(action.token, []).append(action.packet)
                    self.answered_at[action.token] = self.now
                case ForwardNotice():
                    self.notices.append(action)

    def step(self, until: float) -> bool:
        """The next thing that happens before *until*; whether one did."""
        deadline = self.forwarder.next_deadline()
        coming_at = self._coming[0][0] if self._coming else None
        due = min((at for at in (deadline, coming_at) if at is not None), default=None)
        if due is None or due > until:
            self.now = max(self.now, until)
            return False
        self.now = max(self.now, due)
        if coming_at is not None and coming_at <= due:
            _, _, attempt, coming = heappop(self._coming)
            if attempt in self.open:
                self.deliver(attempt, coming)
        else:
            self.forwarder.on_time(self.now)
        self.perform()
        return True

    def deliver(self, attempt: int, coming: Coming) -> None:
        if coming.packet is None:
            self.forwarder.on_failed(attempt, self.now)
        else:
            source = coming.source or self.open[attempt].server
            self.forwarder.on_reply(attempt, coming.packet, source, self.now)

    def run(self, seconds: float = 10.0) -> None:
        until = self.now + seconds
        while self.step(until):
            pass

    def answer(self, token: object, seconds: float = 10.0) -> dns.message.Message:
        """The one answer to a question, as soon as it is there."""
        until = self.now + seconds
        while token not in self.answers and self.step(until):
            pass
        assert len(self.answers.get(token, ())) == 1, f"{len(self.answers.get(token, ()))} answers"
        return dns.message.from_wire(self.answers[token][0])

    def resolve(
        self, name: str = "www.example.org.", kind: str = "A", **more: object
    ) -> dns.message.Message:
        return self.answer(self.ask(name, kind, **more))  # type: ignore[arg-type]


def is_probe(packet: bytes) -> bool:
    """A look whether upstreams loop, or live."""
    question = read_query(packet)
    assert isinstance(question, DnsQuestion)
    return question.type == HINFO or question.name == ROOT


def lines(section: list[dns.rrset.RRset]) -> list[str]:
    return sorted(line for rrset in section for line in rrset.to_text().splitlines())
