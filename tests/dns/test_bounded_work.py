"""What clients send bounds neither memory nor time: answers cost their own size, and clients have
shares (issue 30).
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dns.world import (
    NOW,
    ZONE,
    Cluster,
    endpoint,
    headless,
    namespace,
    node,
    service,
    slice_of,
)
from tests.effort import effort

from sliceplane.consume.usable import Locality, choose
from sliceplane.dns import clients, kept
from sliceplane.dns.clients import AnswerConfig, RateLimit
from sliceplane.dns.server import Forward, NameServer
from sliceplane.dns.service import NamedService
from sliceplane.dns.wire import name_of

PORTS = [
    {"name": "http", "port": 8080, "protocol": "TCP"},
    {"name": "admin", "port": 8081, "protocol": "TCP"},
]
PEERS = f"peers.default.svc.{ZONE}"


def large(count: int, config: AnswerConfig | None = None) -> Cluster:
    """A headless Service of *count* endpoints in three zones, and one whose endpoints share one
    hostname.
    """
    members = [
        endpoint(
            f"10.1.{at // 250}.{at % 250}",
            zone=f"z{at % 3}",
            hints=[f"z{at % 3}"],
            nodeName=f"n{at % 7}",
        )
        for at in range(count)
    ]
    same = [endpoint(f"10.2.{at // 250}.{at % 250}", hostname="same") for at in range(count)]
    return Cluster(
        namespace("default"),
        headless(),
        slice_of("peers", *members, ports=PORTS),
        headless("plain"),
        slice_of("plain", *same, ports=PORTS),
        service("alias", type="ExternalName", externalName=PEERS),
        node("n1", "z1", pods="10.9.0.0/16"),
        config=config,
    )


def query(name: str, kind: str = "A", **more: object) -> bytes:
    return bytes(dns.message.make_query(name, kind, id=7, use_edns=0, **more).to_wire())  # type: ignore[arg-type]


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, generators resumed and functions of C counted, which do not depend on the
    machine.
    """
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@cache
def _of_endpoints(count: int) -> NameServer:
    return large(count).server


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"made-up.prefer._zone.{PEERS}", "SRV"),
        (f"made-up.prefer._zone.{PEERS}", "A"),
        (f"z1.pin._zone.{PEERS}", "SRV"),
        (f"z1.pin._zone.{PEERS}", "A"),
        (PEERS, "SRV"),
        (PEERS, "A"),
        (f"_http._tcp.{PEERS}", "SRV"),
        (f"_made-up._tcp.{PEERS}", "SRV"),
        (f"_made-up.{PEERS}", "A"),
        (f"alias.default.svc.{ZONE}", "A"),
        (f"alias.default.svc.{ZONE}", "SRV"),
        (f"plain.default.svc.{ZONE}", "SRV"),
    ],
)
@pytest.mark.parametrize("client", ["10.9.0.1", "8.8.8.8"])
def test_a_truncated_answer_costs_as_much_whatever_it_leaves_out(
    name: str, kind: str, client: str
) -> None:
    costs = []
    for count in (300, 2000):
        server = _of_endpoints(count)
        packet = query(name, kind)

        def ask(server: NameServer = server, packet: bytes = packet) -> object:
            return server.answer_slowly(packet, client, "udp", NOW)

        ask()  # indexes are built by the first question after a change
        costs.append(calls_of(ask))
    assert costs[1] <= costs[0] + 200, f"calls with 300 and with 2,000 endpoints: {costs}"


def test_names_that_clients_make_up_are_not_kept() -> None:
    server = large(50).server
    for number in range(500):
        for label in (
            f"r{number}.prefer._zone",
            f"r{number}.pin._zone",
            f"10-0-{number % 256}-1.default.pod",
        ):
            server.answer(query(f"{label}.plain.default.svc.{ZONE}", "SRV"), "10.9.0.1", "udp", NOW)
        server.answer(query(f"10-0-{number % 256}-1.default.pod.{ZONE}"), "10.9.0.1", "udp", NOW)
    assert not [name for name in server._results if b"_zone" in name]
    assert sum(len(named.kept) for named in server.view._services.values()) == 0
    server._kept.check()


def test_a_client_at_any_place_leaves_nothing_behind() -> None:
    """The address of a datagram may be forged, so that a client can be at every node."""
    nodes = [node(f"n{at}", f"z{at % 3}", pods=f"10.{at}.0.0/16") for at in range(1, 200)]
    cluster = large(500)
    cluster.put(*nodes)
    server = cluster.server
    named = server.view._services[name_of("peers.default.svc")[:-1]]
    for at in range(1, 200):
        server.answer(query(PEERS), f"10.{at}.0.1", "udp", NOW)
        server.answer(query(PEERS, "SRV"), f"10.{at}.0.1", "udp", NOW)
    assert named._hints is not None
    subsets = [*named._hints.by_node.values(), *named._hints.by_zone.values()]
    assert sum(subset.count for subset in subsets) <= 500
    assert name_of(PEERS) not in server._results


def test_results_by_name_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RESULTS_BYTES_MAX", 100_000)
    monkeypatch.setattr(kept, "DENIALS_BYTES_MAX", 50_000)
    cluster = Cluster(
        headless(), slice_of("peers", *[endpoint(f"10.1.{at}.1") for at in range(200)])
    )
    server = cluster.server
    for at in range(200):
        for kind in ("A", "AAAA", "TXT"):
            server.answer(query(f"10-1-{at}-1.{PEERS}", kind), "10.9.0.1", "udp", NOW)
        server.answer(query(f"{'x' * 60}{at}.default.svc.{ZONE}"), "10.9.0.1", "udp", NOW)
        server._kept.check()
    assert 0 < server._kept.result_bytes <= 100_000
    assert 0 < server._kept.denial_bytes <= 50_000
    assert len(server._results) < 200
    cluster.remove(*list(cluster.objects.values()))
    server._kept.check()
    assert (server._kept.result_bytes, server._kept.denial_bytes) == (0, 0)


def test_types_that_clients_make_up_are_counted_together() -> None:
    server = large(1).server
    for kind in range(300, 800):
        server.answer(query(PEERS, f"TYPE{kind}"), "10.9.0.1", "udp", NOW)
    assert len(server.metrics.requests) == 1
    (sample,) = (
        sample
        for family in server.metrics.families()
        if family.name == "coredns_dns_requests_total"
        for sample in family.samples
    )
    assert (sample.labels[-1], sample.value) == ("other", 500)


def test_a_client_uses_its_share_of_the_work_and_leaves_as_much_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "UDP_WORK_PER_S", 10_000)
    config = AnswerConfig(shared_resolvers=(ipaddress.ip_network("10.5.0.0/24"),))
    server = large(5, config).server
    server.on_second(is_overloaded=True)
    numbers = iter(range(10**6))

    def asks(client: str, transport: str = "udp") -> str:
        answer = server.answer(
            query(f"r{next(numbers)}.default.svc.{ZONE}"), client, transport, NOW
        )  # type: ignore[arg-type]
        if not isinstance(answer, bytes):
            return "dropped"
        return "truncated" if answer[2] & 2 else dns.rcode.to_text(dns.rcode.Rcode(answer[3] & 15))

    greedy = [asks("10.9.0.1") for _ in range(400)]
    assert 0 < greedy.count("NXDOMAIN") < 200
    assert {*greedy[-2:]} == {"dropped", "truncated"}
    assert asks("10.9.0.2") == "NXDOMAIN"
    assert asks("10.9.0.1", "tcp") == "NXDOMAIN", (
        "over TCP an address is not forged, and has a share of its own"
    )
    usual = query(f"plain.default.svc.{ZONE}")
    server.answer(usual, "10.9.0.2", "udp", NOW)
    assert isinstance(server.answer(usual, "10.9.0.1", "udp", NOW), bytes)
    server.on_second()
    assert asks("10.9.0.1") == "NXDOMAIN"
    server.on_second()
    shared = [asks("10.5.0.1") for _ in range(400)].count("NXDOMAIN")
    assert shared > 1.5 * greedy.count("NXDOMAIN"), (
        "a resolver that asks for many may use all that is left"
    )


def test_large_answers_over_tcp_are_charged_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "TCP_WORK_PER_S", 4000)
    server = large(4000).server
    server.on_second()
    packet = query(f"plain.default.svc.{ZONE}")
    rcodes = []
    for _ in range(20):
        answer = server.answer(packet, "10.9.0.1", "tcp", NOW)
        assert isinstance(answer, bytes)
        rcodes.append(answer[3] & 15)  # to read the records would take longer than to make them
    assert rcodes[0] == dns.rcode.NOERROR
    assert rcodes[-1] == dns.rcode.REFUSED
    other = server.answer(packet, "10.9.0.2", "tcp", NOW)
    assert isinstance(other, bytes)
    assert other[3] & 15 == dns.rcode.NOERROR


def forwarded(
    server: NameServer, client: str, count: int, *, is_cached: bool = True, transport: str = "udp"
) -> int:
    """Questions for names of others of *count* that reach the forwarder."""
    reached = 0
    packet = query("www.example.org.")
    for _ in range(count):
        answer = server.answer(packet, client, transport, NOW)  # type: ignore[arg-type]
        if isinstance(answer, Forward):
            reached += 1
            if not is_cached:
                server.on_upstream_query(answer)
    return reached


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does a tenth of its work in a second, so that a tenth of the questions shows who
    gets which share.
    """
    for name in ("UDP_WORK_PER_S", "UDP_WORK_MIN", "TCP_WORK_PER_S"):
        monkeypatch.setattr(clients, name, getattr(clients, name) // 10)


@pytest.mark.usefixtures("slow")
def test_a_client_may_use_all_that_the_server_has_time_for() -> None:
    server = Cluster(config=AnswerConfig(forwards=True)).server
    assert forwarded(server, "10.9.0.1", 4000) == 4000
    assert forwarded(server, "10.9.0.2", 100) == 100, "a client that comes later loses nothing"
    assert forwarded(server, "10.9.0.1", 200, is_cached=False) == 200


@pytest.mark.parametrize(
    ("transport", "seconds", "least", "most"),
    [("udp", 1, 9000, 12_000), ("udp", 4, 1000, 1600), ("tcp", 1, 4000, 6000)],
)
def test_what_a_client_gets_of_a_second(
    transport: str, seconds: int, least: int, most: int
) -> None:
    """With all the time that there is; *seconds* of overload make the shares of UDP smaller."""
    server = Cluster(config=AnswerConfig(forwards=True)).server
    for _ in range(seconds):
        server.on_second(is_overloaded=True)
    assert least < forwarded(server, "10.9.0.1", most + 1000, transport=transport) < most


@pytest.mark.usefixtures("slow")
def test_shares_hold_for_a_minute_after_an_overload() -> None:
    server = Cluster(config=AnswerConfig(forwards=True)).server
    server.on_second(is_overloaded=True)
    for second in range(clients.OVERLOAD_S):
        if second in (0, 1, clients.OVERLOAD_S // 2, clients.OVERLOAD_S - 1):
            assert 900 < forwarded(server, "10.9.0.1", 2000) < 1200
            assert forwarded(server, "10.9.0.2", 300) == 300, "a modest client loses nothing"
        server.on_second()
    assert forwarded(server, "10.9.0.1", 2000) == 2000


@pytest.mark.usefixtures("slow")
def test_shares_become_smaller_as_long_as_an_overload_goes_on() -> None:
    server = Cluster(config=AnswerConfig(forwards=True)).server
    reached = []
    for _ in range(6):
        server.on_second(is_overloaded=True)
        reached.append(forwarded(server, "10.9.0.1", 1200))
    assert [round(reached[0] / count) for count in reached] == [1, 2, 4, 8, 8, 8]
    server.on_second()
    assert forwarded(server, "10.9.0.1", 1200) == reached[-1]
    for _ in range(clients.OVERLOAD_S):
        server.on_second()
    server.on_second(is_overloaded=True)
    assert forwarded(server, "10.9.0.1", 1200) == reached[0]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_question_that_an_upstream_is_asked_for_is_charged_for_that(transport: str) -> None:
    server = Cluster(config=AnswerConfig(forwards=True)).server
    server.on_second(is_overloaded=True)
    cached = forwarded(server, "10.9.0.1", 1500, transport=transport)
    server.on_second()
    asked = forwarded(server, "10.9.0.1", 1500, transport=transport, is_cached=False)
    assert 4 * asked < cached
    assert forwarded(server, "10.9.0.2", 50, transport=transport, is_cached=False) == 50


def test_buckets_of_the_rate_limit_keep_no_names() -> None:
    limit = RateLimit(5)
    for at in range(clients.BUCKETS_MAX + 100):
        limit.verdict(b"\x0a\0\0\1", b"%d" % at + b"x" * 200, NOW)
    assert len(limit._buckets) == clients.BUCKETS_MAX
    assert all(isinstance(key, int) for key in limit._buckets)


ADDRESSES = [f"10.1.0.{number}" for number in range(1, 7)]
hinted = st.tuples(
    st.builds(endpoint, st.sampled_from(ADDRESSES), ready=st.sampled_from([True, True, False])),
    st.lists(st.sampled_from(["z1", "z2"]), max_size=2, unique=True),
    st.lists(st.sampled_from(["n1", "n2"]), max_size=2, unique=True),
)


@given(
    st.lists(hinted, max_size=6, unique_by=lambda of: of[0]["addresses"][0]),
    st.sampled_from(["", "n1", "n2", "n3"]),
    st.sampled_from(["", "z1", "z2", "z3"]),
)
@effort(200)
def test_the_index_of_hints_is_the_rule_of_the_node_proxy(
    members: list[tuple[dict[str, object], list[str], list[str]]], at_node: str, zone: str
) -> None:
    entries = []
    for entry, zones, nodes in members:
        hints = {
            "forZones": [{"name": name} for name in zones],
            "forNodes": [{"name": name} for name in nodes],
        }
        entries.append(entry | {"hints": hints})
    named = NamedService("default", "peers")
    named.on_service(headless())
    named.on_slice("default/peers-1", slice_of("peers", *entries))
    ready = [host.endpoint for hosts in named.hosts.values() for host in hosts]
    choice = choose(ready, Locality(node=at_node, zone=zone))
    outcome, subset = named.near(Locality(node=at_node, zone=zone))
    expected = sorted(endpoint.address for endpoint in choice.endpoints)
    if subset is None:
        assert outcome == "all"
        assert expected == sorted(endpoint.address for endpoint in ready)
    else:
        assert choice.narrowed
        assert choice.hints is not None
        assert (outcome == "node") == (choice.hints.node == "honoured")
        assert sorted(".".join(map(str, packed)) for packed in subset.addresses("IPv4")) == expected
