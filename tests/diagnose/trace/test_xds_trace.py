"""What a client of xDS is given at a place, and why: the same answer, in the same words, as for the
node there.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.trace.traced import (
    FOUR,
    NODES,
    READY_NODES,
    TWO,
    ZONES,
    ask,
    asking,
    ep,
    node,
    service,
    shares,
    slice_of,
    why,
)

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.diagnose.trace.answer import XdsTraceAnswer
from sliceplane.diagnose.trace.question import Unanswerable
from sliceplane.diagnose.trace.xds import as_text, explain_xds, question_of

Objects = Service | EndpointSlice | Node


def given(
    *objects: Objects,
    to: str = "xds:///api.prod:80",
    client: str = "node-a",
    zone: str = "",
    nodes: bool = True,
) -> XdsTraceAnswer:
    (subject,) = [held for held in objects if isinstance(held, Service)]
    slices = [held for held in objects if isinstance(held, EndpointSlice)]
    there = tuple(held for held in objects if isinstance(held, Node)) or NODES
    question = question_of(to, "prod", ("cluster.local",), node=client, zone=zone)
    return explain_xds(question, subject, slices, there if nodes else None)


LOCAL = {"internalTrafficPolicy": "Local"}
ENDING = (
    ep("10.1.1.1", "api-1", "node-a", "zone-a", flags="st"),
    ep("10.1.2.1", "api-3", "node-b", "zone-b"),
)
FOR_NODES = (
    ep("10.1.1.1", "api-1", "node-a", for_node="node-a"),
    ep("10.1.2.1", "api-3", "node-b", for_node="node-b"),
)
STATES: dict[str, tuple[tuple[Any, ...], dict[str, str]]] = {
    "hints for zones": (ZONES, {}),
    "hints for nodes": (FOR_NODES, {}),
    "half a hint": ((*ZONES[:2], ep("10.1.2.1", "api-3", "node-b", "zone-b")), {}),
    "none ready": (ENDING[:1], {}),
    "one ends": (ENDING, {}),
    "not ready": ((ep("10.1.1.1", "api-1", flags=""), *TWO[1:]), {}),
    "local": (TWO, LOCAL),
    "local, ending": (ENDING, LOCAL),
    "local, elsewhere": (TWO[1:], LOCAL),
    "nothing": ((), {}),
}


@pytest.mark.parametrize(("endpoints", "spec"), STATES.values(), ids=STATES)
@pytest.mark.parametrize("at", ["node-a", "node-b"])
def test_a_client_on_a_node_is_told_what_the_node_would_do(
    endpoints: tuple[Any, ...], spec: dict[str, str], at: str
) -> None:
    objects = (service(**spec), slice_of("api-1", [*endpoints]))
    by_xds, by_node = given(*objects, client=at), ask(*objects, at=at)
    shown = {row.address: (row.share, row.why) for row in (*by_xds.targets, *by_xds.others)}
    assert shown == {
        row.address: (row.share, row.why) for row in (*by_node.targets, *by_node.others)
    }
    assert (by_xds.arrives, by_xds.reason) == (by_node.arrives, by_node.reason)
    assert by_xds.hints == by_node.hints


@pytest.mark.parametrize("spec", [{}, LOCAL], ids=["Cluster", "Local"])
def test_the_load_of_zones_is_that_of_the_packet(spec: dict[str, str]) -> None:
    measured = asking("sliceplane.dev/Measured", "zone-a=48/64,zone-b=16/64", **spec)
    objects = (measured, slice_of("api-1", [*FOUR]), *READY_NODES)
    answer = given(*objects)
    assert answer.load == ask(*objects).load
    assert (answer.load is None) is bool(spec)
    assert ("load by zone" in as_text(answer, 80)) is not bool(spec)
    assert given(*objects, nodes=False).load is None, "no Node, no zone"


def test_the_answer_reads_so() -> None:
    answer = given(service(trafficDistribution="PreferSameZone"), slice_of("api-1", [*ZONES]))
    lines = as_text(answer, 80).splitlines()
    assert lines[:20] == [
        "verdict     picks: Service prod/api port http leads to one of 2 endpoints,",
        "            evenly",
        "client      node node-a, zone zone-a",
        f"cluster     prod/api:http, version {answer.version}",
        "policy      internalTrafficPolicy Cluster",
        "hints       honoured: every ready endpoint names zones, 2 of 3 zone zone-a",
        "            (trafficDistribution PreferSameZone)",
        "balancing   round-robin",
        "",
        "goes to",
        "  SHARE:       1/2",
        "  ENDPOINT:    10.1.1.1:8080",
        "  POD:         api-1",
        "  SLICE:       api-1",
        "  NODE:        node-a",
        "  ZONE:        zone-a",
        "  HINTS:       zone zone-a",
        "  CONDITIONS:  ready,serving",
        "  WHY:         ready, its hint names zone zone-a",
        "",
    ]
    assert "does not go to" in lines
    assert max(map(len, lines)) <= 80
    assert answer.as_document()["cluster"] == "prod/api:http"


@pytest.mark.parametrize(
    "to",
    [
        "api",
        "api:http",
        "api.prod:80",
        "api.prod.svc.cluster.local:http",
        "prod/api:http",
        "xds:///api",
    ],
)
def test_any_name_that_leads_there(to: str) -> None:
    assert shares(given(service(), slice_of("api-1", [*TWO]), to=to)) == {
        "10.1.1.1": "1/2",
        "10.1.2.1": "1/2",
    }


def test_a_client_of_which_the_zone_alone_is_known_and_one_of_which_nothing_is() -> None:
    objects = (service(), slice_of("api-1", [*ZONES]), *NODES)
    assert shares(given(*objects, client="", zone="zone-b")) == {"10.1.2.1": "1"}
    nowhere = given(*objects, client="")
    assert len(nowhere.targets) == 3
    assert "this node has no zone" in as_text(nowhere)
    local = given(service(**LOCAL), slice_of("api-1", [*TWO]), client="", zone="zone-a")
    assert not local.arrives
    assert local.reason == (
        "internalTrafficPolicy of Service prod/api is Local, and the node of the client is "
        "not known"
    )


def test_what_no_client_is_told_is_said_why() -> None:
    draining = {"metadata": {"annotations": {"sliceplane.dev/xds-draining": "true"}}}
    first = slice_of("api-1", [*ENDING, ep("127.0.0.1", "odd")], version=3)
    older = slice_of("api-0", [ep("10.1.2.1", "api-3", "node-b", "zone-b", flags="")], version=2)
    names = slice_of("api-f", [{"addresses": ["example.com"]}], addressType="FQDN")
    other = slice_of("api-p", [*TWO], ports=[{"name": "admin", "port": 1, "protocol": "TCP"}])
    subset = slice_of("api-z", [*TWO], labels={"endpointslice.kubernetes.io/for-zone": "zone-b"})
    made = service()
    annotated = Service(
        metadata=type(made.metadata)(
            name="api", namespace="prod", annotations=draining["metadata"]["annotations"]
        ),
        spec=made.spec,
    )
    answer = given(annotated, first, older, names, other, subset)
    assert shares(answer) == {"10.1.2.1": "1"}
    assert why(answer, "10.1.1.1") == (
        "terminating, and others are ready; sent as draining, for sessions that stick to it"
    )
    assert why(answer, "127.0.0.1") == "no address that every client could use"
    assert [row.why for row in answer.others if row.slice == "api-0"] == [
        "the same Pod or address in slice api-1 counts"
    ]
    assert {held.name: held.why for held in answer.slices if held.why} == {
        "api-f": "its addresses are FQDNs",
        "api-p": "has no port http/TCP; it has admin/TCP",
        "api-z": "for others: endpointslice.kubernetes.io/for-zone=zone-b",
    }


def test_a_pod_of_both_families_is_one_endpoint() -> None:
    both = service(ipFamilies=["IPv4", "IPv6"])
    six = slice_of("api-6", [ep("fd01::1", "api-1", "node-a", "zone-a")], addressType="IPv6")
    answer = given(both, slice_of("api-4", [ep("10.1.1.1", "api-1", "node-a", "zone-a")]), six)
    assert shares(answer) == {"10.1.1.1": "1"}
    assert (why(answer, "10.1.1.1"), answer.others) == ("ready; also at [fd01::1]:8080", ())


def test_how_one_is_picked_and_what_is_not_heeded() -> None:
    sticky = given(service(sessionAffinity="ClientIP"), slice_of("api-1", [*TWO]))
    assert sticky.balancing.startswith(
        "maglev for Envoy, ring-hash for gRPC: by the source address"
    )
    assert sticky.notes == (
        "sessionAffinity: while the endpoint is there; its timeout has no counterpart",
    )
    blind = given(service(), slice_of("api-1", [*ZONES]), client="", zone="zone-b", nodes=False)
    assert shares(blind) == {"10.1.2.1": "1"}
    assert blind.notes[0].startswith("Nodes may not be listed")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"to": "http://api"}, "--to 'http://api' is neither SERVICE"),
        ({"to": "api:82"}, "Service prod/api has no TCP port 82; it has http (80)"),
        ({"client": "node-c"}, "there is no Node node-c"),
    ],
)
def test_no_answer(asked: dict[str, str], sentence: str) -> None:
    with pytest.raises(Unanswerable) as told:
        given(service(), slice_of("api-1", [*TWO]), **asked)
    assert sentence in str(told.value)


def test_services_that_xds_does_not_serve() -> None:
    udp = service(ports=[{"name": "dns", "port": 53, "protocol": "UDP"}])
    with pytest.raises(
        Unanswerable,
        match="xDS serves TCP ports of Services but ExternalName, and Service prod/api",
    ):
        given(udp, node("node-a", "zone-a"))
