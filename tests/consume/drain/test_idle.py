"""Counts of established connections: what a node counts and when, what a drain concludes, and that
together they never call a Pod idle that has a connection.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.consume.drain.test_barrier import GOAL, NOW, facts

from sliceplane.consume.drain.answer import (
    CANNOT_COUNT,
    DrainedPod,
    DrainVerdict,
    OpenConnections,
    sentence,
)
from sliceplane.consume.drain.barrier import ConsumerState, UnknownPolicy, compare, judge
from sliceplane.consume.drain.idle import RENEW_S, REPEAT_S, IdleWait
from sliceplane.consume.flow_counts import (
    APPLY_CHECK_S,
    KEPT_S,
    PASS_S,
    PAUSE_MAX_S,
    REQUESTS_MAX,
    TARGETS_MAX,
    FlowCounts,
    FlowPass,
    FlowTarget,
    read_request,
    write_request,
)
from sliceplane.consume.selections import EVERY

POD = "shop/web-0"
AT = FlowTarget("10.1.2.3")
PROVEN = DrainVerdict("proven", required=2)

addresses = st.ip_addresses().map(str)
targets = st.builds(FlowTarget, addresses, st.integers(0, 65535))


# -- requests


@given(
    st.from_regex(r"[0-9a-f]{1,32}", fullmatch=True), st.integers(0), st.lists(targets, min_size=1)
)
def test_a_request_is_read_as_it_was_written(
    nonce: str, number: int, chosen: list[FlowTarget]
) -> None:
    request = read_request(f"{write_request(nonce, number, chosen)}/7")
    assert request == (nonce, tuple(chosen))


@given(st.text() | st.text("0123456789abcdef.,:/ count=port", max_size=60))
@example("a1.1 count=")
@example("a1.1 count=10.1.2.3,")
@example("a1.1 count=10.1.2.3 port 0")
@example("a1.1 count=10.1.2.3 port 65536")
@example(f"{'a' * 33}.1 count=10.1.2.3")
def test_what_is_no_request_is_none_and_what_is_one_is_bounded(text: str) -> None:
    request = read_request(text)
    assert request is None or (1 <= len(request.targets) <= TARGETS_MAX)
    assert text.startswith("a1.1 count=10.1.2.3 port 8") or request is None or "count=" in text


def test_a_request_beyond_the_bound_is_none() -> None:
    many = [FlowTarget("10.0.0.1", port) for port in range(1, TARGETS_MAX + 2)]
    assert read_request(write_request("a", 1, many[:-1])) is not None
    assert read_request(write_request("a", 1, many)) is None


# -- a node


def asked(counts: FlowCounts, nonce: str, *chosen: FlowTarget, now: float = 0.0) -> None:
    word = f"{write_request(nonce, 1, chosen or (AT,))}/0"
    assert counts.on_request(word, now, due=now, spread_s=0, scope=EVERY, revision=7)


APPLIED = {EVERY: 7}


def test_a_node_counts_until_there_is_nothing_to_count_and_forgets_what_is_not_repeated() -> None:
    counts = FlowCounts()
    assert (counts.next_deadline(), counts.report) == (None, {})
    asked(counts, "a")
    assert counts.report == {}, "nothing was counted yet"
    due = counts.take_pass(0.0, APPLIED)
    assert due == FlowPass(("a",), (AT,))
    counts.on_counted(due, {AT: 3}, 0.0, 0.0)
    assert (counts.report, counts.next_deadline()) == ({"a": {"10.1.2.3": 3}}, PASS_S)
    assert counts.take_pass(PASS_S / 2, APPLIED) == FlowPass()
    counts.on_counted(counts.take_pass(PASS_S, APPLIED), {AT: 0}, PASS_S, PASS_S)
    assert (counts.report, counts.next_deadline()) == ({"a": {}}, KEPT_S)
    asked(counts, "a", now=50.0)
    assert counts.take_pass(KEPT_S, APPLIED) == FlowPass(), "it has counted"
    assert counts.report == {"a": {}}
    counts.take_pass(50.0 + KEPT_S, APPLIED)
    assert (counts.report, counts.next_deadline()) == ({}, None)


def test_a_node_counts_what_its_kernel_has_applied() -> None:
    counts = FlowCounts()
    asked(counts, "a")
    assert counts.take_pass(0.0, {EVERY: 6}) == FlowPass()
    assert counts.next_deadline() == APPLY_CHECK_S
    assert counts.take_pass(APPLY_CHECK_S, {EVERY: 7}).nonces == ("a",)
    asked(counts, "b")
    assert counts.take_pass(APPLY_CHECK_S, {}).nonces == ("a", "b"), "it reads that no longer"


def test_a_count_that_fails_is_no_count_and_a_slow_one_is_seldom() -> None:
    counts = FlowCounts()
    asked(counts, "a")
    counts.on_counted(counts.take_pass(0.0, APPLIED), None, 0.0, 0.1)
    assert (counts.report, counts.next_deadline()) == ({}, pytest.approx(0.1 + 2.0))
    counts.on_counted(FlowPass(("a", "displaced"), (AT,)), {AT: 1}, 3.0, 9.0)
    assert counts.next_deadline() == 9.0 + PAUSE_MAX_S


def test_the_oldest_requests_are_forgotten() -> None:
    counts = FlowCounts()
    for number in range(REQUESTS_MAX + 2):
        asked(counts, f"a{number}")
    assert counts.take_pass(0.0, APPLIED).nonces[0] == "a2"
    asked(counts, "many", *(FlowTarget("10.0.0.1", port) for port in range(1, TARGETS_MAX + 1)))
    assert counts.take_pass(0.0, APPLIED).nonces == ("many",)


# -- a drain


def node(name: str, flows: Mapping[str, Mapping[str, int]] | None) -> ConsumerState:
    return ConsumerState(name, {EVERY: 9}, NOW + 60, True, flows=flows)


def begun(goal: int = 7) -> IdleWait:
    idle = IdleWait()
    idle.begin(POD, {EVERY: goal}, (AT,))
    return idle


def test_a_drain_waits_for_every_node_that_counts_and_says_how_many_connections_where() -> None:
    idle = begun()
    verdict = idle.judge(POD, PROVEN, [node("n1", {}), node("n2", {"old": {}})], NOW)
    assert (verdict.state, [missing.node for missing in verdict.waiting]) == ("open", ["n1", "n2"])
    word = idle.take_request("a", [POD], NOW)
    assert read_request(word) == ("a", (AT,))
    nodes = [node("n1", {"a": {"10.1.2.3": 5}}), node("n2", {"a": {}}), node("n3", None)]
    verdict = idle.judge(POD, PROVEN, nodes, NOW)
    assert (verdict.state, verdict.open) == ("open", (OpenConnections("n1", 5),))
    text = "5 established connections to 10.1.2.3 on 1 node: n1 5"
    assert text in sentence(DrainedPod(POD, "not idle", verdict, 60))
    verdict = idle.judge(POD, PROVEN, [node("n1", {"a": {}}), node("n2", {"a": {}})], NOW)
    assert (verdict.state, verdict.targets) == ("proven", ("10.1.2.3",))
    assert "no connection is established" in sentence(DrainedPod(POD, "drained", verdict, 1))
    assert idle.take_request("b", [], NOW + 100) == "", "nothing is left to count"


def test_counts_of_another_goal_are_void() -> None:
    idle = begun()
    idle.judge(POD, PROVEN, [node("n1", {})], NOW)
    idle.take_request("a", [POD], NOW)
    counted = [node("n1", {"a": {}})]
    assert idle.judge(POD, PROVEN, counted, NOW).state == "proven"
    idle.begin(POD, {EVERY: 8}, (AT,))
    assert idle.judge(POD, PROVEN, counted, NOW).state == "open"
    assert read_request(idle.take_request("b", [POD], NOW + 1)) == ("b", (AT,))
    assert idle.judge(POD, PROVEN, counted, NOW).state == "open"
    idle.forget(POD)
    idle.begin(POD, {EVERY: 8}, (AT,))
    assert idle.judge(POD, PROVEN, [node("n1", {"b": {}})], NOW).state == "open"


def test_a_request_is_repeated_so_that_it_is_retained_and_sooner_where_a_node_has_not_answered() -> (
    None
):
    idle = begun()
    nodes = [node("n1", {})]
    sent = []
    for second in range(int(RENEW_S * 3)):
        idle.judge(POD, PROVEN, nodes, NOW + second)
        word = idle.take_request("b" if sent else "a", [POD], NOW + second)
        if word:
            assert word.startswith("a.")
            sent.append(second)
        if second == 2 * REPEAT_S:
            nodes = [node("n1", {"a": {"10.1.2.3": 1}})]
    assert sent == [0, REPEAT_S, 2 * REPEAT_S, 2 * REPEAT_S + RENEW_S, 2 * REPEAT_S + 2 * RENEW_S]


def test_a_pod_that_comes_later_has_a_request_of_its_own_and_many_pods_take_turns() -> None:
    idle = begun()
    idle.begin("shop/later", {EVERY: 7}, (FlowTarget("10.1.2.4"),))
    everything = [POD, "shop/later"]
    assert read_request(idle.take_request("a", [POD], NOW)) == ("a", (AT,))
    request = read_request(idle.take_request("b", everything, NOW + 1))
    assert request is not None
    assert (request.nonce, len(request.targets)) == ("b", 2)
    old = [node("n1", {"a": {}})]
    assert idle.judge(POD, PROVEN, old, NOW).state == "proven"
    assert idle.judge("shop/later", PROVEN, old, NOW).state == "open"
    full = tuple(FlowTarget("10.1.2.5", port) for port in range(1, TARGETS_MAX + 1))
    idle.begin("shop/full", {EVERY: 7}, full)
    waiting = ["shop/later", "shop/full"]
    assert idle.take_request("c", waiting, NOW + 2) == "", "there is no room"
    assert idle.judge("shop/later", PROVEN, [node("n1", {"b": {}})], NOW).state == "proven"
    turn = read_request(idle.take_request("c", ["shop/full"], NOW + 3))
    assert turn == ("c", full)


def test_a_node_that_counts_nothing_is_unknown_to_a_drain_that_waits_for_that() -> None:
    nodes = [facts("n1", 10)]
    assert compare(GOAL, nodes, NOW).unknown == ()
    proof = compare(GOAL, nodes, NOW, until_idle=True)
    assert [(missing.node, missing.why) for missing in proof.unknown] == [("n1", CANNOT_COUNT)]
    late = UnknownPolicy("after", 60.0)
    assert judge((), GOAL, proof, late, 59.0).state == "unknown"
    verdict = judge((), GOAL, proof, late, 60.0)
    assert (verdict.state, verdict.let_go) == ("proven", proof.unknown)
    behind = compare(GOAL, [facts("n1", 9)], NOW, until_idle=True)
    assert judge((), GOAL, behind, late, 60.0).state == "waiting", "its rules still count"


# -- both together


class _Node:
    """A node of the oracle's world. Its kernel sends new connections until it has the goal, 7."""

    def __init__(self) -> None:
        self.counts = FlowCounts()
        self.applied = 6
        self.connections = 0
        self.read = ""
        #: the Lease: revision and counts; ``None``: the drain does not know the node yet
        self.told: tuple[int, dict[str, dict[str, int]]] | None = None
        self.under_way: tuple[FlowPass, int, float] | None = None


class _World:
    """Two nodes and one Pod. *is_gated*: nodes count what their kernels have applied."""

    def __init__(self, *, is_gated: bool) -> None:
        self.now = NOW
        self.is_gated = is_gated
        self.nodes = {name: _Node() for name in ("n1", "n2")}
        self._idle = IdleWait()
        self._request = ("", 7)
        self._requests = 0

    def judge(self) -> bool:
        """What a drain concludes now: is the Pod idle?"""
        known = {name: each.told for name, each in self.nodes.items() if each.told is not None}
        if not known or any(revision < 7 for revision, _ in known.values()):
            self._idle.forget(POD)
            return False
        states = [
            ConsumerState(name, {EVERY: revision}, self.now + 60, True, flows=flows)
            for name, (revision, flows) in known.items()
        ]
        self._idle.begin(POD, {EVERY: 7}, (AT,))
        verdict = self._idle.judge(POD, PROVEN, states, self.now)
        self._requests += 1
        word = self._idle.take_request(f"n{self._requests}", [POD], self.now)
        if word:
            self._request = (word, self._request[1] + 1)
        return verdict.state == "proven"

    def do(self, step: str, name: str, seconds: int) -> None:
        self.now += seconds
        node = self.nodes[name]
        word, revision = self._request
        match step:
            case "connect" if node.applied < 7:
                node.connections += 1
            case "close":
                node.connections = max(node.connections - 1, 0)
            case "read" if word not in ("", node.read):
                node.read = word
                node.counts.on_request(
                    word, self.now, due=self.now, spread_s=0, scope=EVERY, revision=revision
                )
            case "apply":
                node.applied = revision
            case "begin" if node.under_way is None:
                applied = {EVERY: node.applied} if self.is_gated else {}
                due = node.counts.take_pass(self.now, applied)
                node.under_way = (due, node.connections, self.now)
            case "end" if node.under_way is not None:
                due, found, began = node.under_way
                node.counts.on_counted(due, {AT: found}, began, self.now)
                node.under_way = None
            case "tell":
                node.told = (node.applied, dict(node.counts.report))
            case "restart":  # another proxy takes over; it does not know the requests
                node.counts, node.under_way, node.read = FlowCounts(), None, ""

    def open_connections(self) -> list[int]:
        return [each.connections for each in self.nodes.values() if each.told is not None]


#: n2 counts before its kernel has the goal, and is known afterwards
EARLY = [
    ("apply", "n1", 1),
    ("tell", "n1", 1),
    ("read", "n2", 1),
    ("begin", "n2", 1),
    ("end", "n2", 1),
    ("connect", "n2", 1),
    ("apply", "n2", 1),
    ("apply", "n1", 1),
    ("tell", "n2", 1),
    ("read", "n1", 1),
    ("begin", "n1", 1),
    ("end", "n1", 1),
    ("tell", "n1", 1),
]
STEPS = ("connect", "close", "read", "apply", "begin", "end", "tell", "restart")
steps = st.tuples(st.sampled_from(STEPS), st.sampled_from(("n1", "n2")), st.sampled_from((0, 1, 9)))


def idle_with_connections(history: list[tuple[str, str, int]], *, is_gated: bool) -> bool:
    """Returns True if the Pod was called idle while a node that is known had a connection."""
    world = _World(is_gated=is_gated)
    for step in history:
        world.do(*step)
        if world.judge() and any(world.open_connections()):
            return True
    return False


@given(st.lists(steps, max_size=80))
@example(EARLY)
def test_a_pod_is_never_called_idle_while_a_connection_is_open(
    history: list[tuple[str, str, int]],
) -> None:
    assert not idle_with_connections(history, is_gated=True)


def test_who_counts_before_the_kernel_has_the_goal_is_found_out() -> None:
    assert idle_with_connections(EARLY, is_gated=False)


def test_a_pod_is_idle_in_the_end() -> None:
    world = _World(is_gated=True)
    world.do("connect", "n2", 0)
    ends = []
    for round_number in range(12):
        for name in world.nodes:
            if round_number == 6:
                world.do("close", name, 0)
            for step in ("apply", "read", "begin", "end", "tell"):
                world.do(step, name, 1)
        ends.append(world.judge())
    assert ends.index(True) in (6, 7, 8)
    assert all(ends[8:])
