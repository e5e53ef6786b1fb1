"""Aggregated reports: a barrier that reads them is passed with or after one that reads the Lease of
each node, in any tree of relays and any history.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease, Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes
from sliceplane.consume.drain.barrier import Proof, compare
from sliceplane.consume.drain.cluster import DrainCluster
from sliceplane.consume.progress import Progress, ProgressReport
from sliceplane.relay.reports import NodeReports
from sliceplane.watch.cache import Change, Mark

START = 1_790_000_000.0
NAMES = [f"node-{number}" for number in range(5)]
RELAYS = ["upper", "left", "right"]


@dataclass
class SimulatedNode:
    """A node with the production core of reports; *loses*: events do not reach its cache."""

    name: str
    at: str
    progress: Progress
    pending: list[tuple[Change[EndpointSlice], int]] = field(default_factory=list)
    loses: bool = False
    #: the first change that it lost
    lost_at: float = math.inf
    flows: dict[str, dict[str, int]] | None = None


def proves(proof: Proof) -> bool:
    return not (proof.waiting or proof.unknown)


class Kept:
    """Leases as one reader sees them."""

    def __init__(self) -> None:
        self.cluster = DrainCluster()
        self.leases: dict[str, Lease] = {}

    def put(self, lease: Lease, now: float) -> None:
        old = self.leases.get(lease.metadata.name)
        self.leases[lease.metadata.name] = lease
        self.cluster.on_change(Change(Leases.key, old, lease), now)


class World:
    """Nodes below relays, and two readers: of the Leases as nodes write them, and of what reaches
    the root.
    """

    def __init__(self, ready: list[bool | None], parents: list[str]) -> None:
        self.now = START
        self.revision = 10
        self.slices: dict[str, EndpointSlice] = {}
        self.plain, self.root = Kept(), Kept()
        self.relays = {name: NodeReports(name) for name in RELAYS}
        #: by relay: its last Lease
        self.written: dict[str, Lease] = {}
        self.nodes = {}
        self.objects: dict[str, Node] = {}
        for name, state, at in zip(NAMES, ready, parents, strict=True):
            self.nodes[name] = SimulatedNode(name, at, Progress(name, ("IPv4",)))
            if state is not None:
                status = "True" if state else "False"
                body = {
                    "metadata": {"name": name, "uid": name},
                    "status": {"conditions": [{"type": "Ready", "status": status}]},
                }
                node = self.objects[name] = decode(encode(body), Node)
                for change in (Change(Nodes.key, None, node),):
                    self.plain.cluster.on_change(change, self.now)
                    self.root.cluster.on_change(change, self.now)
                    self.nodes[name].progress.on_change(change, "", self.now)
        self.mark(listed=True)

    def mark(self, *, listed: bool = False) -> None:
        mark = Mark(EndpointSlices.key, str(self.revision), listed=listed)
        for reader in (self.plain.cluster, self.root.cluster, *self.relays.values()):
            reader.on_mark(mark, self.now)

    # Events

    def change_slice(self, name: str, *, lossy: str = "") -> None:
        """*lossy*: a relay that does not see it."""
        self.revision += 1
        meta = {"name": name, "namespace": "d", "resourceVersion": str(self.revision)}
        new = decode(encode({"metadata": meta, "addressType": "IPv4"}), EndpointSlice)
        change = Change(EndpointSlices.key, self.slices.get(name), new)
        self.slices[name] = new
        for reader in (self.plain.cluster, self.root.cluster):
            reader.on_change(change, self.now)
        for relay in self.relays:
            if relay != lossy:
                self.relays[relay].on_change(change, self.now)  # type: ignore[arg-type]
        for node in self.nodes.values():
            node.pending.append((change, self.revision))
        self.mark()

    def apply(self, node: SimulatedNode, number: int) -> None:
        """The node's kernel has the next *number* changes."""
        if not node.progress.applied:
            node.progress.on_mark(EndpointSlices.key, "all", Mark(EndpointSlices.key, "10"))
        for change, revision in node.pending[:number]:
            if node.loses:
                node.lost_at = min(node.lost_at, revision)
            else:
                node.progress.on_change(change, "all", self.now)
            mark = Mark(EndpointSlices.key, str(revision))
            node.progress.on_mark(EndpointSlices.key, "all", mark)
        del node.pending[:number]
        node.progress.on_idle("IPv4")

    def report(self, node: SimulatedNode) -> None:
        lease = decode(node.progress.take_report(self.now), Lease)
        if node.flows is not None:
            annotations = dict(lease.metadata.annotations or {})
            report = decode(annotations["sliceplane.dev/progress"].encode(), ProgressReport)
            annotations["sliceplane.dev/progress"] = encode(
                replace(report, flows=node.flows)
            ).decode()
            lease = replace(lease, metadata=replace(lease.metadata, annotations=annotations))
        self.plain.put(lease, self.now)
        self.deliver(node.at, lease)

    def deliver(self, to: str, lease: Lease) -> None:
        if to:
            assert self.relays[to].accepts(lease)
            self.relays[to].on_lease(lease, self.now)
        else:
            self.root.put(lease, self.now)

    def tick(self) -> None:
        for name in ("left", "right", "upper"):
            relay = self.relays[name]
            document = relay.take_lease(self.now)
            if document is not None:
                self.written[name] = decode(encode(document), Lease)
                self.deliver("" if name == "upper" else "upper", self.written[name])
            relay.check()

    def sleep(self, seconds: int) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + (1 if seconds < 60 else 7), end)
            self.tick()

    def restart(self, name: str) -> None:
        """A relay is killed, and begins with the Lease that it wrote."""
        self.relays[name] = NodeReports(name)
        for change in self.slices.values():
            listed = Change(EndpointSlices.key, None, change)
            self.relays[name].on_change(listed, self.now)  # type: ignore[arg-type]
        self.relays[name].on_mark(
            Mark(EndpointSlices.key, str(self.revision), listed=True), self.now
        )
        own = self.written.get(name)
        if own is not None:
            self.relays[name].restore(own, self.now)

    # The property

    def check(self) -> None:
        self.root.cluster.check()
        self.compare(self.plain.cluster, self.root.cluster)
        self.compare(self.fresh(self.plain), self.fresh(self.root))

    def fresh(self, reader: Kept) -> DrainCluster:
        """A reader that begins now."""
        cluster = DrainCluster()
        listed = (
            (EndpointSlices.key, self.slices),
            (Nodes.key, self.objects),
            (Leases.key, reader.leases),
        )
        for resource, objects in listed:
            for each in objects.values():
                cluster.on_change(Change(resource, None, each), self.now)
        cluster.on_mark(Mark(EndpointSlices.key, str(self.revision), listed=True), self.now)
        return cluster

    def compare(self, of_plain: DrainCluster, of_root: DrainCluster) -> None:
        plain = {fact.name: fact for fact in of_plain.facts()}
        root = {fact.name: fact for fact in of_root.facts()}
        for revision in range(10, self.revision + 1):
            goal = {("endpointslices", "all"): revision}
            # A node that lost a later event has the goal, and a relay may say so for a moment.
            judged = [
                fact._replace(differs=fact.differs and self.nodes[fact.name].lost_at <= revision)
                for fact in plain.values()
            ]
            # Times are rounded to microseconds on their way, so ends of Leases are, too.
            is_proven = all(
                proves(compare(goal, root.values(), self.now + rounding))
                for rounding in (-0.001, 0.0, 0.001)
            )
            assert proves(compare(goal, judged, self.now)) or not is_proven, (revision, plain, root)
        for name, fact in root.items():
            if fact.applied is not None:
                assert plain[name].applied is not None
                scope = ("endpointslices", "all")
                assert fact.applied[scope] <= plain[name].applied[scope]
            for nonce, counts in (fact.flows or {}).items():
                for target, count in ((plain[name].flows or {}).get(nonce) or {}).items():
                    assert counts.get(target, 0) >= count


a_node = st.sampled_from(NAMES)
#: by node: the number of changes that its kernel applies before it reports; -1: it is silent
rounds = st.tuples(*[st.integers(-1, 3) for _ in NAMES])
events = st.lists(
    st.one_of(
        st.tuples(st.just("slice"), st.sampled_from("abc")),
        st.tuples(st.just("slice"), st.sampled_from("abc")),
        st.tuples(st.just("round"), rounds),
        st.tuples(st.just("round"), rounds),
        st.tuples(st.just("move"), a_node, st.sampled_from(["", *RELAYS])),
        st.tuples(st.just("lose"), a_node),
        st.tuples(st.just("flows"), a_node, st.integers(0, 2)),
        st.tuples(st.just("kill"), st.sampled_from(RELAYS)),
        st.tuples(st.just("sleep"), st.sampled_from([1, 3, 11, 46, 95, 320])),
    ),
    min_size=5,
    max_size=40,
)
parents = st.lists(st.sampled_from(["left", "left", "right", "upper", ""]), min_size=5, max_size=5)
readiness = st.lists(st.sampled_from([True, False, None]), min_size=5, max_size=5)


@settings(max_examples=150, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(ready=readiness, parents=parents, steps=events, exceptions=st.integers(0, 2))
def test_the_answer_of_a_barrier_is_the_same_or_later(
    ready: list[bool | None],
    parents: list[str],
    steps: list[tuple[object, ...]],
    exceptions: int,
) -> None:
    world = World(ready, parents)
    counts = dict.fromkeys(NAMES, 3)
    with patch("sliceplane.relay.reports.EXCEPTIONS_MAX", exceptions):
        for step in steps:
            match step:
                case ("slice", name):
                    world.change_slice(str(name))
                case ("round", tuple(numbers)):
                    for node, number in zip(world.nodes.values(), numbers, strict=True):
                        world.apply(node, max(number, 0))
                        if number >= 0:
                            world.report(node)
                case ("move", name, where):
                    world.nodes[str(name)].at = str(where)
                case ("lose", name):
                    world.nodes[str(name)].loses = True
                case ("flows", name, int(number)):
                    counts[str(name)] = min(counts[str(name)], number)
                    open_now = {"10.0.0.1": counts[str(name)]} if counts[str(name)] else {}
                    world.nodes[str(name)].flows = {"n1": open_now}
                case ("kill", name):
                    world.sleep(70)  # what it has not written would be lost
                    world.restart(str(name))
                case ("sleep", int(seconds)):
                    world.sleep(seconds)
            # A first report is written to the root within a second for each level.
            if step[0] in ("round", "sleep", "kill"):
                world.sleep(2)
                world.check()
