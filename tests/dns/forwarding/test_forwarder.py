"""What becomes of one question: answered here, from the cache, by an upstream, or refused."""

from __future__ import annotations

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import pytest
from tests.dns.forwarding.world import (
    OTHER,
    SOA,
    UPSTREAM,
    Coming,
    World,
    answering,
    lines,
    reply_to,
    silent,
    zones,
)

from sliceplane.dns.forwarding import forwarder
from sliceplane.dns.forwarding.asking import SendQuery
from sliceplane.dns.forwarding.forwarder import LOOP_AGAIN_S, STALE_AFTER_S
from sliceplane.dns.forwarding.local import parse_hosts
from sliceplane.dns.forwarding.message import WholeRecord
from sliceplane.dns.wire import CNAME, HINFO, name_of, read_query

WWW = "www.example.org. 60 IN A 203.0.113.5"
REFUSED, SERVFAIL, NXDOMAIN = dns.rcode.REFUSED, dns.rcode.SERVFAIL, dns.rcode.NXDOMAIN


def extended_errors(message: dns.message.Message) -> list[int]:
    return [
        int(option.code) for option in message.options if isinstance(option, dns.edns.EDEOption)
    ]


def figure(world: World, name: str, *labels: str) -> float:
    samples = {
        sample.labels: sample.value
        for family in world.forwarder.metrics.families()
        if family.name == name
        for sample in family.samples
    }
    value = samples[labels]
    assert isinstance(value, float | int)
    return value


def test_a_name_is_asked_of_the_upstream_once_and_then_answered_from_the_cache_with_less_time_to_live() -> (
    None
):
    world = World({UPSTREAM: answering(WWW)}).configure()
    first = world.resolve()
    assert lines(first.answer) == [WWW]
    assert first.id == 0x4711
    assert first.flags & dns.flags.RA
    assert not first.flags & dns.flags.AA
    world.run(20)
    second = world.resolve("WWW.Example.ORG.")
    assert [rrset.ttl for rrset in second.answer] == [40]
    assert second.question[0].name.to_text() == "WWW.Example.ORG."
    assert len(world.sent) == 1
    world.run(41)
    assert lines(world.resolve().answer) == [WWW]
    assert len(world.sent) == 2
    assert world.asked == [True, False, True]
    assert figure(world, "coredns_cache_hits_total", "dns://:53", "success", ".", "") == 1
    assert figure(world, "coredns_cache_misses_total", "dns://:53", ".", "") == 2


def test_a_denial_is_kept_as_long_as_the_smaller_of_the_soas_two_times() -> None:
    world = World({UPSTREAM: answering(authority=[SOA], rcode=3)}).configure()
    assert world.resolve().rcode() == NXDOMAIN
    world.run(50)
    denial = world.resolve()
    assert denial.rcode() == NXDOMAIN
    assert [rrset.ttl for rrset in denial.authority] == [10]
    world.run(11)
    world.resolve()
    assert len(world.sent) == 2


def test_a_denial_without_soa_and_a_ttl_of_zero_are_not_kept() -> None:
    for behaviour in (answering(rcode=3), answering("www.example.org. 0 IN A 203.0.113.5")):
        world = World({UPSTREAM: behaviour}).configure()
        world.resolve()
        world.resolve()
        assert len(world.sent) == 2


def test_those_who_ask_the_same_wait_for_one_reply_and_others_ask_for_themselves() -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    tokens = [
        world.ask(name) for name in ("www.example.org.", "WWW.example.org.", "www.example.org.")
    ]
    others = [
        world.ask(kind="AAAA"),
        world.ask(dnssec=True),
        world.ask(flags=dns.flags.RD | dns.flags.CD),
    ]
    assert len(world.sent) == 4
    assert world.asked == [True, False, False, True, True, True], (
        "who waits for another's reply costs no query"
    )
    assert {world.answer(token).question[0].name.to_text() for token in tokens} == {
        "www.example.org.",
        "WWW.example.org.",
    }
    for token in others:
        world.answer(token)


def test_a_name_for_which_no_upstream_is_named_is_refused() -> None:
    world = World().configure(zones(OTHER, zone=name_of("corp.")))
    refused = world.resolve()
    assert (refused.rcode(), extended_errors(refused)) == (REFUSED, [20])
    assert world.sent == []


def test_a_stub_zone_has_its_own_upstreams_and_the_longest_zone_wins() -> None:
    deep = zones(OTHER, zone=name_of("corp.example.org."))
    world = World({UPSTREAM: answering(WWW), OTHER: silent}).configure(deep, zones(UPSTREAM))
    for name in (
        "corp.example.org.",
        "a.CORP.example.org.",
        "b.a.corp.example.org.",
        "acorp.example.org.",
        "org.",
    ):
        world.ask(name)
    assert [sent.server for sent in world.sent] == [OTHER, OTHER, OTHER, UPSTREAM, UPSTREAM]


@pytest.mark.parametrize(
    ("name", "kind", "rcode", "answer"),
    [
        ("localhost.", "A", 0, ["localhost. 10800 IN A 127.0.0.1"]),
        ("db.LOCALHOST.", "AAAA", 0, ["db.LOCALHOST. 10800 IN AAAA ::1"]),
        ("localhost.", "MX", 0, []),
        ("x.invalid.", "A", 3, []),
        ("duckduckgo.onion.", "A", 3, []),
        ("printer.local.", "A", 3, []),
        ("a.test.", "A", 3, []),
        ("a.alt.", "A", 3, []),
    ],
)
def test_special_names_are_answered_here(
    name: str, kind: str, rcode: int, answer: list[str]
) -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    message = world.resolve(name, kind)
    assert (message.rcode(), lines(message.answer)) == (rcode, answer)
    assert bool(message.authority) != bool(answer)
    assert world.sent == []


def test_a_stub_zone_takes_a_special_name_back() -> None:
    world = World({OTHER: silent}).configure(zones(OTHER, zone=name_of("lab.test.")))
    world.ask("db.lab.test.")
    assert [sent.server for sent in world.sent] == [OTHER]
    assert world.resolve("db.test.").rcode() == NXDOMAIN


def test_the_hosts_table_answers_before_upstreams_whatever_the_type() -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    world.forwarder.on_hosts(parse_hosts("203.0.113.9 www.example.org db\n::1 db\n"))
    assert lines(world.resolve().answer) == ["www.example.org. 60 IN A 203.0.113.9"]
    assert world.resolve(kind="AAAA").answer == []
    assert lines(world.resolve("db.", "AAAA").answer) == ["db. 60 IN AAAA ::1"]
    assert lines(world.resolve("9.113.0.203.in-addr.arpa.", "PTR").answer) == [
        "9.113.0.203.in-addr.arpa. 60 IN PTR db.",
        "9.113.0.203.in-addr.arpa. 60 IN PTR www.example.org.",
    ]
    assert world.sent == []
    assert figure(world, "coredns_hosts_entries") == 4
    world.forwarder.on_hosts(parse_hosts(""))
    assert lines(world.resolve().answer) == [WWW]


def test_any_has_one_record_and_transfers_are_refused() -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    assert lines(world.resolve(kind="ANY").answer) == [
        'www.example.org. 10800 IN HINFO "RFC8482" ""'
    ]
    assert world.resolve(kind="AXFR").rcode() == REFUSED
    assert world.sent == []


def test_a_failure_is_remembered_for_a_second_then_for_longer() -> None:
    world = World({UPSTREAM: answering(rcode=2)}).configure()
    assert extended_errors(world.resolve()) == [22]
    for remembered_s in (1, 2, 4, 5, 5):
        world.run(remembered_s - 0.05)
        failed = world.resolve()
        assert (failed.rcode(), extended_errors(failed)) == (SERVFAIL, [13])
        sent = len(world.sent)
        world.run(0.06)
        assert world.resolve().rcode() == SERVFAIL
        assert len(world.sent) == sent + 1


def test_the_extended_error_of_an_upstream_is_passed_on() -> None:
    def bogus(sent: SendQuery) -> list[Coming]:
        reply = reply_to(sent.packet, rcode=2)  # type: ignore[attr-defined]
        reply.use_edns(0, options=[dns.edns.EDEOption(6, "signature expired")])
        return [Coming(reply.to_wire())]

    world = World({UPSTREAM: bogus}).configure()
    assert extended_errors(world.resolve()) == [6]


def test_too_many_at_once_are_refused_and_counted() -> None:
    world = World({UPSTREAM: silent}, max_concurrent=3).configure()
    world.run(10)  # the look for loops is over
    tokens = [
        world.ask(f"n{number}.example.org.", account=f"client {number}") for number in range(5)
    ]
    refused = [token for token in tokens if token in world.answers]
    assert refused == tokens[3:]
    assert {world.answer(token).rcode() for token in refused} == {REFUSED}
    assert world.ask("n1.example.org.") not in world.answers, (
        "one more that waits needs no upstream"
    )
    assert figure(world, "coredns_forward_max_concurrent_rejects_total") == 2
    world.run(10)
    assert {world.answer(token).rcode() for token in tokens[:3]} == {SERVFAIL}


def test_clients_share_what_is_under_way() -> None:
    """One alone has half of it; before, one client had everything (issue 30)."""
    world = World({UPSTREAM: silent}, max_concurrent=100).configure()
    for number in range(300):
        world.ask(f"n{number}.example.org.", account="greedy")
    before = len(world.answers)
    assert 200 < before < 300
    tokens = [world.ask(f"m{number}.example.org.", account="modest") for number in range(10)]
    assert not [token for token in tokens if token in world.answers]
    world.run(10)
    assert len(world.answers) == 310
    world.behaviours[UPSTREAM] = answering(WWW)
    world.run(10)
    assert lines(world.resolve(account="greedy").answer) == [WWW], "what ended is given back"


def test_clients_share_the_memory_of_questions_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "WAITING_BYTES_MAX", 200_000)
    world = World({UPSTREAM: silent}).configure()
    for _ in range(500):
        world.ask(account="greedy")  # all wait for one reply
    refused = len(world.answers)
    assert 300 < refused < 500
    assert world.ask(account="modest") not in world.answers
    world.run(10)
    assert len(world.answers) == 501


def test_thousands_that_wait_for_one_reply_are_answered_in_steps() -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    world.run(1)
    for _ in range(1000):
        world.ask()
    answered = []
    for _ in range(100):
        before = len(world.answers)
        if not world.step(world.now + 1):
            break
        answered.append(len(world.answers) - before)
    assert sum(answered) == 1000
    assert max(answered) <= 64


OWN = "demo.default.svc.cluster.local."
OWN_RECORD = f"{OWN} 60 IN A 192.0.2.66"


def own(name: bytes) -> bool:
    return name.endswith(name_of("cluster.local")) or name == name_of("1.0.1.10.in-addr.arpa")


@pytest.mark.parametrize("kind", ["A", "AAAA"])
@pytest.mark.parametrize("rcode", [0, 3])
def test_an_upstream_says_nothing_about_names_of_the_cluster(kind: str, rcode: int) -> None:
    """Neither records nor that there is none; from the upstream and then from the cache
    (issue 30).
    """
    alias = (
        "www.example.org. 60 IN CNAME middle.example.net.",
        f"middle.example.net. 60 IN CNAME {OWN}",
    )
    soa = "cluster.local. 60 IN SOA ns.example.org. admin.example.org. 1 2 3 4 86400"
    world = World(
        {UPSTREAM: answering(*alias, OWN_RECORD, authority=[soa], rcode=rcode)}, is_own=own
    ).configure()
    for _ in range(2):
        answer = world.resolve(kind=kind)
        assert lines(answer.answer) == sorted(alias)
        assert (answer.rcode(), answer.authority, answer.additional) == (0, [], [])
    assert len(world.sent) == 1
    assert figure(world, "sliceplane_dns_forward_ignored_total", "own name") == 2


def test_a_reversed_name_of_the_cluster_has_no_record_from_outside() -> None:
    alias = "1.0.1.11.in-addr.arpa. 60 IN CNAME 1.0.1.10.in-addr.arpa."
    behaviour = answering(alias, "1.0.1.10.in-addr.arpa. 60 IN PTR evil.example.org.")
    world = World({UPSTREAM: behaviour}, is_own=own).configure()
    answer = lines(world.resolve("1.0.1.11.in-addr.arpa.", "PTR").answer)
    assert [line.lower() for line in answer] == [alias.lower()]


def test_denials_of_the_clusters_zone_are_left_out() -> None:
    soa = "cluster.local. 60 IN SOA ns.example.org. admin.example.org. 1 2 3 4 86400"
    world = World({UPSTREAM: answering(authority=[soa], rcode=3)}, is_own=own).configure()
    assert world.resolve("x.example.org.").authority == []


def nonces(world: World) -> list[str]:
    """The names by which loops are looked for, in their order."""
    questions = [dns.message.from_wire(probe.packet).question[0] for probe in world.probes]
    return list(dict.fromkeys(q.name.to_text().lower() for q in questions if q.rdtype == HINFO))


def test_a_loop_is_found_and_told_and_names_fail_at_once_until_it_is_gone() -> None:
    world = World({UPSTREAM: silent}).configure()
    back = world.ask(nonces(world)[0], "HINFO")
    assert world.answer(back).rcode() == REFUSED
    assert [(notice.reason, notice.is_well) for notice in world.notices] == [
        ("ForwardingLoop", False)
    ]
    assert str(UPSTREAM) in world.notices[0].text
    looped = world.resolve()
    assert (looped.rcode(), extended_errors(looped)) == (SERVFAIL, [0])
    assert world.sent == []
    # what is looked for comes back once more, and then no more
    world.run(LOOP_AGAIN_S + 0.5)
    world.ask(nonces(world)[1], "HINFO")
    world.behaviours[UPSTREAM] = answering(WWW)
    world.run(1)
    assert world.resolve().rcode() == SERVFAIL
    world.run(LOOP_AGAIN_S)
    assert [notice.reason for notice in world.notices] == ["ForwardingLoop", "ForwardingLoopGone"]
    assert lines(world.resolve().answer) == [WWW]


def test_after_a_failure_it_is_looked_for_a_loop() -> None:
    world = World({UPSTREAM: answering(rcode=2)}).configure()
    world.run(LOOP_AGAIN_S + 1)
    world.resolve()
    assert len(nonces(world)) == 2


def test_a_stale_answer_is_given_where_none_comes_and_only_with_leave() -> None:
    for stale_s in (0.0, 3600.0):
        world = World({UPSTREAM: answering(WWW)}, stale_s=stale_s).configure()
        world.resolve()
        world.run(100)
        world.behaviours[UPSTREAM] = silent
        began = world.now
        message = world.resolve()
        if not stale_s:
            assert message.rcode() == SERVFAIL
            continue
        assert world.now - began == pytest.approx(STALE_AFTER_S)
        assert lines(message.answer) == ["www.example.org. 30 IN A 203.0.113.5"]
        assert extended_errors(message) == [3]
        world.run(10)
        assert extended_errors(world.resolve()) == [3]
        world.run(3600)
        assert world.resolve().rcode() == SERVFAIL


def test_a_target_is_asked_for_and_stands_after_our_own_cname() -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    service = "ext.default.svc.cluster.local."
    cname = WholeRecord(name_of(service), CNAME, 5, name_of("www.example.org."))
    target = name_of("www.example.org.")
    world.resolve()
    world.run(30)
    message = world.resolve(service, target=target, before=(cname,))
    assert lines(message.answer) == [
        f"{service} 5 IN CNAME www.example.org.",
        "www.example.org. 30 IN A 203.0.113.5",
    ]
    assert message.flags & dns.flags.AA
    assert len(world.sent) == 1


def test_what_is_ours_is_said_where_the_target_can_not_be_asked_for() -> None:
    world = World()
    service = "ext.default.svc.cluster.local."
    cname = WholeRecord(name_of(service), CNAME, 5, name_of("www.example.org."))
    message = world.resolve(service, target=name_of("www.example.org."), before=(cname,))
    assert (message.rcode(), lines(message.answer)) == (
        0,
        [f"{service} 5 IN CNAME www.example.org."],
    )


def test_other_upstreams_are_asked_from_then_on_and_nothing_of_the_old_ones_is_kept() -> None:
    world = World(
        {UPSTREAM: answering(WWW), OTHER: answering("www.example.org. 60 IN A 203.0.113.6")}
    )
    world.configure(zones(UPSTREAM))
    world.resolve()
    late = world.ask("late.example.org.")
    world.configure(zones(OTHER))
    assert lines(world.resolve().answer) == ["www.example.org. 60 IN A 203.0.113.6"]
    world.answer(late)
    world.ask("late.example.org.")
    assert [sent.server for sent in world.sent] == [UPSTREAM, UPSTREAM, OTHER, OTHER]


def test_what_does_not_fit_is_cut_and_marked() -> None:
    many = [f"www.example.org. 60 IN A 203.0.113.{number}" for number in range(200)]
    world = World({UPSTREAM: answering(*many)}).configure()
    plain = world.resolve(size=512, edns=False)
    assert plain.flags & dns.flags.TC
    assert len(lines(plain.answer)) == 29
    assert len(lines(world.resolve(size=65535).answer)) == 200


def test_bits_of_dnssec_are_passed_on_to_those_who_ask_for_them() -> None:
    world = World({UPSTREAM: answering(WWW, flags=int(dns.flags.AD))}).configure()
    assert not world.resolve().flags & dns.flags.AD
    assert world.resolve(flags=dns.flags.RD | dns.flags.AD).flags & dns.flags.AD
    signed = world.resolve(dnssec=True)
    assert signed.flags & dns.flags.AD
    assert signed.ednsflags & dns.flags.DO
    queries = [dns.message.from_wire(sent.packet) for sent in world.sent]
    assert [bool(query.ednsflags & dns.flags.DO) for query in queries] == [False, True]
    assert all(query.flags & dns.flags.AD for query in queries)


def test_a_clients_subnet_goes_to_no_upstream() -> None:
    world = World({UPSTREAM: answering(WWW)}).configure()
    query = dns.message.make_query(
        "www.example.org.", "A", use_edns=0, options=[dns.edns.ECSOption("10.1.2.0", 24)]
    )
    question = read_query(query.to_wire())
    assert question is not None
    world.forwarder.on_query(question, "ecs", world.now, size=1232)  # type: ignore[arg-type]
    world.perform()
    assert dns.message.from_wire(world.sent[0].packet).options == ()
    assert lines(world.answer("ecs").answer) == [WWW]
