"""What other projects hold their name servers to, case by case, over a cluster of our own.

Names of cases are those of coredns/coredns (``plugin/kubernetes``: ``handler_test.go``,
``reverse_test.go``, ``ns_test.go``, ``apex_test.go``, ``namespace_test.go``, ``xfr_test.go``) and
of kubernetes/kubernetes (``test/e2e/network/dns.go``). Not here: ``/etc/hosts`` entries and
``dnsConfig`` (a kubelet's), autopath. Where our answer is another one the case says so, and
``docs/dns.md`` lists it.
"""

from __future__ import annotations

import ipaddress

import dns.message
import dns.rcode
import pytest
from tests.dns.forwarding.world import UPSTREAM, World, answering
from tests.dns.world import ZONE, Cluster, endpoint, headless, namespace, service, slice_of

from sliceplane.diagnose.io.names import candidates
from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.forwarding.message import WholeRecord
from sliceplane.dns.server import Forward
from sliceplane.dns.wire import CNAME

WEB = [{"name": "web", "port": 8000, "protocol": "TCP"}]


def cluster(**how: object) -> Cluster:
    return Cluster(
        namespace("shop"),
        service("cart", clusterIP="10.96.1.1", ports=WEB),
        slice_of("cart", endpoint("10.1.0.1", hostname="one"), ports=WEB),
        service("idle", clusterIP="10.96.1.2", ports=WEB),
        slice_of("idle", ports=WEB),
        service("six", clusterIP="fd00::6", ports=WEB),
        service("both", clusterIP="10.96.1.3", clusterIPs=["10.96.1.3", "fd00::3"], ports=WEB),
        headless("db"),
        slice_of(
            "db",
            endpoint("10.1.0.2"),
            endpoint("10.1.0.3"),
            endpoint("10.1.0.4", hostname="twin"),
            endpoint("10.1.0.5", hostname="twin"),
            ports=WEB,
        ),
        slice_of(
            "db", endpoint("fd01::1"), endpoint("fd01::2"), name="db-six", family="IPv6", ports=WEB
        ),
        headless("bare"),
        slice_of("bare", endpoint("10.1.0.20")),
        service("away", type="ExternalName", externalName="www.example.org", ports=WEB),
        service("alias", type="ExternalName", externalName=f"cart.default.svc.{ZONE}", ports=WEB),
        **how,
    )


def reversed_name(address: str) -> str:
    return f"{ipaddress.ip_address(address).reverse_pointer}."


DB = ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"]


@pytest.mark.parametrize(
    ("name", "kind", "answer", "extra"),
    [
        pytest.param("cart", "A", ["10.96.1.1"], [], id="A Service"),
        pytest.param("idle", "A", ["10.96.1.2"], [], id="A Service without endpoints"),
        pytest.param(
            "cart", "SRV", ["0 100 8000 cart"], ["10.96.1.1"], id="SRV without labels of a port"
        ),
        pytest.param("idle", "SRV", ["0 100 8000 idle"], ["10.96.1.2"], id="SRV without endpoints"),
        pytest.param("six", "SRV", ["0 100 8000 six"], ["fd00::6"], id="SRV, IPv6"),
        pytest.param("_web._tcp.cart", "SRV", ["0 100 8000 cart"], ["10.96.1.1"], id="SRV Service"),
        pytest.param(
            "_web._tcp.idle",
            "SRV",
            ["0 100 8000 idle"],
            ["10.96.1.2"],
            id="SRV Service, no endpoints",
        ),
        pytest.param(
            "_web._tcp.six", "SRV", ["0 100 8000 six"], ["fd00::6"], id="SRV Service, IPv6"
        ),
        pytest.param("db", "A", DB, [], id="A Service (headless)"),
        pytest.param("bare", "A", ["10.1.0.20"], [], id="A Service (headless and portless)"),
        pytest.param("10-1-0-20.bare", "A", ["10.1.0.20"], [], id="An endpoint with no port"),
        pytest.param("10-1-0-2.db", "A", ["10.1.0.2"], [], id="An endpoint ip"),
        pytest.param("twin.db", "A", ["10.1.0.4", "10.1.0.5"], [], id="An endpoint by name, twice"),
        pytest.param(
            "_web._tcp.db",
            "SRV",
            [
                f"0 16 8000 {host}.db"
                for host in ("10-1-0-2", "10-1-0-3", "fd01--1", "fd01--2", "twin")
            ],
            [*DB, "fd01::1", "fd01::2"],
            id="SRV Service (headless)",
        ),
        pytest.param("db", "AAAA", ["fd01::1", "fd01::2"], [], id="AAAA Service (headless)"),
        pytest.param("fd01--2.db", "AAAA", ["fd01::2"], [], id="AAAA endpoint"),
        pytest.param("six", "AAAA", ["fd00::6"], [], id="AAAA Service"),
        pytest.param("both", "A", ["10.96.1.3"], [], id="Dual stack, A"),
        pytest.param("both", "AAAA", ["fd00::3"], [], id="Dual stack, AAAA"),
        pytest.param(
            "both", "SRV", ["0 50 8000 both"], ["10.96.1.3", "fd00::3"], id="Dual stack, SRV"
        ),
        pytest.param("away", "CNAME", ["www.example.org."], [], id="CNAME external"),
        pytest.param(
            "alias",
            "A",
            ["10.96.1.1", f"cart.default.svc.{ZONE}"],
            [],
            id="CNAME to an internal Service",
        ),
    ],
)
def test_records_of_handler_test(name: str, kind: str, answer: list[str], extra: list[str]) -> None:
    got = cluster().ask(f"{name}.default", kind, use_edns=0)
    expected = [f"{item}.default.svc.{ZONE}" if kind == "SRV" else item for item in answer]
    assert sorted(str(item) for rrset in got.answer for item in rrset) == sorted(expected)
    assert sorted(str(item) for rrset in got.additional for item in rrset) == sorted(extra)
    assert {rrset.ttl for rrset in (*got.answer, *got.additional)} == {5}
    kinds = [rrset.rdtype for rrset in got.answer]
    assert CNAME not in kinds[1:], "an alias stands before its target"


@pytest.mark.parametrize(
    ("name", "kind", "outcome"),
    [
        pytest.param("cart.default", "AAAA", "NODATA", id="AAAA Service that has an A record only"),
        pytest.param("none.default", "AAAA", "NXDOMAIN", id="AAAA non-existing Service"),
        pytest.param("none.default", "A", "NXDOMAIN", id="A non-existing Service"),
        pytest.param("none.nowhere", "A", "NXDOMAIN", id="A non-existing Namespace"),
        pytest.param(
            "bogus.db.default", "A", "NXDOMAIN", id="A Service (headless), no such endpoint"
        ),
        pytest.param("bogus.none.default", "A", "NXDOMAIN", id="An endpoint of no Service"),
        pytest.param(f"svc.{ZONE}", "A", "NODATA", id="svc"),
        pytest.param(f"pod.{ZONE}", "A", "NODATA", id="pod"),
        pytest.param("shop", "A", "NODATA", id="A Namespace without Services"),
        pytest.param(f"svc.{ZONE}", "NS", "NODATA", id="NS below the zone"),
        pytest.param("shop", "NS", "NODATA", id="NS of a Namespace"),
        pytest.param(f"foo.{ZONE}", "NS", "NXDOMAIN", id="NS, non existing domain"),
        pytest.param("foo", "NS", "NXDOMAIN", id="NS, non existing Namespace"),
        pytest.param("cart.default", "SOA", "NODATA", id="SOA of a Service"),
        pytest.param("host.away.default", "CNAME", "NXDOMAIN", id="Below an external Service"),
        pytest.param(
            reversed_name("10.1.0.77"), "PTR", "NXDOMAIN", id="reverse_test: no such address"
        ),
        pytest.param(
            f"example.org.{ZONE}", "PTR", "NXDOMAIN", id="reverse_test: PTR of no address"
        ),
        pytest.param(f"a.b.c.{ZONE}", "A", "NXDOMAIN", id="apex_test: nothing there"),
    ],
)
def test_denials_of_handler_test(name: str, kind: str, outcome: str) -> None:
    """Each with the SOA of its zone (RFC 2308)."""
    held = cluster()
    assert held.outcome(name, kind) == outcome
    (authority,) = held.ask(name, kind).authority
    assert str(authority.name) == ("in-addr.arpa." if name.endswith("arpa.") else ZONE)
    assert str(authority[0]).startswith(f"ns.dns.{authority.name} hostmaster.{authority.name} ")


def test_cname_external_truncated_lookup() -> None:
    """What an upstream could not send whole, also over TCP, is truncated for the client."""
    held = cluster(config=AnswerConfig(forwards=True))
    packet = dns.message.make_query(f"away.default.svc.{ZONE}", "A").to_wire()
    forward = held.server.answer(packet, "10.1.0.9", "udp", 0.0)
    assert isinstance(forward, Forward)
    many = [f"www.example.org. 30 IN A 192.0.2.{at}" for at in range(1, 200)]
    world = World({UPSTREAM: answering(*many)}).configure()
    before = tuple(WholeRecord(owner, CNAME, ttl, target) for owner, ttl, target in forward.before)
    world.forwarder.on_query(
        forward.question, "asked", world.now, size=512, target=forward.target, before=before
    )
    world.perform()
    answer = world.answer("asked")
    assert answer.flags & dns.flags.TC
    assert str(answer.answer[0]) == f"away.default.svc.{ZONE} 5 IN CNAME www.example.org."
    assert len(answer.answer[1]) > 10


def test_reverse_test() -> None:
    held = cluster()
    for address, expected in [
        ("10.96.1.1", "cart"),
        ("fd00::3", "both"),
        ("10.1.0.1", "one.cart"),
        ("10.1.0.4", "twin.db"),
        ("fd01::1", "fd01--1.db"),
    ]:
        assert held.addresses(reversed_name(address), "PTR") == [
            f"{expected}.default.svc.{ZONE}"
        ], address


def test_ns_and_apex() -> None:
    """Differs: the server is ``ns.dns`` whether or not a Service leads to it."""
    held = cluster(addresses=("10.244.0.20", "fd00::20"))
    answer = held.ask(ZONE, "NS", use_edns=0)
    assert [str(item) for item in answer.answer[0]] == [f"ns.dns.{ZONE}"]
    assert sorted(str(item) for rrset in answer.additional for item in rrset) == [
        "10.244.0.20",
        "fd00::20",
    ]
    assert held.outcome(ZONE, "SOA") == "NOERROR"
    assert held.outcome(ZONE, "A") == "NODATA"


def test_not_synced_serve_dns() -> None:
    """Differs: what is there already is SERVFAIL too."""
    held = cluster(synced=False)
    assert [held.outcome(name) for name in ("none.default", "cart.default")] == ["SERVFAIL"] * 2


def test_serve_namespace_dns() -> None:
    held = cluster(namespaces=("default",))
    held.put(service("cart", namespace="hidden", clusterIP="10.96.1.9"))
    assert held.outcome("cart.default") == "NOERROR"
    assert held.outcome("cart.hidden") == "NXDOMAIN"
    assert held.outcome(reversed_name("10.96.1.9"), "PTR") == "NXDOMAIN"


@pytest.mark.parametrize("kind", ["AXFR", "IXFR"])
def test_xfr_test(kind: str) -> None:
    """Differs: transfers are refused."""
    packet = dns.message.make_query(ZONE, kind).to_wire()
    answer = cluster().server.answer(packet, "10.1.0.9", "tcp", 0.0)
    assert isinstance(answer, bytes)
    assert answer[3] & 15 == dns.rcode.REFUSED


# -- test/e2e/network/dns.go


def resolved(held: Cluster, name: str, kind: str = "A", own: str = "default") -> list[str]:
    """As the resolver of a Pod does, by its search list."""
    for tried in candidates(name, own, ZONE.rstrip(".")):
        if tried.endswith(ZONE) and held.outcome(tried, kind) == "NOERROR":
            return held.addresses(tried, kind)
    return []


def test_should_provide_dns_for_the_cluster() -> None:
    held = Cluster(
        service("kubernetes", clusterIP="10.96.0.1", ports=[{"name": "https", "port": 443}])
    )
    for transport in ("udp", "tcp"):
        assert held.addresses(f"kubernetes.default.svc.{ZONE}", transport=transport) == [
            "10.96.0.1"
        ]
    # partial qualified names for the cluster
    for name in ("kubernetes.default", "kubernetes.default.svc", "kubernetes"):
        assert resolved(held, name) == ["10.96.0.1"]
    assert resolved(held, "kubernetes", own="elsewhere") == []


def test_should_provide_dns_for_services() -> None:
    held = cluster()
    for transport in ("udp", "tcp"):
        assert held.addresses("db.default", transport=transport) == DB
        for name in ("_web._tcp.db.default", "_web._tcp.cart.default"):
            assert held.addresses(name, "SRV", transport=transport)
        assert held.addresses(reversed_name("10.96.1.1"), "PTR", transport=transport)
    # partial qualified names for services
    for name in ("db", "db.default", "db.default.svc"):
        assert resolved(held, name) == DB
    for of in ("db", "cart"):
        assert resolved(held, f"_web._tcp.{of}.default.svc", "SRV") == held.addresses(
            f"_web._tcp.{of}.default", "SRV"
        )


def test_should_provide_dns_for_pods_for_hostname_and_for_subdomain() -> None:
    """Also of a Service without ports."""
    held = Cluster(headless("sub"), slice_of("sub", endpoint("10.1.0.7", hostname="querier")))
    for name in (f"querier.sub.default.svc.{ZONE}", f"sub.default.svc.{ZONE}"):
        assert held.addresses(name) == ["10.1.0.7"]
    assert resolved(held, "querier.sub") == ["10.1.0.7"]


def test_should_provide_dns_for_external_name_services() -> None:
    """Its name changes, and then it has a cluster IP: no answer is of before."""
    held = Cluster()
    for target in ("foo.example.com", "bar.example.com"):
        held.put(service("ext", type="ExternalName", externalName=target))
        assert held.addresses("ext.default", "CNAME") == [f"{target}."]
    held.put(service("ext", type="ClusterIP", clusterIP="10.96.1.8", ports=WEB))
    assert held.addresses("ext.default") == ["10.96.1.8"]
    assert held.outcome("ext.default", "CNAME") == "NODATA"
