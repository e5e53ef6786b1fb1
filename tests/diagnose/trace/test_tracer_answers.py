"""What ``sliceplane trace`` says: one case for each thing that can decide over a packet."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.diagnose.trace.traced import (
    CLIENT,
    NODES,
    OUTSIDE,
    PODS,
    REMOTE,
    TWO,
    ZONES,
    ask,
    ep,
    node,
    pod,
    service,
    shares,
    slice_of,
    why,
)

from sliceplane.diagnose.trace.text import as_text, fact, laid_out
from sliceplane.node.context import RulesConfig

NODE_PORT: dict[str, Any] = {
    "type": "NodePort",
    "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
}
LOAD_BALANCER: dict[str, Any] = {
    **NODE_PORT,
    "type": "LoadBalancer",
    "ingress": [{"ip": "203.0.113.5"}],
}

GOLDEN = """\
verdict     dnat: Service prod/api port http leads to one of 2 endpoints, evenly
from        10.1.0.5, Pod prod/client
to          10.96.0.10:80/TCP, cluster IP of Service prod/api
at          node node-a, zone zone-a
policy      internalTrafficPolicy Cluster
hints       honoured: every ready endpoint names zones, 2 of 3 zone zone-a (trafficDistribution PreferClose)
affinity    none
masquerade  no
element     room-4 { 10.96.0.10 . tcp . 80 }

goes to
  SHARE  ENDPOINT       POD    SLICE    NODE    ZONE    HINTS        CONDITIONS     WHY
  1/2    10.1.1.1:8080  api-1  api-abc  node-a  zone-a  zone zone-a  ready,serving  ready, its hint names zone zone-a
  1/2    10.1.1.2:8080  api-2  api-abc  node-a  zone-a  zone zone-a  ready,serving  ready, its hint names zone zone-a

does not go to
  ENDPOINT       POD    SLICE    NODE    ZONE    HINTS        CONDITIONS     WHY
  10.1.2.1:8080  api-3  api-abc  node-b  zone-b  zone zone-b  ready,serving  its hint names zone zone-b"""


def test_the_example_of_kep_4444_reads_so() -> None:
    answer = ask(service(trafficDistribution="PreferClose"), slice_of("api-abc", [*ZONES]))
    assert as_text(answer) == GOLDEN
    assert answer.arrives


def test_an_only_endpoint_is_reached_by_an_element_and_told_like_any_other() -> None:
    answer = ask(
        service(trafficDistribution="PreferClose"), slice_of("api-abc", [ZONES[0], ZONES[2]])
    )
    assert (answer.chains, answer.element) == (
        (),
        "single-endpoints { 10.96.0.10 . tcp . 80 : 10.1.1.1 . 8080 }",
    )
    assert answer.reason == "Service prod/api port http leads to 1 endpoint"
    assert why(answer, "10.1.1.1") == "ready, its hint names zone zone-a"
    assert f"element     {answer.element}" in as_text(answer).splitlines()
    assert "chains" not in as_text(answer)
    local = ask(service(internalTrafficPolicy="Local"), slice_of("api-abc", [ZONES[0], ZONES[2]]))
    assert local.service is not None
    assert (local.element, local.service.used) == (answer.element, "Local")


def test_a_chain_that_only_lets_pass_did_not_decide() -> None:
    """The address of a load balancer with source ranges is the cluster IP of another Service, with
    an only endpoint.
    """
    ranges = {
        **LOAD_BALANCER,
        "ingress": [{"ip": "10.96.0.10"}],
        "loadBalancerSourceRanges": ["10.1.0.0/16"],
    }
    balanced = service("zeta", "10.96.0.12", **ranges)
    slices = (slice_of("api-1", [ep("10.1.1.1")]), slice_of("zeta-1", [ep("10.1.9.9")], of="zeta"))
    answer = ask(service(), balanced, *slices)
    assert answer.service is not None
    assert (answer.service.name, shares(answer)) == ("api", {"10.1.1.1": "1"})


# Hints


@pytest.mark.parametrize(
    ("endpoints", "nodes", "sentence"),
    [
        (TWO, NODES, "none"),
        (
            (*ZONES[:2], ep("10.1.2.1")),
            NODES,
            "passed over: 1 of 3 ready endpoints without a zone: 10.1.2.1",
        ),
        (ZONES[2:], NODES, "passed over: every ready endpoint names zones, none of them zone-a"),
        (ZONES, (node("node-a", "", "192.0.2.1"),), "passed over: this node has no zone"),
        (
            (
                ep("10.1.1.1", for_node="node-b", hint="zone-a"),
                ep("10.1.1.2", for_node="node-c", hint="zone-b"),
            ),
            NODES,
            "honoured: every ready endpoint names zones, 1 of 2 zone zone-a",
        ),
        (
            (
                ep("10.1.1.1", for_node="node-a", hint="zone-a"),
                ep("10.1.1.2", for_node="node-c", hint="zone-a"),
            ),
            NODES,
            "honoured: every ready endpoint names nodes, 1 of 2 node node-a",
        ),
        (
            (ep("10.1.1.1", for_node="node-b"), ep("10.1.1.2", for_node="node-c")),
            NODES,
            (
                "passed over: every ready endpoint names nodes, none of them node-a; "
                "2 of 2 ready endpoints without a zone: 10.1.1.1, 10.1.1.2"
            ),
        ),
        ((ep("10.1.1.1", flags="st"),), NODES, "not looked at: no endpoint is ready"),
    ],
)
def test_what_became_of_hints(
    endpoints: tuple[Any, ...], nodes: tuple[Any, ...], sentence: str
) -> None:
    answer = ask(service(), slice_of("api-1", [*endpoints]), *nodes)
    assert answer.hints is not None
    assert answer.hints.sentence == sentence


# Conditions and policies


def test_conditions() -> None:
    rows = [
        ep("10.1.1.1"),
        ep("10.1.1.2", flags=""),
        ep("10.1.1.3", flags="st"),
        ep("10.1.1.4", flags="t"),
        ep("10.1.1.5", flags="s"),
    ]
    answer = ask(service(), slice_of("api-1", rows))
    assert shares(answer) == {"10.1.1.1": "1"}
    assert [each.why for each in answer.others] == [
        "not ready",
        "terminating, and others are ready",
        "terminating, and it serves no more",
        "not ready",
    ]
    answer = ask(service(), slice_of("api-1", rows[1:]))
    assert shares(answer) == {"10.1.1.3": "1"}
    assert why(answer, "10.1.1.3") == "still serving while it terminates, and no other is ready"
    answer = ask(service(), slice_of("api-1", [rows[1], rows[3]]))
    assert (answer.verdict, answer.reason, answer.arrives) == (
        "reject",
        "none of the 2 endpoints of Service prod/api port http is usable for this port",
        False,
    )
    assert [each.why for each in answer.others] == [
        "not ready",
        "terminating, and it serves no more",
    ]


def test_internal_policy() -> None:
    local = service(internalTrafficPolicy="Local")
    answer = ask(local, slice_of("api-1", [*TWO]))
    assert answer.reason == "Service prod/api port http leads to 1 endpoint of this node"
    assert why(answer, "10.1.1.1") == "ready, on this node"
    assert why(answer, "10.1.2.1") == "not on this node, and internalTrafficPolicy is Local"
    assert answer.hints is not None
    assert answer.hints.sentence == "not looked at: internalTrafficPolicy is Local"
    answer = ask(local, slice_of("api-1", [*REMOTE]))
    assert answer.verdict == "drop"
    assert answer.reason == (
        "internalTrafficPolicy of Service prod/api port http is Local, "
        "and no endpoint of this node is usable; others are elsewhere"
    )
    answer = ask(local, slice_of("api-1", []))
    assert (answer.verdict, answer.reason) == (
        "reject",
        "Service prod/api port http has no endpoints",
    )


def test_external_policy() -> None:
    balanced = service(**LOAD_BALANCER, externalTrafficPolicy="Local")
    slices = slice_of("api-1", [*TWO])
    for to in ("203.0.113.5:80", "192.0.2.1:30080"):
        answer = ask(balanced, slices, to=to, source=OUTSIDE, at="node-a")
        assert (shares(answer), answer.masquerade) == ({"10.1.1.1": "1"}, "no")
        answer = ask(balanced, slices, to=to)
        assert (shares(answer), answer.masquerade) == ({"10.1.1.1": "1/2", "10.1.2.1": "1/2"}, "no")
        assert answer.notes == (
            (
                "externalTrafficPolicy Local is for clients outside: those on this node may use "
                "every "
                "endpoint"
            ),
        )
        answer = ask(balanced, slices, to=to, source="192.0.2.1")
        assert (
            answer.masquerade
            == "yes: it came to an address for clients outside, from the node itself"
        )
        answer = ask(balanced, slice_of("api-1", [*REMOTE]), to=to, source=OUTSIDE, at="node-a")
        assert answer.verdict == "drop"
        assert answer.reason.startswith(
            "externalTrafficPolicy of Service prod/api port http is Local, and no endpoint"
        )
        assert [finding.code for finding in answer.findings] == ["X2"]
        assert answer.service is not None
        assert (answer.service.policy, answer.service.used) == ("Local", "Local")


def test_a_cause_is_named_where_it_is_one() -> None:
    local = service(internalTrafficPolicy="Local")
    assert [finding.code for finding in ask(local, slice_of("api-1", [*REMOTE])).findings] == ["X1"]
    assert ask(local, slice_of("api-1", [*TWO])).findings == ()
    none = ask(service())
    assert none.findings == (), "Pods were not read"
    assert "why it has none: sliceplane explain service api -n prod" in none.notes


def test_the_way_in() -> None:
    several = service(**LOAD_BALANCER, externalIPs=["198.51.100.99"])
    slices = slice_of("api-1", [*TWO])
    for to, role in (
        ("10.96.0.10:80", "cluster IP"),
        ("203.0.113.5:80", "load balancer address"),
        ("198.51.100.99:80", "external IP"),
        ("192.0.2.1:30080", "node port"),
        ("api.prod", "cluster IP"),
    ):
        answer = ask(several, slices, to=to)
        assert answer.service is not None
        assert (answer.service.role, len(answer.targets)) == (role, 2)
        assert f"{role} of Service prod/api" in answer.destination.is_
        assert (answer.masquerade != "no") == (role != "cluster IP")


def test_source_ranges() -> None:
    narrow = service(**LOAD_BALANCER, loadBalancerSourceRanges=["198.51.100.0/25"])
    slices = slice_of("api-1", [*TWO])
    assert ask(narrow, slices, to="203.0.113.5:80", source=OUTSIDE, at="node-a").arrives
    answer = ask(narrow, slices, to="203.0.113.5:80", source="203.0.113.77", at="node-a")
    assert answer.verdict == "drop"
    assert (
        answer.reason
        == "203.0.113.77 is in no loadBalancerSourceRanges of Service prod/api: 198.51.100.0/25"
    )
    (finding,) = answer.as_document()["findings"]
    sentence = "203.0.113.77 is in none of the source ranges: 198.51.100.0/25"
    assert (finding["code"], finding["sentence"]) == ("S9", sentence)
    assert as_text(answer).splitlines()[1].startswith("finding     S9 error: ")
    assert [each.why for each in answer.others] == [
        "would be used, but the packet is refused before"
    ] * 2


# Masquerade, affinity


def test_masquerade() -> None:
    slices = slice_of("api-1", [*TWO])
    assert ask(service(), slices).masquerade == "no"
    everything = replace(PODS, masquerade_all=True)
    assert ask(service(), slices, rules=everything).masquerade == "yes: --masquerade-all"
    answer = ask(service(), slices, source=OUTSIDE, at="node-a")
    assert answer.masquerade == f"yes: {OUTSIDE} is no Pod of this node (--detect-local-mode)"
    answer = ask(service(), slices, source=OUTSIDE, at="node-a", rules=RulesConfig())
    assert answer.masquerade == "no"
    assert answer.notes == (
        "without --cluster-cidr Pods cannot be told from clients outside, and neither is masqueraded",
    )
    itself = pod("api-1", "node-a", "10.1.1.1")
    answer = ask(service(), slices, itself, source="10.1.1.1")
    assert answer.masquerade == "only towards 10.1.1.1: an endpoint that calls itself"
    assert [each.masquerade for each in answer.targets] == [True, False]
    by_interface = RulesConfig(
        detect_local_mode="InterfaceNamePrefix", pod_interface_name_prefix="pods"
    )
    assert ask(service(), slices, rules=by_interface).masquerade == "no"
    assert ask(
        service(), slices, rules=by_interface, source=OUTSIDE, at="node-a"
    ).masquerade.startswith("yes")


def test_affinity() -> None:
    sticky = service(
        sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}}
    )
    answer = ask(sticky, slice_of("api-1", [*TWO]))
    assert shares(answer) == {"10.1.1.1": "1/2", "10.1.2.1": "1/2"}
    assert (
        "ClientIP: a client stays where its first connection went, for 60 s after its last"
        in as_text(answer)
    )


# Slices


def test_slices_that_do_not_count() -> None:
    answer = ask(
        service(),
        slice_of("api-1", [*ZONES]),
        slice_of(
            "api-2", [ep("10.1.9.1")], ports=[{"name": "web", "port": 8080, "protocol": "TCP"}]
        ),
        slice_of(
            "api-3", [ep("10.1.9.2")], ports=[{"name": "http", "port": 8080, "protocol": "UDP"}]
        ),
        slice_of("api-4", [{"addresses": ["a.example"]}], addressType="FQDN"),
        slice_of("api-5", [{"addresses": ["fd01::1"]}], addressType="IPv6"),
        slice_of("api-6", [ep("10.1.9.3")], labels={"service.kubernetes.io/headless": ""}),
    )
    assert {each.name: each.why for each in answer.slices} == {
        "api-1": "",
        "api-2": "has no port http/TCP; it has web/TCP",
        "api-3": "has no port http/TCP; it has http/UDP",
        "api-4": "its addresses are FQDNs",
        "api-6": "label service.kubernetes.io/headless",
    }
    assert "api-2  1          has no port http/TCP; it has web/TCP" in as_text(answer)


def test_a_misnamed_port_is_found() -> None:
    answer = ask(
        service(),
        slice_of("api-1", [*TWO], ports=[{"name": "web", "port": 8080, "protocol": "TCP"}]),
    )
    assert (answer.verdict, answer.arrives) == ("reject", False)
    assert (
        answer.reason
        == "none of the 2 endpoints of Service prod/api port http is usable for this port"
    )
    assert answer.slices[0].why == "has no port http/TCP; it has web/TCP"


def test_subsetting_selectors() -> None:
    """KEP-2030: slices for other zones and regions are not read where the gate is on."""
    slices = (
        slice_of(
            "api-1", [ep("10.1.1.1")], labels={"endpointslice.kubernetes.io/for-zone": "zone-a"}
        ),
        slice_of(
            "api-2", [ep("10.1.1.2")], labels={"endpointslice.kubernetes.io/for-zone": "zone-b"}
        ),
        slice_of(
            "api-3", [ep("10.1.1.3")], labels={"endpointslice.kubernetes.io/for-region": "north"}
        ),
        slice_of("api-4", [ep("10.1.1.4")]),
    )
    answer = ask(service(), *slices, gates="EndpointSliceSubsetting=true")
    assert set(shares(answer)) == {"10.1.1.1", "10.1.1.4"}
    assert {each.name: each.why for each in answer.slices if each.why} == {
        "api-2": "for others: endpointslice.kubernetes.io/for-zone=zone-b",
        "api-3": "for others: endpointslice.kubernetes.io/for-region=north",
    }
    assert len(shares(ask(service(), *slices))) == 4


def test_an_address_in_two_slices() -> None:
    answer = ask(
        service(),
        slice_of("api-1", [ep("10.1.1.1", "ghost", flags="st")], version=9),
        slice_of("api-2", [ep("10.1.1.1", "live")], version=3),
    )
    assert [(each.pod, each.slice) for each in answer.targets] == [("live", "api-2")]
    assert [(each.pod, each.why) for each in answer.others] == [
        ("ghost", "the same address in slice api-2 counts")
    ]


# What no Service translates


def test_a_port_that_the_service_does_not_have() -> None:
    answer = ask(service(), slice_of("api-1", [*TWO]), to="10.96.0.10:81")
    assert (answer.verdict, answer.reason) == (
        "reject",
        "Service prod/api has no port 81/TCP; it has 80/TCP",
    )
    assert [finding.code for finding in answer.findings] == ["S2"]
    answer = ask(service(), slice_of("api-1", [*TWO]), protocol="UDP")
    assert (answer.verdict, answer.reason) == (
        "reject",
        "Service prod/api has no port 80/UDP; it has 80/TCP",
    )
    assert [finding.code for finding in answer.findings] == ["S3"]
    answer = ask(service(**LOAD_BALANCER), to="203.0.113.5:81")
    assert answer.verdict == "accept"
    assert answer.reason == "no Service has the port 81/TCP there: the packet goes on as it is"


def test_an_unallocated_address() -> None:
    answer = ask(service(), to="10.96.7.7:80")
    assert answer.verdict == "drop"
    assert (
        answer.reason
        == "10.96.7.7 is in the range 10.96.0.0/16 of cluster IPs, and no Service has it"
    )
    assert answer.chains == ("cluster-ips-check",)


def test_pods_and_nodes_are_left_alone() -> None:
    server = pod("api-1", "node-b", "10.1.2.1")
    answer = ask(service(), server, to="10.1.2.1:8080")
    assert (answer.verdict, answer.reason, answer.service) == (
        "accept",
        "no Service translates it (10.1.2.1: address of Pod prod/api-1)",
        None,
    )
    answer = ask(service(**NODE_PORT), slice_of("api-1", [*TWO]), to="192.0.2.2:30080")
    assert answer.verdict == "accept", "it meets the rules of the other node"
    assert answer.notes == (
        (
            "192.0.2.2 is an address of node node-b: --node node-b shows what becomes of the packet "
            "there"
        ),
    )
    answer = ask(service(**NODE_PORT), slice_of("api-1", [*TWO]), to="192.0.2.2:30080", at="node-b")
    assert len(answer.targets) == 2
    assert answer.notes == (
        "Pod prod/client is on node node-a: its packets meet the rules there first",
    )


def test_a_service_of_another_proxy() -> None:
    other = service(labels={"service.kubernetes.io/service-proxy-name": "mesh"})
    answer = ask(other, slice_of("api-1", [*TWO]))
    assert answer.verdict == "drop"
    assert answer.destination.is_ == (
        (
            "cluster IP of Service prod/api, which no proxy serves: label "
            "service.kubernetes.io/service-proxy-name"
        ),
    )


# Mistakes that two objects make together


def test_an_endpoint_that_is_itself_a_cluster_ip() -> None:
    answer = ask(
        service(),
        slice_of("api-1", [ep("10.1.1.1"), ep("10.96.0.11")]),
        service("other", "10.96.0.11"),
    )
    assert shares(answer) == {"10.1.1.1": "1/2", "10.96.0.11": "1/2"}
    assert [each.verdict for each in answer.targets] == ["dnat", "reject"]
    assert (
        why(answer, "10.96.0.11")
        == "ready; but 10.96.0.11 is itself cluster IP of Service prod/other"
    )
    assert answer.notes == ("1/2 of the connections are refused after the translation",)
    assert not answer.arrives
    answer = ask(service(), slice_of("api-1", [ep("10.96.0.11")]), service("other", "10.96.0.11"))
    assert answer.verdict == "reject"
    assert answer.reason.endswith("leads to 1 endpoint, and each is refused there")


def refused(name: str) -> str:
    return f"Service prod/{name} claims this destination and does not get it"


def test_two_services_with_one_address() -> None:
    shared = {"externalIPs": ["198.51.100.99"]}
    answer = ask(
        service("zeta", "10.96.0.12", **shared),
        slice_of("zeta-1", [ep("10.1.9.9")], of="zeta"),
        service(**shared),
        slice_of("api-1", [*TWO]),
        to="198.51.100.99:80",
    )
    assert answer.service is not None
    assert (answer.service.name, set(shares(answer))) == ("api", {"10.1.1.1", "10.1.2.1"})
    assert answer.notes == (
        f"{refused('zeta')}: 198.51.100.99 port 80/TCP is served for Service prod/api",
    )


@pytest.mark.parametrize(
    ("claimed", "holder"),
    [
        ("192.0.2.2", "192.0.2.2 belongs to Node node-b"),
        ("10.1.2.1", "10.1.2.1 belongs to Pods (--cluster-cidr)"),
        ("10.96.0.99", "10.96.0.99 belongs to ServiceCIDR kubernetes"),
    ],
)
def test_an_address_that_a_service_asks_for_and_does_not_get(claimed: str, holder: str) -> None:
    evil = service("evil", "10.96.0.12", externalIPs=[claimed])
    answer = ask(
        service(),
        slice_of("api-1", [*TWO]),
        evil,
        slice_of("evil-1", [ep("10.1.9.9")], of="evil"),
        to=f"{claimed}:80",
    )
    assert answer.service is None
    assert not shares(answer)
    told = (answer.reason, *answer.notes)
    # in the range of cluster IPs nobody may pass at all, whoever asks
    dropped = answer.reason.startswith("10.96.0.99 is in the range")
    assert (
        dropped
        or f"Service prod/evil claims this destination and does not get it: {holder}" in told
    )


def test_a_cluster_ip_that_another_service_asks_for() -> None:
    evil = service("a-evil", "10.96.0.12", externalIPs=["10.96.0.10"])
    answer = ask(
        evil,
        slice_of("evil-1", [ep("10.1.9.9")], of="a-evil"),
        service(),
        slice_of("api-1", [*TWO]),
    )
    assert answer.service is not None
    assert (answer.service.name, set(shares(answer))) == ("api", {"10.1.1.1", "10.1.2.1"})
    assert answer.notes == (
        f"{refused('a-evil')}: 10.96.0.10 is the cluster IP of Service prod/api",
    )


def test_what_could_not_be_read_is_told() -> None:
    answer = ask(
        service(), slice_of("api-1", [*TWO]), unread=("servicecidrs, the server answers 403",)
    )
    assert answer.notes == ("not looked at: servicecidrs, the server answers 403",)


def test_rows_beyond_the_table_are_counted() -> None:
    many = [ep(f"10.1.3.{number}") for number in range(1, 61)]
    answer = ask(service(), slice_of("api-1", many))
    assert len(answer.targets) == 60
    assert "  and 10 more (--output json has all)" in as_text(answer).splitlines()


def test_the_document_has_everything() -> None:
    document = json.loads(json.dumps(ask(service(), slice_of("api-1", [*ZONES])).as_document()))
    assert document["destination"]["is"] == ["cluster IP of Service prod/api"]
    assert document["hints"] == {
        "node": "incomplete",
        "zone": "honoured",
        "sentence": "honoured: every ready endpoint names zones, 2 of 3 zone zone-a",
    }
    assert [each["probability"] for each in document["targets"]] == [0.5, 0.5]
    assert document["others"][0]["zoneHints"] == ["zone-b"]
    assert document["source"] == {"address": CLIENT, "kind": "Pod", "name": "prod/client"}


def test_every_fact_is_wrapped_also_one_without_a_label_of_its_own() -> None:
    long = "a fact " * 20
    lines = laid_out(iter((fact("notes", long), fact("", long), "  TABLE  " + "x" * 90)), 80)
    *facts, table = lines.splitlines()
    assert max(map(len, facts)) <= 80
    assert [line[:12].strip() for line in facts] == ["notes", *[""] * 5]
    assert table == "  TABLE  " + "x" * 90
