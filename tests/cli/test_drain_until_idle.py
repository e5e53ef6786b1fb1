"""``sliceplane drain --until-idle`` against a live plane, with node proxies on a kernel of paper whose
connections the test makes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from tests.cli.test_drain_command import deployment, drain, marked, ready_again
from tests.consume.drain.paper import paper_node
from tests.consume.drain.test_drain_live import NODES, Shop, node, served_shop
from tests.waiting import eventually

from sliceplane.api.errors import forbidden
from sliceplane.client import HttpClient
from sliceplane.client import drain as client_drain
from sliceplane.consume.drain.answer import CANNOT_COUNT
from sliceplane.testing import Plane


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        made.apply([node(name) for name in NODES])
        yield made


@pytest_asyncio.fixture
async def shop(plane: Plane) -> AsyncIterator[Shop]:
    """A Service of two Pods; every node counts connections."""
    async with served_shop(plane, NODES) as served:
        await served.open()
        await eventually(lambda: progress_of(plane), lambda found: all("flows" in p for p in found))
        yield served


async def progress_of(plane: Plane) -> list[dict[str, Any]]:
    leases = await asyncio.to_thread(plane.list, "leases", namespace="kube-node-lease")
    annotations = [lease["metadata"].get("annotations", {}) for lease in leases]
    found = [json.loads(each.get("sliceplane.dev/progress", "{}")) for each in annotations]
    return [progress for progress in found if progress] or [{}]


def address(shop: Shop, number: int) -> str:
    return str(shop.plane.get("pods", f"{shop.name}-{number}")["status"]["podIP"])


async def test_a_drain_waits_as_long_as_there_are_connections(shop: Shop) -> None:
    at = address(shop, 0)
    shop.papers["n-1"].connections[at] = 9
    shop.papers["n-3"].connections[at] = 5
    shop.papers["n-2"].connections[address(shop, 1)] = 7  # of a Pod that stays
    draining = asyncio.create_task(drain(shop, "pod", f"{shop.name}-0", "--until-idle", "--delete"))
    await eventually(lambda: shop.papers["n-3"].counted > 3)
    assert shop.papers["n-2"].counted <= 2, "the first count is for a start, one for the drain"
    shop.papers["n-1"].connections.clear()
    before = shop.papers["n-3"].counted
    await eventually(lambda: shop.papers["n-3"].counted > before + 3)
    assert not draining.done()
    assert "deletionTimestamp" not in shop.plane.get("pods", f"{shop.name}-0")["metadata"]
    shop.papers["n-3"].connections.clear()
    result = await draining
    assert result.exit_code == 0, result.output
    assert "no connection is established" in result.stdout
    waits = f"waits for 14 established connections to {at} on 2 nodes: n-1 9, n-3 5"
    assert waits in result.stderr
    assert f"waits for 5 established connections to {at} on 1 node: n-3 5" in result.stderr
    assert "deletionTimestamp" in shop.plane.get("pods", f"{shop.name}-0")["metadata"]


async def test_the_time_is_over_and_the_marks_are_taken_back(shop: Shop) -> None:
    at = address(shop, 1)
    shop.papers["n-2"].connections[at] = 3
    arguments = ("pod", f"{shop.name}-1", "--until-idle", "--evict", "-o", "json")
    counted = [{"node": "n-2", "connections": 3}]
    result = await eventually(
        lambda: drain(shop, *arguments, "--timeout", "4s"),  # a slow machine needs more attempts
        lambda result: json.loads(result.stdout)["pods"][0]["establishedConnections"] == counted,
    )
    assert json.loads(result.stdout)["outcome"] == "not idle"
    assert result.exit_code == 2, result.output
    assert marked(shop) == []
    await ready_again(shop, 2)
    text = f"no new connections, but 3 established connections to {at}"
    await eventually(
        lambda: drain(shop, *arguments[:3], "--timeout", "4s"),
        lambda result: text in " ".join(result.stdout.split()),
    )


async def test_nodes_that_cannot_count_are_named_first(shop: Shop) -> None:
    plane = shop.plane
    await asyncio.to_thread(plane.apply, [node("n-old")])
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(paper_node(shop.client, "n-old", beat_s=0.2))
        await eventually(lambda: progress_of(plane), lambda found: len(found) == len(NODES) + 1)
        arguments = ("pod", f"{shop.name}-0", "--timeout", "20s", "--until-idle")
        for more in ((), ("--dry-run",), ("--unknown", "fail")):
            refused = await drain(shop, *arguments, *more)
            assert (refused.exit_code, marked(shop)) == (2, []), refused.output
            said = " ".join(refused.stderr.split())
            assert f"not known n-old: {CANNOT_COUNT}" in said
            assert "sliceplane observe --conntrack" in said
        late = await drain(shop, *arguments, "--unknown", "after=1s")
        assert late.exit_code == 0, late.output
        assert f"not known of n-old ({CANNOT_COUNT})" in " ".join(late.stdout.split())
        assert (await drain(shop, *arguments[:2])).exit_code == 0, "not --until-idle"
        async with client_drain(
            shop.client, f"default/{shop.name}-1", timeout=3, until_idle=True
        ) as answer:
            assert answer.outcome == "cannot know"
    await asyncio.to_thread(plane.delete, "node", "n-old")


async def test_all_pods_of_a_deployment_are_waited_for(shop: Shop) -> None:
    await asyncio.to_thread(shop.plane.apply, deployment(shop.name))
    for number in range(2):
        shop.papers["n-1"].connections[address(shop, number)] = number + 1
    draining = asyncio.create_task(
        drain(shop, "deployment", shop.name, "--until-idle", "--force", "--timeout", "5m")
    )
    await eventually(lambda: shop.papers["n-1"].counted > 2)
    shop.papers["n-1"].connections.pop(address(shop, 0))
    counted = shop.papers["n-1"].counted
    await eventually(lambda: shop.papers["n-1"].counted > counted + 2)
    assert not draining.done()
    shop.papers["n-1"].connections.clear()
    result = await draining
    assert (result.exit_code, result.stdout.count("no connection is established")) == (0, 2)


async def test_who_may_not_request_counts_cannot_know(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = HttpClient.perform

    async def refuse(client: HttpClient, write: Any) -> Any:
        if write.resource.plural == "endpointslices" and write.verb == "patch":
            raise forbidden("endpointslices", "discovery.k8s.io", "web", "no right")
        return await perform(client, write)

    monkeypatch.setattr(HttpClient, "perform", refuse)
    result = await drain(shop, "pod", f"{shop.name}-0", "--until-idle")
    assert result.exit_code == 2, result.output
    assert "no right to patch endpointslices" in " ".join(result.stdout.split())
    monkeypatch.undo()
    assert marked(shop) == []
