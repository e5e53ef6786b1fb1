"""Rules that somebody else deletes: they come back, they count, and health tells of them for a
while.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.node_proxies import make_proxy
from tests.proxy.test_node_proxy_shell import Runner, added, proxy_of, running, settled, synced
from tests.waiting import eventually

from sliceplane.node.io.healthz import health_document
from sliceplane.node.io.kernel.nft_backend import Nftables
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import CHECK_PERIOD_S
from sliceplane.node.nft.names import TABLE
from sliceplane.node.nft.objects import TableRef
from sliceplane.node.schedule import RECENT_S

pytestmark = pytest.mark.looptime


def put_back(proxy: NodeProxy) -> dict[tuple[str, ...], float]:
    (family,) = [
        each
        for each in proxy.metrics.families()
        if each.name == "sliceplane_proxy_rules_put_back_total"
    ]
    return {sample.labels: sample.value for sample in family.samples}


async def test_a_table_that_somebody_deleted_is_counted_and_health_tells_of_it_for_a_while() -> (
    None
):
    now = 1_800_000_000.0
    runner = Runner()
    proxy = make_proxy("node-1", Nftables(runner), clock=lambda: now)
    async with running(proxy):
        proxy.on_change(added())
        synced(proxy)
        await settled(proxy)
        assert put_back(proxy) == {("IPv4",): 0, ("IPv6",): 0}
        assert proxy.health().warnings == ()
        for times in (1, 2):
            runner.deleted = {TableRef("ip6", TABLE)}
            await asyncio.sleep(1.5 * CHECK_PERIOD_S)
            assert put_back(proxy)["IPv6",] == times
            assert not runner.deleted
        assert put_back(proxy) == {("IPv4",): 0, ("IPv6",): 2}
        document = health_document(proxy.health(), now)
        assert document["healthy"]
        (warning,) = document["warnings"]
        assert warning.startswith(
            "IPv6 rules were gone and were put back at 2027-01-15T08:00:00Z (2 times"
        )
        now += RECENT_S + 1
        assert proxy.health().warnings == (), "for a while"


async def test_a_deleted_table_that_a_change_meets_first_is_counted_once() -> None:
    runner = Runner()
    proxy = proxy_of(runner)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        runner.deleted, runner.failures = {TableRef("ip", TABLE)}, 2
        proxy.on_change(added())
        await eventually(lambda: runner.deleted, lambda deleted: not deleted)
        await settled(proxy)
        await asyncio.sleep(5 * CHECK_PERIOD_S)
        assert put_back(proxy) == {("IPv4",): 1}
