"""Any history of slices: the assignment of a place has the endpoints that a node proxy there would
use.
"""

from __future__ import annotations

from random import Random

import pytest
from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
from tests.figures import tell
from tests.xds.worlds import KEY, World, pod, service, slice_of

from sliceplane.api.discovery import (
    LABEL_FOR_ZONE,
    EndpointConditions,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.consume.model import ServedPort, ServiceKey, ServicePortName, categorize
from sliceplane.consume.slicecache import SliceCache
from sliceplane.consume.usable import Locality
from sliceplane.xds.names import ASSIGNMENT
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.view import XdsView

WEB = ServiceKey("default", "web")
PLACES = [Locality(node=node, zone=zone) for node in ("", "n1", "n2") for zone in ("", "a", "b")]
CONDITIONS = [
    EndpointConditions(ready=ready, serving=serving, terminating=terminating)
    for ready, serving, terminating in (
        (True, True, False),
        (None, None, None),
        (False, False, False),
        (False, True, True),
        (False, False, True),
    )
]
#: histories, and states of each
STATES = 25


def endpoint(random: Random, number: int, mostly: int) -> SliceEndpoint:
    """Hints are complete more often than chance would have it; ``mostly``: which there are."""
    conditions = CONDITIONS[
        random.choice((0, 0, 0, 1, 2, 3, 3, 4)) if mostly < 5 else random.choice((2, 3, 4))
    ]
    if number == 7:  # it had the address of number 6, which a live Pod has got
        conditions = CONDITIONS[3]
    zones = (
        random.choice((("a",), ("b",), ("a", "b")))
        if mostly in (1, 3) or random.random() < 0.3
        else ()
    )
    nodes = (
        random.choice((("n1",), ("n2",), ("n1", "n3")))
        if mostly in (2, 3) or random.random() < 0.1
        else ()
    )
    address = "10.0.0.6" if number == 7 else f"10.0.0.{number}"
    return pod(
        number,
        conditions,
        zone=random.choice("abc"),
        node=random.choice(("n1", "n2", "n3", "")),
        for_zones=zones,
        for_nodes=nodes,
        address=address,
    )


def oracle(slices: list[EndpointSlice], place: Locality, *, local: bool) -> list[tuple[str, int]]:
    """What the node proxy's own code gives."""
    cache = SliceCache("IPv4", place.node)
    for held in slices:
        wanted = (held.metadata.labels or {}).get(LABEL_FOR_ZONE)
        if wanted is None or wanted == place.zone:
            cache.on_slice(held.metadata.key, held)
    name = ServicePortName(WEB, "http", "TCP")
    port = ServedPort(name=name, cluster_ip="10.96.0.1", port=80, internal_local=local)
    categories = categorize(cache.endpoints(WEB).get(name, []), port, place)
    return sorted(
        (used.ip, used.port) for used in (categories.local if local else categories.cluster)
    )


def told(view: XdsView) -> list[tuple[str, int]]:
    """What a client of *view* holds that follows the assignment to its collections; it has what
    gRPC demands.
    """
    resource = view.get(ASSIGNMENT, KEY)
    assert resource is not None
    assignment = endpoint_pb2.ClusterLoadAssignment.FromString(resource.body)
    sockets = []
    for locality in assignment.endpoints:
        assert locality.load_balancing_weight.value >= 1
        assert (locality.HasField("locality"), locality.priority) == (True, 0)
        held = list(locality.lb_endpoints)
        glob = locality.leds_cluster_locality_config.leds_collection_name
        if glob:
            collection = view.collection(glob)
            assert collection is not None
            held = [
                endpoint_components_pb2.LbEndpoint.FromString(member.body)
                for member in collection.members
            ]
        else:
            assert locality.load_balancing_weight.value == len(held)
        sockets += [found.endpoint.address.socket_address for found in held]
    zones = [locality.locality.zone for locality in assignment.endpoints]
    assert zones == sorted(set(zones))
    assert len({socket.address for socket in sockets}) == len(sockets)
    return sorted((socket.address, socket.port_value) for socket in sockets)


def play(seed: int) -> int:
    """How many states were compared, each at all places."""
    random = Random(seed)
    local = random.random() < 0.3
    world = World(
        service(internal_traffic_policy="Local" if local else "Cluster"), collected_from=4
    )
    clients = [
        XdsClient(kind=kind, node=place.node, zone=place.zone, leds=leds)
        for place in PLACES
        for kind, leds in (("grpc", False), ("envoy", True))
    ]
    views = [world.view(client) for client in clients]
    held = [told(view) for view in views]
    slices: dict[str, EndpointSlice] = {}
    for revision in range(1, STATES + 1):
        mostly = random.randrange(6)
        for name in random.sample(("s1", "s2", "s3"), random.choice((1, 1, 2))):
            if name in slices and random.random() < 0.15:
                world.delete(slices.pop(name))
                continue
            numbers = sorted(random.sample(range(1, 9), random.randrange(6)))
            labels = {LABEL_FOR_ZONE: random.choice("ab")} if random.random() < 0.1 else {}
            endpoints = [endpoint(random, number, mostly) for number in numbers]
            slices[name] = slice_of(
                endpoints, revision * 10 + int(name[1]), name=name, labels=labels
            )
            world.put(slices[name])
        concerned = {id(change.view) for change in world.changes()}
        for index, (client, view) in enumerate(zip(clients, views, strict=True)):
            before, held[index] = held[index], told(view)
            place = Locality(node=client.node, zone=client.zone)
            expected = oracle(list(slices.values()), place, local=local)
            assert held[index] == expected, f"seed {seed}, state {revision}, {client}"
            assert held[index] == before or id(view) in concerned, (
                f"seed {seed}: {client} was not told of {revision}"
            )
    return STATES


@pytest.mark.parametrize("seed", range(8))
def test_each_place_gets_what_a_node_proxy_there_would_use(seed: int) -> None:
    assert play(seed) == STATES


@pytest.mark.slow
def test_each_place_gets_what_a_node_proxy_there_would_use_in_ten_thousand_states() -> None:
    assert sum(map(play, range(100, 500))) == 10_000
    tell(f"10,000 states, each at {len(PLACES)} places")
