"""The records of the Kubernetes DNS specification 1.1.0, section by section."""

from __future__ import annotations

import pytest
from tests.dns.world import (
    ZONE,
    Cluster,
    endpoint,
    headless,
    minimum_of,
    namespace,
    node,
    pod,
    service,
    slice_of,
)

HTTP = {"name": "http", "protocol": "TCP", "port": 80}
DNS_UDP = {"name": "dns", "protocol": "UDP", "port": 53}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(
        namespace("default"),
        namespace("empty"),
        service(clusterIP="10.96.0.7", clusterIPs=["10.96.0.7", "fd00::7"], ports=[HTTP, DNS_UDP]),
        service("four", clusterIP="10.96.0.8", clusterIPs=["10.96.0.8"], ports=[HTTP]),
        slice_of("four", endpoint("10.1.0.40"), ports=[{"name": "http", "port": 8080}]),
        headless(ports=[HTTP]),
        slice_of(
            "peers",
            endpoint("10.1.0.1", hostname="peer-0"),
            endpoint("10.1.0.2", hostname="Peer-1"),
            endpoint("10.1.0.3"),
            endpoint("10.1.0.4", ready=False),
            endpoint("10.1.0.5", ready=None),
            endpoint("10.1.0.6", ready=False, hostname="leaving"),
            ports=[{"name": "http", "protocol": "TCP", "port": 8080}],
        ),
        slice_of(
            "peers", endpoint("fd01::1", hostname="peer-0"), name="six", family="IPv6", ports=[HTTP]
        ),
        headless("nobody"),
        slice_of("nobody", endpoint("10.1.0.9", ready=False)),
        service("out", type="ExternalName", externalName="db.example.net"),
        service("inside", type="ExternalName", externalName="demo.default.svc.cluster.local"),
    )


def test_the_version_of_the_specification(cluster: Cluster) -> None:
    assert cluster.addresses(f"dns-version.{ZONE}", "TXT") == ['"1.1.0"']
    assert cluster.outcome(f"dns-version.{ZONE}", "A") == "NODATA"


def test_cluster_ips(cluster: Cluster) -> None:
    assert cluster.addresses("demo.default") == ["10.96.0.7"]
    assert cluster.addresses("demo.default", "AAAA") == ["fd00::7"]
    assert cluster.outcome("four.default", "AAAA") == "NODATA"


def test_ports_of_a_service_with_a_cluster_ip(cluster: Cluster) -> None:
    answer = cluster.ask("_http._tcp.demo.default", "SRV", use_edns=0)
    assert [str(item) for item in answer.answer[0]] == ["0 50 80 demo.default.svc.cluster.local."]
    assert sorted(str(item) for rrset in answer.additional for item in rrset) == [
        "10.96.0.7",
        "fd00::7",
    ]
    assert cluster.outcome("_http._udp.demo.default", "SRV") == "NXDOMAIN"
    assert cluster.outcome("_dns._udp.demo.default", "SRV") == "NOERROR"
    assert cluster.addresses("demo.default", "SRV") == [
        "0 25 53 demo.default.svc.cluster.local.",
        "0 25 80 demo.default.svc.cluster.local.",
    ]


def test_a_headless_service_has_the_addresses_of_ready_endpoints(cluster: Cluster) -> None:
    assert cluster.addresses("peers.default") == ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.5"]
    assert cluster.addresses("peers.default", "AAAA") == ["fd01::1"]


def test_hosts_of_a_headless_service(cluster: Cluster) -> None:
    assert cluster.addresses("peer-0.peers.default") == ["10.1.0.1"]
    assert cluster.addresses("peer-0.peers.default", "AAAA") == ["fd01::1"]
    assert cluster.addresses("peer-1.peers.default") == ["10.1.0.2"]
    assert cluster.outcome("peer-1.peers.default", "AAAA") == "NODATA"
    assert cluster.addresses("10-1-0-3.peers.default") == ["10.1.0.3"]
    assert cluster.outcome("leaving.peers.default") == "NXDOMAIN"
    # As CoreDNS: one with a hostname has no other name, and those of Services with a cluster IP
    # have one too.
    assert cluster.outcome("10-1-0-1.peers.default") == "NXDOMAIN"
    assert cluster.addresses("10-1-0-40.four.default") == ["10.1.0.40"]


def test_several_endpoints_share_a_hostname() -> None:
    shared = [endpoint("10.1.0.1", hostname="db"), endpoint("10.1.0.2", hostname="db")]
    assert Cluster(headless(), slice_of("peers", *shared)).addresses("db.peers.default") == [
        "10.1.0.1",
        "10.1.0.2",
    ]


def test_ports_of_a_headless_service_are_those_of_its_slices(cluster: Cluster) -> None:
    answer = cluster.ask("_http._tcp.peers.default", "SRV", transport="tcp")
    assert sorted(str(item) for item in answer.answer[0]) == [
        "0 20 80 peer-0.peers.default.svc.cluster.local.",
        "0 20 8080 10-1-0-3.peers.default.svc.cluster.local.",
        "0 20 8080 10-1-0-5.peers.default.svc.cluster.local.",
        "0 20 8080 peer-0.peers.default.svc.cluster.local.",
        "0 20 8080 peer-1.peers.default.svc.cluster.local.",
    ]
    assert cluster.outcome("_http._tcp.peers.default", "A") == "NODATA"


def test_names_of_addresses(cluster: Cluster) -> None:
    def named(address: str) -> list[str]:
        return cluster.addresses(f"{address}.in-addr.arpa.", "PTR")

    assert named("7.0.96.10") == ["demo.default.svc.cluster.local."]
    assert named("1.0.1.10") == ["peer-0.peers.default.svc.cluster.local."]
    assert named("3.0.1.10") == ["10-1-0-3.peers.default.svc.cluster.local."]
    assert cluster.outcome("4.0.1.10.in-addr.arpa.", "PTR") == "NXDOMAIN"
    six = ".".join("7" + "0" * 27 + "00df")
    assert cluster.addresses(f"{six}.ip6.arpa.", "PTR") == ["demo.default.svc.cluster.local."]


def test_an_address_has_the_names_of_its_best_class_only() -> None:
    cluster = Cluster(
        service(clusterIP="10.96.0.7"),
        slice_of("demo", endpoint("10.1.0.1")),
        headless("plain"),
        slice_of("plain", endpoint("10.1.0.1")),
    )
    question = "1.0.1.10.in-addr.arpa."
    assert cluster.addresses(question, "PTR") == ["10-1-0-1.plain.default.svc.cluster.local."]
    cluster.put(headless("b"), headless("a"), slice_of("b", endpoint("10.1.0.1", hostname="x")))
    cluster.put(slice_of("a", endpoint("10.1.0.1", hostname="x")))
    assert cluster.addresses(question, "PTR") == [
        f"x.{of}.default.svc.cluster.local." for of in "ab"
    ]
    cluster.remove(headless("b"), headless("a"), headless("plain"))
    assert cluster.addresses(question, "PTR") == ["10-1-0-1.demo.default.svc.cluster.local."]


def test_external_names(cluster: Cluster) -> None:
    for kind in ("A", "AAAA", "TXT"):
        (alias,) = cluster.ask("out.default", kind).answer
        assert [str(item) for item in alias] == ["db.example.net."]
    chain = cluster.ask("inside.default", "A")
    assert [str(rrset) for rrset in chain.answer] == [
        "inside.default.svc.cluster.local. 5 IN CNAME demo.default.svc.cluster.local.",
        "demo.default.svc.cluster.local. 5 IN A 10.96.0.7",
    ]
    assert cluster.outcome("_http._tcp.out.default", "SRV") == "NXDOMAIN"


def test_an_alias_whose_target_lacks_the_type_is_told_and_the_target_said_to_lack_it(
    cluster: Cluster,
) -> None:
    cluster.put(
        service("to-four", type="ExternalName", externalName="four.default.svc.cluster.local.")
    )
    answer = cluster.ask("to-four.default", "AAAA")
    assert [str(item) for item in answer.answer[0]] == ["four.default.svc.cluster.local."]
    assert minimum_of(answer) == 1


def test_aliases_that_lead_to_each_other_end(cluster: Cluster) -> None:
    cluster.put(
        service("ring", type="ExternalName", externalName="gnir.default.svc.cluster.local"),
        service("gnir", type="ExternalName", externalName="ring.default.svc.cluster.local"),
    )
    assert cluster.outcome("ring.default") == "SERVFAIL"


@pytest.mark.parametrize(
    ("name", "outcome", "keep_s"),
    [
        (f"svc.{ZONE}", "NODATA", 1),
        (f"pod.{ZONE}", "NODATA", 1),
        (ZONE, "NODATA", 1),
        ("default", "NODATA", 1),
        ("empty", "NODATA", 1),
        ("missing", "NXDOMAIN", 1),
        ("missing.default", "NXDOMAIN", 1),
        ("nobody.default", "NXDOMAIN", 1),
        ("10-1-0-9.nobody.default", "NXDOMAIN", 1),
        ("_tcp.demo.default", "NODATA", 1),
        ("_udp.demo.default", "NODATA", 1),
        ("_sctp.demo.default", "NXDOMAIN", 1),
        ("_tcp.peers.default", "NODATA", 1),
        ("github.com.default", "NXDOMAIN", 1),
        ("www.github.com.default", "NXDOMAIN", 30),
        (f"github.com.{ZONE}", "NXDOMAIN", 30),
        (f"10-1-0-1.default.pod.{ZONE}", "NXDOMAIN", 30),
        ("*.default", "NXDOMAIN", 1),
        ("http.tcp.demo.default", "NXDOMAIN", 30),
    ],
)
def test_what_there_is_not(cluster: Cluster, name: str, outcome: str, keep_s: int) -> None:
    answer = cluster.ask(name)
    assert (cluster.outcome(name), minimum_of(answer)) == (outcome, keep_s)
    assert str(answer.authority[0].name) == ZONE


def test_pods_are_named_where_that_is_wanted() -> None:
    cluster = Cluster(namespace("default"), pods="insecure")
    assert cluster.addresses(f"10-1-2-3.default.pod.{ZONE}") == ["10.1.2.3"]
    assert cluster.addresses(f"fd00--1.default.pod.{ZONE}", "AAAA") == ["fd00::1"]
    assert cluster.outcome(f"10-1-2-3.missing.pod.{ZONE}") == "NXDOMAIN"


def test_verified_names_of_pods_come_and_go_with_them() -> None:
    cluster = Cluster(namespace("default"), namespace("other"), pods="verified")
    name = f"10-1-2-3.default.pod.{ZONE}"
    assert cluster.outcome(name) == "NXDOMAIN"
    cluster.put(pod("first", "10.1.2.3", "fd00::1"))
    assert cluster.addresses(name) == ["10.1.2.3"]
    assert cluster.addresses(f"fd00--1.default.pod.{ZONE}", "AAAA") == ["fd00::1"]
    assert cluster.outcome(f"10-1-2-3.other.pod.{ZONE}") == "NXDOMAIN"
    cluster.put(pod("second", "10.1.2.3"))  # before the first is told to be gone
    cluster.put(pod("first", "10.1.2.3", phase="Failed"))
    assert cluster.addresses(name) == ["10.1.2.3"]
    cluster.put(pod("second", "10.1.2.3", deleted="2026-01-01T00:00:00Z"))
    assert cluster.outcome(name) == "NXDOMAIN"
    cluster.put(pod("first", "10.1.2.4"))
    assert cluster.addresses(f"10-1-2-4.default.pod.{ZONE}") == ["10.1.2.4"]


def test_the_zone_itself() -> None:
    cluster = Cluster(addresses=("10.96.0.10",))
    (authority,) = cluster.ask(ZONE, "SOA").answer
    assert str(authority[0]).split()[:2] == [f"ns.dns.{ZONE}", f"hostmaster.{ZONE}"]
    answer = cluster.ask(ZONE, "NS")
    assert [str(item) for item in answer.answer[0]] == [f"ns.dns.{ZONE}"]
    assert [str(item) for item in answer.additional[0]] == ["10.96.0.10"]
    assert cluster.addresses(f"ns.dns.{ZONE}") == ["10.96.0.10"]
    assert cluster.outcome(f"dns.{ZONE}") == "NODATA"


def test_any_is_answered_with_one_small_record(cluster: Cluster) -> None:
    for name in ("demo.default", "peers.default", f"dns-version.{ZONE}"):
        assert cluster.addresses(name, "ANY") == ['"RFC8482" ""']


def test_several_zones_have_the_same_names() -> None:
    cluster = Cluster(service(clusterIP="10.96.0.7"), domains=("cluster.local", "east.example"))
    assert cluster.addresses("demo.default.svc.east.example.") == ["10.96.0.7"]
    assert cluster.addresses("demo.default") == ["10.96.0.7"]


def test_case_is_kept() -> None:
    answer = Cluster(service(clusterIP="10.96.0.7")).ask("dEmO.deFault")
    assert str(answer.answer[0].name) == str(answer.question[0].name) == f"dEmO.deFault.svc.{ZONE}"


def zones_cluster(**zone: object) -> Cluster:
    return Cluster(
        headless(),
        slice_of(
            "peers",
            *[
                endpoint(f"10.1.{at}.{number}", zone=f"zone-{at}", hints=[f"zone-{at}"])
                for at in "123"
                for number in (1, 2)
            ],
            ports=[{"name": "http", "port": 8080}],
        ),
        *[
            node(f"node-{at}", f"zone-{at}", pods=f"10.1.{at}.0/24", address=f"192.168.0.{at}")
            for at in "123"
        ],
        **zone,
    )


def test_a_client_gets_the_endpoints_of_its_zone() -> None:
    """KEP-4444: hints; by a Pod's address, by the range of its node, by the node's own address."""
    cluster = zones_cluster()
    for client in ("10.1.2.1", "10.1.2.77", "192.168.0.2"):
        assert cluster.addresses("peers.default", client=client) == ["10.1.2.1", "10.1.2.2"]
    assert len(cluster.addresses("peers.default", client="8.8.8.8")) == 6
    targets = [
        str(item).split()[0]
        for item in cluster.ask("peers.default", "SRV", client="10.1.2.1", use_edns=0).answer[0]
    ]
    assert sorted(targets) == ["0", "0", "10", "10", "10", "10"]


def test_zone_answers_can_be_switched_off_and_never_reach_hosts() -> None:
    assert len(zones_cluster(zone_answers=False).addresses("peers.default", client="10.1.2.1")) == 6
    assert zones_cluster().addresses("10-1-3-1.peers.default", client="10.1.2.1") == ["10.1.3.1"]


def test_a_nodes_own_server_knows_where_its_clients_are() -> None:
    cluster = zones_cluster(own_node="node-3")
    assert cluster.addresses("peers.default", client="169.254.20.9") == ["10.1.3.1", "10.1.3.2"]


def test_names_of_zones() -> None:
    """coredns/coredns#8388."""
    cluster = zones_cluster()
    assert cluster.addresses("zone-3.pin._zone.peers.default") == ["10.1.3.1", "10.1.3.2"]
    assert cluster.outcome("zone-9.pin._zone.peers.default") == "NODATA"
    assert len(cluster.addresses("zone-9.prefer._zone.peers.default")) == 6
    assert cluster.outcome("zone-9.other._zone.peers.default") == "NXDOMAIN"
    targets = cluster.ask("zone-3.pin._zone.peers.default", "SRV").answer[0]
    assert sorted(str(item) for item in targets) == [
        f"0 50 8080 10-1-3-{number}.peers.default.svc.cluster.local." for number in (1, 2)
    ]
