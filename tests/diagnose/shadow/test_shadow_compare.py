"""The comparison over the engine's own bytes against a dumb one over whole objects, for any
slices.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.slices.fake_cluster import make_node, make_pod, make_service

from sliceplane.api.core import ServicePort
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_CONTROLLER,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference, OwnerReference
from sliceplane.diagnose.shadow.compare import compare
from sliceplane.diagnose.shadow.differences import DifferenceKind
from sliceplane.slices import oracle
from sliceplane.slices.engine import SliceEngine

replace = msgspec.structs.replace
TYPES = ("IPv4", "IPv6")
PORTS = (EndpointPort(name="http", protocol="TCP", port=8080),)
OTHER_PORTS = (EndpointPort(name="http", protocol="TCP", port=9090),)

pods = st.lists(
    st.fixed_dictionaries(
        {
            "node": st.sampled_from(("n0", "n1", "lost")),
            "ready": st.booleans(),
            "terminating": st.booleans(),
            "hostname": st.sampled_from(("", "h")),
            "subdomain": st.just("web"),
            "labels": st.sampled_from(({"app": "web"}, {"app": "web"}, {"app": "other"})),
        }
    ),
    max_size=4,
)
services = st.fixed_dictionaries(
    {
        "traffic_distribution": st.sampled_from((None, "PreferSameZone", "PreferSameNode")),
        "ip_families": st.sampled_from((("IPv4",), ("IPv6", "IPv4"))),
        "labels": st.sampled_from((None, {"team": "a"})),
    }
)
#: what became of an endpoint that should be there: field by field
spoiled = st.sampled_from(
    (
        *(("keep", None),) * 3,
        ("drop", None),
        ("twice", None),
        ("ready", False),
        ("serving", False),
        ("terminating", True),
        ("node_name", "n9"),
        ("zone", "z"),
        ("hostname", "other"),
        ("addresses", ("10.9.9.9",)),
        ("uid", "other"),
        ("hints", None),
        ("hints", EndpointHints(for_zones=(ForZone(name="z"),))),
        ("unsaid", None),
        ("ports", None),
    )
)


def spoil(endpoint: SliceEndpoint, field: str, value: Any) -> SliceEndpoint:
    match field:
        case "ready" | "serving" | "terminating":
            return replace(endpoint, conditions=replace(endpoint.conditions, **{field: value}))
        case "uid":
            target = endpoint.target_ref
            assert target is not None
            return replace(endpoint, target_ref=replace(target, uid=value))
        case "unsaid":
            return replace(endpoint, conditions=EndpointConditions())
        case "keep" | "twice" | "ports":
            return endpoint
    return replace(endpoint, **{field: value})


def make_slice(
    name: str,
    kind: str,
    endpoints: list[SliceEndpoint],
    ports: tuple[EndpointPort, ...],
    **meta: Any,
) -> Any:
    labels = {
        LABEL_SERVICE_NAME: "web",
        LABEL_MANAGED_BY: MANAGED_BY_CONTROLLER,
        **(meta.get("labels") or {}),
    }
    owner = OwnerReference(
        api_version="v1", kind="Service", name="web", uid=meta.get("owner", "uid-web")
    )
    metadata = ObjectMeta(
        name=name,
        namespace="shop",
        uid=name,
        resource_version="1",
        labels=labels,
        owner_references=(owner,),
    )
    return EndpointSlice(
        metadata=metadata, address_type=kind, endpoints=tuple(endpoints), ports=ports
    )


@given(services, pods, st.data())
def test_the_same_as_a_dumb_comparison(
    traits: dict[str, Any], members: list[dict[str, Any]], data: st.DataObject
) -> None:
    service = make_service(ports=(ServicePort(name="http", port=80, target_port=8080),), **traits)
    nodes = {name: make_node(name, zone) for name, zone in (("n0", "a"), ("n1", ""))}
    made = [
        make_pod(f"p-{n}", ips=(f"10.0.0.{n}", f"fd00::{n + 1:x}"), **each)
        for n, each in enumerate(members)
    ]
    numbers, slices = count(), []
    for kind in data.draw(st.lists(st.sampled_from(TYPES), unique=True)):
        groups: dict[tuple[EndpointPort, ...], list[SliceEndpoint]] = {PORTS: [], OTHER_PORTS: []}
        for endpoint in (
            e for es in oracle.desired(service, kind, made, nodes).values() for e in es
        ):
            field, value = data.draw(spoiled)
            if field != "drop":
                groups[OTHER_PORTS if field == "ports" else PORTS].append(
                    spoil(endpoint, field, value)
                )
            if field == "twice":
                groups[data.draw(st.sampled_from((PORTS, OTHER_PORTS)))].append(endpoint)
        if data.draw(st.booleans()):
            ghost = ObjectReference(
                kind=data.draw(st.sampled_from(("Pod", "Node"))), namespace="shop", name="ghost"
            )
            groups[PORTS].append(SliceEndpoint(addresses=("10.8.8.8",), target_ref=ghost))
        labels = data.draw(st.sampled_from((traits["labels"], {"team": "b"})))
        owner = data.draw(st.sampled_from(("uid-web", "uid-web", "earlier")))
        slices += [
            make_slice(f"web-{next(numbers)}", kind, endpoints, ports, labels=labels, owner=owner)
            for ports, endpoints in groups.items()
            if endpoints or ports is PORTS
        ]
    engine = SliceEngine()
    for node in nodes.values():
        engine.on_node(None, node)
    for pod in made:
        engine.on_pod(None, pod)
    engine.on_service(service)
    for each in slices:
        engine.on_slice(None, each)
    snapshot = engine.snapshot("shop/web", 0.0)
    assert snapshot is not None
    assert {(d.kind.value, d.address_type, d.subject) for d in compare(snapshot)} == dumb(
        service, made, nodes, slices
    )
    assert all(d.desired != d.actual for d in compare(snapshot))


def dumb(
    service: Any, made: list[Any], nodes: dict[str, Any], slices: list[Any]
) -> set[tuple[str, str, str]]:
    """Every field of every pair, from nothing."""
    found = set()
    types = oracle.address_types(service)
    for kind in TYPES:
        mine = [each for each in slices if each.address_type == kind]
        if bool(mine) != (kind in types):
            found.add(("address-type", kind, ""))
        if kind not in types:
            continue
        for each in mine:
            if each.metadata.labels != oracle.labels_of(service):
                found.add(("labels", kind, f"EndpointSlice {each.metadata.name}"))
            if not oracle.is_owned(each, service):
                found.add(("owner", kind, f"EndpointSlice {each.metadata.name}"))
        groups = oracle.desired(service, kind, made, nodes)
        wanted = {
            e.target_ref.name: (p, e)
            for p, es in groups.items()
            for e in es
            if e.target_ref is not None
        }
        shown: dict[str, list[tuple[Any, Any]]] = {}
        for each in mine:
            for endpoint in each.endpoints:
                if endpoint.target_ref.kind == "Pod":
                    shown.setdefault(endpoint.target_ref.name, []).append(
                        (oracle.port_set(each.ports), endpoint)
                    )
                else:
                    found.add(("endpoint-stale", kind, f"address {endpoint.addresses[0]}"))
        for name in {*wanted, *shown}:
            subject = f"Pod {name}"
            if name not in shown:
                found.add(("endpoint-missing", kind, subject))
            elif name not in wanted:
                found.add(("endpoint-stale", kind, subject))
            else:
                found |= {(which, kind, subject) for which in unlike(wanted[name], shown[name])}
    return found


def unlike(wanted: tuple[Any, Any], shown: list[tuple[Any, Any]]) -> set[str]:
    kinds = {"endpoint-duplicate"} if len(shown) > 1 else set()
    (ports, ours) = wanted
    # the one most like ours, of equals the first
    theirs_ports, theirs = min(shown, key=lambda one: (one[0] != ports, one[1] != ours))
    mine, other = ours.conditions, theirs.conditions
    pairs = {
        "ports": (ports, theirs_ports),
        "addresses": (set(ours.addresses), set(theirs.addresses)),
        "ready": (mine.ready, other.ready is not False),
        "serving": (mine.serving, other.serving is not False),
        "terminating": (mine.terminating, other.terminating is True),
        "hostname": (ours.hostname or "", theirs.hostname or ""),
        "node": (ours.node_name, theirs.node_name),
        "zone": (ours.zone, theirs.zone),
        "target-ref": (ours.target_ref, theirs.target_ref),
    }
    kinds |= {name for name, (left, right) in pairs.items() if left != right}
    if mine.ready and ours.hints != theirs.hints:
        kinds.add(
            "hint-missing"
            if theirs.hints is None
            else "hint-unexpected"
            if ours.hints is None
            else "hints"
        )
    return kinds


def test_every_kind_is_a_word_for_metrics() -> None:
    assert all(kind.value.replace("-", "").isalpha() for kind in DifferenceKind)
    assert len({kind.value for kind in DifferenceKind}) == len(DifferenceKind)


def test_hints_by_zone_are_compared_by_presence() -> None:
    """Which endpoint serves which zone is the allocator's choice."""
    service = make_service(annotations={"service.kubernetes.io/topology-mode": "Auto"})
    engine = SliceEngine()
    made = [make_pod(f"p-{n}", node=f"n{n % 2}") for n in range(4)]
    for n in range(2):
        engine.on_node(None, make_node(f"n{n}", "ab"[n]))
    for pod in made:
        engine.on_pod(None, pod)
    engine.on_service(service)
    snapshot = engine.snapshot("shop/web", 0.0)
    assert snapshot is not None
    ours = [
        msgspec.json.decode(each.body, type=SliceEndpoint)
        for each in snapshot.desired["IPv4"].values()
    ]
    swapped = [
        replace(each, hints=EndpointHints(for_zones=(ForZone(name="ab"[n < 2]),)))
        for n, each in enumerate(ours)
    ]
    engine.on_slice(None, make_slice("web-1", "IPv4", swapped, PORTS))
    snapshot = engine.snapshot("shop/web", 0.0)
    assert snapshot is not None
    assert compare(snapshot) == ()
    bare = make_slice("web-1", "IPv4", [replace(swapped[0], hints=None), *swapped[1:]], PORTS)
    engine.on_slice(None, replace(bare, metadata=replace(bare.metadata, resource_version="2")))
    snapshot = engine.snapshot("shop/web", 0.0)
    assert snapshot is not None
    assert [(each.kind, each.pod) for each in compare(snapshot)] == [
        (DifferenceKind.HINT_MISSING, "p-0")
    ]
