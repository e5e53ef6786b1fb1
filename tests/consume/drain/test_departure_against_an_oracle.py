"""The barrier against a dumb oracle: every node is given every state that it may have met since,
and is asked.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.effort import effort

from sliceplane.api import codec
from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.drain.barrier import ConsumerState, compare
from sliceplane.consume.drain.departure import DrainingPods, DrainSubject
from sliceplane.consume.progress import Scope
from sliceplane.consume.selections import list_selections_of_slice
from sliceplane.consume.usable import Locality, choose, choose_local

NODES = {"n1": "za", "n2": "zb"}
POD = DrainSubject("shop", "p", "uid-p", "n1", frozenset({"10.0.0.1"}))
PODS = {"p": ("10.0.0.1", "n1"), "q": ("10.0.0.2", "n1"), "r": ("10.0.0.3", "n2")}
CONDITIONS = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "unready": {"ready": False, "serving": False, "terminating": False},
    "dying": {"ready": False, "serving": True, "terminating": True},
    "gone": {"ready": False, "serving": False, "terminating": True},
}
PORTS = {
    "http": [{"name": "http", "port": 80}],
    "both": [{"name": "http", "port": 80}, {"name": "admin", "port": 81}],
}

endpoints = st.dictionaries(
    st.sampled_from(sorted(PODS)), st.sampled_from(sorted(CONDITIONS)), max_size=3
)
writes = st.one_of(
    st.tuples(
        *(
            st.just("slice"),
            st.sampled_from(("a", "b")),
            endpoints,
            st.sampled_from(("", "", "za", "zb")),
            st.sampled_from(sorted(PORTS)),
        )
    ),
    st.tuples(st.just("delete"), st.sampled_from(("a", "b"))),
    st.tuples(st.just("annotate"), st.sampled_from(("a", "b"))),
    st.tuples(st.just("service"), st.sampled_from(("Cluster", "Local"))),
)


class State(NamedTuple):
    """Everything at one version."""

    slices: dict[str, EndpointSlice]
    service: Service


def slice_at(name: str, pods: dict[str, str], zone: str, ports: str, version: int) -> EndpointSlice:
    labels = {
        "kubernetes.io/service-name": "svc",
        **({"endpointslice.kubernetes.io/for-zone": zone} if zone else {}),
    }
    document = {
        "metadata": {
            "name": name,
            "namespace": "shop",
            "resourceVersion": str(version),
            "labels": labels,
        },
        "addressType": "IPv4",
        "ports": PORTS[ports],
        "endpoints": [
            {
                "addresses": [PODS[pod][0]],
                "nodeName": PODS[pod][1],
                "conditions": CONDITIONS[conditions],
                # slices of other managers may have no reference
                **(
                    {"targetRef": {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"}}
                    if name == "a"
                    else {}
                ),
            }
            for pod, conditions in sorted(pods.items())
        ],
    }
    return codec.decode(codec.encode(document), EndpointSlice)


def annotated(before: EndpointSlice, version: int) -> EndpointSlice:
    """A request for a report, which changes nothing that kernels read."""
    annotations = {"sliceplane.dev/report": f"{version}/0"}
    meta = replace(before.metadata, resource_version=str(version), annotations=annotations)
    return replace(before, metadata=meta)


def service_at(policy: str, version: int) -> Service:
    document = {
        "metadata": {"name": "svc", "namespace": "shop", "resourceVersion": str(version)},
        "spec": {"clusterIP": "10.96.0.1", "internalTrafficPolicy": policy},
    }
    return codec.decode(codec.encode(document), Service)


def history_of(drawn: list[Any]) -> list[State]:
    """The states by version; that of version 0 is empty."""
    states = [State({}, service_at("Cluster", 0))]
    for version, write in enumerate(drawn, start=1):
        slices, service = dict(states[-1].slices), states[-1].service
        match write:
            case "slice", name, pods, zone, ports:
                slices[name] = slice_at(name, pods, zone, ports, version)
            case "delete", name:
                slices.pop(name, None)
            case "annotate", name if name in slices:
                slices[name] = annotated(slices[name], version)
            case "service", policy:
                service = service_at(policy, version)
        states.append(State(slices, service))
    return states


def is_used(node: str, view: list[EndpointSlice], service: Service) -> bool:
    """Whether *node* sends new connections to p, for any port."""
    place = Locality(node, NODES[node])
    for port in ("http", "admin"):
        found = [
            _Endpoint(endpoint.addresses[0], *_read(endpoint), is_local=endpoint.node_name == node)
            for seen in view
            for endpoint in seen.endpoints or ()
            if port in [entry.name for entry in seen.ports or ()]
        ]
        local = service.spec.internal_traffic_policy == "Local"
        used = choose_local(found, place) if local else choose(found, place)
        if "10.0.0.1" in [endpoint.ip for endpoint in used.endpoints]:
            return True
    return False


class _Endpoint(NamedTuple):
    ip: str
    ready: bool
    serving: bool
    terminating: bool
    is_local: bool
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()


def _read(endpoint: Any) -> tuple[bool, bool, bool]:
    conditions = endpoint.conditions
    return conditions.ready, conditions.serving, conditions.terminating


def view_of(states: list[State], at: dict[str, int]) -> list[EndpointSlice]:
    """What a node sees that holds each reading at a version of its own; of a slice in two of them
    the newer.
    """
    newest: dict[str, EndpointSlice] = {}
    for reading, version in at.items():
        for name, seen in states[version].slices.items():
            if reading in list_selections_of_slice(seen) and (
                name not in newest or newest[name].metadata.revision < seen.metadata.revision
            ):
                newest[name] = seen
    return list(newest.values())


@effort(300)
@given(
    drawn=st.lists(writes, min_size=1, max_size=7),
    start=st.integers(0, 7),
    steps=st.lists(st.integers(1, 3), min_size=1, max_size=7),
    subsets=st.booleans(),
    data=st.data(),
)
def test_drained_is_drained(
    drawn: list[Any], start: int, steps: list[int], subsets: bool, data: st.DataObject
) -> None:
    states = history_of(drawn)
    last = len(states) - 1
    draining_pods = DrainingPods()
    draining_pods.add(POD)
    seen = min(start, last)
    told(draining_pods, State({}, states[0].service), states[seen])
    draining_pods.on_mark(seen)
    for step in steps:
        upto = min(seen + step, last)
        told(draining_pods, states[seen], states[upto], between=states[seen:upto])
        seen = upto
        draining_pods.on_mark(seen)
        look(draining_pods, states, seen, subsets=subsets, data=data)


def told(
    draining_pods: DrainingPods, before: State, after: State, between: list[State] | None = None
) -> None:
    """One by one, as a watch does, or in their sum, as a list."""
    path = [before, *(between or [])[1:], after]
    for old, new in itertools.pairwise(path):
        for name in sorted(old.slices.keys() | new.slices.keys()):
            if old.slices.get(name) is not new.slices.get(name):
                draining_pods.on_slice(old.slices.get(name), new.slices.get(name))
        if old.service is not new.service:
            draining_pods.on_service(old.service, new.service)


def look(
    draining_pods: DrainingPods,
    states: list[State],
    seen: int,
    *,
    subsets: bool,
    data: st.DataObject,
) -> None:
    now_used = any(
        is_used(
            node,
            view_of(states, dict.fromkeys(readings(node, subsets=subsets), seen)),
            states[seen].service,
        )
        for node in NODES
    )
    uses = draining_pods.uses(POD.key)
    if now_used:
        assert uses, "kernels use it, and nothing is said"
        return
    if uses:
        # Said on the safe side: with subsets a node lacks what another one falls back on.
        return
    goal = draining_pods.goal(POD.key)
    held: dict[str, dict[Scope, int]] = {
        node: {
            **{
                ("endpointslices", reading): data.draw(st.integers(0, seen))
                for reading in readings(node, subsets=subsets)
            },
            ("services", "all"): data.draw(st.integers(0, seen)),
        }
        for node in NODES
    }
    waiting = {missing.node for missing in compare(goal, facts(held), 0.0).waiting}
    for node in NODES:
        if node not in waiting:
            check_node(states, node, held[node], seen)
    caught_up = {node: dict.fromkeys(places, seen) for node, places in held.items()}
    assert not compare(goal, facts(caught_up), 0.0).waiting, "all is held, and it waits"


def facts(held: dict[str, dict[Scope, int]]) -> list[ConsumerState]:
    return [ConsumerState(node, places, 100.0, True) for node, places in held.items()]


def readings(node: str, *, subsets: bool) -> tuple[str, ...]:
    return ("shared", f"zone={NODES[node]}") if subsets else ("all",)


def check_node(states: list[State], node: str, held: dict[Scope, int], seen: int) -> None:
    """In every mix of states from what it told on, as far as we know them."""
    names = [reading for plural, reading in held if plural == "endpointslices"]
    spans = [range(held["endpointslices", name], seen + 1) for name in names]
    for versions in itertools.product(*spans):
        at = dict(zip(names, versions, strict=True))
        view = view_of(states, at)
        for service_version in range(held["services", "all"], seen + 1):
            assert not is_used(node, view, states[service_version].service), f"{node} sends at {at}"


def test_no_goal_follows_the_requests_of_other_drains() -> None:
    """Each of twenty drains writes its own; if goals followed, no node would ever reach them."""
    draining_pods = DrainingPods()
    draining_pods.add(POD)
    observed = slice_at("a", {"p": "dying", "q": "ready"}, "", "http", 1)
    draining_pods.on_slice(None, observed)
    draining_pods.on_mark(1)
    goal = draining_pods.goal(POD.key)
    assert not draining_pods.uses(POD.key)
    for version in (2, 3):
        before, observed = observed, annotated(observed, version)
        draining_pods.on_slice(before, observed)
    assert draining_pods.on_mark(3) == ()
    assert draining_pods.goal(POD.key) == goal
    assert draining_pods.slices_to_annotate(POD.key) == (observed,)
    changed = slice_at("a", {"p": "gone", "q": "ready"}, "", "http", 4)
    draining_pods.on_slice(observed, changed)
    draining_pods.on_slice(changed, annotated(changed, 5))
    draining_pods.on_mark(5)
    assert not draining_pods.uses(POD.key)
