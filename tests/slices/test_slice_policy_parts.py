"""The small parts of the policy: facts, ports, shape, trigger time, indexes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slices.fake_cluster import make_node, make_pod, make_service, replace

from sliceplane.api.codec import encode
from sliceplane.api.core import (
    Container,
    ContainerPort,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    ServicePort,
)
from sliceplane.api.meta import Condition, ObjectMeta
from sliceplane.kit.times import format_nano_time, parse_nanoseconds
from sliceplane.slices import oracle
from sliceplane.slices.content import Port, PortResolver, read_slice, resolve_ports
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.pod_routes import PodIndex, SelectorIndex
from sliceplane.slices.shape import HintMode, families_of, hint_mode, shape_of, slice_labels
from sliceplane.slices.writes import MemberChanges

WEB = {
    "kubernetes.io/service-name": "web",
    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
}


@pytest.mark.parametrize("distribution", [None, "PreferClose", "PreferSameNode", "Nonsense"])
@pytest.mark.parametrize("zone", ["", 'z"one\u00e9'])
@pytest.mark.parametrize("publish", [False, True])
def test_pieces_make_what_the_codec_makes(
    distribution: str | None, zone: str, publish: bool
) -> None:
    service = make_service(traffic_distribution=distribution, publish_not_ready_addresses=publish)
    pods = [
        make_pod("p-1"),
        make_pod("p-2", ready=False),
        make_pod("p-3", terminating=True, hostname="h", subdomain="web"),
        make_pod("p-4", ips=("10.0.0.7", "10.0.0.6", "fd00::1")),
        make_pod("p-5", node="" if publish else "n0"),
    ]
    engine = SliceEngine()
    node = make_node("n0", zone)
    engine.on_node(None, node)
    for pod in pods:
        engine.on_pod(None, pod)
    engine.on_service(service)
    (write,) = engine.plan("shop/web", 0.0).writes
    ((_, endpoints),) = oracle.desired(service, "IPv4", pods, {"n0": node}).items()
    assert list(write.content.values()) == [encode(each) for each in endpoints]


def test_addresses_are_canonical_and_come_from_pod_ips_only() -> None:
    spelled = PodFacts(
        make_pod("p-1", ips=("010.0.0.1", "FD00:0::1", "::ffff:10.0.0.2", "nonsense"))
    )
    assert spelled.addresses["IPv4"].identity == "p-1 10.0.0.1,10.0.0.2"
    assert spelled.addresses["IPv6"].identity == "p-1 fd00::1"
    only_pod_ip = Pod(metadata=ObjectMeta(name="p"), status=PodStatus(pod_ip="10.0.0.1"))
    assert PodFacts(only_pod_ip).addresses == {}
    assert not PodFacts(only_pod_ip).excluded


@pytest.mark.parametrize(
    ("phase", "ips", "excluded"),
    [
        ("Running", ("10.0.0.1",), False),
        ("Failed", ("10.0.0.1",), True),
        ("Succeeded", ("10.0.0.1",), True),
        ("Pending", (), True),
    ],
)
def test_finished_and_addressless_pods_are_no_endpoints(
    phase: str, ips: tuple[str, ...], excluded: bool
) -> None:
    assert PodFacts(make_pod("p-1", phase=phase, ips=ips)).excluded is excluded


def test_named_ports_come_from_containers_then_sidecars() -> None:
    def container(port: int, protocol: str = "TCP", restart: str | None = None) -> Container:
        return Container(
            ports=(ContainerPort(name="http", container_port=port, protocol=protocol),),
            restart_policy=restart,
        )

    def ports_of(spec: PodSpec) -> list[int | None]:
        facts = PodFacts(Pod(spec=spec))
        found = resolve_ports(
            (ServicePort(name="a", port=80, target_port="http"),), facts.named_ports
        )
        return [each.port for each in found]

    assert ports_of(PodSpec(containers=(container(1, "UDP"), container(2), container(3)))) == [2]
    assert ports_of(PodSpec(init_containers=(container(4, restart="Always"),))) == [4]
    assert ports_of(
        PodSpec(containers=(container(5),), init_containers=(container(4, restart="Always"),))
    ) == [5]
    assert ports_of(PodSpec(init_containers=(container(6),))) == []


def test_port_groups_are_sets_in_canonical_order() -> None:
    ports = (
        ServicePort(name="z", port=1, target_port=9),
        ServicePort(name="a", port=2, protocol="UDP", app_protocol="dns"),
    )
    resolver = PortResolver(ports)
    group = resolver.group_of(PodFacts(make_pod("p-1")))
    assert group.ports == (Port("a", "UDP", 2, "dns"), Port("z", "TCP", 9))
    assert resolver.intern(group.ports) is group
    assert PortResolver(()).group_of(PodFacts(make_pod("p-1"))).body == b"[]"


@pytest.mark.parametrize(
    ("spec", "families"),
    [
        ({"ip_families": ("IPv6", "IPv4")}, ("IPv6", "IPv4")),
        ({"ip_families": None, "cluster_ip": "10.0.0.1"}, ("IPv4",)),
        ({"ip_families": None, "cluster_ip": "fd00::1"}, ("IPv6",)),
        ({"ip_families": None, "cluster_ip": "None"}, ("IPv4", "IPv6")),
        ({"ip_families": (), "cluster_ip": ""}, ("IPv4", "IPv6")),
    ],
)
def test_families(spec: dict[str, object], families: tuple[str, ...]) -> None:
    assert families_of(make_service(**spec)) == families


def test_labels_of_slices() -> None:
    labels = {
        "team": "a",
        "kubernetes.io/service-name": "x",
        "service.kubernetes.io/headless": "yes",
    }
    assert slice_labels(make_service(labels=labels)) == {**WEB, "team": "a"}
    headless = {**WEB, "service.kubernetes.io/headless": ""}
    assert slice_labels(make_service(cluster_ip="None")) == headless
    assert list(slice_labels(make_service(cluster_ip=""))) == sorted(headless)


@pytest.mark.parametrize(
    ("annotations", "mode"),
    [
        ({}, HintMode.ZONE),
        ({"service.kubernetes.io/topology-mode": "Auto"}, HintMode.AUTO),
        ({"service.kubernetes.io/topology-mode": "auto"}, HintMode.AUTO),
        ({"service.kubernetes.io/topology-mode": "AUTO"}, HintMode.ZONE),
        (
            {
                "service.kubernetes.io/topology-aware-hints": "disabled",
                "service.kubernetes.io/topology-mode": "Auto",
            },
            HintMode.ZONE,
        ),
    ],
)
def test_annotation_beats_the_field(annotations: dict[str, str], mode: HintMode) -> None:
    assert (
        hint_mode(make_service(annotations=annotations, traffic_distribution="PreferSameZone"))
        is mode
    )


def test_empty_selector_and_external_name_are_not_ours() -> None:
    assert not shape_of(make_service(selector={})).active
    assert not shape_of(make_service(type="ExternalName")).active


def test_times_keep_nanoseconds() -> None:
    assert (
        format_nano_time(parse_nanoseconds("2026-11-21T10:00:00.123456789Z"))
        == "2026-11-21T10:00:00.123456789Z"
    )
    assert (
        format_nano_time(parse_nanoseconds("2026-11-21T12:00:00.5+02:00"))
        == "2026-11-21T10:00:00.5Z"
    )
    assert parse_nanoseconds("no time") == parse_nanoseconds(None) == 0


def test_the_earliest_change_of_a_member_counts_and_none_that_goes_back() -> None:
    def version(second: int) -> PodFacts:
        ready = Condition(
            type="Ready", status="True", last_transition_time=f"1970-01-01T00:00:0{second}Z"
        )
        return PodFacts(Pod(status=PodStatus(conditions=(ready,))))

    changes = MemberChanges(None)
    assert changes.take({}.get) == 0
    changes.note("a", None)
    changes.note("b", version(1))
    changes.note("b", version(4))
    changes.note("gone", version(1))
    assert changes.take({"a": version(9), "b": version(5)}.get) == 5 * 10**9
    assert changes.take({"a": version(9), "b": version(5)}.get) == 0, "told already"
    changes.note("a", version(9))
    assert changes.take({"a": version(5)}.get) == 0


def test_read_slice_knows_what_no_pod_made() -> None:
    service = make_service()
    endpoint = oracle.desired(
        service, "IPv4", [make_pod("p-1")], {"n0": make_node("n0")}
    ).popitem()[1][0]
    with_version = replace(endpoint, target_ref=replace(endpoint.target_ref, resource_version="7"))
    foreign = replace(endpoint, target_ref=replace(endpoint.target_ref, namespace="other"))
    observed = oracle.EndpointSlice(
        metadata=ObjectMeta(name="s", namespace="shop"), endpoints=(with_version, endpoint, foreign)
    )
    stored = read_slice(observed)
    assert list(stored.content) == ["p-1 10.0.0.2", "\0" + "1", "\0" + "2"]
    assert stored.content["p-1 10.0.0.2"] == encode(endpoint)


label_sets = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


@given(st.lists(st.tuples(st.integers(0, 4), label_sets)), label_sets)
def test_selector_index_finds_what_a_scan_finds(
    selectors: list[tuple[int, dict[str, str]]], labels: dict[str, str]
) -> None:
    index: SelectorIndex[int] = SelectorIndex()
    filed: dict[str, dict[str, str]] = {}
    for number, selector in selectors:
        if selector:
            index.add("ns", f"s{number}", selector, number)
            filed[f"s{number}"] = selector
        else:
            index.remove("ns", f"s{number}")
            filed.pop(f"s{number}", None)
    expected = {name for name, selector in filed.items() if selector.items() <= labels.items()}
    assert set(index.matching("ns", labels)) == expected
    assert index.matching("other", labels) == {}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), label_sets | st.none(), st.sampled_from(("n0", "n1", "")))
    ),
    label_sets,
)
def test_pod_index_finds_what_a_scan_finds(
    changes: list[tuple[int, dict[str, str] | None, str]], selector: dict[str, str]
) -> None:
    index, pods = PodIndex(), {}
    for turn, (number, labels, node) in enumerate(changes):
        name = f"p-{number}"
        if labels is None:
            index.remove("shop", name)
            pods.pop(name, None)
        else:
            old = pods.get(name)
            pods[name] = PodFacts(make_pod(name, labels=labels, node=node))
            index.put(pods[name], old)
        if selector and turn % 2:
            pair = min(selector.items())
            found = {each.name for each in index.selected("shop", pair, selector)}
            assert found == {n for n, f in pods.items() if selector.items() <= f.labels.items()}
        index.check()
    assert {f.name for f in index.on_node("n0")} == {
        n for n, f in pods.items() if f.node_name == "n0"
    }


def test_two_ips() -> None:
    assert PodFacts(
        Pod(status=PodStatus(pod_ips=(PodIP(ip="fd00::2"), PodIP(ip="10.0.0.3"))))
    ).addresses.keys() == {
        "IPv4",
        "IPv6",
    }
