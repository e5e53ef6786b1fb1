"""How far a node is: what counts as held, when it is told, and the Lease over a real registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.proxy.test_node_proxy_shell import Runner, added, synced
from tests.waiting import eventually

from sliceplane.api.core import Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import forbidden, not_found
from sliceplane.api.meta import ObjectMeta, revision_of
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices
from sliceplane.informer.cache import Change
from sliceplane.kit.rng import Rng
from sliceplane.proxy.progress import ANNOTATION_REVISION, CHANGED_PERIOD_S, IDLE_PERIOD_S, Progress
from sliceplane.shell.node.kernel.nft_backend import Nftables
from sliceplane.shell.node.node_proxy import NodeProxy
from sliceplane.shell.node.report import report_progress


def slice_of(revision: int) -> EndpointSlice:
    return EndpointSlice(metadata=ObjectMeta(namespace="ns", name="s", resource_version=str(revision)))


def told(progress: Progress, now: float) -> Any:
    return json.loads(progress.take_report(now))


# -- the core -------------------------------------------------------------------------------------------


def test_a_transaction_carries_what_was_seen_when_it_began() -> None:
    progress = Progress("n1", ("IPv4",))
    progress.on_object(slice_of(7))
    progress.on_taken("IPv4")
    progress.on_object(slice_of(9))
    assert progress.revision == 0
    progress.on_written("IPv4")
    assert progress.revision == 7
    progress.on_taken("IPv4")  # refused: nothing more is held
    assert progress.revision == 7
    progress.on_taken("IPv4")
    progress.on_written("IPv4")
    assert progress.revision == 9


def test_the_slower_family_counts() -> None:
    progress = Progress("n1", ("IPv4", "IPv6"))
    progress.on_object(slice_of(7))
    progress.on_idle("IPv4")
    assert progress.revision == 0
    progress.on_idle("IPv6")
    assert progress.revision == 7


def test_revisions_do_not_go_back() -> None:
    progress = Progress("n1", ("IPv4",))
    progress.on_object(slice_of(7))
    progress.on_object(slice_of(3))
    progress.on_idle("IPv4")
    assert progress.revision == 7
    assert [revision_of(text) for text in ("12", "", "x", "-1", "²")] == [12, 0, 0, 0, 0]


def test_it_is_told_soon_after_a_change_and_now_and_then() -> None:
    progress = Progress("n1", ("IPv4",))
    assert progress.next_deadline() <= 1000.0
    told(progress, 1000.0)
    assert progress.next_deadline() == 1000.0 + IDLE_PERIOD_S
    progress.on_object(slice_of(7))
    assert progress.next_deadline() == 1000.0 + IDLE_PERIOD_S, "the kernel does not hold it yet"
    progress.on_idle("IPv4")
    assert progress.next_deadline() == 1000.0 + CHANGED_PERIOD_S
    told(progress, 1010.0)
    progress.on_failure()
    assert progress.next_deadline() == 1010.0 + CHANGED_PERIOD_S


def test_the_lease() -> None:
    progress = Progress("n1", ("IPv4",))
    progress.on_object(Node(metadata=ObjectMeta(name="n1", uid="u1")))
    progress.on_object(Node(metadata=ObjectMeta(name="n2", uid="u2")))
    progress.on_object(slice_of(7))
    progress.on_idle("IPv4")
    found = told(progress, 1_800_000_000.0)
    assert found["metadata"] == {
        "name": "sliceplane-proxy-n1",
        "namespace": "kube-node-lease",
        "labels": {"sliceplane.dev/component": "node-proxy"},
        "annotations": {ANNOTATION_REVISION: "7"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}],
    }
    assert found["spec"] == {
        "holderIdentity": "n1",
        "leaseDurationSeconds": 90,
        "renewTime": "2027-01-15T08:00:00.000000Z",
    }


# -- the shell ------------------------------------------------------------------------------------------


class Server:
    """What is needed of a client."""

    def __init__(self) -> None:
        self.leases: dict[str, Any] = {}
        self.requests: list[str] = []
        self.refuse = False

    async def perform(self, write: Write) -> bytes:
        self.requests.append(write.verb)
        document = json.loads(write.body)
        if self.refuse:
            raise forbidden("leases", "coordination.k8s.io", write.name, "no")
        if write.verb == "patch" and write.name not in self.leases:
            raise not_found("leases", "coordination.k8s.io", write.name)
        self.leases[write.name or document["metadata"]["name"]] = document
        return write.body

    def revision(self) -> str:
        return str(self.leases["sliceplane-proxy-node-1"]["metadata"]["annotations"][ANNOTATION_REVISION])


@asynccontextmanager
async def reporting(server: Server, runner: Runner) -> AsyncIterator[NodeProxy]:
    loop = asyncio.get_running_loop()
    proxy = NodeProxy("node-1", Nftables(runner), families=("IPv4",), clock=loop.time)
    report = report_progress(server, proxy, Rng(1), loop.time)  # type: ignore[arg-type]  # as much of a client as it needs
    tasks = [asyncio.create_task(proxy.run()), asyncio.create_task(report)]
    try:
        yield proxy
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_revision(server: Server, wanted: str) -> None:
    await eventually(lambda: server.leases and server.revision(), lambda revision: revision == wanted)


@pytest.mark.looptime
async def test_rules_that_the_kernel_holds_are_told() -> None:
    server, runner = Server(), Runner()
    async with reporting(server, runner) as proxy:
        proxy.on_change(added())
        proxy.on_change(Change(EndpointSlices.key, None, slice_of(5)))
        await asyncio.sleep(600)
        assert server.requests == [], "nothing is told before the first rules"
        synced(proxy)
        await until_revision(server, "5")
        assert server.requests[:2] == ["patch", "create"]
        runner.open.clear()
        proxy.on_change(added(2))
        proxy.on_change(Change(EndpointSlices.key, None, slice_of(8)))
        await asyncio.sleep(600)
        assert server.revision() == "5", "the kernel has not taken it yet"
        runner.open.set()
        await until_revision(server, "8")
        proxy.on_change(Change(EndpointSlices.key, slice_of(8), slice_of(11)))
        await until_revision(server, "11")


@pytest.mark.looptime
async def test_a_server_that_refuses_is_asked_again_and_the_rules_are_written() -> None:
    server, runner = Server(), Runner()
    server.refuse = True
    async with reporting(server, runner) as proxy:
        synced(proxy)
        await eventually(lambda: len(server.requests), lambda count: count >= 3)
        proxy.on_change(added())
        server.refuse = False
        await until_revision(server, "0")
        assert any("172.30.0.1" in text for text in runner.texts)
