"""Change tracking: only what changed, and after any history the state of the newest objects."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api import codec
from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.model import ServiceKey
from sliceplane.node.tracker import ServiceTracker


def service(
    name: str = "svc", *, policy: str = "Cluster", labels: dict[str, str] | None = None, **spec: Any
) -> Service:
    document = {
        "metadata": {"namespace": "ns", "name": name, "labels": labels},
        "spec": {
            "clusterIP": "172.30.0.1",
            "internalTrafficPolicy": policy,
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
            **spec,
        },
    }
    return codec.decode(codec.encode(document), Service)


def make_slice(
    name: str, service_name: str, addresses: list[str], zone: str = "", version: int = 1
) -> EndpointSlice:
    hints = {"forZones": [{"name": zone}]} if zone else None
    document = {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "resourceVersion": str(version),
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "hints": hints} for address in addresses],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    }
    return codec.decode(codec.encode(document), EndpointSlice)


def node(zone: str | None) -> Node:
    labels = {"topology.kubernetes.io/zone": zone} if zone is not None else None
    return codec.decode(codec.encode({"metadata": {"name": "node-1", "labels": labels}}), Node)


KEY = ServiceKey("ns", "svc")


def taken(tracker: ServiceTracker) -> list[str]:
    tracker.check()
    return [change.service.name for change in tracker.take_changes()]


def test_marks_are_taken_once_and_sorted() -> None:
    tracker = ServiceTracker("IPv4", "node-1")
    for name in ("b", "a", "c"):
        tracker.on_service(None, service(name))
    assert tracker.pending == 3
    assert taken(tracker) == ["a", "b", "c"]
    assert taken(tracker) == []


def test_slices_may_come_first() -> None:
    tracker = ServiceTracker("IPv4", "node-1")
    assert tracker.on_slice(None, make_slice("s", "svc", ["10.0.0.1"])) == ()
    assert tracker.on_service(None, service()) == (KEY,)
    ((state,),) = [change.ports for change in tracker.take_changes()]
    assert [endpoint.ip for endpoint in state.categories.cluster] == ["10.0.0.1"]


def test_metadata_alone_is_no_change() -> None:
    tracker = ServiceTracker("IPv4", "node-1")
    first, second = service(), service(labels={"a": "b"})
    tracker.on_service(None, first)
    old = make_slice("s", "svc", ["10.0.0.1"])
    tracker.on_slice(None, old)
    taken(tracker)
    assert tracker.on_service(first, second) == ()
    assert tracker.on_slice(old, make_slice("s", "svc", ["10.0.0.1"], version=2)) == ()
    assert tracker.pending == 0


def test_a_service_without_its_slices_and_back() -> None:
    tracker = ServiceTracker("IPv4", "node-1")
    tracker.on_slice(None, make_slice("s", "svc", ["10.0.0.1"]))
    tracker.on_service(None, service())
    taken(tracker)
    assert tracker.on_service(service(), service(clusterIP="None")) == (KEY,)
    assert [change.ports for change in tracker.take_changes()] == [()]
    assert tracker.on_slice(None, make_slice("s", "svc", ["10.0.0.2"])) == ()
    tracker.on_service(None, service())
    ((state,),) = [change.ports for change in tracker.take_changes()]
    assert [endpoint.ip for endpoint in state.categories.cluster] == ["10.0.0.2"]


def test_the_zone_of_the_node() -> None:
    tracker = ServiceTracker("IPv4", "node-1")
    tracker.on_service(None, service())
    tracker.on_slice(None, make_slice("a", "svc", ["10.0.0.1"], zone="a"))
    tracker.on_slice(None, make_slice("b", "svc", ["10.0.0.2"], zone="b"))
    taken(tracker)
    assert tracker.on_node(node("b")) == (KEY,)
    assert tracker.on_node(node("b")) == ()
    (state,) = tracker.state(KEY)
    assert [endpoint.ip for endpoint in state.categories.cluster] == ["10.0.0.2"]
    assert tracker.on_node(None) == ()  # a deleted Node object keeps its zone
    assert tracker.on_node(node(None)) == (KEY,)
    (state,) = tracker.state(KEY)
    assert len(state.categories.cluster) == 2


NAMES = ("svc", "web")
events = st.lists(
    st.one_of(
        st.tuples(
            st.just("service"), st.sampled_from(NAMES), st.sampled_from([None, "Cluster", "Local"])
        ),
        st.tuples(
            st.just("slice"),
            st.sampled_from(["s1", "s2"]),
            st.one_of(
                st.none(),
                st.tuples(
                    st.sampled_from(NAMES),
                    st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]), unique=True),
                    st.sampled_from(["", "a", "b"]),
                ),
            ),
        ),
        st.tuples(st.just("node"), st.just(""), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("take"), st.just(""), st.none()),
    ),
    max_size=25,
)


@given(events)
def test_marks_are_complete(history: list[tuple[str, str, Any]]) -> None:
    """What a reader has who recomputed only the marked Services is what a newcomer sees who reads
    the newest objects.
    """
    tracker = ServiceTracker("IPv4", "node-1")
    services: dict[str, Service] = {}
    slices: dict[str, EndpointSlice] = {}
    zone: str | None = None
    seen: dict[ServiceKey, Any] = {}
    for version, (kind, name, what) in enumerate([*history, ("take", "", None)], 1):
        if kind == "service":
            new = service(name, policy=what) if what else None
            if new is None and name not in services:
                continue
            tracker.on_service(services.pop(name, None), new)
            if new is not None:
                services[name] = new
        elif kind == "slice":
            made = make_slice(name, what[0], what[1], what[2], version) if what else None
            if made is None and name not in slices:
                continue
            tracker.on_slice(slices.pop(name, None), made)
            if made is not None:
                slices[name] = made
        elif kind == "node":
            zone = what
            tracker.on_node(node(zone))
        else:
            seen.update({change.service: change.ports for change in tracker.take_changes()})
        tracker.check()
    fresh = ServiceTracker("IPv4", "node-1")
    fresh.on_node(node(zone))
    for made in reversed(slices.values()):
        fresh.on_slice(None, made)
    for new in reversed(services.values()):
        fresh.on_service(None, new)
    expected = {change.service: change.ports for change in fresh.take_changes()}
    assert {key: ports for key, ports in seen.items() if ports} == expected
