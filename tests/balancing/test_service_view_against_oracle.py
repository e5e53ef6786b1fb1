"""Any history of slices: what a view shows, tells and picks is what a plain recomputation says."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.discovery import (
    LABEL_SERVICE_NAME,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForNode,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.consume.balancing.merge import PortChoice
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.pickers import (
    LeastOutstanding,
    PickStrategy,
    Random,
    RoundRobin,
    ZoneFirst,
)
from sliceplane.consume.balancing.ring import ConsistentHash
from sliceplane.consume.balancing.view import BalancedService
from sliceplane.consume.model import NodeEndpoint as ProxyEndpoint
from sliceplane.consume.model import ServedPort, ServiceKey, ServicePortName, categorize
from sliceplane.consume.usable import Locality
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change

ZONES = ("a", "b")
PLACE = Locality(node="n1", zone="a")


def slice_of(
    name: str, revision: int, family: str, endpoints: tuple[SliceEndpoint, ...]
) -> EndpointSlice:
    return EndpointSlice(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=name,
            resource_version=str(revision),
            labels={LABEL_SERVICE_NAME: "web"},
        ),
        address_type=family,
        endpoints=endpoints,
        ports=(EndpointPort(name="http", protocol="TCP", port=8080),),
    )


@st.composite
def slice_endpoints(draw: st.DrawFn, family: str) -> SliceEndpoint:
    number = draw(st.integers(1, 5))
    pod = draw(st.integers(0, 5))
    ready, serving = draw(
        st.sampled_from([(True, True), (None, None), (False, True), (False, False)])
    )
    zones = draw(st.sampled_from([(), ("a",), ("b",), ("a", "b")]))
    nodes = draw(st.sampled_from([(), (), ("n1",), ("n2",)]))
    hints = EndpointHints(
        for_zones=tuple(ForZone(name=zone) for zone in zones) or None,
        for_nodes=tuple(ForNode(name=node) for node in nodes) or None,
    )
    return SliceEndpoint(
        addresses=(f"10.0.0.{number}" if family == "IPv4" else f"fd00::{number}",),
        conditions=EndpointConditions(
            ready=ready, serving=serving, terminating=draw(st.booleans())
        ),
        # Pod 0 stands for an address that is nobody's Pod.
        target_ref=ObjectReference(kind="Pod", name=f"p{pod}", uid=f"uid-{pod}") if pod else None,
        zone=draw(st.sampled_from([*ZONES, None])),
        hints=hints if zones or nodes else None,
    )


@dataclass
class Step:
    changes: list[tuple[str, str, tuple[SliceEndpoint, ...] | None]]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    changes = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["s1", "s2", "s3"]))
        family = draw(st.sampled_from(["IPv4", "IPv4", "IPv4", "IPv6", "FQDN"]))
        body = draw(
            st.one_of(
                st.none(),
                st.lists(slice_endpoints("IPv4" if family != "IPv6" else "IPv6"), max_size=4),
            )
        )
        changes.append((name, family, None if body is None else tuple(body)))
    return Step(changes)


def oracle(slices: dict[str, EndpointSlice]) -> dict[str, SliceEndpoint]:
    """All slices flattened; per Pod the best entry, per address the best Pod.  id -> entry."""
    entries = []
    for key, each in slices.items():
        if each.address_type == "FQDN":
            continue
        rank = (each.address_type == "IPv4", int(each.metadata.resource_version), key)
        in_slice = {}
        for endpoint in each.endpoints or ():
            identity = (
                endpoint.target_ref.uid if endpoint.target_ref else f"{endpoint.addresses[0]}:8080"
            )
            in_slice[identity] = endpoint  # the last of one slice counts
        entries += [(identity, rank, endpoint) for identity, endpoint in in_slice.items()]
    winners: dict[str, tuple[tuple[bool, int, str], SliceEndpoint]] = {}
    for identity, rank, endpoint in entries:
        if identity not in winners or rank > winners[identity][0]:
            winners[identity] = (rank, endpoint)
    best: dict[str, tuple[tuple[bool, tuple[int, str], str], str, SliceEndpoint]] = {}
    for identity, (rank, endpoint) in winners.items():
        order = (endpoint.conditions.terminating is not True, rank[1:], identity)
        address = endpoint.addresses[0]
        if address not in best or order > best[address][0]:
            best[address] = (order, identity, endpoint)
    return {identity: endpoint for _, identity, endpoint in best.values()}


def as_shown(identity: str, entry: SliceEndpoint) -> Endpoint:
    hints = entry.hints or EndpointHints()
    return Endpoint(
        id=identity,
        address=entry.addresses[0],
        port=8080,
        ready=entry.conditions.ready is not False,
        serving=entry.conditions.serving is not False,
        terminating=entry.conditions.terminating is True,
        zone=entry.zone or "",
        pod=entry.target_ref.name if entry.target_ref else "",
        zone_hints=tuple(zone.name for zone in hints.for_zones or ()),
        node_hints=tuple(node.name for node in hints.for_nodes or ()),
    )


def what_the_proxy_would_use(endpoints: tuple[Endpoint, ...]) -> set[str]:
    """The addresses that the node proxy's own code gives."""
    port = ServedPort(
        name=ServicePortName(ServiceKey("ns", "web"), "http", "TCP"),
        cluster_ip="10.96.0.1",
        port=80,
    )
    theirs = [
        ProxyEndpoint(
            each.address,
            each.port,
            each.ready,
            each.serving,
            each.terminating,
            False,
            each.zone_hints,
            each.node_hints,
        )
        for each in endpoints
    ]
    return {each.ip for each in categorize(theirs, port, PLACE).cluster}


class Follower:
    """A reader that applies what it is told and keeps nothing else."""

    def __init__(self, view: BalancedService) -> None:
        self.view, self.reader = view, view.add_reader()
        self.held: dict[str, Endpoint] = {}

    def catch_up(self) -> None:
        change = self.view.take(self.reader)
        ids = [
            each.id
            for each in (*change.added, *change.removed, *(new for _, new in change.updated))
        ]
        assert len(ids) == len(set(ids)), f"an id twice in one change: {ids}"
        for each in change.removed:
            assert self.held.pop(each.id) == each
        for old, new in change.updated:
            assert old.id == new.id
            assert old != new
            assert self.held[old.id] == old
            self.held[new.id] = new
        for each in change.added:
            assert each.id not in self.held
            self.held[each.id] = each


def left_out_is_not_picked(
    view: BalancedService, picker: PickStrategy, number: int, rng: Rng
) -> None:
    """Whatever is left out: one of the others, and only none if there is no other."""
    pool = [each.id for each in view.endpoints]
    out = frozenset(each for each in pool if rng.below(2))
    found = picker.pick(b"key %d" % number, out)
    others = {each.id for each in view.usable()} - out
    if found is None:
        assert not others
    else:
        assert found.id not in out
        assert found.id in others or isinstance(picker, ZoneFirst)


@given(
    st.lists(steps(), max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.integers(0, 2**32),
)
def test_any_history(history: list[Step], looks: list[bool], seed: int) -> None:
    view = BalancedService(PortChoice("http"), family=None, location=PLACE, honour_hints=True)
    rng = Rng(seed)
    pickers = [
        view.attach(picker)
        for picker in (
            Random(rng.fork()),
            RoundRobin(rng.fork()),
            LeastOutstanding(rng.fork()),
            ConsistentHash(),
            ZoneFirst(rng.fork(), spill_at=1),
        )
    ]
    prompt, slow = Follower(view), Follower(view)
    slices: dict[str, EndpointSlice] = {}
    leased: list[str] = []
    revision = 0
    for step, look in zip(history, looks, strict=False):
        batch = []
        for name, family, endpoints in step.changes:
            revision += 1
            old = slices.get(f"ns/{name}")
            if endpoints is None:
                if old is not None:
                    batch.append(Change("endpointslices.discovery.k8s.io", old, None))
                    del slices[f"ns/{name}"]
                continue
            new = slices[f"ns/{name}"] = slice_of(name, revision, family, endpoints)
            batch.append(Change("endpointslices.discovery.k8s.io", old, new))
        view.on_changes(batch)
        view.check()
        expected = {
            identity: as_shown(identity, entry) for identity, entry in oracle(slices).items()
        }
        assert view.endpoints == tuple(expected[identity] for identity in sorted(expected))
        prompt.catch_up()
        assert prompt.held == expected
        if look:
            slow.catch_up()
            assert slow.held == expected
        usable = what_the_proxy_would_use(view.endpoints)
        assert {each.address for each in view.usable()} == usable
        for picker in pickers:
            for number in range(4):
                found = picker.pick(b"key %d" % number, frozenset())
                assert (found is None) == (not usable)
                left_out_is_not_picked(view, picker, number, rng)
                if found is not None:
                    assert found == expected[found.id]
                    assert found.address in usable or isinstance(picker, ZoneFirst)
                    view.load.acquire(found.id)
                    leased.append(found.id)
                    view.check()
        while len(leased) > 10:
            view.load.release(leased.pop(rng.below(len(leased))))
            view.check()
    slow.catch_up()
    assert slow.held == prompt.held
    for picker in pickers:
        view.detach(picker)
    assert not view.load.watchers
