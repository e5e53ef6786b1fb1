"""Attacks on a node's kernel by a tenant: endpoints in masses, floods of clients, flows, addresses
of others.

The node proxy runs in this process over the rules of a network namespace, and is told of objects as
its informers would tell it, past any API server's validation. Others' Services are asked with real
packets meanwhile; a task of its own measures how long the loop was held.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tests.attack import services
from tests.attack.harness import Attack, Figure
from tests.kernel.cluster import SERVER, Cluster, Mode, ask, make_slice, running, service
from tests.kernel.netns import Host, Net
from tests.kernel.test_affinity_floods import FLOOD, remembered
from tests.kernel.test_flow_floods import OTHERS, STALE, fill, udp_port
from tests.nft import machine

from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.bounds import CHAINS_MAX
from sliceplane.consume.model import NodeEndpoint
from sliceplane.node.conntrack import Expected
from sliceplane.node.context import RulesConfig
from sliceplane.node.io.kernel.conntrack import Conntrack, ConntrackError
from sliceplane.node.io.kernel.netns import listening_in
from sliceplane.node.nft.chains import CLIENTS_MAX

MODES: tuple[Mode, ...] = ("nftables", "iptables-nft")
#: a step that computes or writes one Service of the largest size that a node serves
HEAVY_STEP_SECONDS_MAX = 1.5
WAIT_SECONDS_MAX = 5.0
HEAVY_SLICES, HEAVY_ENDPOINTS, HEAVY_PORTS = 50, 1_000, 5
FLAP_SECONDS = 3.0
CLIENTS = 100_000
LOCKED_SECONDS = 8.0
IPTABLES_CHURN = 100
_VICTIM, _EVIL = "172.30.0.1", "172.30.0.2"


class LoopWatch:
    """The longest time that the loop was held: of the clock or of its thread's processor time,
    whichever is less, so that other programs on the machine do not count.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            began, busy = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.005)
            held = min(time.monotonic() - began - 0.005, time.thread_time() - busy)
            self.longest_s = max(self.longest_s, held)

    def figure(self, what: str, limit: float) -> Figure:
        return Figure(f"{what}: longest step of the loop", round(self.longest_s, 3), "s", limit)


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[LoopWatch]:
    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()


@contextlib.contextmanager
def hosts() -> Iterator[dict[str, Host]]:
    """``node`` with programs at 22 and 10250; another node, the pods of victim and attacker, and a
    client that reaches everything else by way of the node; ``other`` has the address of a cloud's
    metadata server, too.
    """
    with Net("kpk") as net:
        found = {
            name: net.add_host(
                name, ip4=f"10.10.{last}/16", ip6=f"fd10::{last.replace('.', ':')}/64"
            )
            for name, last in (
                ("node", "0.1"),
                ("other", "0.2"),
                ("victim", "1.1"),
                ("evil", "1.2"),
            )
        }
        found["client"] = net.add_host(
            "client", ip4="192.168.50.9/24", ip6="fd50::9/64", gateway4="192.168.50.1"
        )
        net.make_router(found["node"])
        found["node"].exec(["ip", "addr", "add", "192.168.50.1/24", "dev", "eth0"])
        for name in ("victim", "evil", "other"):
            found[name].exec(["ip", "route", "add", "192.168.50.0/24", "via", "10.10.0.1"])
        found["other"].exec(["ip", "addr", "add", "169.254.169.254/32", "dev", "lo"])
        found["node"].exec(["ip", "route", "add", "169.254.169.254", "via", "10.10.0.2"])
        for name in ("victim", "evil"):
            found[name].serve(SERVER, name, "8080")
        for name, ports in (("other", ("22", "80")), ("node", ("22", "10250"))):
            for port in ports:
                found[name].serve(SERVER, name, port)
        yield found


def crowd(
    count: int, first: int, ports: list[dict[str, Any]], name: str, version: int
) -> EndpointSlice:
    addresses = [
        f"10.{64 + (n >> 16)}.{n >> 8 & 255}.{n & 255}" for n in range(first, first + count)
    ]
    made = machine.make_slice(addresses, "evil", ports=ports, version=version)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name=name))


async def served_after(cluster: Cluster, number: int, target: Host, limit_s: float) -> float:
    """A new Service of another tenant: seconds until the node leads its clients there."""
    name = f"later-{number}"
    began = time.monotonic()
    made = make_slice("IPv4", [target], name)
    cluster.put(service(name, 10 + number), made)
    while time.monotonic() - began < limit_s:
        (answer,) = await ask(cluster.host, f"172.30.0.{10 + number}", patience_s=0.3)
        if answer.startswith("victim"):
            break
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def heavy(mode: Mode, affinity: str) -> Sequence[Figure]:
    what = f"{mode}, {'affinity' if affinity == 'ClientIP' else 'no affinity'}"
    ports = [{"name": f"p{n}", "port": n, "protocol": "TCP"} for n in range(1, HEAVY_PORTS + 1)]
    slices = [
        crowd(HEAVY_ENDPOINTS, n * HEAVY_ENDPOINTS, ports, f"evil-{n}", n + 1)
        for n in range(HEAVY_SLICES)
    ]
    flapping = [
        slices[-1],
        crowd(HEAVY_ENDPOINTS - 1, (HEAVY_SLICES - 1) * HEAVY_ENDPOINTS, ports, "evil-49", 99),
    ]
    with hosts() as found:
        async with running(found["node"], mode, families=("IPv4",)) as cluster, watched() as watch:
            cluster.put(service("victim"), make_slice("IPv4", [found["victim"]], "victim"))
            cluster.synced()
            await cluster.written()
            watch.longest_s = 0.0
            cluster.put(service("evil", 2, ports=ports, sessionAffinity=affinity), *slices)
            await asyncio.sleep(0.05)
            waits = [await served_after(cluster, 1, found["victim"], 30.0)]
            ended = False

            async def flap() -> None:
                number = 0
                while not ended:
                    number += 1
                    cluster.put(flapping[number % 2])
                    await asyncio.sleep(0.001)

            task = asyncio.create_task(flap())
            began, cpu = time.monotonic(), time.process_time()
            number = 2
            while time.monotonic() - began < FLAP_SECONDS:
                waits.append(await served_after(cluster, number, found["victim"], 30.0))
                number += 1
                await asyncio.sleep(0.2)
            busy = (time.process_time() - cpu) / (time.monotonic() - began)
            ended = True
            await task
            return (
                Figure(
                    f"{what}: longest wait of another Service",
                    round(max(waits), 2),
                    "s",
                    WAIT_SECONDS_MAX,
                ),
                Figure(f"{what}: busy while one slice flaps", round(busy, 2), "of a core", 0.75),
                watch.figure(what, HEAVY_STEP_SECONDS_MAX),
            )


async def heavy_endpoints(_: Path, mode: Mode) -> Sequence[Figure]:
    return [figure for affinity in ("None", "ClientIP") for figure in await heavy(mode, affinity)]


def _slab_mib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Slab:")) / 1024


async def _flood(mode: Mode, found: dict[str, Host], cluster: Cluster) -> Sequence[Figure]:
    first = await ask(found["client"], _VICTIM, 53, "udp", 4)
    before = _slab_mib()
    for _ in range(2):
        await asyncio.to_thread(found["client"].python, FLOOD, _VICTIM, "53", str(CLIENTS))
    grown = _slab_mib() - before
    counts = remembered(found["node"], mode)
    found["node"].exec(["conntrack", "-F"])
    node = await ask(found["node"], _VICTIM, 53, "udp", 8)
    again = await ask(found["client"], _VICTIM, 53, "udp", 4)
    lost = sum(answer.startswith("!") for answer in (*node, *again))
    figures = [
        Figure(
            f"{mode}: clients that one endpoint has",
            max(counts),
            "clients",
            65_535 if mode == "nftables" else 100,
        ),
        Figure(f"{mode}: kernel memory, flows included", round(grown), "MiB", 200),
        Figure(f"{mode}: later clients that are not served", lost, "clients", 0),
    ]
    if mode == "nftables":
        moved = float(
            {answer.split()[0] for answer in first} != {answer.split()[0] for answer in again}
        )
        figures.append(
            Figure(f"{mode}: remembered clients that lost their endpoint", moved, "clients", 0)
        )
        async with watched() as watch:
            cluster.proxy._planes[0].request_full_write(time.time())
            cluster.proxy._writer.wake()
            await cluster.written()
            figures.append(watch.figure(f"{mode}: a new table takes over clients", 1.5))
        rows = [{"name": f"p{n}", "port": n, "protocol": "UDP"} for n in range(1, 101)]
        pods = [found[name].ip4 for name in ("victim", "evil")]
        cluster.put(
            service("wide", 2, ports=rows, sessionAffinity="ClientIP"),
            machine.make_slice(pods, "wide", ports=rows),
        )
        await cluster.written()
        listed = (
            found["node"].exec(["nft", "-t", "list", "sets", "table", "ip", "sliceplane"]).stdout
        )
        sizes = sum(map(int, re.findall(r"size (\d+)", listed)))
        figures.append(
            Figure(
                f"{mode}: clients that 204 endpoints may have", sizes, "clients", 2 * CLIENTS_MAX
            )
        )
    return figures


async def affinity_flood(_: Path) -> Sequence[Figure]:
    figures: list[Figure] = []
    for mode in MODES:
        with hosts() as found:
            rules = RulesConfig(cluster_cidrs=("10.10.0.0/16",))
            async with running(found["node"], mode, rules=rules, families=("IPv4",)) as cluster:
                pods = [found["victim"], found["evil"]]
                cluster.put(service(sessionAffinity="ClientIP"), make_slice("IPv4", pods))
                cluster.synced()
                await cluster.written()
                figures += await _flood(mode, found, cluster)
    return figures


async def flow_flood(_: Path) -> Sequence[Figure]:
    """A tenant's Service of as many UDP ports as it has stale flows, and one stale flow of
    another's.
    """
    with Net("flw") as net:
        host = net.add_host("node", ip4="10.99.0.1/24", ip6="fd99::1/64")
        await asyncio.to_thread(fill, host, "IPv4")
        expected = Expected()
        for port in range(1, STALE + 1):
            expected.add(udp_port("aaa", "172.30.0.1", port), [])
        expected.add(udp_port("prod", "172.30.0.9", 53), [NodeEndpoint("10.255.254.7", 5353)])
        async with watched() as watch:
            began = time.monotonic()
            with contextlib.suppress(ConntrackError):
                await Conntrack(netns=host.netns).reconcile("IPv4", expected)
            seconds = time.monotonic() - began
        left = int(host.exec(["conntrack", "-C"]).stdout) - OTHERS
        return (
            Figure("stale flows that are left", left, "flows", 0),
            Figure("seconds of the pass", round(seconds, 2), "s", WAIT_SECONDS_MAX),
            watch.figure("conntrack", 0.05),
        )


#: addresses of others that a load balancer's status may name, with a port at which somebody answers
TARGETS = (
    ("10.96.0.100", 80),
    ("::ffff:10.96.0.100", 80),
    ("10.10.0.2", 22),
    ("10.10.0.1", 22),
    ("10.10.1.1", 8080),
    ("127.0.0.1", 22),
    ("169.254.169.254", 80),
    ("224.0.0.1", 80),
    ("0.0.0.0", 22),
    ("255.255.255.255", 80),
)


async def hostile_balancers(mode: Mode) -> Sequence[Figure]:
    ports = [{"name": f"p{n}", "port": n, "protocol": "TCP"} for n in (22, 80, 8080, 10250)]
    rows = [{**port, "port": 8080} for port in ports]
    garbage = ["x", "0.0.0.0/33", "fd00::/8", "::/0", "10.0.0.0/8 ,", "300.1.1.0/24"]
    ranges = [f"11.{n >> 8}.{n & 255}.0/{16 + n % 9}" for n in range(9_990)] + garbage
    with hosts() as found:
        options: dict[str, Any] = {
            "families": ("IPv4",),
            "listen": listening_in(found["node"].netns),
        }
        async with running(found["node"], mode, **options) as cluster, watched() as watch:
            node = machine.node("", "10.10.0.1", podCIDR="10.11.0.0/24", podCIDRs=["10.11.0.0/24"])
            other = machine.node(
                "", "10.10.0.2", name="node-2", podCIDR="10.10.1.0/24", podCIDRs=["10.10.1.0/24"]
            )
            cluster.put(node)
            for plane in cluster.proxy._planes:
                plane.on_any_node("node-2", other, 0.0)
            cluster.put(
                service("victim", clusterIP="10.96.0.100", clusterIPs=["10.96.0.100"]),
                make_slice("IPv4", [found["victim"]], "victim"),
            )
            ingress = [{"ip": ip, "ipMode": "VIP"} for ip, _ in TARGETS]
            balancer = {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 10250,
            }
            cluster.put(
                service(
                    "evil", 2, ports=ports, ingress=[*ingress, {"ip": "203.0.113.9"}], **balancer
                ),
                service(
                    "closed",
                    3,
                    ports=ports[1:2],
                    ingress=[{"ip": "203.0.113.10"}],
                    type="LoadBalancer",
                    loadBalancerSourceRanges=ranges,
                ),
                service(
                    "open",
                    4,
                    ports=ports[1:2],
                    ingress=[{"ip": "203.0.113.11"}],
                    type="LoadBalancer",
                    loadBalancerSourceRanges=["192.168.50.9/32", *ranges[-9:]],
                ),
                machine.make_slice([found["evil"].ip4], "open", ports=rows),
                machine.make_slice(
                    [machine.ep(found["evil"].ip4, nodeName=machine.NODE)], "evil", ports=rows
                ),
                machine.make_slice([found["evil"].ip4], "closed", ports=rows),
            )
            cluster.synced()
            await cluster.written()
            asked = [(ip.removeprefix("::ffff:"), port) for ip, port in TARGETS]
            taken = 0
            for host in (found["node"], found["client"]):
                for ip, port in asked:
                    if host is found["client"] and ip in {"127.0.0.1", "0.0.0.0", "10.10.1.1"}:
                        continue
                    (answer,) = await ask(host, ip, port, patience_s=0.3)
                    taken += answer.startswith("evil")
            (kubelet,) = await ask(found["client"], "192.168.50.1", 10250, patience_s=1.0)
            (own,) = await ask(found["client"], "203.0.113.9", 80, patience_s=2.0)
            (passes,) = await ask(found["client"], "203.0.113.11", 80, patience_s=2.0)
            (closed,) = await ask(found["client"], "203.0.113.10", 80, patience_s=0.5)
            return (
                Figure(
                    f"{mode}: addresses taken from others", taken, f"of {2 * len(TARGETS) - 3}", 0
                ),
                Figure(
                    f"{mode}: programs that lost their port",
                    float(not kubelet.startswith("node")),
                    "programs",
                    0,
                ),
                Figure(
                    f"{mode}: free addresses that are not served",
                    float(own != "evil 192.168.50.9"),
                    "addresses",
                    0,
                ),
                Figure(
                    f"{mode}: clients in a range that are not served",
                    float(passes[:4] != "evil"),
                    "clients",
                    0,
                ),
                Figure(
                    f"{mode}: clients past garbage in source ranges",
                    float(closed[:1] != "!"),
                    "clients",
                    0,
                ),
                watch.figure(mode, 1.0),
            )


async def balancers(_: Path) -> Sequence[Figure]:
    return [figure for mode in MODES for figure in await hostile_balancers(mode)]


async def locked(folder: Path) -> Sequence[Figure]:
    """Another program holds the lock of the legacy flavour."""
    lock = folder / "xtables.lock"
    before = os.environ.get("XTABLES_LOCKFILE")
    os.environ["XTABLES_LOCKFILE"] = str(lock)
    try:
        with hosts() as found, lock.open("w") as held:
            async with (
                running(found["node"], "iptables-legacy", families=("IPv4",)) as cluster,
                watched() as watch,
            ):
                cluster.put(service("victim"), make_slice("IPv4", [found["victim"]], "victim"))
                cluster.synced()
                await cluster.written()
                fcntl.flock(held, fcntl.LOCK_EX)
                waiting = asyncio.create_task(served_after(cluster, 1, found["victim"], 60.0))
                await asyncio.sleep(LOCKED_SECONDS)
                old = (await ask(found["node"], _VICTIM))[0].startswith("victim")
                fcntl.flock(held, fcntl.LOCK_UN)
                waited = await waiting - LOCKED_SECONDS
                return (
                    Figure(
                        "clients of before that are not served meanwhile",
                        float(not old),
                        "clients",
                        0,
                    ),
                    Figure(
                        "a change is in the kernel after the lock is free",
                        round(waited, 1),
                        "s",
                        10.0,
                    ),
                    watch.figure("lock", 0.1),
                )
    finally:
        if before is None:
            del os.environ["XTABLES_LOCKFILE"]
        else:
            os.environ["XTABLES_LOCKFILE"] = before


ATTACKS = (
    Attack(
        "kernel-heavy-nftables",
        f"a Service of {HEAVY_SLICES * HEAVY_ENDPOINTS * HEAVY_PORTS:,} targets, one slice of "
        "which changes all the"
        " time, with and without affinity (nftables)",
        partial(heavy_endpoints, mode="nftables"),
    ),
    Attack(
        "kernel-heavy-iptables",
        f"the same (iptables, which has a chain for each of at most {CHAINS_MAX:,})",
        partial(heavy_endpoints, mode="iptables-nft"),
    ),
    Attack(
        "kernel-affinity-flood",
        f"{CLIENTS:,} made-up clients of a Service with affinity, twice",
        affinity_flood,
    ),
    Attack(
        "kernel-flow-flood", f"a Service of {STALE:,} UDP ports, each with a stale flow", flow_flood
    ),
    Attack(
        "kernel-balancers",
        "a load balancer's status names addresses of others, a health port is the kubelet's, "
        "source ranges are garbage",
        balancers,
    ),
    Attack(
        "kernel-iptables-lock",
        f"another program holds the lock of iptables for {LOCKED_SECONDS:.0f} s",
        locked,
    ),
    Attack(
        "iptables-stall-nodes",
        "services-stall-nodes with a node proxy in iptables mode",
        partial(services.stall_nodes, mode="iptables"),
    ),
    Attack(
        "iptables-many-ports",
        "services-many-ports with a node proxy in iptables mode",
        partial(services.many_ports, mode="iptables"),
    ),
    Attack(
        "iptables-churn",
        f"services-churn in iptables mode, {IPTABLES_CHURN} Services a round",
        partial(services.churn, mode="iptables", count=IPTABLES_CHURN),
    ),
)
