"""The revision that an observer reports, against a proxy that lags behind the API in every way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.proxy.test_tracker import make_slice, node, service

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.node.observing.agreement import LATE_S, SETTLE_S, Agreement
from sliceplane.node.observing.graph import (
    OUTPUT,
    PREROUTING,
    RuleEffects,
    RuleGraph,
    destination_key,
    packed_target,
)

NAMES = ("a", "b")
CLUSTER_IPS = {"a": "172.30.0.1", "b": "172.30.0.2"}


class Rules:
    """Another program's rules: for each Service a chain with its targets."""

    def __init__(self) -> None:
        self.graph = RuleGraph("IPv4")
        for hook in (PREROUTING, OUTPUT):
            self.graph.add_chain(f"hook-{hook}", hook)
            self.graph.set_rule(f"hook-{hook}", 1, RuleEffects(maps=("services",)))
        self.targets: dict[str, frozenset[str]] = {}

    def write(self, name: str, addresses: frozenset[str] | None) -> None:
        key = destination_key(CLUSTER_IPS[name], "TCP", 80)
        self.graph.remove_chain(name)
        self.graph.remove_element("services", key)
        self.targets.pop(name, None)
        if addresses is None:
            return
        self.targets[name] = addresses
        self.graph.set_element("services", key, name)
        for number, address in enumerate(sorted(addresses)):
            self.graph.set_rule(name, number, RuleEffects(targets=(packed_target(address, 80),)))


def named(name: str, **spec: Any) -> Service:
    return service(name, clusterIP=CLUSTER_IPS[name], **spec)


class World:
    """An API with two Services, its observer, and a proxy that has applied some earlier revision."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rules = Rules()
        self.agreement = Agreement("IPv4", "node-1")
        self.agreement.on_node(node(None))
        #: desired endpoints at each revision; ``None``: no such Service
        self.history: list[dict[str, frozenset[str] | None]] = [dict.fromkeys(NAMES)]
        self.changed_at = [self.now]
        self.applied = 0
        self.numbers: dict[int, int] = {0: 0}
        self.reported = 0
        self._slices: dict[str, EndpointSlice] = {}

    def change(self, name: str, addresses: frozenset[str] | None) -> None:
        """Writes a Service and its slice; ``None`` removes both."""
        before = self.history[-1][name]
        revision = len(self.history)
        if addresses is None:
            if before is None:
                return
            self.agreement.on_service(named(name), None)
            self.agreement.on_slice(self._slices.pop(name), None)
        else:
            made = make_slice(name, name, sorted(addresses), version=revision)
            if before is None:
                self.agreement.on_service(None, named(name))
            self.agreement.on_slice(self._slices.get(name), made)
            self._slices[name] = made
        self.history.append({**self.history[-1], name: addresses})
        self.changed_at.append(self.now)

    def apply(self, revision: int) -> None:
        self.applied = max(self.applied, min(revision, len(self.history) - 1))
        for name, addresses in self.history[self.applied].items():
            if self.rules.targets.get(name) != addresses:
                self.rules.write(name, addresses)

    def pass_time(self, seconds: float) -> None:
        """A proxy is never further behind than its pause between two writes."""
        self.now += seconds
        late = [
            number for number, at in enumerate(self.changed_at) if self.now - at >= SETTLE_S * 0.9
        ]
        self.apply(max(late, default=0))

    def check(self) -> None:
        number = self.agreement.begin_check(self.now)
        self.numbers[number] = len(self.history) - 1
        complete = self.agreement.check_rules(self.rules.graph, self.now)
        self.agreement.check()
        self.reported = max(self.reported, self.numbers[max(0, complete)])
        self.hold()

    def hold(self) -> None:
        """No rule leads to an endpoint that a reported revision removed."""
        for name in NAMES:
            allowed = frozenset[str]().union(
                *(state[name] or frozenset() for state in self.history[self.reported :])
            )
            stale = self.rules.targets.get(name, frozenset()) - allowed
            assert not stale, f"revision {self.reported} was reported, and {name} leads to {stale}"


addresses = st.frozensets(st.sampled_from([f"10.0.0.{number}" for number in (1, 2)]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sampled_from(NAMES), st.none() | addresses),
        st.tuples(st.just("apply"), st.integers(1, 2), st.none()),
        st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0]), st.none()),
        st.tuples(st.just("check"), st.none(), st.none()),
    ),
    min_size=5,
    max_size=25,
)


@effort(600)
@given(steps)
def test_no_revision_is_reported_early_and_each_is_reported(history: list[Any]) -> None:
    world = World()
    for kind, first, second in history:
        match kind:
            case "change":
                world.change(first, second)
            case "apply":
                world.apply(world.applied + first)
                world.hold()
            case "pass":
                world.pass_time(first)
                world.hold()
            case "check":
                world.check()
    world.pass_time(2 * SETTLE_S)
    world.check()
    deadline = world.agreement.next_deadline()
    if deadline is not None:
        world.pass_time(deadline - world.now)
        world.check()
    assert world.reported == len(world.history) - 1, "a proxy that is up to date is reported"
    assert world.agreement.pending == 0


def agreed(addresses: frozenset[str], **spec: Any) -> World:
    world = World()
    world.change("a", addresses)
    world.apply(1)
    world.check()
    assert world.reported == 1
    return world


def test_a_removed_endpoint_that_is_still_led_to_is_a_sentence() -> None:
    world = agreed(frozenset({"10.0.0.1", "10.0.0.2"}))
    world.change("a", frozenset({"10.0.0.1"}))
    world.check()
    assert world.reported == 1
    assert world.agreement.late(world.rules.graph, world.now + LATE_S - 1) == ()
    assert world.agreement.late(world.rules.graph, world.now + LATE_S + 4) == (
        (
            "its proxy still sends ns/a:http (172.30.0.1:80/TCP) to 10.0.0.2:80, removed at "
            "1970-01-01T00:16:40Z"
        ),
    )


def test_an_endpoint_that_is_not_led_to_is_a_sentence() -> None:
    world = agreed(frozenset({"10.0.0.1"}))
    world.change("a", frozenset({"10.0.0.1", "10.0.0.2"}))
    world.check()
    assert world.agreement.late(world.rules.graph, world.now + 40) == (
        (
            "its proxy does not send ns/a:http (172.30.0.1:80/TCP) to 10.0.0.2:80, added at "
            "1970-01-01T00:16:40Z"
        ),
    )


def test_rules_that_no_hook_leads_to_agree_with_nothing() -> None:
    world = World()
    world.change("a", frozenset({"10.0.0.1"}))
    world.apply(1)
    world.rules.graph.remove_chain("hook-3")
    world.check()
    assert world.reported == 0


def test_edited_rules_are_found_by_a_comparison_and_hold_up_later_revisions() -> None:
    world = agreed(frozenset({"10.0.0.1", "10.0.0.2"}))
    world.rules.graph.remove_rule("a", 1)
    (key,) = world.agreement.service_keys()
    world.agreement.compare(key, world.rules.graph, world.now)
    assert world.agreement.pending == 1
    world.change("b", frozenset({"10.0.0.3"}))
    world.rules.write("b", frozenset({"10.0.0.3"}))
    world.check()
    assert world.reported == 1
    (late,) = world.agreement.late(world.rules.graph, world.now + 31)
    assert late.startswith("its proxy does not send ns/a:http (172.30.0.1:80/TCP) to 10.0.0.2:80")


def test_a_destination_without_a_service_is_named() -> None:
    world = agreed(frozenset({"10.0.0.1"}))
    world.rules.write("b", frozenset({"10.0.0.9"}))
    assert world.agreement.unowned(world.rules.graph) == ("172.30.0.2:80/TCP",)
    world.change("b", frozenset({"10.0.0.9"}))
    world.check()
    assert world.agreement.unowned(world.rules.graph) == ()


def test_an_external_address_may_lead_to_endpoints_of_either_policy() -> None:
    """kube-proxy lets clients on the node reach the cluster's endpoints by it."""
    spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.1"]}
    agreement, rules = Agreement("IPv4", "node-1"), Rules()
    agreement.on_service(None, named("a", **spec))
    agreement.on_slice(None, make_slice("a", "a", ["10.0.0.1"]))
    agreement.begin_check(0.0)
    rules.write("a", frozenset({"10.0.0.1"}))
    rules.graph.set_element("services", destination_key("192.0.2.1", "TCP", 80), "a")
    assert agreement.check_rules(rules.graph, 0.0) == 1


def test_pending_services_are_compared_again_only_if_the_rules_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy that stands still costs nothing, however many Services wait for it."""
    world = agreed(frozenset({"10.0.0.1", "10.0.0.2"}))
    world.change("a", frozenset({"10.0.0.1"}))
    world.check()
    looked_up: list[bytes] = []
    targets = world.rules.graph.targets
    monkeypatch.setattr(
        world.rules.graph, "targets", lambda key: looked_up.append(key) or targets(key)
    )
    world.check()
    assert looked_up == []
    world.rules.write("a", frozenset({"10.0.0.1", "10.0.0.2"}))
    world.check()
    assert looked_up
