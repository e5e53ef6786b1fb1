"""The shadow controller beside another one, on a fake server: planted bugs are named, soundness and
lag are not.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.diagnose.shadow import planted
from tests.diagnose.shadow.planted import Planted
from tests.slices.fake_cluster import FakeCluster, make_node, make_pod, make_service

from sliceplane.api.core import Pod, ServicePort
from sliceplane.api.errors import unreachable
from sliceplane.api.scheme import EndpointSlices, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.diagnose.shadow.controller import ShadowController
from sliceplane.diagnose.shadow.ledger import DifferenceLedger
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, SelectorChanges
from sliceplane.watch.controller.base import Controller, Job

replace = msgspec.structs.replace
GRACE_S = 10.0
TWO_PORTS = (
    ServicePort(name="http", port=80, target_port=8080),
    ServicePort(name="admin", port=81, target_port=8081),
)


class Beside:
    """A cluster whose slices *other* writes, and a shadow that looks on.  The shadow's reads are in
    ``reads``.
    """

    def __init__(
        self, other: Controller, changes: SelectorChanges = SelectorChanges.HAND_OVER
    ) -> None:
        self.cluster = FakeCluster()
        self.other = other
        self.ledger = DifferenceLedger(GRACE_S)
        self.shadow = ShadowController(EndpointSliceConfig(selector_changes=changes), self.ledger)
        self.now = 1000.0
        self.reads: list[Job] = []
        self.other_works = True
        for which, zone in enumerate("ab"):
            self.cluster.put(make_node(f"n{which}", zone))
        self.deliver()
        for each in (self.other, self.shadow):
            each.on_synced(self.now)

    def deliver(self) -> None:
        changes, self.cluster.pending[:] = list(self.cluster.pending), []
        for change in changes:
            self.other.on_change(change, self.now)
            self.shadow.on_change(change, self.now)

    def step(self, seconds: float = 0.5) -> None:
        self.deliver()
        if self.other_works:
            for job in self.other.take_work(self.now, 10).jobs:
                self.other.on_done(self.cluster.run(job), self.now)
            self.deliver()
        for job in self.shadow.take_work(self.now, 10).jobs:
            self.reads.append(job)
            assert {write.verb for write in job.writes} <= {"get", "list"}
            self.shadow.on_done(self.cluster.run(job), self.now)
        self.shadow.check()
        self.now += seconds

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()

    def found(self) -> set[tuple[str, str, str, str]]:
        return {
            (
                s.difference.kind.value,
                s.difference.subject,
                s.difference.desired,
                s.difference.actual,
            )
            for s in self.ledger.standing()
        }


def populated(
    other: Controller, *, changes: SelectorChanges = SelectorChanges.HAND_OVER, **service: Any
) -> Beside:
    beside = Beside(other, changes)
    beside.cluster.put(
        make_service(**{"ports": TWO_PORTS, "traffic_distribution": "PreferSameZone", **service})
    )
    for which in range(4):
        beside.cluster.put(
            make_pod(f"p-{which}", node=f"n{which % 2}", ips=(f"10.0.0.{which}", f"fd00::{which}"))
        )
    return beside


def test_terminating_pods_reported_ready() -> None:
    beside = populated(Planted(planted.terminating_stay_ready))
    beside.cluster.put(make_pod("p-1", node="n1", ips=("10.0.0.1",), terminating=True))
    beside.pass_time(GRACE_S + 3)
    assert {each for each in beside.found() if each[0] != "hint-unexpected"} == {
        ("ready", "Pod p-1", "false", "true"),
        ("terminating", "Pod p-1", "true", "false"),
    }


def test_wrong_zone() -> None:
    beside = populated(Planted(planted.wrong_zone))
    beside.pass_time(GRACE_S + 3)
    assert beside.found() == {
        (kind, f"Pod p-{which}", left, right)
        for which in (0, 2)
        for kind, left, right in (("zone", "a", "b"), ("hints", "zones a", "zones b"))
    }


def test_a_stale_endpoint_left() -> None:
    beside = populated(Planted(planted.sound, never_lose=Pod))
    beside.pass_time(2)
    beside.cluster.remove(Pods, "shop", "p-3")
    beside.pass_time(GRACE_S + 3)
    assert beside.found() == {("endpoint-stale", "Pod p-3", "(none)", "10.0.0.3")}


def test_a_hint_missing() -> None:
    beside = populated(Planted(planted.no_hints))
    beside.pass_time(GRACE_S + 3)
    zones = {0: "zones a", 1: "zones b", 2: "zones a", 3: "zones b"}
    assert beside.found() == {
        ("hint-missing", f"Pod p-{n}", zone, "(none)") for n, zone in zones.items()
    }


def test_a_port_dropped() -> None:
    beside = populated(Planted(planted.last_port_dropped))
    beside.pass_time(GRACE_S + 3)
    both = "admin:8081/TCP, http:8080/TCP"
    assert beside.found() == {("ports", f"Pod p-{n}", both, "http:8080/TCP") for n in range(4)}


def test_labels_and_address_types() -> None:
    beside = populated(Planted(planted.labels_forgotten), labels={"team": "shop"})
    beside.pass_time(GRACE_S + 3)
    ((kind, subject, ours, theirs),) = beside.found()
    assert (kind, ours, theirs) == ("labels", "team=shop", "(none)")
    assert subject.startswith("EndpointSlice web-")
    beside = populated(Planted(planted.one_family), ip_families=("IPv4", "IPv6"))
    beside.pass_time(GRACE_S + 3)
    missing = {
        ("endpoint-missing", f"Pod p-{n}", f"fd00::{n}" if n else "fd00::", "(none)")
        for n in range(4)
    }
    assert beside.found() == {("address-type", "", "IPv6", "(none)"), *missing}


def test_edits_by_hand_are_named() -> None:
    beside = populated(Planted(planted.sound))
    beside.pass_time(2)
    beside.other_works = False
    (one,) = beside.cluster.slices()
    endpoints = one.endpoints or ()
    target = endpoints[1].target_ref
    assert target is not None
    changed = (
        replace(endpoints[0], addresses=("10.9.9.9",)),
        replace(endpoints[1], target_ref=replace(target, uid="other"), node_name="n9"),
        endpoints[2],
        endpoints[2],
    )
    beside.cluster.put(replace(one, endpoints=changed))
    beside.pass_time(GRACE_S + 3)
    assert {(kind, subject) for kind, subject, _, _ in beside.found()} == {
        ("addresses", "Pod p-0"),
        ("target-ref", "Pod p-1"),
        ("node", "Pod p-1"),
        ("endpoint-duplicate", "Pod p-2"),
        ("endpoint-missing", "Pod p-3"),
    }
    meta = replace(one.metadata, labels={"kubernetes.io/service-name": "web"})
    beside.cluster.put(replace(one, metadata=meta))
    beside.pass_time(GRACE_S + 3)
    assert (
        "managed-by",
        f"EndpointSlice {one.metadata.name}",
        "endpointslice-controller.k8s.io",
        "(none)",
    ) in (beside.found())


@pytest.mark.parametrize("seed", range(6))
def test_no_difference_beside_a_sound_controller_during_churn(seed: int) -> None:
    beside = populated(Planted(planted.sound), ip_families=("IPv4", "IPv6"))
    pick = random.Random(seed)
    worked = beside.now
    for _ in range(120):
        which = pick.randrange(6)
        match pick.randrange(4):
            case 0:
                beside.cluster.remove(Pods, "shop", f"p-{which}")
            case 1:
                ports = pick.choice((TWO_PORTS, TWO_PORTS[:1]))
                mode = pick.choice((None, "PreferSameZone", "PreferSameNode"))
                beside.cluster.put(
                    make_service(
                        ports=ports,
                        traffic_distribution=mode,
                        ip_families=("IPv4", "IPv6"),
                        labels={"a": mode},
                    )
                    if mode
                    else make_service(ports=ports, ip_families=("IPv4", "IPv6"))
                )
            case _:
                ready, node = pick.random() < 0.7, f"n{pick.randrange(3)}"
                ips = (f"10.0.0.{which}", f"fd00::{which}")
                beside.cluster.put(
                    make_pod(
                        f"p-{which}",
                        ready=ready,
                        node=node,
                        ips=ips,
                        terminating=pick.random() < 0.2,
                    )
                )
        # the other one is slow, but within the grace period
        beside.other_works = pick.random() < 0.3 or beside.now - worked > GRACE_S / 2
        worked = beside.now if beside.other_works else worked
        beside.step(pick.choice((0.1, 1.0, 3.0)))
        assert beside.found() == set()
    beside.other_works = True
    beside.pass_time(3 * GRACE_S)
    assert (beside.found(), beside.ledger.pending) == (set(), 0)
    assert beside.ledger.compared > 20


def test_a_difference_is_pending_first_and_told_when_it_appears_and_when_it_goes() -> None:
    beside = populated(Planted(planted.sound))
    beside.pass_time(2)
    beside.other_works = False
    beside.cluster.put(make_pod("p-2", node="n0", ips=("10.0.0.2",), ready=False))
    beside.pass_time(GRACE_S - 1)
    assert beside.found() == set()
    assert beside.ledger.pending
    beside.pass_time(3)
    assert ("ready", "Pod p-2", "false", "true") in beside.found()
    assert {(news.what, news.standing.key) for news in beside.ledger.take_news()} == {
        ("appeared", "shop/web")
    }
    beside.other_works = True
    beside.pass_time(3)
    assert (beside.found(), beside.ledger.pending) == (set(), 0)
    assert {news.what for news in beside.ledger.take_news()} == {"resolved"}


def test_a_flapping_pod_begins_its_time_anew() -> None:
    """The other one has always something to catch up with, although each look finds the same
    difference.
    """
    beside = populated(Planted(planted.sound))
    beside.pass_time(2)
    beside.other_works = False
    for flap in range(80):
        # ready for a moment between two comparisons: every comparison finds it not ready
        for ready in (True, False):
            beside.cluster.put(make_pod("p-2", node="n0", ips=("10.0.0.2",), ready=ready))
            beside.deliver()
        beside.step(1.0)
        assert beside.found() == set(), flap
    beside.pass_time(GRACE_S + 3)
    assert ("ready", "Pod p-2", "false", "true") in beside.found()


@pytest.mark.parametrize("behind", ["slices", "pods", "service"])
def test_nothing_is_reported_while_a_cache_is_behind(behind: str) -> None:
    """The server has it right; our watch of one resource just has not shown it."""
    beside = populated(Planted(planted.sound))
    beside.pass_time(2)
    held = {"slices": EndpointSlices.key, "pods": Pods.key, "service": Services.key}[behind]
    withheld = []
    show = beside.shadow.on_change

    def withholding(change: Any, now: float) -> None:
        (withheld.append(change) if change.resource == held else show(change, now))

    beside.shadow.on_change = withholding  # type: ignore[method-assign]
    beside.cluster.put(make_pod("p-2", node="n0", ips=("10.0.0.2",), ready=False))
    beside.cluster.put(make_service(ports=TWO_PORTS[:1], traffic_distribution="PreferSameZone"))
    beside.pass_time(3 * GRACE_S)
    assert beside.found() == set()
    assert beside.ledger.confirmations["behind"] > 2
    for change in withheld:
        show(change, beside.now)
    beside.shadow.on_change = show  # type: ignore[method-assign]
    beside.pass_time(2 * GRACE_S)
    assert (beside.found(), beside.ledger.pending) == (set(), 0)


def test_a_read_that_fails_is_tried_again() -> None:
    beside = populated(Planted(planted.no_hints))
    beside.pass_time(GRACE_S - 2)
    run = beside.cluster.run
    beside.cluster.run = lambda job: run(job, fail_at=1, error=unreachable("no route"))  # type: ignore[method-assign]
    beside.other_works = False
    beside.pass_time(6)
    assert beside.found() == set()
    assert beside.ledger.confirmations["failed"] > 1
    beside.cluster.run = run  # type: ignore[method-assign]
    beside.pass_time(10)
    assert len(beside.found()) == 4


def test_a_service_that_goes_takes_its_differences_with_it() -> None:
    beside = populated(Planted(planted.no_hints))
    beside.pass_time(GRACE_S + 3)
    assert beside.found()
    beside.cluster.remove(Services, "shop", "web")
    beside.pass_time(3)
    assert (beside.found(), beside.ledger.pending) == (set(), 0)


def test_figures() -> None:
    beside = populated(Planted(planted.no_hints))
    beside.pass_time(GRACE_S + 3)
    samples = {family.name: family for family in beside.shadow.samples(beside.now)}
    (one,) = samples["sliceplane_shadow_differences"].samples
    assert (one.labels, one.value) == (("shop", "web", "hint-missing"), 4)
    assert samples["sliceplane_shadow_services"].samples[0].value == 1


@pytest.mark.parametrize("changes", list(SelectorChanges))
def test_slices_of_a_service_without_a_selector(changes: SelectorChanges) -> None:
    """Ours go in the end, so others that stay are a difference, but not before; with
    --selector-changes=upstream ours stay, too.
    """
    beside = populated(Planted(planted.sound), changes=changes)
    beside.pass_time(2)
    beside.other_works = False
    beside.cluster.put(make_service(ports=TWO_PORTS, selector=None))
    beside.pass_time(HAND_OVER_TIMEOUT_S + GRACE_S - 2)
    assert beside.found() == set()
    beside.pass_time(5)
    expected = {("address-type", "", "(none)", "IPv4 with 4 endpoints")}
    assert beside.found() == (set() if changes is SelectorChanges.UPSTREAM else expected)
    # a shadow that begins now has not seen it happen, and waits for nothing but the grace period
    later = DifferenceLedger(GRACE_S)
    beside.shadow = ShadowController(EndpointSliceConfig(selector_changes=changes), later)
    beside.cluster.start(beside.shadow, beside.now)
    beside.pass_time(GRACE_S + 2)
    beside.ledger = later
    assert beside.found() == (set() if changes is SelectorChanges.UPSTREAM else expected)
