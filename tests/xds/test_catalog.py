"""What a catalog tells of changes, to whom, and in which order."""

from __future__ import annotations

import pytest
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from tests.xds.worlds import (
    ENDING,
    ENVOY,
    GRPC,
    KEY,
    LEDS,
    NOT_READY,
    World,
    body,
    node,
    pod,
    service,
    slice_of,
)

from sliceplane.api.core import ServicePort
from sliceplane.api.discovery import LABEL_FOR_ZONE, EndpointConditions, EndpointPort, SliceEndpoint
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER, ROUTES
from sliceplane.xds.resource import XdsClient


def in_zone(zone: str) -> XdsClient:
    return XdsClient(kind="envoy", zone=zone)


def on_node(name: str) -> XdsClient:
    return XdsClient(kind="grpc", node=name)


def test_nothing_is_answered_before_the_first_sync() -> None:
    """nacos#10209: an empty push."""
    world = World()
    world.catalog.is_synced = False
    view = world.view(GRPC)
    world.put(service())
    assert world.catalog.take_changes() == []
    with pytest.raises(AssertionError):
        view.get(CLUSTER, KEY)
    world.catalog.on_synced()
    assert view.get(CLUSTER, KEY) is not None


def test_clients_at_one_place_share_a_view_and_places_share_octets() -> None:
    world = World(service(), slice_of([pod(1)]))
    assert world.view(in_zone("a")) is world.view(in_zone("a"))
    views = [world.view(in_zone(zone)) for zone in "ab"] + [world.view(GRPC)]
    assert len({id(view.get(ASSIGNMENT, KEY)) for view in views}) == 1


def test_an_answer_that_is_remembered_is_never_older_than_the_last_change() -> None:
    """Asked before, between and after changes, and their merging."""
    world = World(service(), slice_of([pod(1)]))
    view = world.view(ENVOY)
    first = view.get(ASSIGNMENT, KEY)
    assert view.get(ASSIGNMENT, KEY) is first
    for revision, numbers in enumerate(([1, 2], [2], [2, 3, 4]), 2):
        world.put(slice_of([pod(number) for number in numbers], revision))
        view.get(ASSIGNMENT, KEY)
        world.changes()
        assert body(view).count(b"10.0.0.") == len(numbers)
        assert view.get(ASSIGNMENT, KEY) is view.get(ASSIGNMENT, KEY)
        world.catalog.check()


def test_a_collected_answer_that_is_remembered_has_the_zones_of_the_last_merge() -> None:
    """Of what is not merged yet an older answer may be given, but not remembered."""
    world = World(service(), slice_of([pod(number) for number in range(1, 31)]))
    view = world.view(LEDS)
    assert b"zone-b" not in body(view)
    world.put(slice_of([*(pod(number) for number in range(1, 31)), pod(31, zone="zone-b")], 2))
    assert b"zone-b" not in body(view)
    world.changes()
    assert b"zone-b" in body(view)
    world.catalog.check()


def test_a_change_is_told_to_those_whom_it_concerns() -> None:
    def hinted(first: int) -> list[SliceEndpoint]:
        return [pod(first, zone="a", for_zones=("a",)), pod(9, zone="b", for_zones=("b",))]

    world = World(service(), slice_of(hinted(1)))
    near, far = world.view(in_zone("a")), world.view(in_zone("b"))
    for view in (near, far):
        view.get(ASSIGNMENT, KEY)
    before = body(far)
    world.put(slice_of(hinted(2), 2))
    assert [(change.view, change.type_url, change.topic) for change in world.changes()] == [
        (near, ASSIGNMENT, KEY)
    ]
    assert body(far) == before
    assert b"10.0.0.3" in body(near)


def test_hints_that_are_withdrawn_are_told_to_all() -> None:
    world = World(
        service(), slice_of([pod(1, for_zones=("a",)), pod(2, zone="b", for_zones=("b",))])
    )
    views = [world.view(in_zone(zone)) for zone in "ab"]
    assert [body(view).count(b"10.0.0.") for view in views] == [1, 1]
    world.put(slice_of([pod(1, for_zones=("a",)), pod(2, zone="b")], 2))
    assert [change.view for change in world.changes()] == views
    assert [body(view).count(b"10.0.0.") for view in views] == [2, 2]


def test_a_new_service_is_told_before_what_leads_to_it_and_a_deleted_one_after() -> None:
    world = World()
    view = world.view(XdsClient(kind="envoy", listeners="cluster-ip"))
    web = service()
    world.put(web)
    order = [CLUSTER, ASSIGNMENT, LISTENER, ROUTES]
    assert [change.type_url for change in world.changes()] == order
    world.delete(web)
    assert [change.type_url for change in world.changes()] == [*order[1:], CLUSTER]
    assert view.get(CLUSTER, KEY) is None
    assert world.catalog.services == {}


def test_a_deleted_service_keeps_an_empty_assignment() -> None:
    """envoy#13699: a removed assignment is not heeded; gRFC A88: a removed Cluster may not be
    either.
    """
    world = World(service(), slice_of([pod(1)]))
    view = world.view(GRPC)
    assert b"10.0.0.2" in body(view)
    world.delete(service())
    assert {change.type_url for change in world.changes()} == {CLUSTER, ASSIGNMENT, LISTENER}
    empty = b"\n\x10" + KEY.encode()
    assert body(view) == empty == body(view, name=KEY)
    assert view.get(ASSIGNMENT, "no key") is None


def test_a_cluster_that_changes_comes_with_its_assignment() -> None:
    world = World(service(), slice_of([pod(1)]))
    view = world.view(ENVOY)
    before = body(view), body(view, CLUSTER)
    world.put(service(session_affinity="ClientIP"))
    told = [(change.type_url, change.topic) for change in world.changes()]
    assert told[:2] == [(CLUSTER, KEY), (ASSIGNMENT, KEY)]
    assert body(view) == before[0]
    assert body(view, CLUSTER) != before[1]


def test_a_port_that_is_renamed_keeps_its_endpoints_until_listeners_lead_elsewhere() -> None:
    world = World(service(), slice_of([pod(1)]))
    view = world.view(GRPC)
    world.put(service(ports=[ServicePort(name="web", port=80)]))
    renamed = "default/web:web"
    told = [(CLUSTER, renamed), (ASSIGNMENT, renamed), (LISTENER, "default/web"), (CLUSTER, KEY)]
    assert [(change.type_url, change.topic) for change in world.changes()] == told
    assert renamed.encode() in body(view, LISTENER, "web:80")


def test_a_service_whose_metadata_alone_changes_is_not_told() -> None:
    world = World(service())
    view = world.view(ENVOY)
    revision = world.catalog.revision
    world.put(service(annotations={"other": "x"}))
    assert world.changes() == []
    assert (world.catalog.revision, view.users) == (revision, 1)


def test_a_node_says_where_its_clients_are() -> None:
    world = World(
        service(),
        slice_of([pod(1, for_zones=("a",)), pod(2, zone="b", for_zones=("b",))]),
        node("n1", "a", "r1"),
    )
    view = world.view(XdsClient(kind="grpc", node="n1", zone="b"))
    assert view.claims_another_zone
    assert (b"10.0.0.2" in body(view), b"10.0.0.3" in body(view), b"r1" in body(view)) == (
        True,
        False,
        True,
    )
    world.put(node("n1", "b", "r2"))
    assert [(change.type_url, change.topic) for change in world.changes()] == [(ASSIGNMENT, KEY)]
    assert (b"10.0.0.2" in body(view), b"10.0.0.3" in body(view), b"r2" in body(view)) == (
        False,
        True,
        True,
    )
    assert not view.claims_another_zone


def test_the_region_of_a_zone_is_told_to_all() -> None:
    world = World(service(), slice_of([pod(1), pod(2, zone="b")]))
    view = world.view(GRPC)
    assert b"r1" not in body(view)
    world.put(node("n1", "b", "r1"))
    assert [change.topic for change in world.changes()] == [KEY]
    assert body(view).count(b"r1") == 1


def test_pitfall_24_hints_for_all_ready_endpoints_count_not_those_of_a_slice() -> None:
    """A slice whose endpoints all have hints does not narrow a Service that has another slice
    without.
    """
    world = World(service(), slice_of([pod(1, for_zones=("b",))]), slice_of([pod(2)], name="web-2"))
    assert body(world.view(in_zone("b"))).count(b"10.0.0.") == 2


def test_pitfall_25_local_never_falls_back_to_the_cluster() -> None:
    local = service(internal_traffic_policy="Local")
    world = World(
        local, slice_of([pod(1, node="n1"), pod(2, node="n2"), pod(3, ENDING, node="n3")])
    )
    found = {name: body(world.view(on_node(name))) for name in ("n1", "n3", "n9", "")}
    assert {name: held.count(b"10.0.0.") for name, held in found.items()} == {
        "n1": 1,
        "n3": 1,
        "n9": 0,
        "": 0,
    }
    assert b"10.0.0.4" in found["n3"]


def test_pitfall_10_endpoints_that_end_serve_where_none_is_ready_and_not_as_draining() -> None:
    annotated = service(annotations={"sliceplane.dev/xds-draining": "true"})
    world = World(annotated, slice_of([pod(1, ENDING), pod(2, NOT_READY), pod(3)]))
    view = world.view(GRPC)
    draining = b"\x10\x03"
    assert (body(view).count(b"10.0.0."), body(view).count(draining)) == (2, 1)
    world.put(slice_of([pod(1, ENDING), pod(2, NOT_READY), pod(3, NOT_READY)], 2))
    assert [change.topic for change in world.changes()] == [KEY]
    assert (body(view).count(b"10.0.0."), body(view).count(draining)) == (1, 0)


def test_pitfall_9_endpoints_that_are_not_ready_are_not_there() -> None:
    """Envoy would panic, and send requests to all of them."""
    world = World(service(), slice_of([pod(1, NOT_READY), pod(2, NOT_READY), pod(3)]))
    assert body(world.view(ENVOY)).count(b"10.0.0.") == 1


def test_an_endpoint_of_both_families_is_one() -> None:
    dual = service(ip_families=("IPv6", "IPv4"))
    six = slice_of(
        [pod(1, address="fd00::1"), pod(2, address="fd00::2")], name="web-6", family="IPv6"
    )
    world = World(dual, six, slice_of([pod(1), pod(3)]))
    view = world.view(GRPC)
    held = body(view)
    assert [held.count(text) for text in (b"fd00::1", b"fd00::2", b"10.0.0.2", b"10.0.0.4")] == [
        1,
        1,
        1,
        1,
    ]
    assert held.index(b"fd00::1") < held.index(b"10.0.0.2") < held.index(b"fd00::2")
    world.put(slice_of([pod(1, NOT_READY), pod(3)], 2))
    world.changes()
    assert b"10.0.0.2" not in body(view), (
        "the first family says that it is ready, the other that it is not"
    )


def test_what_no_client_could_use_is_left_out_and_counted() -> None:
    """Envoy ends where a member's address is none."""
    addresses = ("127.0.0.1", "no address", "169.254.1.1", "10.0.0.9", "::ffff:10.0.0.9")
    odd = [pod(number, address=address) for number, address in enumerate(addresses)]
    names = slice_of([pod(9, address="web.example")], name="web-9", family="FQDN")
    world = World(service(), slice_of(odd), names)
    view = world.view(LEDS)
    assert (body(view).count(b"10.0.0.9"), body(view).count(b"127.0")) == (1, 0)
    assert world.catalog.unusable == 4
    world.put(slice_of([odd[3]], 2))
    world.changes()
    assert world.catalog.unusable == 1


def test_slices_for_another_zone_are_not_there() -> None:
    for_b = slice_of([pod(2)], name="web-2", labels={LABEL_FOR_ZONE: "b"})
    world = World(service(), slice_of([pod(1)]))
    near, far, nowhere = (world.view(in_zone(zone)) for zone in ("b", "c", ""))

    def counts() -> list[int]:
        return [body(view).count(b"10.0.0.") for view in (near, far, nowhere)]

    assert counts() == [1, 1, 1]
    world.put(for_b)
    assert {change.type_url for change in world.changes()} == {ASSIGNMENT}
    assert counts() == [2, 1, 1]
    world.delete(for_b)
    assert len(world.changes()) == 3
    assert counts() == [1, 1, 1]


def test_pitfall_32_a_headless_service_is_served_and_one_without_tcp_ports_is_not() -> None:
    headless = service(cluster_ip="None", publish_not_ready_addresses=True)
    udp = service("dns", ports=[ServicePort(name="dns", protocol="UDP", port=53)])
    labelled = slice_of([pod(1)], labels={"service.kubernetes.io/headless": ""})
    world = World(headless, udp, labelled)
    view = world.view(XdsClient(kind="envoy", listeners="cluster-ip"))
    assert [resource.name for resource in view.all(CLUSTER)] == [KEY]
    assert view.all(LISTENER) == []
    assert b"10.0.0.2" in body(view)


def test_ports_of_unequal_numbers_meet_by_name() -> None:
    other = slice_of(
        [pod(2)], name="web-2", ports=(EndpointPort(name="http", protocol="TCP", port=9090),)
    )
    world = World(service(), slice_of([pod(1)]), other)
    held = body(world.view(GRPC))
    assert (held.count(b"\x18\x90\x3f"), held.count(b"\x18\x82\x47")) == (1, 1)


def test_what_no_client_uses_is_forgotten() -> None:
    world = World(service(), slice_of([pod(number, for_zones=("a",)) for number in range(30)]))
    views = [world.view(XdsClient(kind="envoy", leds=True, zone=zone)) for zone in ("a", "b")]
    for view in views:
        body(view)
    assert len(world.catalog.shared.registry) == 2
    for view in views:
        world.catalog.release(view)
    assert world.catalog.shared.registry == {}
    world.put(slice_of([pod(1)], 2))
    assert world.changes() == []


def test_names_have_a_namespace_and_a_topic() -> None:
    world = World(service(), slice_of([pod(number) for number in range(30)]))
    grpc, envoy = world.view(GRPC), world.view(LEDS)
    body(envoy)
    (glob,) = world.catalog.shared.registry
    member = world.catalog.shared.registry[glob].members[0]
    assert envoy.get(ENDPOINT, member.name) is member
    assert (
        grpc.topic(LISTENER, "web:80") == grpc.topic(LISTENER, "web.default.svc") == "default/web"
    )
    assert grpc.topic(CLUSTER, KEY) == KEY
    names = [
        (LISTENER, "web.default:80"),
        (CLUSTER, KEY),
        (ASSIGNMENT, KEY),
        (ENDPOINT, member.name),
        (ENDPOINT, glob),
    ]
    assert {grpc.namespace_of(type_url, name) for type_url, name in names} == {"default"}
    assert grpc.namespace_of(CLUSTER, "x") is None


def test_versions_do_not_depend_on_what_was_before_or_on_the_process() -> None:
    """A restart must not send everything again, as it does where versions are counters."""
    objects = (service(), slice_of([pod(number) for number in range(5)]))
    old, new = World(process="p1"), World(*objects, process="p2")
    for step in range(3):
        old.put(slice_of([pod(9)], 7 + step), service(session_affinity="ClientIP"), *objects)
        old.changes()
    for client in (GRPC, ENVOY):
        for type_url in (CLUSTER, ASSIGNMENT):
            first, second = (world.view(client).get(type_url, KEY) for world in (old, new))
            assert first is not None
            assert second is not None
            assert (first.version, first.body) == (second.version, second.body)


def test_pitfall_11_envoy_46981_there_is_one_priority_and_each_locality_has_a_weight() -> None:
    """A gap: gRPC rejects the assignment, some releases of Envoy crash.  No weight: gRPC drops the
    locality.
    """
    annotated = service(annotations={"sliceplane.dev/xds-draining": "true"})
    endpoints = [
        pod(1, zone="a", for_zones=("a",)),
        pod(2, ENDING, zone="b"),
        pod(3, zone="b", for_zones=("b",)),
        pod(4, zone="", for_zones=("a", "b")),
    ]
    world = World(annotated, slice_of(endpoints), node("n", "a", region="r"))
    for client in (GRPC, LEDS, in_zone("a"), in_zone("b")):
        made = ClusterLoadAssignment.FromString(body(world.view(client)))
        assert made.endpoints
        for locality in made.endpoints:
            assert (locality.priority, locality.HasField("locality")) == (0, True)
            assert locality.load_balancing_weight.value >= 1


def test_kuberesolver_66_conditions_that_are_absent_are_those_of_a_ready_endpoint() -> None:
    world = World(service(), slice_of([pod(1, EndpointConditions()), pod(2, NOT_READY)]))
    assert body(world.view(GRPC)).count(b"10.0.0.") == 1


def test_pitfall_12_no_address_is_told_twice_in_either_family() -> None:
    """gRPC rejects the assignment, additional addresses included."""
    dual = service(ip_families=("IPv4", "IPv6"))
    four = slice_of([pod(1), pod(2, address="10.0.0.2"), pod(4)])
    six = slice_of(
        [pod(1, address="fd00::1"), pod(3, address="fd00::1"), pod(4, address="fd00::4")],
        2,
        name="web-6",
        family="IPv6",
    )
    held = body(World(dual, four, six).view(GRPC))
    assert [held.count(text) for text in (b"10.0.0.2", b"fd00::1", b"fd00::4")] == [1, 1, 1]


def test_an_assignment_is_never_longer_than_a_message_that_grpc_takes() -> None:
    """Above 4 MiB it drops the stream and comes back, for ever."""
    endpoints = [pod(number, zone="ab"[number % 3 == 0]) for number in range(90)]
    world = World(service(), slice_of(endpoints), assignment_max=1_000)
    view = world.view(GRPC)
    held = body(view)
    assert 900 < len(held) < 1_100
    assert (held.count(b"10.0.0."), held.count(b"\x12\x01a"), held.count(b"\x12\x01b")) == (
        45,
        1,
        1,
    )
    assert world.catalog.too_large() == {KEY: "default/web"}
    world.put(slice_of(endpoints[:20], 2))
    world.changes()
    assert (body(view).count(b"10.0.0."), world.catalog.too_large()) == (20, {})


def test_ports_that_no_client_can_have_are_counted() -> None:
    ports = (ServicePort(name="dns", port=53, protocol="UDP"), ServicePort(name="http", port=80))
    outside = service("outside", type="ExternalName")
    world = World(service(ports=ports), outside, slice_of([pod(1)]))
    assert world.catalog.unserved == 2
    world.delete(outside)
    world.changes()
    assert world.catalog.unserved == 1


def test_zones_that_clients_make_up_are_one_audience() -> None:
    """Else each would have all endpoints of the Service merged once more."""
    for_b = slice_of([pod(2)], name="web-2", labels={LABEL_FOR_ZONE: "b"})
    world = World(service(), slice_of([pod(1)]), for_b)
    views = [world.view(in_zone(f"made-up-{number}")) for number in range(50)]
    assert {body(view).count(b"10.0.0.") for view in views} == {1}
    served = next(iter(world.catalog.services.values()))
    assert len(served._ports) == 1
    assert body(world.view(in_zone("b"))).count(b"10.0.0.") == 2
    world.put(slice_of([pod(3)], name="web-3", labels={LABEL_FOR_ZONE: "made-up-7"}))
    world.changes()
    assert [body(views[number]).count(b"10.0.0.") for number in (6, 7)] == [1, 2]
    world.catalog.check()


def test_other_spellings_of_a_name_are_answered_and_not_kept() -> None:
    world = World(service(), slice_of([pod(1)]))
    view = world.view(GRPC)
    usual = view.get(LISTENER, "web.default:80")
    assert view.get(LISTENER, "web.default:80") is usual
    served = next(iter(world.catalog.services.values()))
    kept = len(served._built)
    for number in range(1, 64):
        marks = [
            mark.upper() if number >> at & 1 else mark for at, mark in enumerate("web.default")
        ]
        assert view.get(LISTENER, f"{''.join(marks)}:80") is not None
    assert len(served._built) == kept
