"""Services with one endpoint: packets arrive without a chain, and none is lost on the way to
several and back.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.kernel.cluster import VIP, Cluster, make_slice, running, service
from tests.kernel.listing import listed
from tests.kernel.load import load
from tests.kernel.netns import Host, Net
from tests.nft.older_layout import in_the_older_layout
from tests.waiting import eventually

from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.io.kernel.nft_backend import NftRunner
from sliceplane.node.nft.layout import ENDPOINTS_CHECK
from sliceplane.node.nft.table import NFT_FAMILIES, NftRules, nft_plane
from sliceplane.node.plane import NodePlaneConfig

pytestmark = pytest.mark.kernel

RATE = 300.0  # requests a second in each family
STICKY = {"sessionAffinity": "ClientIP"}


@pytest.fixture(scope="module")
def client(net: Net, backends: list[Host]) -> Host:
    return net.add_host("client", ip4="10.10.0.1/16", ip6="fd10::1/64")


def table(host: Host, cluster: Cluster, family: Family) -> dict[str, Any]:
    plane = cluster.backend.plane(family, NodePlaneConfig(node_name="node-1"))
    assert isinstance(plane.rules, NftRules)
    return listed(host, plane.rules.table)


def of_ports(found: dict[str, Any]) -> list[str]:
    """Chains of service ports, and maps for them."""
    names = [name for name in found if name.startswith(("chain service-", "container endpoints-"))]
    return [name for name in names if name != f"chain {ENDPOINTS_CHECK}"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_packets_arrive_without_a_chain(
    client: Host, backends: list[Host], family: Family
) -> None:
    async with running(client) as cluster:
        cluster.put(service(), make_slice(family, backends[:1]))
        cluster.synced()
        await cluster.written()
        found = table(client, cluster, family)
        assert of_ports(found) == []
        assert len(found["container single-endpoints"]) == 1 + 2, "a port for TCP and one for UDP"
        assert set(await cluster.ask(VIP[family], count=5)) == {"b1"}
        assert set(await cluster.ask(VIP[family], 53, "udp", count=5)) == {"b1"}
        cluster.put(make_slice(family, backends[1:2], version=2))
        await cluster.written()
        assert set(await cluster.ask(VIP[family], count=5)) == {"b2"}
        assert set(await cluster.ask(VIP[family], 53, "udp", count=5)) == {"b2"}


def no_deadline(deadlines: list[float | None]) -> bool:
    """What is kept for a while is gone, too."""
    return deadlines == [None] * len(FAMILIES)


async def test_no_request_fails_from_one_endpoint_to_two_and_back(
    client: Host, backends: list[Host]
) -> None:
    """Also while the only one is another, and while affinity comes and goes."""
    one, two, _ = backends
    steps: list[tuple[dict[str, Any], list[Host]]] = [
        ({}, [one]),
        ({}, [one, two]),
        ({}, [two]),
        ({}, [one]),
        (STICKY, [one]),
        ({}, [one]),
        ({}, [two, one]),
    ]
    async with running(client) as cluster:
        cluster.put(service(), *(make_slice(family, [one]) for family in FAMILIES))
        cluster.synced()
        await cluster.written()
        async with (
            load(client, VIP["IPv4"], RATE) as first,
            load(client, VIP["IPv6"], RATE) as second,
        ):
            for change in range(15 * len(steps)):
                spec, hosts = steps[change % len(steps)]
                cluster.put(
                    service(**spec),
                    *(make_slice(family, hosts, version=change + 2) for family in FAMILIES),
                )
                await cluster.written()
                await (first, second)[change % 2].more(3)
                if change % 50 == 49:
                    await eventually(
                        lambda: [plane.schedule.next_deadline() for plane in cluster.proxy._planes],
                        no_deadline,
                    )
            tallies = [await first.tally(), await second.tally()]
    for tally in tallies:
        tally.assert_none_failed()
        assert set(tally.answers) == {"b1", "b2"}


async def test_a_table_of_an_older_layout_is_replaced_without_a_gap(
    client: Host, backends: list[Host]
) -> None:
    """That of a release in which every destination had a chain."""
    runner = NftRunner(netns=client.netns)
    for family in FAMILIES:
        plane = nft_plane(family, NodePlaneConfig(node_name="node-1"))
        plane.on_service(None, service(), 0.0)
        plane.on_slice(None, make_slice(family, backends[:1]), 0.0)
        plane.on_synced(0.0)
        transaction = plane.take_transaction(0.0)
        assert transaction is not None
        await runner.write(in_the_older_layout(transaction))
        found = listed(client, plane.rules.table)
        assert "container single-endpoints" not in found
        assert of_ports(found)
        assert plane.rules.table.family == NFT_FAMILIES[family]
    async with load(client, VIP["IPv4"], RATE) as first, load(client, VIP["IPv6"], RATE) as second:
        await first.more()
        await second.more()
        async with running(client) as cluster:
            cluster.put(service(), *(make_slice(family, backends[1:2]) for family in FAMILIES))
            cluster.synced()
            await cluster.written()
            await first.more()
            await second.more()
            tallies = [await first.tally(), await second.tally()]
            for family in FAMILIES:
                found = table(client, cluster, family)
                assert len(found["container single-endpoints"]) == 1 + 2
                assert of_ports(found) == []
    for tally in tallies:
        tally.assert_none_failed()
        assert set(tally.answers) == {"b1", "b2"}
