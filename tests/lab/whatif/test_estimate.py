"""``sliceplane estimate``: a Service that is not there yet, by the engine and in the words of
what-if.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner
from tests.lab.whatif.asked import cart, state_of

from sliceplane.api.codec import decode_document
from sliceplane.api.scheme import Deployments
from sliceplane.cli.main import main
from sliceplane.lab.whatif.changes import Running
from sliceplane.lab.whatif.estimate import (
    ROLLED_MAX,
    EstimatedStep,
    EstimateQuestion,
    build_state,
    estimate,
)
from sliceplane.lab.whatif.world import WhatIfWorld
from sliceplane.lab.wire import human_bytes


@cache
def steps(pods: int, nodes: int, **more: Any) -> tuple[EstimatedStep, ...]:
    return estimate(EstimateQuestion(pods=pods, nodes=nodes, **more))


@pytest.mark.parametrize(
    ("pods", "nodes", "slices"),
    [
        (20, 10, 1),  # KEP-0752, "Sample Case 2"
        (250, 10, 3),
        pytest.param(20_000, 5_000, 200, marks=pytest.mark.slow),  # "Sample Case 1"
    ],
)
def test_making_a_service_and_changing_one_pod_are_the_writes_that_the_kep_counts(
    pods: int, nodes: int, slices: int
) -> None:
    made, changed, _ = steps(pods, nodes)
    assert made.written is not None
    assert changed.written is not None
    assert (made.slices, made.written.creates, made.written.writes) == (slices, slices, slices)
    assert made.written.events == slices * nodes
    assert (changed.written.updates, changed.written.writes, changed.written.events) == (
        1,
        1,
        nodes,
    )


def test_a_rollout_is_run() -> None:
    rolled = steps(20, 10)[2].written
    assert rolled is not None
    assert 2 <= rolled.writes <= 40, "a Pod that comes or goes is a write at most"
    assert rolled.events == 10 * rolled.writes
    assert rolled.took_s > 5, "Pods take their time until they are ready"


def test_smaller_slices_are_more_writes_and_fewer_bytes_for_one_change() -> None:
    small, large = steps(20, 10, per_slice=5), steps(20, 10)
    assert (small[0].slices, large[0].slices) == (4, 1)
    first, second = small[1].written, large[1].written
    assert first is not None
    assert second is not None
    assert first.protobuf < second.protobuf / 2


def test_hints_make_slices_larger() -> None:
    plain, hinted = (
        steps(20, 10, traffic_distribution=wish)[0].written for wish in ("", "PreferSameZone")
    )
    assert plain is not None
    assert hinted is not None
    assert hinted.json > plain.json + 10 * 20 * len("forZones")


def test_what_is_made_up_is_as_a_cluster_that_was_made() -> None:
    """Its Pods and its Deployment are nothing that a controller would change."""
    state = build_state(EstimateQuestion(pods=6, nodes=3))
    world = WhatIfWorld(state, state.service("default", "web"), Running())
    world.converge()
    names = {pod.metadata.name for pod in world.state.pods()}
    assert names == {pod.metadata.name for pod in state.pods()}
    assert {pod.spec.node_name for pod in state.pods()} == {"node-1", "node-2", "node-3"}
    real = state_of(cart(6, a=1, b=1, c=1))
    (made,), (theirs,) = (known.raw(Deployments) for known in (world.state, real))
    assert decode_document(made.body)["status"]["readyReplicas"] == 6
    assert decode_document(theirs.body)["status"]["readyReplicas"] == 6


def run(*arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["estimate", *arguments])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    return done.stdout


def test_the_text_has_the_words_of_what_if() -> None:
    made, changed, rolled = (step.written for step in steps(20, 10))
    assert made is not None
    assert changed is not None
    assert rolled is not None
    text = " ".join(run().split())
    assert (
        "A Service of 20 Pods, watched by 10 Nodes it is made one Pod changes it is rolled out"
        in text
    )
    sizes = " ".join(human_bytes(step.protobuf) for step in (made, changed, rolled))
    assert f"writes of slices 1 1 {rolled.writes}" in text
    assert f"bytes sent, protobuf {sizes}" in text


def test_a_rollout_that_would_take_minutes_is_told_by_its_bound() -> None:
    text = " ".join(run("--pods", str(ROLLED_MAX + 1), "--nodes", "5").split())
    assert (
        f"Each Pod that comes or goes is a write at most: {2 * (ROLLED_MAX + 1):,} writes" in text
    )


def test_the_document_has_every_figure() -> None:
    document = json.loads(run("-o", "json", "--endpoints-per-slice", "5"))
    assert list(document) == [
        "pods",
        "nodes",
        "maxEndpointsPerSlice",
        "trafficDistribution",
        "created",
        "changed",
        "rolledOut",
    ]
    assert (document["created"]["slices"], document["created"]["writes"]) == (4, 4)
    assert document["created"]["bytes"]["json"] > document["created"]["bytes"]["protobuf"] > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 KB"),
        (26_423, "26.4 KB"),
        (999_700, "1 MB"),
        (2.2e14, "220 TB"),
    ],
)
def test_bytes_for_people(size: float, text: str) -> None:
    assert human_bytes(size) == text


@pytest.mark.parametrize(
    "arguments", [("--pods", "0"), ("--nodes", "0"), ("--endpoints-per-slice", "1001")]
)
def test_errors_say_what_may_be(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["estimate", *arguments])
    assert done.exit_code == 64
    assert "is not in the range" in done.output
