"""Barriers that ask relays: reports in memory reach a barrier through the relay's Lease, at once and
never before a barrier that asks each node is passed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.relay.test_aggregated_reports import (
    NAMES,
    RELAYS,
    Kept,
    SimulatedNode,
    World,
    a_node,
    parents,
    proves,
    readiness,
    rounds,
)
from tests.relay.test_reports_through_a_relay import NODES, Story, all_report, plane, story, web
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.consume.drain.barrier import compare
from sliceplane.consume.drain.cluster import DrainCluster
from sliceplane.consume.drain.relays import RelayReport
from sliceplane.consume.drain.reports import BarrierAnswer, ConsumerAnswer, Versions
from sliceplane.consume.io import drain_barrier
from sliceplane.consume.progress import ProgressReport
from sliceplane.kit.rng import Rng
from sliceplane.relay import reports
from sliceplane.relay.io.barriers import BarrierAnswers
from sliceplane.relay.io.reports import ReportLeases
from sliceplane.testing import Plane

__all__ = ["plane"]  # a fixture

ALL = ("endpointslices", "all")
#: by relay: its parent
ABOVE = {"left": "upper", "right": "upper", "upper": ""}


class AskedWorld(World):
    """Nodes also answer barriers, at the relay that has their Leases."""

    def __init__(self, ready: list[bool | None], parents: list[str]) -> None:
        super().__init__(ready, parents)
        #: by relay: the Leases that nodes wrote there
        self.kept: dict[str, set[str]] = {name: set() for name in RELAYS}
        #: what the memory of a server has to which nodes answer themselves, and of the root
        self.memory: dict[str, ProgressReport] = {}
        self.root_memory: dict[str, ProgressReport] = {}

    def fresh(self, reader: Kept) -> DrainCluster:
        cluster = super().fresh(reader)
        memory = self.memory if reader is self.plain else self.root_memory
        cluster.on_answer(encode(BarrierAnswer(1, memory)), self.now)
        return cluster

    def report(self, node: SimulatedNode) -> None:
        super().report(node)
        if node.at:
            self.kept[node.at].add(node.name)

    def restart(self, name: str) -> None:
        super().restart(name)
        self.kept[name].clear()

    def answer(self, node: SimulatedNode) -> None:
        report = node.progress.report()
        lease = f"kube-node-lease/sliceplane-proxy-{node.name}"
        self.memory[lease] = report
        body = encode(BarrierAnswer(1, {lease: report}))
        self.plain.cluster.on_answer(body, self.now)
        at = node.at
        while at and node.name not in self.kept[at]:
            at = ABOVE[at]  # passed on
        if at:
            self.relays[at].on_answer(f"sliceplane-proxy-{node.name}", report, self.now)
        else:
            self.root_memory[lease] = report
            self.root.cluster.on_answer(body, self.now)

    def require(self, revision: int) -> None:
        """A barrier requires *revision*; the lowest relays hear of it last, and answer first."""
        for name in ("left", "right", "upper"):
            relay = self.relays[name]
            least = relay.least(self.now)
            for node in NAMES:
                entry = relay._entries.get(node)
                if entry is not None and self.now - entry.heard <= reports.REPORT_LATE_S:
                    assert least.revisions()[ALL] <= entry.report.revisions()[ALL]
            if not relay.least_written().has_applied({ALL: revision}):  # its parent answers
                if least.has_applied({ALL: revision}):
                    relay.expedite()
                else:
                    relay.request(self.now)
            self.tick()


steps_of_asked = st.lists(
    st.one_of(
        st.tuples(st.just("slice"), st.sampled_from("abc")),
        st.tuples(st.just("round"), rounds),
        st.tuples(st.just("ask"), rounds),
        st.tuples(st.just("ask"), rounds),
        st.tuples(st.just("move"), a_node, st.sampled_from(["", *RELAYS])),
        st.tuples(st.just("lose"), a_node),
        st.tuples(st.just("kill"), st.sampled_from(RELAYS)),
        st.tuples(st.just("sleep"), st.sampled_from([1, 3, 11, 46, 95])),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=150, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(ready=readiness, parents=parents, steps=steps_of_asked, exceptions=st.integers(0, 2))
def test_a_barrier_that_asks_relays_is_passed_with_the_plain_one_or_later(
    ready: list[bool | None],
    parents: list[str],
    steps: list[tuple[object, ...]],
    exceptions: int,
) -> None:
    world = AskedWorld(ready, parents)
    with patch("sliceplane.relay.reports.EXCEPTIONS_MAX", exceptions):
        for step in steps:
            match step:
                case ("slice", name):
                    world.change_slice(str(name))
                case (("round" | "ask") as kind, tuple(numbers)):
                    for node, number in zip(world.nodes.values(), numbers, strict=True):
                        world.apply(node, max(number, 0))
                        if number >= 0:
                            (world.report if kind == "round" else world.answer)(node)
                    if kind == "ask":
                        world.require(world.revision)
                        world.check()
                case ("move", name, where):
                    world.nodes[str(name)].at = str(where)
                case ("lose", name):
                    world.nodes[str(name)].loses = True
                case ("kill", name):
                    world.sleep(70)  # what it has not written would be lost
                    world.restart(str(name))
                case ("sleep", int(seconds)):
                    world.sleep(seconds)
            if step[0] in ("round", "sleep", "kill"):
                world.sleep(2)
                world.check()


@settings(max_examples=60, deadline=None)
@given(
    parents=parents,
    changes=st.lists(st.sampled_from("abc"), min_size=1, max_size=5),
    writes=st.lists(st.booleans(), min_size=len(NAMES), max_size=len(NAMES)),
)
def test_a_barrier_is_passed_at_the_moment_when_the_last_node_has_answered(
    parents: list[str], changes: list[str], writes: list[bool]
) -> None:
    """*writes*: the node's Lease comes before it answers, which the relay need not say by itself."""
    world = AskedWorld([True] * len(NAMES), parents)
    for node in world.nodes.values():
        world.apply(node, 0)
        world.report(node)
    world.sleep(3)
    for name in changes:
        world.change_slice(name)
    goal = {ALL: world.revision}
    for node, is_written in zip(world.nodes.values(), writes, strict=True):
        assert not proves(compare(goal, world.root.cluster.facts(), world.now))
        world.apply(node, len(changes))
        (world.report if is_written else world.answer)(node)
        world.require(world.revision)
    assert proves(compare(goal, world.root.cluster.facts(), world.now))


def waiting_consumers(plane: Plane) -> int:
    """Requests of consumers that the server has open."""
    samples = plane._plane.reports.metrics.families()
    found = {
        labels: value
        for family in samples
        if family.name == "sliceplane_progress_requests"
        for labels, value in family.samples
    }
    return int(found["consumer",])


@pytest.mark.parametrize("levels", [1, 2])
async def test_the_server_has_one_request_open_and_a_drain_needs_no_other_report(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    async with story(plane, tmp_path, monkeypatch, levels, beat_s=1.0) as told:
        await eventually(told.reported, all_report)
        await asyncio.to_thread(plane.apply, web())
        await plane.until(lambda: sum(each.ready for each in plane.endpoints("web")) == 3)
        await eventually(lambda: asyncio.sleep(0, waiting_consumers(plane)), lambda n: n == 1)
        # Neither annotations nor the time of a period bring a report from here on.
        monkeypatch.setattr(drain_barrier, "MEMORY_S", 3600.0)
        for period in ("CHANGED_PERIOD_S", "IDLE_PERIOD_S"):
            monkeypatch.setattr(reports, period, 3600.0)
        monkeypatch.setattr(reports, "REPORT_LATE_S", 3600.0)
        answer = await told.drain("web-0")
        assert (answer.outcome, answer.pods[0].verdict.required) == ("drained", len(NODES))
        assert waiting_consumers(plane) <= 1
        # A kernel that does not take the change holds the drain back, and ends it when it does.
        told.papers["n-5"].open.clear()
        drain = asyncio.create_task(told.drain("web-1"))
        await eventually(lambda: asyncio.sleep(0, is_waited_for(told)), bool)
        assert not drain.done()
        told.papers["n-5"].open.set()
        assert (await drain).outcome == "drained"


def is_waited_for(told: Story) -> bool:
    """Returns True if all nodes but the stuck one have answered the barrier."""
    stored = told.relays[-1].relay.reports._reports._stored
    revisions = {
        name.rpartition("-n-")[2]: max(kept.report.revisions().values())
        for name, kept in stored.items()
    }
    stuck = revisions.pop("5")
    return all(revision > stuck for revision in revisions.values())


class Parent:
    """A parent that answers reports with *code*."""

    def __init__(self, code: int) -> None:
        self.code = code

    async def post(self, path: str, body: bytes) -> bytes:
        if self.code != 200:
            raise StatusError(self.code, "", "no", {})
        return encode(ConsumerAnswer(Versions()))


@pytest.mark.parametrize(
    ("code", "answered"), [(200, True), (403, False), (404, False), (405, False), (503, True)]
)
async def test_requests_are_passed_on_where_the_parent_has_no_memory(
    code: int, answered: bool
) -> None:
    client: Any = Parent(code)
    leases = ReportLeases(
        "r0",
        client,
        Any,  # type: ignore[arg-type]
        lambda: 1000.0,
        rng=Rng(1),
        describe=lambda: RelayReport("r0", "p", 1000.0, 0.0, "https://parent", "0.1.0"),
    )
    leases.core.on_passed("sliceplane-proxy-n-1")
    answers = BarrierAnswers(leases, client, lambda: 1000.0, Rng(2))
    path = "/sliceplane/progress/kube-node-lease/sliceplane-proxy-n-0"
    assert answers.right("POST", path) is not None
    assert answers.right("POST", path.replace("n-0", "n-1")) is None
    assert answers.right("POST", path.replace("kube-node-lease", "default")) is None
    assert answers.right("GET", path) is None
    try:
        await answers._ask(path, b"")
    except StatusError:
        assert code != 200
    assert (answers.right("POST", path) is not None) == answered
    client.code = 200
    await answers._ask(path, b"")
    assert answers.right("POST", path) is not None
