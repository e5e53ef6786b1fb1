"""Upstreams that lose, delay, reorder, truncate, fold, fail and lie: every question has one answer,
and a true one.
"""

from __future__ import annotations

import dns.flags
import dns.message
import dns.rcode
from hypothesis import given
from hypothesis import strategies as st
from tests.dns.forwarding.world import (
    OTHER,
    UPSTREAM,
    Coming,
    World,
    is_probe,
    lines,
    reply_to,
    zones,
)
from tests.effort import effort

from sliceplane.dns.forwarding.asking import FLIGHT_S, TRY_S, SendQuery
from sliceplane.dns.forwarding.forwarder import Forwarder
from sliceplane.dns.wire import DnsQuestion, read_query
from sliceplane.kit.rng import Rng

NAMES = [f"n{number}.example.org." for number in range(4)]
POISON = "198.51.100.66"


def truth(name: str) -> str:
    """Of each name a set of its own, and no such name for every fourth."""
    return f"{name.lower()} 30 IN A 203.0.113.{name[1]}"


def true_reply(sent: SendQuery) -> dns.message.Message:
    name = dns.message.from_wire(sent.packet).question[0].name.to_text().lower()
    if name not in NAMES[:3]:
        soa = "example.org. 30 IN SOA ns.example.org. admin.example.org. 1 2 3 4 30"
        return reply_to(sent.packet, authority=[soa] if name in NAMES else (), rcode=3)
    # what is of other names comes along, and must be used for none
    return reply_to(
        sent.packet,
        truth(name),
        *(f"{other} 9999 IN A {POISON}" for other in NAMES if other != name),
    )


class Network:
    """What happens to a datagram is drawn from a seed; a TCP connection fails or is true."""

    def __init__(self, seed: int, honest: float) -> None:
        self._rng = Rng(seed)
        self._honest = honest

    def behave(self, sent: SendQuery) -> list[Coming]:
        after_s = self._rng.uniform(0.001, 1.5 * TRY_S)
        if self._rng.uniform(0, 1) < self._honest:
            return [Coming(true_reply(sent).to_wire(), after_s)]
        if sent.tcp:
            return [Coming(None, after_s)]
        return [Coming(packet, after_s) for packet in self._fault(sent)]

    def _fault(self, sent: SendQuery) -> list[bytes | None]:
        forged = reply_to(sent.packet, *(f"{name} 9999 IN A {POISON}" for name in NAMES))
        name = forged.question[0].name.to_text()
        match self._rng.below(10):
            case 0:
                return []
            case 1:
                return [None]
            case 2:
                forged.id = (forged.id + 1 + self._rng.below(65535)) % 65536
            case 3:
                forged.question[0].name = dns.name.from_text(NAMES[self._rng.below(4)])
                forged.id ^= 1 if forged.question[0].name.to_text() == name else 0
            case 4:
                forged.question[0].name = dns.name.from_text(name.swapcase())
            case 5:
                forged = reply_to(sent.packet, rcode=2 + 3 * self._rng.below(2))
            case 6:
                forged = reply_to(sent.packet, flags=int(dns.flags.TC))
            case 7:
                forged = reply_to(sent.packet, authority=["org. 9 IN NS a.example."])
            case 8:
                packet = bytearray(true_reply(sent).to_wire())
                del packet[self._rng.below(len(packet)) :]
                return [bytes(packet), true_reply(sent).to_wire()]
            case _:
                packet = true_reply(sent).to_wire()
                return [packet, packet]
        return [forged.to_wire(), true_reply(sent).to_wire()]


@given(st.integers(0, 2**32), st.sampled_from((0.0, 0.3, 0.8)), st.sampled_from((0.0, 60.0)))
@effort(150)
def test_every_question_has_one_answer_in_time_and_never_a_forged_one(
    seed: int, honest: float, stale_s: float
) -> None:
    network = Network(seed, honest)
    world = World(
        {UPSTREAM: network.behave, OTHER: network.behave}, seed=seed, stale_s=stale_s
    ).configure()
    rng = Rng(seed + 1)
    asked: dict[object, tuple[str, float]] = {}
    for _ in range(25):
        name = NAMES[rng.below(4)]
        token = world.ask(
            "".join(c.upper() if rng.below(2) else c for c in name), dnssec=not rng.below(3)
        )
        asked[token] = (name, world.now)
        world.run(rng.uniform(0, 3))
    world.run(FLIGHT_S + 1)
    for token, (name, asked_at) in asked.items():
        (packet,) = world.answers[token]
        message = dns.message.from_wire(packet)
        assert POISON not in str(message)
        match message.rcode():
            case dns.rcode.NOERROR:
                told = [line.lower().split()[0::4] for line in lines(message.answer)]
                cut = bool(message.flags & dns.flags.TC)  # it could not be had over TCP
                assert told == ([] if cut else [[name, truth(name).split()[4]]])
            case dns.rcode.NXDOMAIN:
                assert name == NAMES[3]
            case rcode:
                assert rcode == dns.rcode.SERVFAIL
        assert world.answered_at[token] - asked_at <= FLIGHT_S + TRY_S
    # nothing is left open but the look whether an upstream lives again
    assert all(is_probe(sent.packet) for sent in world.open.values())


@given(st.data())
@effort(150)
def test_no_bytes_at_all_raise_or_end_up_in_an_answer_to_another_question(
    data: st.DataObject,
) -> None:
    forwarder = Forwarder(random_bits=Rng(data.draw(st.integers(0, 99))).bits64)
    forwarder.on_zones((zones(UPSTREAM),), 0.0)
    questions = []
    for name in NAMES[:2]:
        question = read_query(dns.message.make_query(name, "A").to_wire())
        assert isinstance(question, DnsQuestion)
        questions.append(question)
        forwarder.on_query(question, name, 0.0, size=1232)
    sent = [action for action in forwarder.take_actions() if isinstance(action, SendQuery)]
    for _ in range(data.draw(st.integers(1, 6))):
        base = bytearray(true_reply(data.draw(st.sampled_from(sent))).to_wire())
        for _ in range(data.draw(st.integers(0, 3))):
            base[data.draw(st.integers(0, len(base) - 1))] = data.draw(st.integers(0, 255))
        junk = data.draw(st.one_of(st.just(bytes(base)), st.binary(max_size=80)))
        forwarder.on_reply(data.draw(st.integers(0, 12)), junk, UPSTREAM, 0.5)
        forwarder.check()
    for action in forwarder.take_actions():
        if hasattr(action, "token"):
            told = dns.message.from_wire(action.packet)
            assert told.question[0].name.to_text() == action.token
            owners = {rrset.name.to_text().lower() for rrset in told.answer}
            assert owners <= {action.token} or any(rrset.rdtype == 5 for rrset in told.answer)
