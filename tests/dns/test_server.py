"""What is said to whom, and in how many bytes: the wire rules of a name server."""

from __future__ import annotations

import ipaddress

import dns.flags
import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dns.world import NOW, ZONE, Cluster, endpoint, headless, service, slice_of

from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.server import Forward, NameServer
from sliceplane.dns.wire import name_of

OWN = f"demo.default.svc.{ZONE}"


def many(count: int, **how: object) -> Cluster:
    return Cluster(
        headless(),
        slice_of("peers", *[endpoint(f"10.1.{at // 250}.{at % 250}") for at in range(count)]),
        **how,
    )


def asked(
    name: str, kind: str = "A", *, server: NameServer, client: str = "10.1.0.9", **query: object
) -> dns.message.Message:
    packet = dns.message.make_query(name, kind, **query).to_wire()  # type: ignore[arg-type]
    answer = server.answer(packet, client, "udp", NOW)
    assert isinstance(answer, bytes), answer
    return dns.message.from_wire(answer)


def test_flags_of_an_answer() -> None:
    cluster = Cluster(service(clusterIP="10.96.0.7"))
    query = dns.message.make_query(OWN, "A", flags=dns.flags.RD | dns.flags.CD | dns.flags.AD, id=1)
    for way in (cluster.server.answer_slowly, cluster.server.answer):
        answer = way(query.to_wire(), "10.0.0.1", "udp", NOW)
        assert isinstance(answer, bytes)
        assert dns.flags.to_text(dns.message.from_wire(answer).flags) == "QR AA RD CD"


def test_recursion_is_said_to_be_there_for_those_who_have_it() -> None:
    cluster = Cluster(service(clusterIP="10.96.0.7"), config=AnswerConfig(forwards=True))
    assert cluster.ask("demo.default").flags & dns.flags.RA
    assert not cluster.ask("demo.default", client="8.8.8.8").flags & dns.flags.RA


def test_what_does_not_fit_is_cut_and_said_to_be() -> None:
    """All of them come over TCP; a part is better than none (RFC 2181 section 9)."""
    cluster = many(100)

    def taken(**how: object) -> tuple[int, bool]:
        answer = cluster.ask("peers.default", **how)
        return len(answer.answer[0]), bool(answer.flags & dns.flags.TC)

    assert taken() == (28, True)
    assert taken(use_edns=0, payload=4096) == (73, True)
    assert taken(use_edns=0, payload=100) == (28, True)
    assert taken(transport="tcp") == (100, False)
    assert many(5000).ask("peers.default", transport="tcp").flags & dns.flags.TC


def test_additional_records_are_left_out_without_a_word() -> None:
    ports = [{"name": "http", "port": 80}]
    endpoints = [endpoint(f"10.1.0.{number}") for number in range(7)]
    cluster = Cluster(headless(), slice_of("peers", *endpoints, ports=ports))
    answer = cluster.ask("peers.default", "SRV")
    assert len(answer.answer[0]) == 7
    assert not answer.flags & dns.flags.TC
    assert len(answer.additional) < 7


def test_answers_begin_with_another_record_each_time() -> None:
    cluster = many(3)
    firsts = {str(cluster.ask("peers.default").answer[0][0]) for _ in range(3)}
    assert firsts == {"10.1.0.0", "10.1.0.1", "10.1.0.2"}


def test_an_opt_is_answered_with_one_and_only_then() -> None:
    cluster = Cluster(service(clusterIP="10.96.0.7"))
    assert cluster.ask("demo.default").edns == -1
    answer = cluster.ask("demo.default", use_edns=0, want_dnssec=True)
    assert (answer.edns, answer.payload) == (0, 1232)
    assert answer.ednsflags & dns.flags.DO
    cookie = dns.edns.GenericOption(10, b"\1\2\3\4\5\6\7\x08")
    assert cluster.ask("demo.default", use_edns=0, options=[cookie]).edns == 0


@pytest.mark.parametrize(
    ("name", "kind", "rdclass"),
    [(OWN, "AXFR", "IN"), (OWN, "IXFR", "IN"), ("version.bind.", "TXT", "CH"), (OWN, "A", "CH")],
)
def test_transfers_and_other_classes_are_refused(name: str, kind: str, rdclass: str) -> None:
    server = Cluster(service(clusterIP="10.96.0.7")).server
    packet = dns.message.make_query(name, kind, rdclass).to_wire()
    for way in (server.answer_slowly, server.answer):
        answer = way(packet, "10.0.0.1", "udp", NOW)
        assert isinstance(answer, bytes)
        assert answer[3] & 15 == dns.rcode.REFUSED


def test_types_without_a_name_are_no_data() -> None:
    """RFC 3597, RFC 8906."""
    cluster = Cluster(service(clusterIP="10.96.0.7"))
    for kind in (
        "HTTPS",
        "SVCB",
        "TXT",
        "MX",
        "TYPE61",
        "TYPE97",
        "TYPE65280",
        "SOA",
        "NS",
        "PTR",
        "DS",
    ):
        assert cluster.outcome("demo.default", kind) == "NODATA"


def test_before_the_first_lists_there_is_no_answer_to_remember() -> None:
    cluster = Cluster(service(clusterIP="10.96.0.7"), synced=False)
    answer = cluster.ask("demo.default", use_edns=0)
    assert answer.rcode() == dns.rcode.SERVFAIL
    assert "EDE 14" in answer.options[0].to_text()
    assert cluster.outcome("missing.default") == "SERVFAIL"
    cluster.server.on_synced()
    assert cluster.addresses("demo.default") == ["10.96.0.7"]


def test_while_the_api_is_away_answers_go_on_and_say_that_they_may_be_old() -> None:
    cluster = Cluster(service(clusterIP="10.96.0.7"))
    cluster.server.on_stale(stale=True)
    answer = cluster.ask("demo.default", use_edns=0)
    assert str(answer.answer[0][0]) == "10.96.0.7"
    assert "EDE 3" in answer.options[0].to_text()
    assert cluster.addresses("demo.default") == ["10.96.0.7"]
    cluster.server.on_stale(stale=False)
    assert not cluster.ask("demo.default", use_edns=0).options


def test_names_of_others_are_forwarded_for_own_clients_alone() -> None:
    server = Cluster(config=AnswerConfig(forwards=True)).server
    packet = dns.message.make_query("example.net.", "A", id=9).to_wire()
    forward = server.answer(packet, "10.1.0.9", "udp", NOW)
    assert isinstance(forward, Forward)
    assert (forward.question.name, forward.client) == (name_of("example.net"), "10.1.0.9")
    assert asked("example.net.", server=server, client="8.8.8.8").rcode() == dns.rcode.REFUSED
    assert asked("example.net.", server=server, flags=0).rcode() == dns.rcode.REFUSED
    assert asked("example.net.", server=Cluster().server).rcode() == dns.rcode.REFUSED


def test_an_external_name_of_another_zone_is_asked_for_on_the_clients_behalf() -> None:
    own = service("out", type="ExternalName", externalName="db.example.net")
    cluster = Cluster(own, config=AnswerConfig(forwards=True))
    name = f"out.default.svc.{ZONE}"
    packet = dns.message.make_query(name, "A", id=9).to_wire()
    forward = cluster.server.answer(packet, "10.1.0.9", "udp", NOW)
    assert isinstance(forward, Forward)
    assert (forward.question.name, forward.target) == (name_of(name), name_of("db.example.net"))
    assert forward.before == ((name_of(name), 5, name_of("db.example.net")),)
    # Who may not have names of others gets what is ours.
    assert cluster.addresses("out.default", client="8.8.8.8") == ["db.example.net."]


def test_who_may_ask() -> None:
    config = AnswerConfig(allow=(ipaddress.ip_network("10.1.0.0/24"),))
    cluster = Cluster(service(clusterIP="10.96.0.7"), config=config)
    assert cluster.outcome("demo.default") == "NOERROR"
    assert cluster.outcome("demo.default", client="10.2.0.1") == "REFUSED"
    assert cluster.outcome("demo.default", client="127.0.0.1") == "NOERROR"


def test_too_many_answers_to_one_network_are_kept_back() -> None:
    server = Cluster(service(clusterIP="10.96.0.7"), config=AnswerConfig(rate=2)).server
    packet = dns.message.make_query(OWN, "A", id=9).to_wire()

    def sent(client: str, now: float, transport: str = "udp") -> str:
        answer = server.answer(packet, client, transport, now)  # type: ignore[arg-type]
        return "-" if not isinstance(answer, bytes) else "t" if answer[2] & 2 else "a"

    assert "".join(sent("203.0.113.5", NOW) for _ in range(6)) == "aa-t-t"
    assert sent("203.0.113.77", NOW) == "-"
    assert sent("203.0.114.5", NOW) == "a"
    assert sent("203.0.113.5", NOW, "tcp") == "a"
    assert sent("203.0.113.5", NOW + 1) == "a"
    made_up = [dns.message.make_query(f"x{at}.{OWN}", "A", id=9).to_wire() for at in range(4)]
    denied = [server.answer(name, "198.51.100.7", "udp", NOW) for name in made_up]
    assert [answer and answer[2] & 2 for answer in denied] == [0, 0, None, 2]  # type: ignore[index]


def test_shared_resolvers_get_every_endpoint() -> None:
    config = AnswerConfig(shared_resolvers=(ipaddress.ip_network("10.1.1.1/32"),))
    endpoints = [endpoint(f"10.1.{at}.1", zone=f"z{at}", hints=[f"z{at}"]) for at in (1, 2)]
    cluster = Cluster(headless(), slice_of("peers", *endpoints), config=config)
    assert cluster.addresses("peers.default", client="10.1.2.1") == ["10.1.2.1"]
    assert cluster.addresses("peers.default", client="10.1.1.1") == ["10.1.1.1", "10.1.2.1"]


def test_requests_and_answers_are_counted_under_the_names_of_coredns() -> None:
    cluster = Cluster(service(clusterIP="10.96.0.7"))
    cluster.ask("demo.default")
    cluster.ask("missing.default", "AAAA")
    families = {family.name: family for family in cluster.server.metrics.families()}
    counted = {
        sample.labels[3:]: sample.value for sample in families["coredns_dns_requests_total"].samples
    }
    assert counted == {("udp", "1", "A"): 2, ("udp", "1", "AAAA"): 2}
    answered = {
        sample.labels[3]: sample.value for sample in families["coredns_dns_responses_total"].samples
    }
    assert answered == {"NOERROR": 2, "NXDOMAIN": 2}


WORLD = many(3, config=AnswerConfig(forwards=True))
WORLD.put(service(clusterIP="10.96.0.7", ports=[{"name": "http", "port": 80}]))
KNOWN = st.sampled_from(
    [
        OWN,
        f"PEERS.default.svc.{ZONE}",
        f"10-1-0-1.peers.default.svc.{ZONE}",
        ZONE,
        "x.y.",
        "1.0.1.10.in-addr.arpa.",
    ]
)


@st.composite
def packets(draw: st.DrawFn) -> bytes:
    """Queries, and what is left of them after some octets were changed, cut off or added."""
    query = dns.message.make_query(
        draw(KNOWN),
        draw(st.sampled_from(["A", "AAAA", "SRV", "PTR", "ANY", "SOA"])),
        use_edns=draw(st.sampled_from([-1, 0, 1])),
        payload=draw(st.sampled_from([0, 512, 1232, 65535])),
        want_dnssec=draw(st.booleans()),
    )
    packet = bytearray(query.to_wire())
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, len(packet) - 1), st.integers(0, 255)), max_size=3)
    ):
        packet[at] = value
    cut = draw(st.integers(0, 3))
    return bytes(packet[: len(packet) - cut]) + draw(st.binary(max_size=3))


@given(st.one_of(packets(), st.binary(max_size=64)), st.sampled_from(["udp", "tcp"]))
def test_any_bytes_get_an_answer_that_parses_or_none_the_same_both_ways(
    packet: bytes, transport: str
) -> None:
    server = WORLD.server
    turn = server._rotation
    quick = server.answer(packet, "10.1.0.9", transport, NOW)  # type: ignore[arg-type]
    server._rotation = turn
    assert quick == server.answer_slowly(packet, "10.1.0.9", transport, NOW)  # type: ignore[arg-type]
    server._rotation = turn
    assert quick == server.answer(packet, "10.1.0.9", transport, NOW)  # type: ignore[arg-type]
    if isinstance(quick, bytes):
        parsed = dns.message.from_wire(quick)
        assert parsed.id == int.from_bytes(packet[:2], "big")
        assert len(quick) <= (1232 if transport == "udp" else 65535)


def test_an_empty_view_is_no_name_servers_fault() -> None:
    server = NameServer(ZoneConfig(), AnswerConfig())
    server.on_synced()
    assert asked(OWN, server=server).rcode() == dns.rcode.NXDOMAIN
