"""What iptables rules make of a packet is what nftables rules make of it: verdict, targets and
their probabilities, masquerade. Random Services, on random nodes, and random packets; each side has
a tracer of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.iptables.restorer import Both
from tests.nft.machine import DYING, GONE, NODE, NODE_IP, ep, make_slice, node, service

from sliceplane.api import codec
from sliceplane.api.core import ServiceCIDR
from sliceplane.kit.ip import Family
from sliceplane.node.context import RulesConfig


@dataclass(frozen=True)
class World:
    """Addresses of one family."""

    family: Family
    cluster_ip: str
    pod: str
    external: str
    node: str
    outside: str
    pods: str
    allowed: str
    cidr: str

    def claimed(self, what: str, of: int) -> str:
        """An address that is another's, as an external IP: of Service number *of*, say; ``free`` is
        nobody's.
        """
        return {
            "cluster_ip": f"{self.cluster_ip}{of}",
            "node": self.node,
            "pod": f"{self.pod}{of}",
            "vip": f"{self.external}{of}",
            "external": f"{self.external}1{of}",
            "free": f"{self.external}99",
            "range": f"{self.cluster_ip}77",
        }[what]


WORLDS = {
    "IPv4": World(
        "IPv4",
        "172.30.0.",
        "10.0.0.",
        "203.0.113.",
        NODE_IP,
        "8.8.8.8",
        "10.0.0.0/16",
        "8.8.0.0/16",
        "172.30.0.0/24",
    ),
    "IPv6": World(
        "IPv6",
        "fd30::",
        "fd00::",
        "2001:db8::",
        "fd99::1",
        "2600::8",
        "fd00::/64",
        "2600::/64",
        "fd30::/112",
    ),
}
NUMBERS = (1, 2, 3)
LOCAL = (1, 2)  # of the endpoints 1 to 4
PORTS = [
    {"name": "http", "port": 80, "protocol": "TCP"},
    {"name": "dns", "port": 53, "protocol": "UDP"},
    {"name": "sig", "port": 80, "protocol": "SCTP"},
]
SLICE_PORTS = [
    {"name": "http", "port": 8080, "protocol": "TCP"},
    {"name": "dns", "port": 5353, "protocol": "UDP"},
    {"name": "sig", "port": 8080, "protocol": "SCTP"},
]
policy = st.sampled_from(["Cluster", "Local"])
ready = st.sampled_from([{}, {"hints": {"forZones": [{"name": "a"}]}}])
leaving = st.sampled_from([DYING, GONE])


def rows(
    states: st.SearchStrategy[dict[str, Any]], least: int
) -> st.SearchStrategy[list[tuple[int, dict[str, Any]]]]:
    return st.lists(
        st.tuples(st.integers(1, 4), states),
        unique_by=lambda row: row[0],
        min_size=least,
        max_size=4,
    )


endpoints = st.one_of(
    rows(ready, 2), rows(ready | leaving, 1), rows(leaving, 1), st.just([]), st.none()
)
shapes = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["LoadBalancer", "NodePort", "ClusterIP"]),
        "internal": policy,
        "external": policy,
        "affinity": st.sampled_from(["None", "None", "ClientIP"]),
        "external_ip": st.booleans(),
        "mode": st.sampled_from(["VIP", "Proxy"]),
        "ranges": st.sampled_from([(), ("allowed",), ("allowed", "node")]),
        "claims": st.sampled_from(
            [(), (), ("cluster_ip",), ("node", "pod"), ("vip", "external"), ("free", "range")]
        ),
        "endpoints": endpoints,
    }
)
nodes = st.fixed_dictionaries(
    {
        "known": st.booleans(),
        "zone": st.sampled_from(["a", "b"]),
        "cidr": st.booleans(),
        "detect": st.sampled_from(["none", "pods", "interface"]),
        "masquerade_all": st.booleans(),
    }
)


def objects_of(world: World, number: int, shape: dict[str, Any]) -> list[Any]:
    name = f"svc{number}"
    spec: dict[str, Any] = {
        "type": shape["type"],
        "internalTrafficPolicy": shape["internal"],
        "sessionAffinity": shape["affinity"],
        "ports": [
            {
                **port,
                **({"nodePort": 30000 + 10 * number + at} if shape["type"] != "ClusterIP" else {}),
            }
            for at, port in enumerate(PORTS)
        ],
    }
    wanted = [f"{world.external}1{number}"] if shape["external_ip"] else []
    wanted += [world.claimed(what, number % 3 + 1) for what in shape["claims"]]
    if wanted:
        spec["externalIPs"] = wanted
    if wanted or shape["type"] != "ClusterIP":
        spec["externalTrafficPolicy"] = shape["external"]
    if shape["type"] == "LoadBalancer":
        spec["ingress"] = [{"ip": f"{world.external}{number}", "ipMode": shape["mode"]}]
        length = 128 if world.family == "IPv6" else 32
        texts = {"allowed": world.allowed, "node": f"{world.node}/{length}"}
        spec["loadBalancerSourceRanges"] = [texts[each] for each in shape["ranges"]]
    made: list[Any] = [service(name, number, **spec)]
    if shape["endpoints"] is not None:
        found = [
            ep(f"{world.pod}{at}", **({"nodeName": NODE} if at in LOCAL else {}), **extra)
            for at, extra in shape["endpoints"]
        ]
        made.append(make_slice(found, name, ports=SLICE_PORTS, kind=world.family))
    return made


def service_cidr(*cidrs: str) -> ServiceCIDR:
    return codec.decode(
        codec.encode({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}}), ServiceCIDR
    )


def both_of(world: World, place: dict[str, Any], shapes: list[dict[str, Any]]) -> Both:
    detect = {
        "none": {},
        "pods": {"cluster_cidrs": (world.pods,)},
        "interface": {
            "detect_local_mode": "InterfaceNamePrefix",
            "pod_interface_name_prefix": "cali",
        },
    }[place["detect"]]
    both = Both(world.family, RulesConfig(masquerade_all=place["masquerade_all"], **detect))  # type: ignore[arg-type]
    if place["known"]:
        both.put(node(place["zone"], world.node))
    if place["cidr"]:
        both.put(service_cidr(world.cidr))
    for number, shape in enumerate(shapes, 1):
        both.put(*objects_of(world, number, shape))
    return both


#: every packet: to whom, to which Service's, to which of its ports, from whom, on which path,
#: through which interface
PACKETS = tuple(
    product(
        ("cluster_ip", "vip", "external", "node", "node http", "pod", "pod http", "free", "nobody"),
        NUMBERS,
        (0, 1, 2, 3),
        ("outside", "node", "pod1", "pod3", "vip"),
        ("local", "forwarded"),
        ("eth0", "cali12"),
    )
)
#: of which each world is sent every so many-th; prime, so that all kinds are among them
STRIDE = 61


@given(
    st.sampled_from(sorted(WORLDS)),
    nodes,
    st.lists(shapes, min_size=3, max_size=3),
    st.integers(0, STRIDE - 1),
)
def test_iptables_does_with_packets_what_nftables_does(
    family: str, place: dict[str, Any], shapes: list[dict[str, Any]], first: int
) -> None:
    world = WORLDS[family]
    both = both_of(world, place, shapes)
    for row in PACKETS[first::STRIDE]:
        packet, iif = packet_of(world, row)
        nft, iptables = both.send(*packet, iif=iif)
        assert iptables == nft, (packet, iif)


def packet_of(world: World, row: tuple[Any, ...]) -> tuple[tuple[Any, ...], str]:
    to, number, at, source, path, iif = row
    proto, port = (("tcp", 80), ("udp", 53), ("sctp", 80), ("tcp", 99))[at]
    destinations = {
        "cluster_ip": (f"{world.cluster_ip}{number}", port),
        "vip": (f"{world.external}{number}", port),
        "external": (f"{world.external}1{number}", port),
        "node": (world.node, 30000 + 10 * number + at),
        "node http": (world.node, port),
        "pod": (f"{world.pod}{number}", 8080),
        "pod http": (f"{world.pod}{number}", port),
        "free": (f"{world.external}99", port),
        "nobody": (f"{world.cluster_ip}77", port),
    }
    sources = {
        "outside": world.outside,
        "node": world.node,
        "pod1": f"{world.pod}1",
        "pod3": f"{world.pod}3",
        "vip": f"{world.external}{number}",
    }
    return (*destinations[to], proto, sources[source], path), iif


@given(
    st.sampled_from(sorted(WORLDS)),
    nodes,
    st.lists(shapes, min_size=3, max_size=3),
    st.integers(0, STRIDE - 1),
)
def test_what_a_service_claims_changes_nothing_for_those_whose_it_is(
    family: str, place: dict[str, Any], shapes: list[dict[str, Any]], first: int
) -> None:
    """Cluster IPs, load balancers' addresses, Nodes and Pods: the same packets, with the claims and
    without them.
    """
    world = WORLDS[family]
    place = {**place, "known": True, "cidr": True, "detect": "pods"}
    claimed = both_of(world, place, shapes)
    plain = both_of(world, place, [{**shape, "claims": ()} for shape in shapes])
    for row in PACKETS[first::STRIDE]:
        if row[0] in {"external", "free"} or "vip" in row:
            continue
        packet, iif = packet_of(world, row)
        assert claimed.send(*packet, iif=iif) == plain.send(*packet, iif=iif), (packet, iif)


def test_a_load_balancers_address_that_others_claim_stays_with_its_service() -> None:
    """Whatever the order of names: the claimants sort before and behind it."""
    world = WORLDS["IPv4"]
    shape = {
        "type": "LoadBalancer",
        "internal": "Cluster",
        "external": "Cluster",
        "affinity": "None",
        "external_ip": False,
        "mode": "VIP",
        "ranges": (),
        "claims": (),
        "endpoints": [(2, {})],
    }
    evil = {**shape, "type": "ClusterIP", "claims": ("vip",), "endpoints": [(4, {})]}
    place = {"known": True, "zone": "a", "cidr": True, "detect": "pods", "masquerade_all": False}
    for shapes in ([shape, {**evil, "claims": ()}, evil], [evil, shape, {**evil, "claims": ()}]):
        number = 1 + shapes.index(shape)
        for answer in both_of(world, place, shapes).send(
            f"{world.external}{number}", 80, "tcp", "8.8.8.8", "forwarded"
        ):
            assert {to for _, to, _ in answer} == {"10.0.0.2 8080"}
