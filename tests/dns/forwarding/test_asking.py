"""How upstreams are asked: numbers, spelling, retries, TCP, health; and what of theirs is not
believed.
"""

from __future__ import annotations

import dns.flags
import dns.message
import pytest
from tests.dns.forwarding.test_forwarder import SERVFAIL, WWW, figure
from tests.dns.forwarding.world import (
    OTHER,
    UPSTREAM,
    Behaviour,
    Coming,
    World,
    answering,
    failing,
    is_probe,
    lines,
    reply_to,
    silent,
    zones,
)

from sliceplane.dns.forwarding.asking import TRY_S, SendQuery
from sliceplane.dns.forwarding.configuration import parse_server
from sliceplane.kit.rng import Rng

FORGED = "www.example.org. 60 IN A 198.51.100.66"


def test_number_and_spelling_are_drawn_anew_for_every_query() -> None:
    world = World().configure()
    for number in range(60):
        world.ask(
            f"a-name-of-many-letters-{number % 10}.example.org.",
            ["A", "AAAA", "MX", "TXT", "NS", "SRV"][number // 10],
        )
    queries = [dns.message.from_wire(sent.packet) for sent in world.sent]
    assert len({query.id for query in queries}) > 55
    spelled = {query.question[0].name.to_text()[:22] for query in queries}
    assert len(spelled) > 55
    assert {text.lower() for text in spelled} == {"a-name-of-many-letters"}


@pytest.mark.parametrize("reason", ["id", "question", "case", "malformed", "source"])
def test_a_forged_datagram_is_not_believed_and_the_question_goes_on_over_tcp(reason: str) -> None:
    def behave(sent: SendQuery) -> list[Coming]:
        if sent.tcp:
            return [Coming(reply_to(sent.packet, WWW).to_wire())]
        forged = reply_to(sent.packet, FORGED)
        name = forged.question[0].name
        if reason == "id":
            forged.id ^= 1
        elif reason == "question":
            forged.question[0].name = dns.name.from_text("another.example.org.")
        elif reason == "case":
            forged.question[0].name = dns.name.from_text(name.to_text().swapcase())
        packet = forged.to_wire()
        if reason == "malformed":
            packet = packet[:-1]
        return [Coming(packet, source=OTHER if reason == "source" else None)]

    world = World({UPSTREAM: behave}).configure()
    message = world.resolve()
    if reason == "source":  # the socket goes on listening
        assert message.rcode() == SERVFAIL
    else:
        assert lines(message.answer) == [WWW]
        assert [sent.tcp for sent in world.sent] == [False, True]
    assert figure(world, "sliceplane_dns_forward_ignored_total", reason) >= 1
    assert FORGED not in lines(world.resolve().answer)


def test_what_lies_over_tcp_too_is_left_for_the_next_upstream() -> None:
    def lie(sent: SendQuery) -> list[Coming]:
        reply = reply_to(sent.packet, FORGED)
        reply.id ^= 1
        return [Coming(reply.to_wire())]

    world = World({UPSTREAM: lie, OTHER: answering(WWW)}).configure()
    assert lines(world.resolve().answer) == [WWW]
    assert [(sent.server, sent.tcp) for sent in world.sent] == [
        (UPSTREAM, False),
        (UPSTREAM, True),
        (OTHER, False),
    ]


def test_an_upstream_that_folds_case_is_asked_in_lower_case_once_tcp_says_so() -> None:
    def fold(sent: SendQuery) -> list[Coming]:
        reply = reply_to(sent.packet, WWW)
        reply.question[0].name = dns.name.from_text(reply.question[0].name.to_text().lower())
        return [Coming(reply.to_wire())]

    world = World({UPSTREAM: fold}).configure()
    world.run(1)
    world.sent.clear()
    for number in range(3):
        world.resolve(f"n{number}.example.org.")
    assert {sent.tcp for sent in world.sent} == {False}
    assert all(b"example\3org" in sent.packet for sent in world.sent)


def test_a_truncated_reply_is_asked_for_over_tcp() -> None:
    def truncate(sent: SendQuery) -> list[Coming]:
        flags = 0 if sent.tcp else int(dns.flags.TC)
        return [Coming(reply_to(sent.packet, *([WWW] if sent.tcp else []), flags=flags).to_wire())]

    world = World({UPSTREAM: truncate}).configure()
    message = world.resolve()
    assert lines(message.answer) == [WWW]
    assert not message.flags & dns.flags.TC
    assert [sent.tcp for sent in world.sent] == [False, True]


def test_where_tcp_gives_nothing_the_truncated_part_is_passed_on_and_not_kept() -> None:
    def truncate(sent: SendQuery) -> list[Coming]:
        return [
            Coming(
                None if sent.tcp else reply_to(sent.packet, WWW, flags=int(dns.flags.TC)).to_wire()
            )
        ]

    world = World({UPSTREAM: truncate}).configure()
    message = world.resolve()
    assert lines(message.answer) == [WWW]
    assert message.flags & dns.flags.TC
    world.run(2)
    world.resolve()
    assert [sent.tcp for sent in world.sent] == [False, True] * 2


def test_one_that_knows_no_edns_is_asked_without_it() -> None:
    def old(sent: SendQuery) -> list[Coming]:
        query = dns.message.from_wire(sent.packet)
        if query.edns >= 0:
            return [Coming(sent.packet[:2] + b"\x80\x01" + bytes(8))]
        return [Coming(reply_to(sent.packet, WWW).to_wire())]

    world = World({UPSTREAM: old}).configure()
    assert lines(world.resolve().answer) == [WWW]
    assert len(world.sent) == 2


def refers(sent: SendQuery) -> list[Coming]:
    return [Coming(reply_to(sent.packet, authority=["org. 60 IN NS a.gtld.example."]).to_wire())]


@pytest.mark.parametrize(
    "broken", [answering(rcode=2), answering(rcode=5), answering(rcode=4), failing, refers]
)
def test_an_error_of_a_server_asks_the_next_one_at_once(broken: Behaviour) -> None:
    world = World({UPSTREAM: broken, OTHER: answering(WWW)}).configure()
    began = world.now
    assert lines(world.resolve().answer) == [WWW]
    assert world.now - began < TRY_S
    assert [sent.server for sent in world.sent] == [UPSTREAM, OTHER]


def test_a_lost_packet_is_sent_again_and_a_silent_upstream_ends_in_time() -> None:
    lost = iter([True, True, False])

    def lossy(sent: SendQuery) -> list[Coming]:
        if not is_probe(sent.packet) and next(lost):
            return []
        return [Coming(reply_to(sent.packet, WWW).to_wire())]

    world = World({UPSTREAM: lossy}).configure()
    began = world.now
    assert lines(world.resolve().answer) == [WWW]
    assert world.now - began == pytest.approx(2 * TRY_S + 0.01)
    world = World({UPSTREAM: silent}).configure()
    began = world.now
    assert world.resolve().rcode() == SERVFAIL
    assert world.now - began == pytest.approx(4 * TRY_S)
    assert len(world.sent) == 4
    assert not world.open or all(sent in world.probes for sent in world.open.values())


def test_a_late_reply_to_an_earlier_attempt_wins() -> None:
    def slow(sent: SendQuery) -> list[Coming]:
        return [Coming(reply_to(sent.packet, WWW).to_wire(), after_s=1.5 * TRY_S)]

    world = World({UPSTREAM: slow, OTHER: silent}).configure()
    began = world.now
    assert lines(world.resolve().answer) == [WWW]
    assert world.now - began == pytest.approx(1.5 * TRY_S)


def test_two_failures_in_a_row_and_an_upstream_is_passed_over_until_it_answers_a_probe() -> None:
    world = World({UPSTREAM: answering(WWW), OTHER: answering(WWW)}).configure()
    world.behaviours[UPSTREAM] = failing
    for number in range(4):
        assert world.resolve(f"n{number}.example.org.").rcode() == 0
    assert [sent.server for sent in world.sent] == [UPSTREAM, OTHER, UPSTREAM, OTHER, OTHER, OTHER]
    world.run(30)
    assert figure(world, "coredns_proxy_healthcheck_failures_total", "forward", str(UPSTREAM)) >= 4
    world.behaviours[UPSTREAM] = answering(WWW)
    world.run(10)
    world.sent.clear()
    world.resolve("back.example.org.")
    assert [sent.server for sent in world.sent] == [UPSTREAM]
    probes = len(world.probes)
    world.run(60)
    assert len(world.probes) == probes, "one that is well is not probed"


def test_where_all_are_dead_they_are_asked_all_the_same() -> None:
    world = World({UPSTREAM: failing, OTHER: failing}).configure()
    for number in range(3):
        assert world.resolve(f"n{number}.example.org.").rcode() == SERVFAIL
    assert len(world.sent) == 6
    assert figure(world, "coredns_forward_healthcheck_broken_total") >= 1


def test_a_random_policy_spreads_and_a_sequential_one_does_not() -> None:
    servers = [parse_server(f"192.0.2.{number}") for number in range(1, 5)]
    for random in (True, False):
        world = World(dict.fromkeys(servers, answering(WWW))).configure(
            zones(*servers, random=random)
        )
        for number in range(100):
            world.resolve(f"n{number}.example.org.")
        assert len({sent.server for sent in world.sent}) == (4 if random else 1)


def test_the_time_of_a_reply_is_counted_under_corednss_name() -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    world.resolve()
    families = {family.name: family for family in world.forwarder.metrics.families()}
    family = families["coredns_proxy_request_duration_seconds"]
    assert family.labels == ("proxy_name", "to", "rcode")
    assert [sample.labels for sample in family.samples] == [("forward", "192.0.2.1:53", "NOERROR")]


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_sends_the_same_bytes(seed: int) -> None:
    def play() -> list[SendQuery]:
        world = World({UPSTREAM: silent, OTHER: failing}, seed=Rng(seed).bits64()).configure()
        for number in range(5):
            world.ask(f"n{number}.example.org.")
        world.run()
        return world.sent

    assert play() == play()
