"""Services over two nodes, a proxy on each: what a client reaches, and whom an endpoint sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.kernel.cluster import LB, VIP, Cluster, ask, running, service, slice_of
from tests.kernel.fabric import BRIDGE, LINK_PREFIX, POD_NETWORKS, Fabric
from tests.kernel.netns import Host
from tests.nft.machine import DYING, GONE, ep, node

from sliceplane.api import codec
from sliceplane.api.core import ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.context import RulesConfig

pytestmark = pytest.mark.kernel

EVERYBODY = {"a1", "a2", "b1", "b2"}
REFUSED = "!ConnectionRefusedError"
#: how long a client waits for an answer that shall not come
PATIENCE_S = 0.3
BY_CIDR = RulesConfig(cluster_cidrs=tuple(POD_NETWORKS.values()))


def hosted(
    fabric: Fabric, family: Family, names: str, version: int = 1, **extra: Any
) -> EndpointSlice:
    """*names* like "a1 b2", each on its node and hinted to its node's zone, "a" or "b"."""
    hinted = extra.pop("hinted", False)
    endpoints = []
    for name in names.split():
        entry = ep(
            fabric.servers[name].ip(family),
            nodeName="node-1" if name[0] == "a" else "node-2",
            **extra,
        )
        if hinted:
            entry["hints"] = {"forZones": [{"name": name[0]}]}
        endpoints.append(entry)
    return slice_of(family, endpoints, version=version)


def nodes(fabric: Fabric) -> tuple[Any, ...]:
    return tuple(
        node(
            zone,
            host.ip4,
            host.ip6,
            name=f"node-{n}",
            podCIDRs=[f"10.244.{n}.0/24", f"fd44:{n}::/64"],
        )
        for n, zone, host in ((1, "a", fabric.nodes[0]), (2, "b", fabric.nodes[1]))
    )


@asynccontextmanager
async def two_proxies(
    fabric: Fabric, *objects: Any, rules: tuple[RulesConfig, RulesConfig]
) -> AsyncIterator[Any]:
    """Both told of *objects*, and of their own Node."""
    async with AsyncExitStack() as stack:
        clusters = [
            await stack.enter_async_context(running(host, node_name=f"node-{n}", rules=each))
            for n, host, each in zip((1, 2), fabric.nodes, rules, strict=True)
        ]
        for cluster, own in zip(clusters, nodes(fabric), strict=True):
            cluster.put(own, *objects)
            cluster.synced()
        await written(clusters)
        yield clusters


async def written(clusters: list[Cluster]) -> None:
    for cluster in clusters:
        await cluster.written()


async def tell(clusters: list[Cluster], *objects: Any) -> None:
    for cluster in clusters:
        cluster.put(*objects)
    await written(clusters)


async def heard(
    host: Host, address: str, port: int = 80, proto: str = "tcp", count: int = 60
) -> tuple[set[str], set[str]]:
    """Who answered, and whom they saw."""
    answers = await ask(host, address, port, proto, count)
    return {each.split()[0] for each in answers}, {each.split()[-1] for each in answers}


async def ignored(host: Host, address: str, port: int = 80) -> None:
    """Nobody answers, and nobody refuses."""
    assert await ask(host, address, port, patience_s=PATIENCE_S) == ["!TimeoutError"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_cluster_ips_from_pods_and_nodes(fabric: Fabric, family: Family) -> None:
    everybody = hosted(fabric, family, "a1 a2 b1 b2")
    async with two_proxies(fabric, service(), everybody, rules=(BY_CIDR, BY_CIDR)) as clusters:
        for pod in (fabric.ac, fabric.bc) if family == "IPv4" else (fabric.ac,):
            assert await heard(pod, VIP[family], count=100) == (EVERYBODY, {pod.ip(family)})
            assert await heard(pod, VIP[family], 53, "udp", 100) == (EVERYBODY, {pod.ip(family)})
        for host in fabric.nodes:
            assert (await heard(host, VIP[family], count=100))[0] == EVERYBODY
        await tell(clusters, hosted(fabric, family, "b1", 2))
        assert (await heard(fabric.ac, VIP[family], count=4))[0] == {"b1"}


@pytest.mark.parametrize("family", FAMILIES)
async def test_dual_stack_families_have_endpoints_of_their_own(
    fabric: Fabric, family: Family
) -> None:
    other: Family = "IPv6" if family == "IPv4" else "IPv4"
    mine, theirs = hosted(fabric, family, "a1 b1"), hosted(fabric, other, "a2 b2")
    async with two_proxies(fabric, service(), mine, theirs, rules=(BY_CIDR, BY_CIDR)) as clusters:
        assert (await heard(fabric.ac, VIP[family]))[0] == {"a1", "b1"}
        assert (await heard(fabric.ac, VIP[other]))[0] == {"a2", "b2"}
        await tell(clusters, hosted(fabric, family, "", 2))
        assert (await heard(fabric.ac, VIP[family], count=1))[0] == {REFUSED}
        assert (await heard(fabric.ac, VIP[other]))[0] == {"a2", "b2"}
        single = service(clusterIP=VIP[other], clusterIPs=[VIP[other]], ipFamilies=[other])
        await tell(clusters, single, hosted(fabric, family, "a1 b1", 3))
        assert (await heard(fabric.ac, VIP[other]))[0] == {"a2", "b2"}
        await ignored(fabric.ac, VIP[family])


@pytest.mark.parametrize("family", FAMILIES)
async def test_internal_policy_local_and_its_terminating_fallback(
    fabric: Fabric, family: Family
) -> None:
    both, local = hosted(fabric, family, "a1 b1"), service(internalTrafficPolicy="Local")
    async with two_proxies(fabric, local, both, rules=(BY_CIDR, BY_CIDR)) as clusters:
        assert (await heard(fabric.ac, VIP[family], count=8))[0] == {"a1"}
        assert (await heard(fabric.nodes[1], VIP[family], count=8))[0] == {"b1"}
        await tell(clusters, hosted(fabric, family, "a1", 2))
        assert (await heard(fabric.ac, VIP[family], count=4))[0] == {"a1"}
        for host in (
            fabric.bc,
            fabric.nodes[1],
        ):  # endpoints elsewhere: dropped, so that clients try again
            await ignored(host, VIP[family])
        await tell(clusters, hosted(fabric, family, "a1", 3, **DYING))
        assert (await heard(fabric.ac, VIP[family], count=4))[0] == {"a1"}
        await tell(clusters, hosted(fabric, family, "a1", 4, **GONE))
        assert (await heard(fabric.ac, VIP[family], count=1))[0] == {REFUSED}


@pytest.mark.parametrize("family", FAMILIES)
async def test_terminating_endpoints_serve_when_no_other_does(
    fabric: Fabric, family: Family
) -> None:
    dying = hosted(fabric, family, "a1 b1", **DYING)
    async with two_proxies(fabric, service(), dying, rules=(BY_CIDR, BY_CIDR)) as clusters:
        assert (await heard(fabric.ac, VIP[family]))[0] == {"a1", "b1"}
        await tell(
            clusters, hosted(fabric, family, "b2", 2), service(), _another(fabric, family, "a1")
        )
        assert (await heard(fabric.ac, VIP[family], count=12))[0] == {"b2"}


def _another(fabric: Fabric, family: Family, names: str) -> EndpointSlice:
    """A second slice of the same Service, with dying endpoints."""
    first = hosted(fabric, family, names, 3, **DYING)
    document = codec.encode(first).replace(
        f'"svc-{family.lower()}"'.encode(), f'"svc-{family.lower()}-2"'.encode()
    )
    return codec.decode(document, EndpointSlice)


@pytest.mark.parametrize("family", FAMILIES)
async def test_zone_hints_on_every_node(fabric: Fabric, family: Family) -> None:
    hinted = hosted(fabric, family, "a1 a2 b1 b2", hinted=True)
    async with two_proxies(fabric, service(), hinted, rules=(BY_CIDR, BY_CIDR)) as clusters:
        assert (await heard(fabric.ac, VIP[family]))[0] == {"a1", "a2"}
        assert (await heard(fabric.nodes[1], VIP[family]))[0] == {"b1", "b2"}
        await tell(clusters, hosted(fabric, family, "b1 b2", 2, hinted=True))
        assert (await heard(fabric.ac, VIP[family]))[0] == {"b1", "b2"}, (
            "nobody for its zone: everybody"
        )


def open_to_all(family: Family, **spec: Any) -> Any:
    ports = [
        {"name": "http", "port": 80, "nodePort": 30080},
        {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053},
    ]
    return service(type="LoadBalancer", ports=ports, ingress=[{"ip": LB[family]}], **spec)


@pytest.mark.parametrize("family", FAMILIES)
async def test_node_ports_lead_to_other_nodes_or_not(fabric: Fabric, family: Family) -> None:
    objects = (open_to_all(family), hosted(fabric, family, "a1 b1"))
    async with two_proxies(fabric, *objects, rules=(BY_CIDR, BY_CIDR)) as clusters:
        for host in fabric.nodes:
            names, sources = await heard(fabric.outside, host.ip(family), 30080)
            assert names == {"a1", "b1"}
            assert fabric.outside.ip(family) not in sources
            assert (await heard(fabric.outside, host.ip(family), 30053, "udp"))[0] == {"a1", "b1"}
        await tell(clusters, open_to_all(family, externalTrafficPolicy="Local"))
        for host, name in zip(fabric.nodes, ("a1", "b1"), strict=True):
            assert await heard(fabric.outside, host.ip(family), 30080) == (
                {name},
                {fabric.outside.ip(family)},
            )
        await tell(clusters, hosted(fabric, family, "a1", 2))
        await ignored(fabric.outside, fabric.nodes[1].ip(family), 30080)
        assert (await heard(fabric.bc, LB[family], count=4))[0] == {"a1"}, (
            "a pod is led to wherever there is one"
        )


#: which mode is tried on which node, as its pods are wired
DETECTORS = {
    "ClusterCIDR": (BY_CIDR, 0),
    "NodeCIDR": (RulesConfig(detect_local_mode="NodeCIDR"), 0),
    "InterfaceNamePrefix": (
        RulesConfig(detect_local_mode="InterfaceNamePrefix", pod_interface_name_prefix=LINK_PREFIX),
        0,
    ),
    "BridgeInterface": (
        RulesConfig(detect_local_mode="BridgeInterface", pod_bridge_interface=BRIDGE),
        1,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", sorted(DETECTORS))
async def test_detectors_tell_pods_from_others(fabric: Fabric, family: Family, mode: str) -> None:
    """Seen where it shows: at an endpoint on the *other* node, and at a Local policy that has
    nobody here.
    """
    rules, number = DETECTORS[mode]
    pod, far = (fabric.ac, "b1 b2") if number == 0 else (fabric.bc, "a1 a2")
    router, one = fabric.nodes[number], set(far.split())
    objects = (open_to_all(family, externalTrafficPolicy="Local"), hosted(fabric, family, far))
    async with two_proxies(fabric, *objects, rules=(rules, rules)):
        assert await heard(pod, VIP[family]) == (one, {pod.ip(family)})
        assert await heard(pod, LB[family]) == (one, {pod.ip(family)})
        await route_through(fabric.outside, router, family)
        names, sources = await heard(fabric.outside, VIP[family])
        assert names == one
        assert fabric.outside.ip(family) not in sources
        await ignored(fabric.outside, LB[family])


async def route_through(host: Host, router: Host, family: Family) -> None:
    flag = "-4" if family == "IPv4" else "-6"
    command = ["ip", flag, "route", "replace", "default", "via", router.ip(family), "dev", "eth0"]
    await asyncio.to_thread(host.exec, command)


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_unallocated_cluster_ip_is_dropped_wherever_it_is_asked_for(
    fabric: Fabric, family: Family
) -> None:
    document = {
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["172.30.0.0/16", "fd30::/112"]},
    }
    ranges = codec.decode(codec.encode(document), ServiceCIDR)
    objects = (service(), hosted(fabric, family, "a1 b1"), ranges)
    async with two_proxies(fabric, *objects, rules=(BY_CIDR, BY_CIDR)):
        nobody = VIP[family].removesuffix("1") + "99"
        for host in (fabric.ac, fabric.nodes[1]):
            await ignored(host, nobody)
            assert (await heard(host, VIP[family], 81, count=1))[0] == {REFUSED}
            assert (await heard(host, VIP[family], count=60))[0] == {"a1", "b1"}
