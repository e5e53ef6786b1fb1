"""``sliceplane drain``: what it takes, what it prints and how it ends, with node proxies on a kernel of paper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from tests.drain.paper import paper_node
from tests.drain.test_drain_live import NODES, Shop, node
from tests.waiting import eventually

from sliceplane.cli.main import main
from sliceplane.client import connect
from sliceplane.testing import Plane


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        made.apply([node(name) for name in NODES])
        yield made


@pytest_asyncio.fixture
async def shop(plane: Plane) -> AsyncIterator[Shop]:
    """A Service of two Pods; every node tells."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.kubeconfig))
        papers = {name: await stack.enter_async_context(paper_node(client, name, beat_s=0.2)) for name in NODES}
        made = Shop(plane, client, papers)
        await made.open()
        yield made


async def drain(shop: Shop, *arguments: str) -> Result:
    # By way of main: click keeps the help option that a command was first asked with.
    everything = ["drain", *arguments, "--kubeconfig", str(shop.plane.kubeconfig)]
    return await asyncio.to_thread(CliRunner().invoke, main, everything)


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def test_all_pods_of_a_deployment_and_one_of_them_again(shop: Shop) -> None:
    await asyncio.to_thread(shop.plane.apply, deployment(shop.name))
    result = await drain(shop, "deployment", shop.name, "-o", "json")
    assert result.exit_code == 0, result.output
    pods = json.loads(result.output)["pods"]
    assert [(pod["pod"], pod["outcome"]) for pod in pods] == [
        (f"default/{shop.name}-{number}", "drained") for number in range(2)
    ]
    assert not [endpoint for endpoint in shop.plane.endpoints(shop.name) if endpoint.ready]
    again = await drain(shop, f"deploy/{shop.name}")
    assert (again.exit_code, again.output.count("drained: 3 nodes hold")) == (0, 2), again.output


async def test_a_node_that_does_not_follow_is_named_and_the_code_is_1(shop: Shop) -> None:
    assert (await drain(shop, "pod", f"{shop.name}-0", "--delete")).exit_code == 0
    assert "deletionTimestamp" in shop.plane.get("pods", f"{shop.name}-0")["metadata"]
    shop.papers["n-2"].open.clear()
    result = await eventually(
        partial(drain, shop, f"pod/default/{shop.name}-1", "--timeout", "1"),
        # until the controller has told that it leaves, no node is named
        lambda result: [name for name in ("n-1", "n-2", "n-3") if name in result.output] == ["n-2"],
    )
    assert result.exit_code == 1, result.output
    shop.papers["n-2"].open.set()
    assert (await drain(shop, "pod", f"{shop.name}-1", "--wait-only")).exit_code == 0


async def test_a_node_that_tells_nothing_is_named_and_the_code_is_2_unless_it_is_let_go(shop: Shop) -> None:
    await asyncio.to_thread(shop.plane.apply, [node("foreign")])
    try:
        for unknown, code in (("fail", 2), ("after=1s", 0)):
            result = await drain(shop, "po", f"{shop.name}-0", "--unknown", unknown)
            assert (result.exit_code, "foreign" in result.output) == (code, True), result.output
    finally:
        await asyncio.to_thread(shop.plane.delete, "node", "foreign")


async def test_what_is_not_there_or_no_question(shop: Shop) -> None:
    """The nearest name is told; what is asked wrongly is said before anything is asked of the cluster."""
    result = await drain(shop, "pod", f"{shop.name}-O")
    assert (result.exit_code, f"there is no Pod default/{shop.name}-O" in result.output) == (2, True), result.output
    for arguments, sentence in (
        (("service", "web"), "say what is to be drained: pod NAME, deployment NAME or node NAME"),
        (("pod", "web", "--unknown", "never"), "--unknown: "),
    ):
        result = await drain(shop, *arguments)
        assert (result.exit_code != 0, sentence in result.output) == (True, True), result.output
