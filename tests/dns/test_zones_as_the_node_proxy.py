"""Three zones: what a name leads to is where the node proxy of the client's node would send it."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st
from tests.dns.world import Cluster, endpoint, headless, node, slice_of
from tests.effort import effort

from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.model import (
    NodeEndpoint,
    ServedPort,
    ServiceKey,
    ServicePortName,
    categorize,
)
from sliceplane.consume.usable import Locality
from sliceplane.dns.clients import AnswerConfig

ZONES = ("z1", "z2", "z3")
SHARED = "10.9.0.1"
PORT = ServedPort(
    name=ServicePortName(ServiceKey("default", "peers"), "http", "TCP"),
    cluster_ip="10.96.0.1",
    port=80,
)

hints = st.lists(st.sampled_from(ZONES), max_size=2, unique=True)
states = st.lists(
    st.tuples(
        st.sampled_from(ZONES), st.sampled_from([True, True, True, False]), st.booleans(), hints
    ),
    max_size=9,
)


def members(entries: list[tuple[str, bool, bool, list[str]]]) -> EndpointSlice:
    made = [
        endpoint(
            f"10.1.{ZONES.index(zone)}.{at}",
            zone=zone,
            hints=of,
            nodeName=f"n-{zone}",
            conditions={"ready": ready and not leaving, "serving": ready, "terminating": leaving},
        )
        for at, (zone, ready, leaving, of) in enumerate(entries)
    ]
    return slice_of("peers", *made)


def cluster(of: EndpointSlice) -> Cluster:
    nodes = [node(f"n-{zone}", zone, pods=f"10.2.{at}.0/24") for at, zone in enumerate(ZONES)]
    config = AnswerConfig(shared_resolvers=(ipaddress.ip_network(f"{SHARED}/32"),))
    return Cluster(headless(), of, *nodes, config=config)


def sent_to(of: EndpointSlice, zone: str) -> list[str]:
    """By the node proxy's own model; a terminating endpoint, which it falls back on, has no
    name.
    """
    seen = [
        NodeEndpoint(
            entry.addresses[0],
            80,
            entry.conditions.ready is not False,
            entry.conditions.serving is not False,
            bool(entry.conditions.terminating),
            entry.node_name == f"n-{zone}",
            tuple(hint.name for hint in (entry.hints.for_zones if entry.hints else None) or ()),
        )
        for entry in of.endpoints or ()
    ]
    used = categorize(seen, PORT, Locality(node=f"n-{zone}", zone=zone)).cluster
    return sorted(entry.ip for entry in used if entry.ready)


def client_in(zone: str) -> str:
    return f"10.2.{ZONES.index(zone)}.9"


@given(st.lists(states, min_size=1, max_size=3))
@effort(100)
def test_names_lead_where_the_node_proxy_sends(
    history: list[list[tuple[str, bool, bool, list[str]]]],
) -> None:
    held = cluster(members([]))
    for entries in history:
        of = members(entries)
        held.put(of)
        for zone in ZONES:
            assert held.addresses("peers.default", client=client_in(zone)) == sent_to(of, zone)
        ready = sorted(entry.addresses[0] for entry in of.endpoints or () if entry.conditions.ready)
        assert held.addresses("peers.default", client=SHARED) == ready


def test_every_zone_keeps_to_itself_until_it_is_drained() -> None:
    whole = [(zone, True, False, [zone]) for zone in ZONES for _ in range(3)]
    held = cluster(members(whole))
    for at, zone in enumerate(ZONES):
        answer = held.addresses("peers.default", client=client_in(zone))
        assert len(answer) == 3
        assert all(address.startswith(f"10.1.{at}.") for address in answer)
    assert len(held.addresses("peers.default", client=SHARED)) == 9
    held.put(members([(zone, zone != "z2", False, [zone]) for zone, *_ in whole]))
    assert len(held.addresses("peers.default", client=client_in("z1"))) == 3
    others = held.addresses("peers.default", client=client_in("z2"))
    assert len(others) == 6
    assert not [address for address in others if address.startswith("10.1.1.")]
