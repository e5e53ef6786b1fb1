"""The node proxy against the real kernel: real packets between network namespaces.

One bridge, three backends that answer with their name (TCP and UDP, IPv4 and IPv6), and a client
whose namespace holds the rules. Nothing of the root namespace is touched.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.kernel.cluster import (
    KEEPER,
    NODE,
    SERVER,
    UDP_REFUSED,
    VIP,
    ask,
    make_slice,
    running,
    service,
)
from tests.kernel.netns import Host, Net
from tests.nft.machine import DYING, GONE, node
from tests.waiting import eventually, turns

from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.io.options import ProxyTiming

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def client(net: Net, backends: list[Host]) -> Host:
    return net.add_host("client", ip4="10.10.0.1/16", ip6="fd10::1/64")


def flows(client: Host, family: Family, address: str) -> list[str]:
    """Flows of UDP to *address* that the kernel of *client* knows."""
    listed = client.exec(["conntrack", "-L", "-p", "udp", "-f", family.lower(), "-d", address])
    return listed.stdout.splitlines()


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_service_from_first_to_last_endpoint(
    client: Host, backends: list[Host], family: Family
) -> None:
    vip = VIP[family]
    async with running(client) as cluster:
        cluster.put(service(), make_slice(family, backends[:2]))
        assert cluster.proxy.counts()[family] == (
            1,
            0,
        )  # nothing is written before the lists are complete
        cluster.synced()
        await cluster.written()
        assert set(await cluster.ask(vip, count=60)) == {"b1", "b2"}
        assert set(await cluster.ask(vip, 53, "udp", count=60)) == {"b1", "b2"}
        assert set(await cluster.ask(vip, 81)) == {
            "!ConnectionRefusedError"
        }  # a port that the Service has not
        assert set(await cluster.ask(vip, 80, "udp")) == {UDP_REFUSED}

        cluster.put(make_slice(family, backends, version=2))
        await cluster.written()
        assert set(await cluster.ask(vip, count=100)) == {"b1", "b2", "b3"}

        cluster.put(make_slice(family, backends[2:], version=3))
        await cluster.written()
        assert set(await cluster.ask(vip, count=10)) == {"b3"}

        cluster.put(make_slice(family, [], version=4))
        await cluster.written()
        # Refused, not timed out: that would be another error.
        assert set(await cluster.ask(vip)) == {"!ConnectionRefusedError"}
        # Until flows of endpoints that are gone are forgotten, a moment after the write, a socket
        # that gets the port of one of the sixty above would be answered.
        await eventually(partial(flows, client, family, vip), lambda found: not found)
        assert set(await cluster.ask(vip, 53, "udp")) == {UDP_REFUSED}

        cluster.put(make_slice(family, backends[:1], version=5))
        await cluster.written()
        assert set(await cluster.ask(vip, count=5)) == {"b1"}

        cluster.drop(service())
        await cluster.written()
        assert cluster.proxy.counts()[family][0] == 0
        ruleset = client.exec(
            ["nft", "list", "table", "ip" if family == "IPv4" else "ip6", "sliceplane"]
        ).stdout
        assert vip not in ruleset


async def test_terminating_endpoints_serve_when_no_other_does(
    client: Host, backends: list[Host]
) -> None:
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:1], **DYING))
        cluster.synced()
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=4)) == {"b1"}
        cluster.put(make_slice("IPv4", backends[:1], version=2, **GONE))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"])) == {"!ConnectionRefusedError"}


async def test_zone_hints(client: Host, backends: list[Host]) -> None:
    """KEP-4444: PreferClose keeps traffic in the zone; without hints it spreads."""
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends, zones=["a", "b", "b"]), node("b"))
        cluster.synced()
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=60)) == {"b2", "b3"}
        cluster.put(node("a"))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=12)) == {"b1"}
        cluster.put(make_slice("IPv4", backends, version=2))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=100)) == {"b1", "b2", "b3"}


async def test_internal_traffic_policy_local(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        cluster.put(service(internalTrafficPolicy="Local"), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        # dropped: there are endpoints elsewhere
        assert set(await cluster.ask(VIP["IPv4"], patience_s=0.5)) == {"!TimeoutError"}
        cluster.put(make_slice("IPv4", backends[1:2], version=2, nodeName=NODE))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=4)) == {"b2"}


@pytest.mark.parametrize("family", FAMILIES)
async def test_hairpin(net: Net, family: Family) -> None:
    """A Pod that calls its own Service through the node gets an answer: the connection is
    masqueraded.
    """
    suffix = "4" if family == "IPv4" else "6"
    router = net.add_host(f"router{suffix}", ip4="10.10.2.1/16", ip6="fd10::2:1/64")
    net.make_router(router)
    pod = net.add_host(
        f"pod{suffix}",
        ip4="10.10.2.2/16",
        ip6="fd10::2:2/64",
        gateway4="10.10.2.1",
        gateway6="fd10::2:1",
    )
    pod.serve(SERVER, "pod", "8080")
    async with running(router) as cluster:
        cluster.put(service(), make_slice(family, [pod], nodeName=NODE))
        cluster.synced()
        await cluster.written()
        assert await ask(pod, VIP[family], count=3) == [f"pod {router.ip(family)}"] * 3
    for host in (pod, router):
        host.close()
        for flag in ("", "-6"):
            host.exec(["ip", *([flag] if flag else []), "addr", "flush", "dev", "eth0"])


async def test_recovers_when_somebody_deletes_the_table(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        await cluster.backend.remove(FAMILIES)
        assert set(await cluster.ask(VIP["IPv4"])) != {"b1"}
        await cluster.forget_connections()
        cluster.put(make_slice("IPv4", backends[1:2], version=2))
        await cluster.written()  # the incremental transaction is refused, the full one follows
        assert set(await cluster.ask(VIP["IPv4"], count=5)) == {"b2"}
        assert cluster.proxy.health().healthy


async def test_a_deleted_table_comes_back_by_itself(client: Host, backends: list[Host]) -> None:
    async with running(client, timing=ProxyTiming(check_period_s=0.1)) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        await cluster.backend.remove(FAMILIES)
        await eventually(lambda: cluster.ask(VIP["IPv4"]), lambda answers: set(answers) == {"b1"})


async def test_established_connections_outlive_unrelated_changes(
    client: Host, backends: list[Host]
) -> None:
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:2]))
        cluster.synced()
        await cluster.written()
        keeper = client.spawn(["python3", "-I", "-u", "-c", KEEPER, VIP["IPv4"], "80"])

        def again() -> str:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.write("\n")
            keeper.stdin.flush()
            return keeper.stdout.readline()

        first = await asyncio.to_thread(again)
        assert first
        for version in range(2, 12):
            cluster.put(make_slice("IPv4", backends[version % 3 :], version=version))
            cluster.put(service("other", 2), make_slice("IPv4", backends[:2], "other", version))
            await cluster.written()
            assert await asyncio.to_thread(again) == first
        keeper.stdin.close()  # type: ignore[union-attr]  # spawn makes pipes
        keeper.wait(60)


async def test_a_new_process_takes_over_without_a_gap(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        cluster.put(service(), service("old", 2), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        async with running(client) as heir:
            heir.put(service(), make_slice("IPv4", backends[1:2]))
            await turns()
            assert set(await cluster.ask(VIP["IPv4"], count=3)) == {
                "b1"
            }  # the rules of the old one stay until then
            heir.synced()
            await heir.written()
            assert set(await heir.ask(VIP["IPv4"], count=3)) == {"b2"}
            assert (
                "172.30.0.2" not in client.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout
            )


async def test_no_connection_fails_while_endpoints_change(
    client: Host, backends: list[Host]
) -> None:
    """New connections all the time while endpoints come, go and change places: none may miss."""
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends))
        cluster.synced()
        await cluster.written()
        asking = asyncio.create_task(cluster.ask(VIP["IPv4"], count=2000))
        version = 1
        while not asking.done():
            version += 1
            cluster.put(
                make_slice(
                    "IPv4", backends[version % 3 :] + backends[: version % 2], version=version
                )
            )
            await cluster.written()
        answers = await asking
        assert version > 10
        assert set(answers) == {"b1", "b2", "b3"}, answers


async def test_no_connection_fails_while_the_proxy_is_replaced(
    client: Host, backends: list[Host]
) -> None:
    """New connections all the time while one process after the other takes over: none may miss."""
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends))
        cluster.synced()
        await cluster.written()
        asking = asyncio.create_task(cluster.ask(VIP["IPv4"], count=2000))
        heirs = 0
        while not asking.done():
            heirs += 1
            async with running(client) as heir:
                heir.clean = False
                heir.put(service(), make_slice("IPv4", backends))
                heir.synced()
                await heir.written()
        answers = await asking
        assert heirs > 5
        assert set(answers) == {"b1", "b2", "b3"}, answers
