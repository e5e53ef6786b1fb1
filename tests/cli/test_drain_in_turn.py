"""``sliceplane drain deployment``: Pod by Pod, with evictions, and what it refuses to start."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from tests.consume.drain.paper import paper_node
from tests.waiting import eventually

from sliceplane.api.discovery import ANNOTATION_DRAIN
from sliceplane.api.errors import forbidden
from sliceplane.cli.main import main
from sliceplane.client import connect
from sliceplane.client import drain as client_drain
from sliceplane.consume.io import draining
from sliceplane.consume.io.drain_reporter import SilentReporter
from sliceplane.diagnose.io.rolling_drain import RollingDrain
from sliceplane.slices import facts
from sliceplane.testing import Plane

REPLICAS = 3
NODES = ("node-1", "node-2", "node-3")
WEB: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "example.org/web:1"}]},
            },
        },
    },
]


def budget(**spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "web"}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"selector": selector, **spec},
    }


@pytest.fixture
def plane() -> Iterator[Plane]:
    with Plane(nodes=len(NODES)) as made:
        made.apply(WEB)
        made.wait_for(lambda: ready(made) == REPLICAS)
        yield made


@pytest_asyncio.fixture
async def reporting(plane: Plane) -> AsyncIterator[Plane]:
    """Every node reports."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.kubeconfig))
        for name in NODES:
            await stack.enter_async_context(paper_node(client, name, beat_s=0.2, counts=True))
        await eventually(
            lambda: asyncio.to_thread(plane.list, "leases", namespace="kube-node-lease"),
            lambda leases: sum("flows" in str(lease) for lease in leases) >= len(NODES),
        )
        yield plane


def ready(plane: Plane) -> int:
    return sum(endpoint.ready for endpoint in plane.endpoints("web"))


def names(plane: Plane) -> set[str]:
    return {pod["metadata"]["name"] for pod in plane.list("pods")}


def marked(plane: Plane) -> list[str]:
    heads = [pod["metadata"] for pod in plane.list("pods")]
    return [head["name"] for head in heads if ANNOTATION_DRAIN in head.get("annotations", {})]


async def drain(plane: Plane, *arguments: str) -> Result:
    everything = ["drain", "deployment", "web", *arguments, "--kubeconfig", str(plane.kubeconfig)]
    return await asyncio.to_thread(CliRunner().invoke, main, everything)


class Least:
    """The least number of ready endpoints while it looks."""

    def __init__(self, plane: Plane) -> None:
        self.value = REPLICAS
        self._plane = plane
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Least:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ends.wait(0.01):
            self.value = min(self.value, ready(self._plane))


@pytest.mark.parametrize("removal", [("--evict",), ("--delete", "--until-idle")])
async def test_one_pod_at_a_time_and_the_next_waits_for_its_replacement(
    reporting: Plane, removal: tuple[str, ...]
) -> None:
    plane = reporting
    plane.apply(budget(maxUnavailable=1))
    before = names(plane)
    with Least(plane) as least:
        result = await drain(plane, *removal, "-o", "json")
    assert result.exit_code == 0, result.output
    pods = json.loads(result.stdout)["pods"]
    assert {pod["pod"].rpartition("/")[2] for pod in pods} == before
    assert [pod["outcome"] for pod in pods] == ["drained"] * REPLICAS
    assert least.value == REPLICAS - 1
    await eventually(lambda: asyncio.to_thread(ready, plane), lambda number: number == REPLICAS)


async def test_a_budget_that_allows_nothing_stops_the_drain_and_no_pod_goes(
    reporting: Plane,
) -> None:
    plane = reporting
    plane.apply(budget(minAvailable=REPLICAS))
    before = names(plane)
    with Least(plane) as least:
        result = await drain(plane, "--delete", "--timeout", "2s")
    assert result.exit_code == 1, result.output
    assert "PodDisruptionBudget web allows no disruption; 3 Pods remain" in " ".join(
        result.stdout.split()
    )
    assert (names(plane), marked(plane), least.value) == (before, [], REPLICAS)


async def test_a_dry_run_prints_the_plan_and_marks_nothing(reporting: Plane) -> None:
    result = await drain(reporting, "--dry-run", "--force")
    assert result.exit_code == 0, result.output
    assert "it can be drained; nothing was marked (--dry-run)" in result.stdout
    assert "default/web" in result.stderr
    refused = await drain(reporting, "--dry-run")  # all three together are the last ones
    assert (refused.exit_code, "last ready endpoint" in refused.stdout) == (1, True), refused.output
    assert "--evict takes Pod by Pod" in " ".join(refused.stdout.split())
    rolling = await drain(reporting, "--dry-run", "--evict")
    assert (rolling.exit_code, "it can be drained" in rolling.stdout) == (0, True), rolling.output
    assert marked(reporting) == []


async def test_a_drain_that_cannot_end_does_not_begin(plane: Plane) -> None:
    """No node reports, as beside kube-proxy: nothing is marked, not even for the time-out."""
    with Least(plane) as least:
        result = await drain(plane, "--evict", "--timeout", "60s")
    assert result.exit_code == 2, result.output
    assert all(name in result.stdout for name in NODES)
    assert (least.value, marked(plane)) == (REPLICAS, [])
    done = await drain(plane, "--evict", "--unknown", "after=0.1s")
    assert done.exit_code == 0, done.output
    assert "not known of node-1" in " ".join(done.stdout.split())


@pytest.fixture
def heedless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice controller that does not know the mark, as kube-controller-manager's."""
    monkeypatch.setattr(facts, "ANNOTATION_DRAIN", "example.org/unknown")
    monkeypatch.setattr(draining, "HONOURED_S", 0.5)


async def test_a_mark_that_is_ignored_ends_the_drain_with_the_reason(
    heedless: None, reporting: Plane
) -> None:
    pod = sorted(names(reporting))[0]
    arguments = ["drain", "pod", pod, "--kubeconfig", str(reporting.kubeconfig)]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    text = " ".join(result.stdout.split())
    assert result.exit_code == 1, result.output
    assert f"slices still call default/{pod} ready: their controller ignores the mark" in text
    assert "Use --evict or --delete" in text
    assert (marked(reporting), ready(reporting)) == ([], REPLICAS)


async def test_pods_whose_mark_is_ignored_are_removed_first(
    heedless: None, reporting: Plane
) -> None:
    plane = reporting
    before = names(plane)
    with Least(plane) as least:
        result = await drain(plane, "--evict", "-o", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {pod["pod"].rpartition("/")[2] for pod in document["pods"]} == before
    assert document["markIgnored"] is True
    assert least.value == REPLICAS - 1


async def test_a_program_that_drains_itself_waits_although_its_mark_is_ignored(
    heedless: None, reporting: Plane
) -> None:
    """Its block must not begin early: requests still arrive."""
    pod = f"default/{sorted(names(reporting))[0]}"
    began = time.monotonic()
    async with connect(reporting.kubeconfig) as client, client_drain(client, pod, timeout=2) as end:
        assert end.outcome == "time over"
    assert time.monotonic() - began >= 2


@pytest.mark.parametrize(
    "flags", [("--evict", "--delete"), ("--dry-run", "--undo"), ("--dry-run", "--wait-only")]
)
async def test_flags_that_contradict_each_other_are_refused(
    plane: Plane, flags: tuple[str, ...]
) -> None:
    result = await drain(plane, *flags)
    assert (result.exit_code, "leave" in result.output) == (64, True), result.output
    assert (marked(plane), len(names(plane))) == ([], REPLICAS)


async def test_a_drain_without_the_right_to_read_budgets_says_so(reporting: Plane) -> None:
    async def refused() -> Any:
        raise forbidden("poddisruptionbudgets", "policy", "", "no right")

    client: Any = SimpleNamespace(list=lambda *_, **__: refused())
    rolling = RollingDrain(client, "default/web", clock=time.time, reporter=SilentReporter())
    assert await rolling._budgets() == ()
    assert "no right to list" in rolling._unread[0]
