"""How far a node is: what counts as held, when it is told, and the Lease over a real registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest
from tests.fakes.node_proxies import make_proxy
from tests.proxy.test_node_proxy_shell import Runner, added, synced
from tests.waiting import eventually

from sliceplane.api.core import Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import forbidden, not_found
from sliceplane.api.meta import ObjectMeta, revision_of
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Nodes, Services
from sliceplane.consume.io.reporting import report_progress
from sliceplane.consume.progress import (
    ANNOTATION_DEMAND,
    ANNOTATION_PROGRESS,
    ANNOTATION_REPORT,
    ANNOTATION_REVISION,
    CHANGED_PERIOD_S,
    IDLE_PERIOD_S,
    INPUTS_OLD_S,
    ON_DEMAND_PERIOD_S,
    UNASKED_MAX,
    UNASKED_S,
    Progress,
    read_report,
)
from sliceplane.consume.selections import ALL, SHARED
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.nft_backend import Nftables
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import digest_of

SERVED = (EndpointSlices.key, ALL)


def slice_of(revision: int, name: str = "s", **annotations: str) -> EndpointSlice:
    meta = ObjectMeta(
        namespace="ns", name=name, resource_version=str(revision), annotations=annotations or None
    )
    return EndpointSlice(metadata=meta)


def mark(revision: int) -> Mark:
    return Mark(EndpointSlices.key, str(revision))


def seen(progress: Progress, revision: int) -> None:
    """Everything up to *revision* was told."""
    progress.on_mark(*SERVED, mark(revision))


def told(progress: Progress, now: float) -> Any:
    return json.loads(progress.take_report(now))


# -- the core


def test_a_transaction_carries_what_was_seen_when_it_began() -> None:
    progress = Progress("n1", ("IPv4",))
    seen(progress, 7)
    progress.on_taken("IPv4")
    seen(progress, 9)
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
    seen(progress, 7)
    progress.on_idle("IPv4")
    assert progress.revision == 0
    progress.on_idle("IPv6")
    assert progress.revision == 7


def test_the_slowest_reading_counts_and_each_is_told() -> None:
    progress = Progress("n1", ("IPv4",))
    progress.on_change(Change(EndpointSlices.key, None, slice_of(5)), SHARED, 0.0)
    progress.on_mark(EndpointSlices.key, SHARED, mark(9))
    progress.on_mark(EndpointSlices.key, "zone=a", None)
    progress.on_mark(Services.key, ALL, Mark(Services.key, "6"))
    progress.on_idle("IPv4")
    assert progress.revision == 0, "the zone's slices were not listed yet"
    progress.on_mark(EndpointSlices.key, "zone=a", mark(8))
    assert progress.revision == 0
    progress.on_idle("IPv4")
    assert progress.revision == 8
    report = read_report(told(progress, 1000.0)["metadata"]["annotations"][ANNOTATION_PROGRESS])
    assert report is not None
    assert report.endpointslices == {
        SHARED: (9, digest_of([slice_of(5)])),
        "zone=a": (8, digest_of([])),
    }
    assert report.services == {ALL: (6, digest_of([]))}
    progress.on_dropped(EndpointSlices.key, "zone=a")
    assert progress.revision == 8, "the rules still have what it showed"
    progress.on_idle("IPv4")
    assert progress.revision == 9


def test_the_digest_is_of_the_version_that_is_held() -> None:
    progress = Progress("n1", ("IPv4",))
    progress.on_change(Change(EndpointSlices.key, None, slice_of(5)), ALL, 0.0)
    seen(progress, 5)
    progress.on_taken("IPv4")
    progress.on_change(Change(EndpointSlices.key, slice_of(5), slice_of(6)), ALL, 0.0)
    seen(progress, 6)
    progress.on_written("IPv4")
    place = (EndpointSlices.plural, ALL)
    assert progress.applied == {place: (5, digest_of([slice_of(5)]))}
    progress.on_idle("IPv4")
    assert progress.applied == {place: (6, digest_of([slice_of(6)]))}


def test_a_server_that_was_restored_from_a_backup_takes_the_version_back() -> None:
    progress = Progress("n1", ("IPv4",))
    seen(progress, 7)
    progress.on_idle("IPv4")
    seen(progress, 3)
    assert progress.revision == 7
    progress.on_idle("IPv4")
    assert progress.revision == 3, "a slice that is written at 5 now is not held"
    assert [revision_of(text) for text in ("12", "", "x", "-1", "²")] == [12, 0, 0, 0, 0]


def test_it_is_told_soon_after_a_change_and_now_and_then() -> None:
    progress = Progress("n1", ("IPv4",))
    assert progress.next_deadline() <= 1000.0
    told(progress, 1000.0)
    assert progress.next_deadline() == 1000.0 + IDLE_PERIOD_S
    progress.on_change(Change(EndpointSlices.key, None, slice_of(7)), ALL, 1000.0)
    seen(progress, 7)
    assert progress.next_deadline() == 1000.0 + IDLE_PERIOD_S, "the kernel does not hold it yet"
    progress.on_idle("IPv4")
    assert progress.next_deadline() == 1000.0 + CHANGED_PERIOD_S
    told(progress, 1010.0)
    progress.on_failure()
    assert progress.next_deadline() == 1010.0 + CHANGED_PERIOD_S
    told(progress, 1020.0)
    seen(progress, 99)  # a bookmark, as there is one every minute
    progress.on_idle("IPv4")
    assert progress.next_deadline() == 1020.0 + IDLE_PERIOD_S
    progress.on_problems(("IPv4 rules are not written: no buffer space",))
    assert progress.next_deadline() == 1020.0 + CHANGED_PERIOD_S
    assert progress.on_demand_deadline() == 1020.0 + ON_DEMAND_PERIOD_S, (
        "trouble does not wait for the beat"
    )


def test_connections_are_in_the_lease_that_is_written_anyway() -> None:
    """They are no reason for a report on demand, and without any the Lease is as before."""
    counting, plain = Progress("n1", ("IPv4",)), Progress("n1", ("IPv4",))
    counting.on_demand("")
    assert counting.take_report(1000.0) == plain.take_report(1000.0)
    assert counting.next_deadline() == 1000.0 + IDLE_PERIOD_S
    counting.on_demand("0a1b2c3d:7,4e5f6a7b:0")
    assert counting.next_deadline() == 1000.0 + CHANGED_PERIOD_S
    assert counting.on_demand_deadline() is None
    annotations = told(counting, 1010.0)["metadata"]["annotations"]
    assert annotations.pop(ANNOTATION_DEMAND) == "0a1b2c3d:7,4e5f6a7b:0"
    assert annotations == told(plain, 1010.0)["metadata"]["annotations"]
    assert counting.next_deadline() == 1010.0 + IDLE_PERIOD_S, "the same totals are not news"
    counting.on_demand("0a1b2c3d:9,4e5f6a7b:0")
    assert counting.next_deadline() == 1010.0 + CHANGED_PERIOD_S
    told(counting, 1020.0)
    counting.on_demand("")
    assert counting.next_deadline() == 1020.0 + CHANGED_PERIOD_S
    assert told(counting, 1030.0)["metadata"]["annotations"][ANNOTATION_DEMAND] == ""
    assert counting.next_deadline() == 1030.0 + IDLE_PERIOD_S


def test_since_when_the_inputs_are_old_is_told_and_does_not_move() -> None:
    progress = Progress("n1", ("IPv4",))

    def inputs_since(age_s: float, now: float) -> int:
        progress.on_inputs(age_s, now)
        annotations = told(progress, now)["metadata"]["annotations"]
        return int(json.loads(annotations[ANNOTATION_PROGRESS]).get("inputs_since", 0))

    assert inputs_since(inf, 1000.0) == 0, "before the first list there is nothing to be old"
    assert inputs_since(INPUTS_OLD_S - 1.0, 1000.0) == 0
    assert inputs_since(200.0, 1500.0) == 1300
    assert inputs_since(260.0, 1561.0) == 1300
    progress.on_idle("IPv4")
    progress.on_inputs(0.0, 1600.0)
    assert progress.next_deadline() == 1561.0 + CHANGED_PERIOD_S, "that it is over is told soon"
    assert inputs_since(0.0, 1600.0) == 0


def test_a_slice_that_asks_for_a_report_gets_one_when_the_kernel_has_it() -> None:
    progress = Progress("n1", ("IPv4",))
    asks = slice_of(5, **{ANNOTATION_REPORT: "before/0"})
    progress.on_change(Change(EndpointSlices.key, None, asks), ALL, 900.0)
    assert not progress.has_requests, "at the start everything is told anyway"
    told(progress, 1000.0)
    again = slice_of(7, **{ANNOTATION_REPORT: "drain-1/0"})
    progress.on_change(Change(EndpointSlices.key, asks, again), ALL, 1001.0)
    seen(progress, 7)
    assert progress.has_requests
    assert progress.on_demand_deadline() is None, "the kernel does not have it"
    progress.on_taken("IPv4")
    progress.on_written("IPv4")
    assert progress.on_demand_deadline() == 1001.0
    progress.take_report(1001.0, is_periodic=False)
    assert not progress.has_requests
    assert progress.next_deadline() == 1000.0 + IDLE_PERIOD_S, "the beat goes on as it did"
    same = slice_of(8, **{ANNOTATION_REPORT: "drain-1/0"})
    progress.on_change(Change(EndpointSlices.key, again, same), ALL, 1002.0)
    assert not progress.has_requests, "another change of the slice asks for nothing"


def test_nodes_spread_their_answers_and_each_answers_at_its_own_time() -> None:
    def due(node: str, asked: str) -> float:
        progress = Progress(node, ("IPv4",))
        told(progress, 0.0)
        progress.on_change(
            Change(EndpointSlices.key, None, slice_of(7, **{ANNOTATION_REPORT: asked})), ALL, 100.0
        )
        seen(progress, 7)
        progress.on_idle("IPv4")
        deadline = progress.on_demand_deadline()
        assert deadline is not None
        return deadline - 100.0

    spread = sorted(due(f"node-{number}", "a/10") for number in range(1000))
    assert 0 <= spread[0] < 0.1 < 9.9 < spread[-1] <= 10, (spread[0], spread[-1])
    assert max(sum(second <= value < second + 1 for value in spread) for second in range(10)) < 150
    assert due("n1", "a/10") == due("n1", "a/10") != due("n1", "b/10")
    assert due("n1", "a/9999") <= 30
    assert max(due("n1", asked) for asked in ("a", "a/x", "a/-1")) <= 1


def test_the_lease() -> None:
    progress = Progress("n1", ("IPv4",))
    for number in (1, 2):
        node = Node(metadata=ObjectMeta(name=f"n{number}", uid=f"u{number}"))
        progress.on_change(Change(Nodes.key, None, node), ALL, 0.0)
    seen(progress, 7)
    progress.on_idle("IPv4")
    found = told(progress, 1_800_000_000.0)
    assert found["metadata"] == {
        "name": "sliceplane-proxy-n1",
        "namespace": "kube-node-lease",
        "labels": {"sliceplane.dev/component": "node-proxy"},
        "annotations": {
            ANNOTATION_REVISION: "7",
            ANNOTATION_PROGRESS: '{"endpointslices":{"all":[7,"0000000000000000"]}}',
        },
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}],
    }
    assert found["spec"] == {
        "holderIdentity": "n1",
        "leaseDurationSeconds": 90,
        "renewTime": "2027-01-15T08:00:00.000000Z",
    }


# -- the shell


class Server:
    """What is needed of a client."""

    def __init__(self) -> None:
        self.leases: dict[str, Any] = {}
        self.requests: list[str] = []
        self.refuse = False

    async def perform(self, write: Write) -> bytes:
        self.requests.append(f"{write.verb} {write.patch_type}")
        document = json.loads(write.body)
        if self.refuse:
            raise forbidden("leases", "coordination.k8s.io", write.name, "no")
        if write.patch_type != "apply" and write.name not in self.leases:
            raise not_found("leases", "coordination.k8s.io", write.name)
        self.leases[write.name or document["metadata"]["name"]] = document
        return write.body

    def revision(self) -> str:
        return str(
            self.leases["sliceplane-proxy-node-1"]["metadata"]["annotations"][ANNOTATION_REVISION]
        )


@asynccontextmanager
async def reporting(server: Server, runner: Runner) -> AsyncIterator[NodeProxy]:
    loop = asyncio.get_running_loop()
    proxy = make_proxy("node-1", Nftables(runner), families=("IPv4",), clock=loop.time)
    report = report_progress(server, proxy, Rng(1), loop.time)  # type: ignore[arg-type]  # as much of a client as it needs
    tasks = [asyncio.create_task(proxy.run()), asyncio.create_task(report)]
    try:
        yield proxy
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_revision(server: Server, wanted: str) -> None:
    await eventually(
        lambda: server.leases and server.revision(), lambda revision: revision == wanted
    )


@pytest.mark.looptime
async def test_rules_that_the_kernel_holds_are_told() -> None:
    server, runner = Server(), Runner()
    async with reporting(server, runner) as proxy:
        proxy.on_change(added())
        proxy.on_change(Change(EndpointSlices.key, None, slice_of(5)))
        proxy.on_mark(EndpointSlices.key, "", mark(5))
        await asyncio.sleep(600)
        assert server.requests == [], "nothing is told before the first rules"
        synced(proxy)
        await until_revision(server, "5")
        assert server.requests[:2] == ["patch merge", "patch apply"], (
            "a role can allow its name, of which there is none yet"
        )
        runner.open.clear()
        proxy.on_change(added(2))
        proxy.on_change(Change(EndpointSlices.key, None, slice_of(8, "t")))
        proxy.on_mark(EndpointSlices.key, "", mark(8))
        await asyncio.sleep(600)
        assert server.revision() == "5", "the kernel has not taken it yet"
        runner.open.set()
        await until_revision(server, "8")
        proxy.on_change(Change(EndpointSlices.key, slice_of(8, "t"), slice_of(11, "t")))
        proxy.on_mark(EndpointSlices.key, "", mark(11))
        await until_revision(server, "11")
        proxy.on_mark(EndpointSlices.key, "", mark(12))
        await until_revision(server, "12")


@pytest.mark.looptime
async def test_a_process_that_was_stopped_tells_what_is_true_when_it_goes_on() -> None:
    """As after SIGSTOP and SIGCONT: timers ring first, what arrived meanwhile is read after
    them.
    """
    server, runner = Server(), Runner()
    loop = asyncio.get_running_loop()
    stood_still_s = 0.0

    def clock() -> float:
        return loop.time() + stood_still_s

    proxy = make_proxy("node-1", Nftables(runner), families=("IPv4",), clock=clock)
    report = report_progress(server, proxy, Rng(1), clock, spread_s=0.0)  # type: ignore[arg-type]  # as much as it needs
    began = loop.time()
    tasks = [asyncio.create_task(proxy.run()), asyncio.create_task(report)]
    proxy.on_change(Change(EndpointSlices.key, None, slice_of(5)))
    proxy.on_mark(EndpointSlices.key, "", mark(5))
    synced(proxy)
    await until_revision(server, "5")
    for seconds, revision in ((60, 8), (3600, 9)):
        await asyncio.sleep(CHANGED_PERIOD_S - (loop.time() - began) % CHANGED_PERIOD_S - 0.01)
        before = len(server.requests)
        stood_still_s += (
            seconds  # and in 10 ms the timer of a beat rings that should have rung long ago
        )
        loop.call_later(0.3, proxy.on_mark, EndpointSlices.key, "", mark(revision))
        await eventually(lambda before=before: len(server.requests) > before)  # type: ignore[misc]
        assert server.revision() == str(revision), "the first report already"
        assert "inputs_since" not in str(server.leases), "it hears of the API server"
        began = loop.time()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.looptime
async def test_a_report_on_demand_does_not_wait_for_the_beat() -> None:
    server, runner = Server(), Runner()
    async with reporting(server, runner) as proxy:
        proxy.on_change(added())
        synced(proxy)
        proxy.on_mark(EndpointSlices.key, "", mark(4))
        await eventually(lambda: server.leases, bool)
        asks = slice_of(5, **{ANNOTATION_REPORT: "now/0"})
        proxy.on_change(Change(EndpointSlices.key, None, asks))
        proxy.on_mark(EndpointSlices.key, "", mark(5))
        began = asyncio.get_running_loop().time()
        await until_revision(server, "5")
        assert asyncio.get_running_loop().time() - began < 1, "the beat is 10 s"


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


def test_ports_that_no_balancer_asked_for_ten_minutes_are_told() -> None:
    progress = Progress("node-1", ("IPv4",))
    progress.take_report(1000.0)
    progress.on_health_check_requests({31234: 1000.0, 31235: 1599.0}, 1000.0 + UNASKED_S - 1)
    assert progress.report().unasked == ()
    before = progress.next_deadline()
    progress.on_health_check_requests({31234: 1000.0, 31235: 1599.0}, 1000.0 + UNASKED_S)
    assert progress.report().unasked == (31234,)
    assert progress.next_deadline() < before, "something has changed"
    progress.on_health_check_requests(dict.fromkeys(range(1, 1000), 0.0), 1000.0)
    assert len(progress.report().unasked) == UNASKED_MAX
