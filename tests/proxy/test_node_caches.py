"""Digests of nodes against the controller's own: a random history, with and without lost events."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effort import scaled

from sliceplane.api.core import Lease, LeaseSpec
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import ObjectMeta, OwnerReference
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.node_caches import KEPT_S, NodeCaches
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    BEHIND_S,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    AppliedRevision,
    ProgressReport,
)
from sliceplane.consume.selections import ALL, list_selections_of_slice
from sliceplane.controllers.node_progress import NodeProgress
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import digest_of

KEY = EndpointSlices.key
FOR_ZONE = "endpointslice.kubernetes.io/for-zone"
HEADLESS = "service.kubernetes.io/headless"


def slice_of(name: str, revision: int, labels: dict[str, str] | None = None) -> EndpointSlice:
    return EndpointSlice(
        metadata=ObjectMeta(
            namespace="ns", name=name, resource_version=str(revision), labels=labels
        )
    )


class History:
    """What the server held at each version."""

    def __init__(self, seed: int) -> None:
        self.rng = Rng(seed)
        self.revision = 1
        self.held: dict[str, EndpointSlice] = {}
        self.states: dict[int, dict[str, EndpointSlice]] = {1: {}}

    def change(self) -> Change[Any]:
        rng = self.rng
        self.revision += 1 + rng.below(3)
        name = f"s{rng.below(8)}"
        old = self.held.pop(name, None)
        new = None
        if old is None or rng.below(4):
            labels = ({}, {FOR_ZONE: "a"}, {FOR_ZONE: "b"}, {HEADLESS: ""})[rng.below(4)]
            new = self.held[name] = slice_of(name, self.revision, labels)
        self.states[self.revision] = dict(self.held)
        return Change(KEY, old, new)

    def state(self, revision: int) -> dict[str, EndpointSlice]:
        return self.states[max(at for at in self.states if at <= revision)]

    def report(self, revision: int, *readings: str, lost: str = "") -> ProgressReport:
        state = self.state(revision)
        held = {
            reading: AppliedRevision(
                revision,
                digest_of(
                    item
                    for name, item in state.items()
                    if reading in list_selections_of_slice(item) and name != lost
                ),
            )
            for reading in readings
        }
        return ProgressReport(endpointslices=held)


@pytest.mark.parametrize("seed", range(scaled(20, 3)))
def test_a_true_report_is_equal_and_a_false_one_is_not(seed: int) -> None:
    history, caches = History(seed), NodeCaches()
    rng = Rng(seed + 1000)
    ahead: list[int] = []
    caches.on_mark(Mark(KEY, "1", listed=True), 0.0)
    for step in range(120):
        change = history.change()
        if rng.below(4) == 0:  # a node that is ahead of this controller, whose bookmark says so
            revision = history.revision + rng.below(2)
            node = f"ahead-{len(ahead)}"
            assert not caches.on_report(
                node, history.report(revision, "shared", "zone=a"), float(step)
            )
            assert caches.verdict(node).kind in ("", "equal")
            ahead.append(revision)
        caches.on_change(change)
        for bookmark in (0, 1):
            assert caches.on_mark(Mark(KEY, str(history.revision + bookmark)), float(step)) == ()
        history.revision += 1
        revision = 1 + rng.below(history.revision)
        caches.on_report(
            "n", history.report(revision, ALL, "shared", "zone=b", "zone=none"), float(step)
        )
        assert caches.verdict("n").kind == "equal", (step, revision)
        there = [
            name for name, item in history.state(revision).items() if list_selections_of_slice(item)
        ]
        if there:
            fresh = f"lost-{step}"
            lost = history.report(revision, ALL, lost=there[rng.below(len(there))])
            assert caches.on_report(fresh, lost, float(step)), "it is news"
            assert not caches.on_report(fresh, lost, float(step)), "once"
            assert caches.verdict(fresh)[:2] == ("differ", ("endpointslices", ALL))
            caches.on_report(fresh, None, 0.0)
        caches.check()
    for number in range(len(ahead)):
        assert caches.verdict(f"ahead-{number}").kind == "equal"
    assert caches.differing == set()


def test_what_was_before_a_list_is_not_judged() -> None:
    history, caches = History(1), NodeCaches()
    for _ in range(5):
        history.change()
    for item in history.held.values():
        caches.on_change(Change(KEY, None, item))
    caches.on_mark(Mark(KEY, str(history.revision), listed=True), 0.0)
    caches.on_report(
        "n",
        ProgressReport(endpointslices={ALL: AppliedRevision(history.revision - 1, "0" * 16)}),
        1.0,
    )
    assert caches.verdict("n").kind == ""
    caches.on_report(
        "n", ProgressReport(endpointslices={ALL: AppliedRevision(history.revision, "0" * 16)}), 1.0
    )
    assert caches.verdict("n").kind == "differ"


def test_the_past_is_forgotten_and_memory_stays_bounded() -> None:
    caches = NodeCaches()
    caches.on_mark(Mark(KEY, "1", listed=True), 0.0)
    old = None
    for number in range(2, 20_002):
        new = slice_of("s", number)
        caches.on_change(Change(KEY, old, new))
        caches.on_mark(Mark(KEY, str(number)), number / 10)
        old = new
    (history,) = (held for place, held in caches._histories.items() if place[1] == ALL)
    assert 10 * KEPT_S <= len(history._times) <= 20 * KEPT_S + 64
    caches.on_report(
        "n", ProgressReport(endpointslices={ALL: AppliedRevision(5, "0" * 16)}), 2000.0
    )
    assert caches.verdict("n").kind == ""


# Nodes in numbers


def lease(node: str, report: ProgressReport) -> Lease:
    from sliceplane.api.codec import encode

    return Lease(
        metadata=ObjectMeta(
            name=f"sliceplane-proxy-{node}",
            labels={LABEL_COMPONENT: COMPONENT},
            annotations={ANNOTATION_PROGRESS: encode(report).decode()},
            owner_references=(OwnerReference(kind="Node", name=node, uid=node),),
        ),
        spec=LeaseSpec(holder_identity=node, lease_duration_seconds=LEASE_DURATION_S),
    )


def figures(progress: NodeProgress, now: float) -> tuple[dict[str, float], float]:
    families = {family.name: family.samples for family in progress.metrics(now).families()}
    states = {
        sample.labels[0]: sample.value
        for sample in families["sliceplane_node_proxies"]
        if sample.value
    }
    return states, families["sliceplane_node_proxies_behind_seconds"][0].value  # type: ignore[return-value]  # no histogram


def test_monitoring_is_told_of_every_state() -> None:
    progress = NodeProgress()
    progress.on_change(Change(KEY, None, slice_of("a", 5)))
    progress.on_mark(Mark(KEY, "5", listed=True), 0.0)
    good = ProgressReport(
        endpointslices={"shared": AppliedRevision(5, digest_of([slice_of("a", 5)]))}
    )
    for node in ("n1", "n2", "n3", "n4"):
        progress.on_lease(f"sliceplane-proxy-{node}", lease(node, good), 0.0)
    assert figures(progress, 1.0) == ({"current": 4}, 0)
    progress.on_change(Change(KEY, slice_of("a", 5), slice_of("a", 9)))
    progress.on_mark(Mark(KEY, "9"), 10.0)
    assert figures(progress, 10.0 + BEHIND_S - 1) == ({"current": 4}, 0), "they have time"
    assert figures(progress, 10.0 + BEHIND_S) == ({"behind": 4}, BEHIND_S)
    lost = ProgressReport(
        endpointslices={"shared": AppliedRevision(9, good.endpointslices["shared"].digest)}
    )
    told = ProgressReport(
        endpointslices={"shared": AppliedRevision(9, digest_of([slice_of("a", 9)]))}
    )
    bad = ProgressReport(
        endpointslices=told.endpointslices,
        problems=("IPv4 rules are not written: no buffer space",),
    )
    (differing,) = progress.on_lease("sliceplane-proxy-n1", lease("n1", lost), 30.0)[1]
    assert (differing.node, differing.verdict.revision) == ("n1", 9)
    progress.on_lease("sliceplane-proxy-n2", lease("n2", bad), 30.0)
    progress.on_lease("sliceplane-proxy-n3", lease("n3", told), 30.0)
    states, behind_s = figures(progress, 60.0)
    assert states == {"cache_differs": 1, "rules_damaged": 1, "current": 1, "behind": 1}
    assert behind_s == 50.0
    assert figures(progress, LEASE_DURATION_S + 1.0)[0]["stopped"] == 1
    lag = progress.lag({"shared": 9, "zone=a": 99}, LEASE_DURATION_S + 1.0)
    assert (lag.behind, lag.nodes, lag.reporting) == (2, 4, 3)
    assert lag.text == "n1 (its cache lost an event), n4 (its proxy stopped reporting)"
    progress.on_lease("sliceplane-proxy-n1", lease("n1", told), 95.0)
    assert progress.lag({"shared": 9}, 96.0).behind == 1
    progress.check()


def test_a_node_that_is_behind_in_several_readings_counts_once() -> None:
    progress = NodeProgress()
    versions = {
        "n1": {"shared": 9, "zone=a": 9},
        "n2": {"shared": 5, "zone=a": 4},
        "n3": {"shared": 9, "zone=a": 3},
        "n4": {"shared": 5, "zone=b": 1},
        "n5": {"all": 8},
    }
    for node, held in versions.items():
        report = ProgressReport(
            endpointslices={
                reading: AppliedRevision(version, "") for reading, version in held.items()
            }
        )
        progress.on_lease(f"sliceplane-proxy-{node}", lease(node, report), 0.0)
    lag = progress.lag({"all": 9, "shared": 9, "zone=a": 9}, 1.0)
    assert (lag.behind, lag.nodes, lag.text) == (4, 5, "n3, n2, n4 and 1 more")
    assert progress.lag({"all": 9, "zone=a": 9}, 1.0).text == "n3, n2, n5", (
        "zone b and the rest are no concern of it"
    )
    assert progress.lag({}, 1.0).behind == 0
