"""The octets that are written by hand are those of the protobuf library (xds-protos), and what a
client demands.
"""

from __future__ import annotations

import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.listener.original_dst.v3 import original_dst_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.extensions.filters.network.tcp_proxy.v3 import tcp_proxy_pb2
from envoy.extensions.load_balancing_policies.least_request.v3 import least_request_pb2
from envoy.extensions.load_balancing_policies.maglev.v3 import maglev_pb2
from envoy.extensions.load_balancing_policies.random.v3 import random_pb2
from envoy.extensions.load_balancing_policies.ring_hash.v3 import ring_hash_pb2
from envoy.extensions.load_balancing_policies.round_robin.v3 import round_robin_pb2
from envoy.extensions.load_balancing_policies.wrr_locality.v3 import wrr_locality_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.xds.worlds import ENVOY, GRPC, KEY, World, XdsClient, body, pod, service, slice_of

from sliceplane.api.core import ServicePort
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.model import ServiceKey
from sliceplane.xds import names
from sliceplane.xds.endpoints import (
    LocalityPieces,
    MergedEndpoint,
    assignment,
    body_of,
    collected_assignment,
    endpoint_message,
    is_servable,
    piece,
)
from sliceplane.xds.names import PortKey
from sliceplane.xds.resource import LISTENER_MODES, XdsResource
from sliceplane.xds.settings import (
    ANNOTATION_LISTENER,
    ANNOTATION_MAX_REQUESTS,
    ANNOTATION_POLICY,
    POLICIES,
)

WEB = PortKey(ServiceKey("default", "web"), "http")
#: by the name of their message: what an Any may hold
HELD = {
    message.DESCRIPTOR.full_name: message
    for message in (
        http_connection_manager_pb2.HttpConnectionManager,
        tcp_proxy_pb2.TcpProxy,
        router_pb2.Router,
        original_dst_pb2.OriginalDst,
        http_protocol_options_pb2.HttpProtocolOptions,
        round_robin_pb2.RoundRobin,
        least_request_pb2.LeastRequest,
        random_pb2.Random,
        ring_hash_pb2.RingHash,
        maglev_pb2.Maglev,
        wrr_locality_pb2.WrrLocality,
    )
}
TEXTS = st.sampled_from(["", "a", "zone-b", "\u00e9t\u00e9", "n" * 127, "n" * 130])
ADDRESSES = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.sampled_from(["10.0.0.1", "fd00::1", "127.0.0.1"]),
)
ENDPOINTS = st.builds(
    Endpoint,
    id=TEXTS,
    address=ADDRESSES,
    port=st.integers(-1, 70_000),
    zone=TEXTS,
    node=TEXTS,
    pod=TEXTS,
)


def encoded(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def expected_endpoint(
    seen: MergedEndpoint, *, draining: bool, with_names: bool
) -> endpoint_components_pb2.LbEndpoint:
    made = endpoint_components_pb2.LbEndpoint()
    first = seen.endpoint
    made.endpoint.address.socket_address.address = first.address
    made.endpoint.address.socket_address.port_value = first.port
    if seen.other is not None:
        also = made.endpoint.additional_addresses.add().address.socket_address
        also.address = seen.other.address
        also.port_value = seen.other.port
    if draining:
        made.health_status = 3
    if with_names:
        for name in ("node", "pod"):
            if getattr(first, name):
                made.metadata.filter_metadata["sliceplane"][name] = getattr(first, name)
    return made


@given(ENDPOINTS, st.none() | ENDPOINTS, st.booleans(), st.booleans())
@effort(150)
def test_pitfall_6_an_endpoint_is_that_of_the_library_or_is_not_written(
    first: Endpoint, other: Endpoint | None, draining: bool, with_names: bool
) -> None:
    """Envoy ends at a member whose address is no IP, and rejects a port above 65535."""
    seen = MergedEndpoint(first, other)
    if not all(is_servable(endpoint) for endpoint in seen if endpoint is not None):
        with pytest.raises(AssertionError):
            endpoint_message(seen, draining=draining, with_names=with_names)
        return
    made = endpoint_message(seen, draining=draining, with_names=with_names)
    assert made == encoded(expected_endpoint(seen, draining=draining, with_names=with_names))
    assert body_of(piece(made)) == made
    assert 1 <= first.port <= 65535


@given(st.dictionaries(TEXTS, st.tuples(TEXTS, st.integers(0, 40), st.integers(0, 9))))
@effort(100)
def test_an_assignment_is_that_of_the_library(zones: dict[str, tuple[str, int, int]]) -> None:
    """gRPC drops a locality without a weight, and rejects an assignment with one without an id."""
    expected = endpoint_pb2.ClusterLoadAssignment(cluster_name=str(WEB))
    localities = []
    for zone, (region, held, usable) in sorted(zones.items()):
        made = expected.endpoints.add()
        made.locality.SetInParent()
        made.locality.zone, made.locality.region = zone, region
        made.load_balancing_weight.value = max(1, usable)
        pieces = []
        for number in range(held):
            endpoint = MergedEndpoint(Endpoint(id="x", address=f"10.0.0.{number}", port=8080))
            pieces.append(piece(endpoint_message(endpoint)))
            made.lb_endpoints.append(expected_endpoint(endpoint, draining=False, with_names=False))
        localities.append(LocalityPieces(zone, region, pieces, sum(map(len, pieces)), usable))
    assert assignment(WEB, localities) == encoded(expected)


@given(st.dictionaries(TEXTS, st.tuples(TEXTS, TEXTS)))
@effort(60)
def test_an_assignment_of_collections_is_that_of_the_library(
    zones: dict[str, tuple[str, str]],
) -> None:
    expected = endpoint_pb2.ClusterLoadAssignment(cluster_name=str(WEB))
    for zone, (region, glob) in sorted(zones.items()):
        made = expected.endpoints.add()
        made.locality.SetInParent()
        made.locality.zone, made.locality.region = zone, region
        made.load_balancing_weight.value = 1
        made.leds_cluster_locality_config.leds_config.ads.SetInParent()
        made.leds_cluster_locality_config.leds_config.resource_api_version = 2
        made.leds_cluster_locality_config.leds_collection_name = glob
    localities = [(zone, region, glob) for zone, (region, glob) in sorted(zones.items())]
    assert collected_assignment(WEB, localities) == encoded(expected)


@given(TEXTS, st.binary())
@effort(60)
def test_envelopes_are_those_of_the_library(name: str, held: bytes) -> None:
    resource = XdsResource(names.CLUSTER, name, held)
    any_message = AnyMessage(type_url=names.CLUSTER, value=held)
    assert resource.as_any == encoded(any_message)
    expected = discovery_pb2.Resource(version=resource.version, name=name, resource=any_message)
    assert resource.as_delta == encoded(expected)
    assert len(resource.version) == 11
    assert len(b64decode(f"{resource.version}=")) == 8


def test_type_urls_are_those_of_the_messages() -> None:
    messages = (
        cluster_pb2.Cluster,
        endpoint_pb2.ClusterLoadAssignment,
        endpoint_components_pb2.LbEndpoint,
        listener_pb2.Listener,
        route_pb2.RouteConfiguration,
    )
    assert tuple(f"type.googleapis.com/{of.DESCRIPTOR.full_name}" for of in messages) == names.TYPES


def whole(message: Message) -> Iterator[Message]:
    """*message* and all that it holds, also in Any; each with the octets that the library would
    write for it.
    """
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        held = (
            value.values()
            if is_map
            else value
            if isinstance(value, list) or hasattr(value, "add")
            else [value]
        )
        for inside in held:
            if isinstance(inside, AnyMessage):
                of = HELD[inside.type_url.removeprefix("type.googleapis.com/")]
                unpacked = of.FromString(inside.value)
                assert encoded(unpacked) == inside.value
                yield from whole(unpacked)
            elif isinstance(inside, Message):
                yield from whole(inside)


def read(kind: type[Any], octets: bytes) -> tuple[Any, list[Message]]:
    """The message, which the library would write alike, and everything in it."""
    message = kind.FromString(octets)
    assert encoded(message) == octets
    held = list(whole(message))
    assert all(encoded(of) == encoded(type(of).FromString(encoded(of))) for of in held)
    return message, held


APP_PROTOCOLS = (
    None,
    "tcp",
    "http",
    "kubernetes.io/ws",
    "kubernetes.io/h2c",
    "grpc",
    "https",
    "tls",
    "other",
)


@pytest.mark.parametrize("app_protocol", APP_PROTOCOLS)
@pytest.mark.parametrize("policy", ["", *POLICIES])
@pytest.mark.parametrize("affinity", ["None", "ClientIP"])
def test_clusters_listeners_and_routes_are_written_as_the_library_writes_them(
    app_protocol: str | None, policy: str, affinity: str
) -> None:
    web = service(
        ports=[ServicePort(name="http", port=80, app_protocol=app_protocol)],
        session_affinity=affinity,
        cluster_ips=("10.96.0.1", "fd00::1"),
        annotations={ANNOTATION_POLICY: policy, ANNOTATION_LISTENER: "8080"},
    )
    world = World(web)
    is_http = app_protocol in ("http", "kubernetes.io/ws", "kubernetes.io/h2c", "grpc")
    for client in (GRPC, ENVOY):
        made, held = read(cluster_pb2.Cluster, body(world.view(client), names.CLUSTER))
        assert (made.name, made.type) == (KEY, cluster_pb2.Cluster.EDS)
        listed = [
            entry.typed_extension_config.name.rpartition(".")[2]
            for entry in made.load_balancing_policy.policies
        ]
        by_enum = (
            {"grpc": "RING_HASH", "envoy": "MAGLEV"}[client.kind]
            if affinity == "ClientIP"
            else "ROUND_ROBIN"
        )
        if policy:
            assert made.lb_policy == 0
            last = "round_robin" if client.kind == "envoy" else "wrr_locality"
            assert listed == [
                *([policy.replace("-", "_")] if policy != "round-robin" else []),
                last,
            ]
        else:
            assert (cluster_pb2.Cluster.LbPolicy.Name(made.lb_policy), listed) == (by_enum, [])
        explicit = [
            of for of in held if isinstance(of, http_protocol_options_pb2.HttpProtocolOptions)
        ]
        assert len(explicit) == (is_http and client is ENVOY)
    for mode in LISTENER_MODES[1:]:
        view = world.view(XdsClient(kind="envoy", listeners=mode))
        made, held = read(listener_pb2.Listener, body(view, names.LISTENER))
        filters = [
            held_filter.name.rpartition(".")[2]
            for chain in made.filter_chains
            for held_filter in chain.filters
        ]
        assert filters == ["http_connection_manager" if is_http else "tcp_proxy"]
        routes = view.get(names.ROUTES, KEY)
        assert (routes is not None) == is_http
        if routes is not None:
            read(route_pb2.RouteConfiguration, routes.body)
    read(listener_pb2.Listener, body(world.view(GRPC), names.LISTENER, "web:80"))


def test_pitfall_30_no_client_is_limited_unless_the_user_says_so() -> None:
    """Envoy fails the 1,025th connection, and gRPC the 1,025th request, by default."""
    for wanted in ("", "100"):
        world = World(service(annotations={ANNOTATION_MAX_REQUESTS: wanted}))
        made = [
            cluster_pb2.Cluster.FromString(body(world.view(client), names.CLUSTER))
            for client in (GRPC, ENVOY)
        ]
        thresholds = [held for of in made for held in of.circuit_breakers.thresholds]
        assert [held.max_requests.value for held in thresholds] == [int(wanted or 2**32 - 1)] * 3
        assert [held.max_connections.value for held in thresholds[1:]] == [2**32 - 1] * 2
        assert [held.max_pending_requests.value for held in thresholds[1:]] == [2**32 - 1] * 2


def test_pitfall_9_envoy_does_not_panic_and_lets_hosts_go() -> None:
    made = cluster_pb2.Cluster.FromString(body(World(service()).view(ENVOY), names.CLUSTER))
    assert made.common_lb_config.HasField("healthy_panic_threshold")
    assert made.common_lb_config.healthy_panic_threshold.value == 0
    assert made.ignore_health_on_host_removal
    assert not made.common_lb_config.HasField("locality_weighted_lb_config")


def test_pitfall_14_least_request_is_never_told_by_the_enum() -> None:
    """gRPC's C core rejects a Cluster with it."""
    world = World(service(annotations={ANNOTATION_POLICY: "least-request"}))
    made = cluster_pb2.Cluster.FromString(body(world.view(GRPC), names.CLUSTER))
    assert made.lb_policy == cluster_pb2.Cluster.ROUND_ROBIN
    policies = [
        entry.typed_extension_config.typed_config.type_url
        for entry in made.load_balancing_policy.policies
    ]
    assert [name.rpartition(".")[2] for name in policies] == ["LeastRequest", "WrrLocality"]


def test_a_ring_of_grpc_is_hashed_as_it_demands_and_by_channel() -> None:
    world = World(service(annotations={ANNOTATION_POLICY: "ring-hash"}))
    _, held = read(cluster_pb2.Cluster, body(world.view(GRPC), names.CLUSTER))
    assert [of.hash_function for of in held if isinstance(of, ring_hash_pb2.RingHash)] == [1]
    _, held = read(listener_pb2.Listener, body(world.view(GRPC), names.LISTENER, "web.default"))
    (manager,) = [
        of for of in held if isinstance(of, http_connection_manager_pb2.HttpConnectionManager)
    ]
    (route,) = manager.route_config.virtual_hosts[0].routes
    assert [policy.filter_state.key for policy in route.route.hash_policy] == ["io.grpc.channel_id"]
    assert (route.match.HasField("prefix"), route.match.prefix, route.route.cluster) == (
        True,
        "",
        KEY,
    )


@pytest.mark.parametrize(
    "name", ["web:80", "web:http", "web", "web.default", "web.default.svc.cluster.local:80"]
)
def test_a_listener_of_grpc_has_the_name_that_was_asked(name: str) -> None:
    made, held = read(
        listener_pb2.Listener, body(World(service()).view(GRPC), names.LISTENER, name)
    )
    (manager,) = [
        of for of in held if isinstance(of, http_connection_manager_pb2.HttpConnectionManager)
    ]
    assert (made.name, list(manager.route_config.virtual_hosts[0].domains)) == (name, ["*"])
    assert [of.name for of in manager.http_filters] == ["envoy.filters.http.router"]


@pytest.mark.parametrize(
    "name", ["web:81", "other.default:80", "web.other", "web.default.svc.example", "10.0.0.1:80"]
)
def test_a_name_that_does_not_exist_has_a_listener_without_virtual_hosts(name: str) -> None:
    """The client fails at once, not after 15 s, and recovers when the Service appears."""
    world = World(service())
    made, held = read(listener_pb2.Listener, body(world.view(GRPC), names.LISTENER, name))
    (manager,) = [
        of for of in held if isinstance(of, http_connection_manager_pb2.HttpConnectionManager)
    ]
    assert (made.name, len(manager.route_config.virtual_hosts)) == (name, 0)
    assert world.view(GRPC).get(names.LISTENER, "xdstp://a/b") is None


def test_the_port_that_is_meant_where_none_is_said_is_the_one_named_grpc() -> None:
    ports = [ServicePort(name="http", port=80), ServicePort(name="grpc", port=9000)]
    view = World(service(ports=ports)).view(GRPC)
    assert b"default/web:grpc" in body(view, names.LISTENER, "web")
    assert b"default/web:grpc" in body(view, names.LISTENER, "web:9000")
    assert b"default/web:http" in body(view, names.LISTENER, "web:80")


def test_pitfall_15_listeners_of_grpc_are_not_in_the_wildcard_of_envoy() -> None:
    """It would log each of them as a Listener without an address."""
    world = World(service())
    assert world.view(GRPC).get(names.LISTENER, "web:80") is not None
    for mode, expected in zip(LISTENER_MODES, ([], [KEY], ["capture", KEY], []), strict=True):
        listeners = world.view(XdsClient(kind="envoy", listeners=mode)).all(names.LISTENER)
        assert [resource.name for resource in listeners] == expected
        assert not any(
            listener_pb2.Listener.FromString(held.body).HasField("api_listener")
            for held in listeners
        )
    assert world.view(GRPC).all(names.LISTENER) == []


def test_where_listeners_are_by_mode() -> None:
    def addresses(made: listener_pb2.Listener) -> list[tuple[str, int]]:
        sockets = [
            made.address.socket_address,
            *(held.address.socket_address for held in made.additional_addresses),
        ]
        return [(held.address, held.port_value) for held in sockets]

    dual = {"cluster_ips": ("10.96.0.1", "FD00::1"), "ip_families": ("IPv4", "IPv6")}
    world = World(service(annotations={ANNOTATION_LISTENER: "http=8080"}, **dual))
    made = {
        mode: read(
            listener_pb2.Listener,
            body(world.view(XdsClient(kind="envoy", listeners=mode)), names.LISTENER),
        )[0]
        for mode in LISTENER_MODES[1:]
    }
    at_cluster = [("10.96.0.1", 80), ("fd00::1", 80)]
    assert {mode: addresses(held) for mode, held in made.items()} == {
        "cluster-ip": at_cluster,
        "capture": at_cluster,
        "port": [("0.0.0.0", 8080)],
    }
    assert made["cluster-ip"].freebind.value
    assert made["capture"].HasField("bind_to_port")
    assert not made["capture"].bind_to_port.value
    capture, _ = read(
        listener_pb2.Listener,
        body(world.view(XdsClient(kind="envoy", listeners="capture")), names.LISTENER, "capture"),
    )
    assert (addresses(capture), capture.use_original_dst.value) == ([("0.0.0.0", 15001)], True)
    world.put(service(annotations={ANNOTATION_LISTENER: "none"}, **dual))
    for mode in LISTENER_MODES:
        assert world.view(XdsClient(kind="envoy", listeners=mode)).get(names.LISTENER, KEY) is None


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (ANNOTATION_POLICY, "fastest"),
        (ANNOTATION_MAX_REQUESTS, "-1"),
        (ANNOTATION_MAX_REQUESTS, "many"),
        (ANNOTATION_LISTENER, "0"),
        (ANNOTATION_LISTENER, "other=80"),
        (ANNOTATION_LISTENER, "http=80000"),
        ("sliceplane.dev/xds-draining", "perhaps"),
    ],
)
def test_a_value_that_an_annotation_may_not_have_is_told_and_not_heeded(
    annotation: str, value: str
) -> None:
    plain, odd = World(service()), World(service(annotations={annotation: value}))
    for client in (GRPC, ENVOY, XdsClient(kind="envoy", listeners="port")):
        for type_url, name in (
            (names.CLUSTER, KEY),
            (names.LISTENER, KEY),
            (names.LISTENER, "web:80"),
        ):
            assert repr(plain.view(client).get(type_url, name)) == repr(
                odd.view(client).get(type_url, name)
            )
    (served,) = odd.catalog.services.values()
    assert len(served.problems) == 1
    assert annotation in served.problems[0]


def test_pods_and_nodes_are_named_where_that_is_wanted() -> None:
    endpoints = slice_of([pod(1, node="n1")])
    plain, named = (
        body(World(service(), endpoints, with_names=wanted).view(GRPC)) for wanted in (False, True)
    )
    assert b"n1" not in plain
    (held,) = endpoint_pb2.ClusterLoadAssignment.FromString(named).endpoints[0].lb_endpoints
    assert dict(held.metadata.filter_metadata["sliceplane"]) == {"node": "n1", "pod": "pod-1"}


_SAME = """
from tests.xds.worlds import *
from sliceplane.xds.names import CLUSTER, LISTENER
endpoints = [pod(n, zone="abc"[n % 3], for_zones=("b", "a"), for_nodes=("n2", "n1")) for n in range(40)]
world = World(service(), slice_of(endpoints[:30]), slice_of(endpoints[20:], 2, name="web-2"), process="p")
for client in (GRPC, LEDS, XdsClient(kind="envoy", zone="a", node="n1", listeners="capture")):
    view = world.view(client)
    print(view.get(ASSIGNMENT, KEY), view.all(CLUSTER), view.all(LISTENER), sorted(world.catalog.shared.registry))
world.put(slice_of(endpoints[5:25], 3))
print([(change.view.client, change.type_url, change.topic) for change in world.changes()])
"""


def test_pitfall_27_octets_do_not_depend_on_the_seed_of_hashes() -> None:
    def output(seed: str) -> str:
        command = [sys.executable, "-c", _SAME]
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": "src:."}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert output("1") == output("2")
