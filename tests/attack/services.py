"""Attacks on the node proxy by who may write Services: take an address, hold up a node, leave
something behind.

Each runs an API server and a node proxy in processes of their own; the rules go into a network
namespace, beside others with the victims' programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tools.process import PlaneProcess, Process
from tests.attack.harness import Attack, Figure, alive
from tests.kernel.cluster import SERVER, ask
from tests.kernel.netns import Host, Net

from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Resource, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

#: the namespace of who attacks sorts before that of the others
EVIL, GOOD = "aaa", "prod"
POD_RANGE = "10.10.1.0/24"
VICTIM_IP, LATER_IP, API_IP = "10.96.0.100", "10.96.0.101", "10.96.0.1"
#: what may be asked for: no part of the cluster
FREE_IP = "203.0.113.9"
WAIT_SECONDS_MAX = 5.0
GROWTH_MIB_MAX = 100.0
STALL_ADDRESSES, STALL_PORTS = 5_000, 80
MANY_PORTS = 5_000
CHURN_ROUNDS, CHURN_SERVICES = 5, 2_000


@dataclass(slots=True)
class Stage:
    """What an attack has: the plane, the node with its proxy, and programs that say who they
    are.
    """

    client: HttpClient
    plane: PlaneProcess
    node: Host
    other_node: Host
    victim: Host
    evil: Host
    pod: Host

    async def create(self, resource: Resource, namespace: str, document: dict[str, Any]) -> None:
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
        await self.client.create(resource, namespace, encode(whole))

    async def service(self, namespace: str, name: str, target: Host, **spec: Any) -> None:
        """With a port 80 unless *spec* has others, and *target* as its endpoint."""
        ports = spec.pop("ports", None) or [port(80)]
        await self.create(
            Services, namespace, {"metadata": {"name": name}, "spec": {"ports": ports, **spec}}
        )
        document = {
            "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [target.ip4], "conditions": {"ready": True}}],
            "ports": [{"name": each["name"], "port": 8080, "protocol": "TCP"} for each in ports],
        }
        await self.create(EndpointSlices, namespace, document)

    async def answer(self, address: str, number: int = 80, patience_s: float = 0.5) -> str:
        """Who answers the node there; "" or "!ERROR": nobody."""
        (answer,) = await ask(self.node, address, number, patience_s=patience_s)
        return answer.split()[0] if answer else ""

    async def wait_for(self, name: str, address: str, seconds_max: float = 120.0) -> float:
        """How long it takes until *name* answers there."""
        began = time.monotonic()
        while time.monotonic() - began < seconds_max:
            if await self.answer(address) == name:
                break
        return time.monotonic() - began


def port(number: int) -> dict[str, Any]:
    return {"name": f"p{number}", "port": number, "targetPort": 8080, "protocol": "TCP"}


@contextlib.contextmanager
def _hosts() -> Iterator[dict[str, Host]]:
    with Net("atk") as net:
        found = {
            name: net.add_host(
                name, ip4=f"10.10.{last}/16", ip6=f"fd10::{last.replace('.', ':')}/64"
            )
            for name, last in (
                ("node", "0.1"),
                ("other", "0.2"),
                ("victim", "1.1"),
                ("evil", "1.2"),
                ("pod", "1.3"),
            )
        }
        for name in ("victim", "evil"):
            found[name].serve(SERVER, name, "8080")
        found["other"].serve(SERVER, "other", "22")
        found["node"].serve(SERVER, "node", "22")
        found["pod"].serve(SERVER, "pod", "80")
        yield found


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    with _hosts() as hosts, PlaneProcess(folder, command="apiserver") as plane:
        client = HttpClient(load(plane.kubeconfig))
        names = {
            "node": "node",
            "other": "other_node",
            "victim": "victim",
            "evil": "evil",
            "pod": "pod",
        }
        try:
            made = Stage(client, plane, **{names[name]: host for name, host in hosts.items()})
            for name in (EVIL, GOOD):
                await made.create(Namespaces, "", {"metadata": {"name": name}})
            for number, host in ((1, made.node), (2, made.other_node)):
                name = f"node-{number}"
                pods = POD_RANGE if number == 2 else "10.11.0.0/24"
                await made.create(
                    Nodes,
                    "",
                    {"metadata": {"name": name}, "spec": {"podCIDR": pods, "podCIDRs": [pods]}},
                )
                told = {"status": {"addresses": [{"type": "InternalIP", "address": host.ip4}]}}
                await client.patch(
                    Nodes, "", name, encode(told), patch_type="merge", subresource="status"
                )
            yield made
        finally:
            await client.close()


@contextlib.contextmanager
def proxy(made: Stage, folder: Path, *flags: str) -> Iterator[Process]:
    command = (
        sys.executable,
        "-m",
        "sliceplane",
        "proxy",
        "--kubeconfig",
        str(made.plane.kubeconfig),
    )
    place = ("--hostname-override", "node-1", "--netns", made.node.netns, "--log-level", "warning")
    with Process(*command, *place, *flags, log=folder / "proxy.log") as process:
        process.line()
        yield process


async def _taken(made: Stage) -> int:
    """How many addresses of others lead to who attacks."""
    asked = [
        (VICTIM_IP, 80),
        (LATER_IP, 80),
        (API_IP, 443),
        (made.other_node.ip4, 22),
        (made.node.ip4, 22),
    ]
    asked.append((made.pod.ip4, 80))
    return sum([await made.answer(*each) == "evil" for each in asked])


async def take_addresses(folder: Path) -> Sequence[Figure]:
    figures: list[Figure] = []
    async with stage(folder) as made:
        await made.service(GOOD, "victim", made.victim, clusterIP=VICTIM_IP)
        wanted = [
            VICTIM_IP,
            LATER_IP,
            API_IP,
            made.other_node.ip4,
            made.node.ip4,
            made.pod.ip4,
            FREE_IP,
        ]
        ports = [port(number) for number in (22, 80, 443)]
        await made.service(EVIL, "evil", made.evil, externalIPs=wanted, ports=ports)
        await made.service(GOOD, "later", made.victim, clusterIP=LATER_IP)
        for mode in ("nftables", "iptables"):
            with proxy(made, folder, "--proxy-mode", mode) as process:
                served = await made.wait_for("evil", FREE_IP, 10.0) < 10.0
                figures += [
                    Figure(
                        f"addresses taken from others ({mode})", await _taken(made), "addresses", 0
                    ),
                    Figure(
                        f"free addresses that are not served ({mode})",
                        float(not served),
                        "addresses",
                        0,
                    ),
                    alive(process),
                ]
    return figures


async def stall_nodes(folder: Path, mode: str = "nftables") -> Sequence[Figure]:
    async with stage(folder) as made:
        await made.service(GOOD, "first", made.victim, clusterIP=VICTIM_IP)
        with proxy(made, folder, "--proxy-mode", mode) as process:
            await made.wait_for("victim", VICTIM_IP)
            before = process.rss_mib()
            addresses = [
                f"198.{18 + (n >> 16)}.{n >> 8 & 255}.{n & 255}" for n in range(STALL_ADDRESSES)
            ]
            ports = [port(number) for number in range(1, 1 + STALL_PORTS)]
            await made.service(EVIL, "huge", made.evil, externalIPs=addresses, ports=ports)
            await asyncio.sleep(0.5)  # the proxy is at it
            await made.service(GOOD, "later", made.victim, clusterIP=LATER_IP)
            waited = await made.wait_for("victim", LATER_IP)
            began = time.monotonic()
            await made.client.delete(Services, EVIL, "huge")
            await asyncio.sleep(0.2)
            await made.service(GOOD, "last", made.victim, clusterIP="10.96.0.102")
            after = await made.wait_for("victim", "10.96.0.102")
            grown = process.rss_mib(peak=True) - before
            return (
                Figure(
                    "wait of another Service while it comes",
                    round(waited, 2),
                    "s",
                    WAIT_SECONDS_MAX,
                ),
                Figure(
                    "wait of another Service while it goes", round(after, 2), "s", WAIT_SECONDS_MAX
                ),
                Figure("memory that it took at its peak", round(grown), "MiB", GROWTH_MIB_MAX),
                Figure("seconds in all", round(time.monotonic() - began, 1), "s", 60.0),
                alive(process),
            )


async def churn(
    folder: Path, mode: str = "nftables", count: int = CHURN_SERVICES
) -> Sequence[Figure]:
    async with stage(folder) as made:
        await made.service(GOOD, "first", made.victim, clusterIP=VICTIM_IP)
        with proxy(made, folder, "--proxy-mode", mode) as process:
            await made.wait_for("victim", VICTIM_IP)
            sizes: list[float] = []
            for number in range(CHURN_ROUNDS):
                gate = asyncio.Semaphore(32)

                async def one(at: int) -> None:
                    async with gate:  # noqa: B023  # awaited in this round
                        await made.service(
                            EVIL, f"s{at}", made.evil, externalIPs=[f"198.18.{at >> 8}.{at & 255}"]
                        )

                await asyncio.gather(*(one(at) for at in range(count)))
                for resource in (Services, EndpointSlices):
                    page = await made.client.list(resource, namespace=EVIL)
                    names = [json.loads(body)["metadata"]["name"] for body in page.items]
                    for begin in range(0, len(names), 64):
                        part = names[begin : begin + 64]
                        await asyncio.gather(
                            *(made.client.delete(resource, EVIL, name) for name in part)
                        )
                await made.service(
                    GOOD, f"after-{number}", made.victim, clusterIP=f"10.96.1.{number + 1}"
                )
                await made.wait_for("victim", f"10.96.1.{number + 1}")
                await asyncio.sleep(2.0)  # what is out of use goes a second later
                sizes.append(process.rss_mib())
            listing = (
                ["nft", "list", "table", "ip", "sliceplane"]
                if mode == "nftables"
                else ["iptables-save"]
            )
            listed = made.node.exec(listing).stdout
            return (
                Figure(
                    "memory after the last round over that after the second",
                    round(sizes[-1] - sizes[1]),
                    "MiB",
                    15,
                ),
                Figure("rules of Services that are gone", listed.count("198.18."), "lines", 0),
                Figure("chains of Services that are gone", listed.count(f"{EVIL}/"), "lines", 0),
                alive(process),
            )


async def two_modes(folder: Path) -> Sequence[Figure]:
    async with stage(folder) as made:
        await made.service(GOOD, "first", made.victim, clusterIP=VICTIM_IP)
        with proxy(made, folder, "--proxy-mode", "nftables") as process:
            await made.wait_for("victim", VICTIM_IP)
            started = 0
            with contextlib.suppress(RuntimeError), proxy(made, folder, "--proxy-mode", "iptables"):
                started = 1
                await asyncio.sleep(1.0)
            there = "table ip sliceplane" in made.node.exec(["nft", "list", "tables"]).stdout
            return (
                Figure("proxies of another mode that started", started, "proxies", 0),
                Figure("tables that the first one lost", float(not there), "tables", 0),
                Figure(
                    "clients that nobody answers",
                    float(await made.answer(VICTIM_IP) != "victim"),
                    "clients",
                    0,
                ),
                alive(process),
            )


async def many_ports(folder: Path, mode: str = "nftables") -> Sequence[Figure]:
    async with stage(folder) as made:
        await made.service(GOOD, "first", made.victim, clusterIP=VICTIM_IP)
        with proxy(made, folder, "--proxy-mode", mode) as process:
            await made.wait_for("victim", VICTIM_IP)
            before = process.rss_mib()
            ports = [port(number) for number in range(1, 1 + MANY_PORTS)]
            await made.service(EVIL, "wide", made.evil, ports=ports, clusterIP=LATER_IP)
            longest = 0.0
            for number in range(5):
                address = f"10.96.2.{number + 1}"
                await made.service(GOOD, f"later-{number}", made.victim, clusterIP=address)
                longest = max(longest, await made.wait_for("victim", address))
            await made.wait_for("evil", LATER_IP)
            return (
                Figure("longest wait of another Service", round(longest, 2), "s", WAIT_SECONDS_MAX),
                Figure(
                    "memory that it took at its peak",
                    round(process.rss_mib(peak=True) - before),
                    "MiB",
                    150,
                ),
                alive(process),
            )


ATTACKS = (
    Attack(
        "services-take-addresses",
        "who may edit Services of one namespace asks for cluster IPs, Nodes' and Pods' addresses "
        "as externalIPs",
        take_addresses,
    ),
    Attack(
        "services-stall-nodes",
        f"one Service of {STALL_ADDRESSES:,} externalIPs and {STALL_PORTS} ports holds up the "
        "rules of all others",
        stall_nodes,
    ),
    Attack(
        "services-many-ports",
        f"one Service of {MANY_PORTS:,} ports, which are as many chains and rules, holds up the "
        "others",
        many_ports,
    ),
    Attack(
        "services-two-modes",
        "a second node proxy of another mode starts on the same node, and takes the first one's "
        "rules away",
        two_modes,
    ),
    Attack(
        "services-churn",
        f"{CHURN_ROUNDS * CHURN_SERVICES:,} Services with external IPs come and go; a node proxy "
        "keeps nothing of them",
        churn,
    ),
)
