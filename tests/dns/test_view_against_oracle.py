"""After any history of Services and slices the answers are those of a server that was told the last
state alone; and who is near is whom the node proxy would use.
"""

from __future__ import annotations

import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dns.world import NOW, ZONE, Cluster, endpoint, headless, node, service, slice_of
from tests.effort import effort

from sliceplane.api.meta import Object
from sliceplane.consume.usable import Locality, choose
from sliceplane.dns import locations
from sliceplane.dns.wire import name_of
from sliceplane.kit.ip import parse_network_lenient

SERVICES = ("a", "b")
ADDRESSES = [f"10.1.0.{number}" for number in range(1, 6)]
PORTS = (
    [],
    [{"name": "http", "port": 80}],
    [{"name": "http", "port": 81}, {"name": "", "port": 5, "protocol": "UDP"}],
)
NAMES = [
    *[f"{of}.default" for of in SERVICES],
    *[f"_http._tcp.{of}.default" for of in SERVICES],
    *[f"_tcp.{of}.default" for of in SERVICES],
    *[f"{label}.{of}.default" for of in SERVICES for label in ("h0", "h1", "10-1-0-1", "10-1-0-2")],
    *[f"z1.{word}._zone.{of}.default" for of in SERVICES for word in ("pin", "prefer")],
    "default",
]
QUESTIONS = [(f"{name}.svc.{ZONE}", kind) for name in NAMES for kind in ("A", "SRV", "AAAA")]
QUESTIONS += [
    (f"{number}.0.{net}.10.in-addr.arpa.", "PTR") for net in (1, 96) for number in range(1, 6)
]
PACKETS = [dns.message.make_query(name, kind, id=7).to_wire() for name, kind in QUESTIONS]

endpoints = st.builds(
    endpoint,
    st.sampled_from(ADDRESSES),
    ready=st.sampled_from([True, True, False, None]),
    zone=st.sampled_from(["", "z1", "z2"]),
    hints=st.sampled_from([(), ("z1",), ("z2",), ("z1", "z2")]),
    hostname=st.sampled_from([None, "h0", "h1"]),
)


@st.composite
def steps(draw: st.DrawFn) -> tuple[tuple[str, str], Object | None]:
    of = draw(st.sampled_from(SERVICES))
    if draw(st.integers(0, 3)) == 0:
        kinds = [
            None,
            headless(of),
            headless(of, publishNotReadyAddresses=True),
            service(
                of,
                clusterIP=f"10.96.0.{draw(st.integers(1, 2))}",
                ports=[{"name": "http", "port": 1}],
            ),
            service(of, type="ExternalName", externalName="a.default.svc.cluster.local"),
        ]
        return ("Service", f"default/{of}"), draw(st.sampled_from(kinds))
    name = draw(st.sampled_from(["s1", "s2", "s3"]))
    # A slice may change its Service, too: names of slices are shared.
    members = draw(st.lists(endpoints, max_size=4, unique_by=lambda entry: entry["addresses"][0]))
    version = draw(st.integers(1, 1000))
    made = slice_of(of, *members, name=name, ports=draw(st.sampled_from(PORTS)), version=version)
    return ("EndpointSlice", f"default/{name}"), draw(st.sampled_from([made, made, made, None]))


def answers(cluster: Cluster, client: str) -> list[object]:
    cluster.server._rotation = 0
    found = []
    for packet in PACKETS:
        cluster.server._rotation = 0
        found.append(cluster.server.answer(packet, client, "tcp", NOW))
    return found


@given(st.lists(steps(), max_size=12))
@effort(80)
def test_answers_are_those_of_the_last_state(
    history: list[tuple[tuple[str, str], Object | None]],
) -> None:
    nodes = [node(f"n{at}", f"z{at}", pods=f"10.2.{at}.0/24") for at in (1, 2)]
    cluster = Cluster(*nodes, headless("a"))
    for number, step in enumerate(history):
        cluster.tell(step)
        if number % 4 == 0:
            answers(cluster, "10.2.1.5")  # so that there is something to drop
    anew = Cluster(*[cluster.objects[key] for key in sorted(cluster.objects)])
    for client in ("10.2.1.5", "8.8.8.8"):
        mine, theirs = answers(cluster, client), answers(anew, client)
        for question, own, other in zip(QUESTIONS, mine, theirs, strict=True):
            assert own == other, question
    view = cluster.server.view
    view.reverse.check()
    for named in view._services.values():
        named.check()


@given(
    st.lists(endpoints, max_size=5, unique_by=lambda entry: entry["addresses"][0]),
    st.sampled_from(["z1", "z2", "z3"]),
)
@effort(100)
def test_a_client_is_led_where_the_node_proxy_would_lead_it(
    members: list[object], zone: str
) -> None:
    """The rule is ``consume.usable.choose``; where none is ready there is no name."""
    made = slice_of("peers", *members)
    cluster = Cluster(headless(), made, node("n", zone, pods="10.2.0.0/24"))
    named = cluster.server.view._services[name_of("peers.default.svc")[:-1]]
    whole = [entry for merge in named._merges.values() for entry in merge.visible.values()]
    choice = choose(whole, Locality(zone=zone))
    expected = [] if choice.falls_back else sorted(entry.address for entry in choice.endpoints)
    assert cluster.addresses("peers.default", client="10.2.0.9", transport="tcp") == expected


def test_a_list_of_nodes_is_put_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what kubelets tell all the time changes nothing."""
    looked_at: list[str] = []

    def parsed(text: str) -> object:
        looked_at.append(text)
        return parse_network_lenient(text)

    monkeypatch.setattr(locations, "parse_network_lenient", parsed)
    nodes = [node(f"n{at}", "z1", pods=f"10.{at}.0.0/16") for at in range(50)]
    cluster = Cluster(*nodes)
    for _ in range(2):
        assert cluster.server.view.locations.of("10.7.1.2") == Locality(node="n7", zone="z1")
        cluster.put(*nodes)
    assert len(looked_at) == 50
