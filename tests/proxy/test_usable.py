"""Which endpoints may be used: every branch of the rule, the cases of upstream's
``pkg/proxy/topology_test.go``, a dumb second implementation, and the consumers of the rule compared
with each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.consume.balancing.model import Endpoint as ClientEndpoint
from sliceplane.consume.balancing.usable import Usable
from sliceplane.consume.model import (
    Categories,
    NodeEndpoint,
    ServedPort,
    ServiceKey,
    ServicePortName,
    categorize,
)
from sliceplane.consume.usable import (
    Choice,
    HintOutcome,
    HintUse,
    Locality,
    choose,
    choose_local,
    why,
)

NAME = ServicePortName(ServiceKey("ns", "svc"), "http", "TCP")
HERE = Locality(node="node-1", zone="a")


def port(
    *, internal: bool = False, external: bool = False, node_port: int = 0, ips: tuple[str, ...] = ()
) -> ServedPort:
    return ServedPort(
        name=NAME,
        cluster_ip="172.30.0.1",
        port=80,
        node_port=node_port,
        external_ips=ips,
        internal_local=internal,
        external_local=external,
    )


CLUSTER = port()
INTERNAL_LOCAL = port(internal=True)
INTERNAL_LOCAL_NODE_PORT = port(internal=True, node_port=30080)
EXTERNAL_LOCAL = port(external=True, node_port=30080)
EXTERNAL_LOCAL_UNREACHABLE = port(external=True)
BOTH_LOCAL = port(internal=True, external=True, node_port=30080)


def ep(
    number: int, flags: str = "r", zones: str = "", nodes: str = "", *, local: bool = False
) -> NodeEndpoint:
    """flags: r ready (and serving), s serving, t terminating."""
    return NodeEndpoint(
        f"10.0.0.{number}",
        80,
        ready="r" in flags,
        serving="r" in flags or "s" in flags,
        terminating="t" in flags,
        is_local=local,
        zone_hints=tuple(zones),
        node_hints=tuple(f"node-{digit}" for digit in nodes),
    )


@dataclass(frozen=True)
class Case:
    name: str
    endpoints: tuple[NodeEndpoint, ...]
    cluster: str = ""
    local: str = ""
    reachable: str = ""
    has_any: bool = True
    port: ServedPort = CLUSTER
    place: Locality = HERE


CASES = [
    Case("no endpoints", (), has_any=False),
    # hints, as in topology_test.go
    Case(
        "zone hints everywhere",
        (ep(1, zones="a"), ep(2, zones="b"), ep(3, zones="b"), ep(4, zones="a")),
        "14",
        "",
        "14",
    ),
    Case(
        "several zone hints",
        (ep(1, zones="abc"), ep(2, zones="bc"), ep(3, zones="b"), ep(4, zones="d")),
        "1",
        "",
        "1",
    ),
    Case("one without a zone hint", (ep(1, zones="a"), ep(2), ep(3, zones="b")), "123", "", "123"),
    Case("no hint for our zone", (ep(1, zones="b"), ep(2, zones="c")), "12", "", "12"),
    Case(
        "node without a zone",
        (ep(1, zones="a"), ep(2, zones="b")),
        "12",
        "",
        "12",
        place=Locality(node="node-1"),
    ),
    Case(
        "unready endpoint left out",
        (ep(1, "", zones="a"), ep(2, zones="a"), ep(3, zones="b")),
        "2",
        "",
        "2",
    ),
    Case(
        "only unready ones hinted for us",
        (ep(1, "", zones="a"), ep(2, zones="b"), ep(3, zones="c")),
        "23",
        "",
        "23",
    ),
    Case(
        "unready one without a hint", (ep(1, ""), ep(2, zones="a"), ep(3, zones="b")), "2", "", "2"
    ),
    Case(
        "node hints, one for us",
        (ep(1, zones="a", nodes="1"), ep(2, zones="a", nodes="2")),
        "1",
        "",
        "1",
    ),
    Case(
        "node hints, none for us",
        (ep(1, zones="a", nodes="3"), ep(2, zones="b", nodes="2")),
        "1",
        "",
        "1",
    ),
    Case("node hints only, none for us", (ep(1, nodes="3"), ep(2, nodes="2")), "12", "", "12"),
    Case("one without hints at all", (ep(1, zones="a", nodes="1"), ep(2)), "12", "", "12"),
    Case(
        "one without a node hint",
        (ep(1, zones="a", nodes="1"), ep(2, zones="a"), ep(3, zones="b")),
        "12",
        "",
        "12",
    ),
    Case("nameless node", (ep(1, nodes="1"), ep(2, nodes="2")), "12", "", "12", place=Locality()),
    # terminating fallback
    Case("all serving and terminating", (ep(1, "st"), ep(2, "st")), "12", "", "12"),
    Case(
        "fallback ignores hints", (ep(1, "st", zones="a"), ep(2, "st", zones="b")), "12", "", "12"
    ),
    Case("ready preferred to terminating", (ep(1, "st"), ep(2)), "2", "", "2"),
    Case("neither ready nor serving", (ep(1, ""), ep(2, "t")), has_any=False),
    Case("serving, not terminating, not ready", (ep(1, "s"),), has_any=False),
    # internalTrafficPolicy Local
    Case("internal: local ready", (ep(1, local=True), ep(2)), "", "1", "1", port=INTERNAL_LOCAL),
    Case("internal: all remote", (ep(1), ep(2)), "", "", "", port=INTERNAL_LOCAL),
    Case("internal: all remote terminating", (ep(1, "st"),), "", "", "", port=INTERNAL_LOCAL),
    Case("internal: remote unready", (ep(1, ""),), "", "", "", has_any=False, port=INTERNAL_LOCAL),
    Case(
        "internal: local terminating",
        (ep(1, "st", local=True), ep(2)),
        "",
        "1",
        "1",
        port=INTERNAL_LOCAL,
    ),
    Case(
        "internal: hints are ignored",
        (ep(1, zones="b", local=True), ep(2, zones="a")),
        "",
        "1",
        "1",
        port=INTERNAL_LOCAL,
    ),
    Case(
        "internal, node port: remote", (ep(1), ep(2)), "12", "", "12", port=INTERNAL_LOCAL_NODE_PORT
    ),
    Case(
        "internal, node port: own zone and local",
        (ep(1, zones="a"), ep(2, zones="b", local=True), ep(3, zones="b")),
        "1",
        "2",
        "12",
        port=INTERNAL_LOCAL_NODE_PORT,
    ),
    # externalTrafficPolicy Local
    Case(
        "external, not reachable",
        (ep(1, local=True), ep(2)),
        "12",
        "",
        "12",
        port=EXTERNAL_LOCAL_UNREACHABLE,
    ),
    Case("external: all ready", (ep(1, local=True), ep(2)), "12", "1", "12", port=EXTERNAL_LOCAL),
    Case(
        "external: local whatever the hints",
        (ep(1, zones="a"), ep(2, zones="b", local=True), ep(3, zones="b")),
        "1",
        "2",
        "12",
        port=EXTERNAL_LOCAL,
    ),
    Case(
        "external: remote ready, local terminating",
        (ep(1), ep(2, "st", local=True)),
        "1",
        "2",
        "12",
        port=EXTERNAL_LOCAL,
    ),
    Case(
        "external: all terminating",
        (ep(1, "st"), ep(2, "st", local=True)),
        "12",
        "2",
        "12",
        port=EXTERNAL_LOCAL,
    ),
    Case(
        "external: all terminating, remote",
        (ep(1, "st"), ep(2, "st")),
        "12",
        "",
        "12",
        port=EXTERNAL_LOCAL,
    ),
    Case(
        "external: nothing usable",
        (ep(1, "", local=True), ep(2, "")),
        has_any=False,
        port=EXTERNAL_LOCAL,
    ),
    Case("both local", (ep(1, local=True), ep(2)), "12", "1", "12", port=BOTH_LOCAL),
]


def numbers(endpoints: tuple[NodeEndpoint, ...]) -> str:
    return "".join(endpoint.ip.rsplit(".", 1)[1] for endpoint in endpoints)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_table(case: Case) -> None:
    found = categorize(case.endpoints, case.port, case.place)
    assert (
        numbers(found.cluster),
        numbers(found.local),
        numbers(found.reachable),
        found.has_any,
    ) == (
        case.cluster,
        case.local,
        case.reachable,
        case.has_any,
    )


def test_external_ip_counts_as_reachable() -> None:
    assert port(internal=True, ips=("192.0.2.1",)).uses_cluster_endpoints
    assert not port(internal=True).uses_cluster_endpoints
    assert port(external=True, ips=("192.0.2.1",)).uses_local_endpoints
    assert not port(external=True).uses_local_endpoints


def dumb(endpoints: list[NodeEndpoint], service: ServedPort, where: Locality) -> Categories:
    """``pkg/proxy/topology.go`` as its comments say it, step by step, with sets and no
    cleverness.
    """
    if not endpoints:
        return Categories()
    cluster: set[str] = set()
    local: set[str] = set()
    has_any = False
    mode = ""
    local_fallback = False
    if service.uses_cluster_endpoints:
        ready = [e for e in endpoints if e.ready]
        if ready:
            if all(e.node_hints for e in ready) and any(
                where.node and where.node in e.node_hints for e in ready
            ):
                mode = "node"
            elif all(e.zone_hints for e in ready) and any(
                where.zone and where.zone in e.zone_hints for e in ready
            ):
                mode = "zone"
        for e in ready:
            if mode == "node" and where.node not in e.node_hints:
                continue
            if mode == "zone" and where.zone not in e.zone_hints:
                continue
            cluster.add(e.ip)
        if not cluster:
            cluster = {e.ip for e in endpoints if e.serving and e.terminating}
        has_any = has_any or bool(cluster)
    if not service.uses_local_endpoints:
        reachable = cluster
    else:
        for e in endpoints:
            if e.ready or (e.serving and e.terminating):
                has_any = True
        local = {e.ip for e in endpoints if e.is_local and e.ready}
        if not local:
            local = {e.ip for e in endpoints if e.is_local and e.serving and e.terminating}
            local_fallback = bool(local)
        if not service.uses_cluster_endpoints:
            reachable = local
        elif mode == "" and not local_fallback:
            reachable = cluster
        else:
            reachable = cluster | local

    def pick(ips: set[str]) -> tuple[NodeEndpoint, ...]:
        return tuple(e for e in endpoints if e.ip in ips)

    return Categories(
        cluster=pick(cluster), local=pick(local), reachable=pick(reachable), has_any=has_any
    )


def dumb_hints(endpoints: list[NodeEndpoint], where: Locality) -> HintUse:
    ready = [e for e in endpoints if e.ready]

    def outcome(place: str, hints: list[tuple[str, ...]]) -> HintOutcome:
        if not ready:
            return "nobody ready"
        if not place:
            return "place unknown"
        if () in hints:
            return "incomplete"
        return "honoured" if any(place in each for each in hints) else "for others"

    node = outcome(where.node, [e.node_hints for e in ready])
    zone = outcome(where.zone, [e.zone_hints for e in ready])
    return HintUse(node, "not needed" if node == "honoured" else zone)


endpoint_lists = st.lists(
    st.builds(
        lambda ready, serving, terminating, local, zones, nodes: (
            ready,
            serving,
            terminating,
            local,
            zones,
            nodes,
        ),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.sampled_from([(), ("a",), ("b",), ("a", "b"), ("",)]),
        st.sampled_from([(), ("node-1",), ("node-2",)]),
    ),
    max_size=6,
).map(lambda rows: [NodeEndpoint(f"10.0.0.{number}", 80, *row) for number, row in enumerate(rows)])
ports = st.builds(
    port, internal=st.booleans(), external=st.booleans(), node_port=st.sampled_from([0, 30080])
)
places = st.builds(Locality, node=st.sampled_from(["", "node-1"]), zone=st.sampled_from(["", "a"]))


@given(endpoint_lists, ports, places)
def test_equals_the_dumb_one(
    endpoints: list[NodeEndpoint], service: ServedPort, where: Locality
) -> None:
    found = categorize(endpoints, service, where)
    assert found == dumb(endpoints, service, where)
    # What the rules rely on: a used endpoint means that there is one; reachable is exactly what is
    # used.
    assert found.has_any or not (found.cluster or found.local)
    assert set(map(id, found.reachable)) == set(map(id, found.cluster)) | set(map(id, found.local))


@given(endpoint_lists, ports, places)
def test_hints_never_empty_a_service(
    endpoints: list[NodeEndpoint], service: ServedPort, where: Locality
) -> None:
    """cilium#41022, #45214: somebody is ready, so somebody is used (by the Cluster policy)."""
    if service.uses_cluster_endpoints and any(endpoint.ready for endpoint in endpoints):
        assert categorize(endpoints, service, where).cluster


@given(endpoint_lists, places)
def test_hints_are_read_as_the_dumb_one_reads_them(
    endpoints: list[NodeEndpoint], where: Locality
) -> None:
    assert choose(endpoints, where).hints == dumb_hints(endpoints, where)
    assert choose(endpoints, where, honour_hints=False).hints is None


@given(endpoint_lists, places)
def test_the_reason_says_whether_it_is_used(endpoints: list[NodeEndpoint], where: Locality) -> None:
    """What ``sliceplane trace`` words, against what the node proxy programs."""
    choices: tuple[Choice[NodeEndpoint], ...] = (
        choose(endpoints, where),
        choose_local(endpoints, where),
    )
    found = categorize(endpoints, BOTH_LOCAL, where)
    assert [choice.endpoints for choice in choices] == [found.cluster, found.local]
    for choice in choices:
        for endpoint in endpoints:
            assert why(endpoint, choice).used == (endpoint in choice.endpoints), (
                f"{endpoint}: {why(endpoint, choice)}"
            )


@given(st.lists(endpoint_lists, min_size=1, max_size=4), places, st.booleans())
def test_a_client_uses_what_the_node_proxy_uses(
    history: list[list[NodeEndpoint]], where: Locality, honour: bool
) -> None:
    """``EndpointView`` keeps by differences what the rule says of each state as a whole."""
    usable = Usable(where, honour_hints=honour)
    before: dict[str, ClientEndpoint] = {}
    for endpoints in history:
        after = {endpoint.ip: as_client_sees(endpoint) for endpoint in endpoints}
        touched = {
            ip: before.get(ip)
            for ip in before.keys() | after.keys()
            if before.get(ip) != after.get(ip)
        }
        usable.apply(touched, after)
        before = after
        expected = choose(endpoints, where, honour_hints=honour).endpoints
        assert {endpoint.id for endpoint in usable.pool.endpoints()} == {
            endpoint.ip for endpoint in expected
        }


def as_client_sees(endpoint: NodeEndpoint) -> ClientEndpoint:
    return ClientEndpoint(
        id=endpoint.ip,
        address=endpoint.ip,
        port=endpoint.port,
        ready=endpoint.ready,
        serving=endpoint.serving,
        terminating=endpoint.terminating,
        zone_hints=endpoint.zone_hints,
        node_hints=endpoint.node_hints,
    )
