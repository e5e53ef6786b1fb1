"""The observer's reader of nftables against the kernel: what events keep current equals what a fresh
read has, whatever a program writes.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.kernel.kube_proxy_table import TABLE
from tests.kernel.netns import Host, Net
from tests.waiting import eventually

from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.node.io.observing.nft_reader import NftReader, read_graphs
from sliceplane.node.observing.graph import RuleGraph, read_destination, read_target, served

pytestmark = pytest.mark.kernel


def listed(graph: RuleGraph) -> dict[str, list[str]]:
    return {
        read_destination(key): sorted(str(read_target(target)) for target in graph.targets(key))
        for key in graph.destinations()
    }


@asynccontextmanager
async def reading(host: Host) -> AsyncIterator[NftReader]:
    reader = NftReader(("IPv4", "IPv6"), lambda: None, lambda _: None, netns=host.netns)
    task = asyncio.create_task(reader.run())
    try:
        await eventually(lambda: reader.is_current)
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def write(host: Host, *lines: str) -> None:
    host.exec(["nft", "-f", "-"], stdin="\n".join(lines) + "\n")


def service_lines(number: int, endpoints: list[int], *, sticky: bool) -> list[str]:
    """Replaces a Service's rules by those of *endpoints*, in one transaction."""
    chain = f"service-{number}"
    lines = [f"add chain ip kube-proxy {chain}", f"flush chain ip kube-proxy {chain}"]
    if sticky and endpoints:
        for endpoint in endpoints:
            name = f"endpoint-{number}-{endpoint}"
            lines += [
                f"add chain ip kube-proxy {name}",
                f"flush chain ip kube-proxy {name}",
                f"add rule ip kube-proxy {name} ip saddr 10.1.0.{endpoint} jump mark-for-masquerade",
                f"add rule ip kube-proxy {name} meta l4proto tcp dnat to 10.1.0.{endpoint}:8080",
            ]
        parts = ", ".join(
            f"{at} : goto endpoint-{number}-{endpoint}" for at, endpoint in enumerate(endpoints)
        )
        lines.append(
            f"add rule ip kube-proxy {chain} numgen random mod {len(endpoints)} vmap {{ {parts} }}"
        )
    elif endpoints:
        parts = ", ".join(
            f"{at} : 10.1.0.{endpoint} . 8080" for at, endpoint in enumerate(endpoints)
        )
        lines.append(
            f"add rule ip kube-proxy {chain} meta l4proto tcp dnat ip to numgen random "
            f"mod {len(endpoints)} map {{ {parts} }}"
        )
    return lines


async def test_events_keep_the_rules_as_a_fresh_read_has_them() -> None:
    rng = random.Random(1)
    with Net("obr") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        write(host, TABLE.format(family="ip", address="ipv4_addr"))
        expected: dict[str, list[str]] = {}
        async with reading(host) as reader:
            for _ in range(40):
                number = rng.randrange(4)
                name = f"10.96.0.{number}:80/TCP"
                key = f"10.96.0.{number} . tcp . 80"
                if name in expected and rng.random() < 0.3:
                    write(
                        host,
                        f"delete element ip kube-proxy service-ips {{ {key} }}",
                        f"flush chain ip kube-proxy service-{number}",
                        f"delete chain ip kube-proxy service-{number}",
                    )
                    del expected[name]
                else:
                    endpoints = rng.sample(range(1, 9), rng.randrange(5))
                    lines = service_lines(number, endpoints, sticky=rng.random() < 0.3)
                    if name not in expected:
                        element = f"{{ {key} : goto service-{number} }}"
                        lines.append(f"add element ip kube-proxy service-ips {element}")
                    write(host, *lines)
                    expected[name] = sorted(f"10.1.0.{endpoint}:8080" for endpoint in endpoints)
                await eventually(lambda: listed(reader.graphs["IPv4"]) == expected)
            assert reader.loads == 1, "events suffice"
            async with reading(host) as fresh:
                assert listed(fresh.graphs["IPv4"]) == expected


async def test_lost_events_are_made_good_by_a_read() -> None:
    with Net("obr") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        write(host, TABLE.format(family="ip", address="ipv4_addr"))
        async with reading(host) as reader:
            events = reader._events
            assert events is not None
            events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            # In one step of the loop, which reads nothing meanwhile: more than the buffer takes.
            for number in range(60):
                write(host, *service_lines(number, [1, 2, 3], sticky=True))
            element = "{ 10.96.0.1 . tcp . 80 : goto service-1 }"
            write(host, f"add element ip kube-proxy service-ips {element}")
            targets = ["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"]
            await eventually(
                lambda: (
                    reader.is_current
                    and listed(reader.graphs["IPv4"]) == {"10.96.0.1:80/TCP": targets}
                )
            )
            assert reader.loads > 1, "events were lost"


async def test_a_statement_that_cannot_be_followed_is_named() -> None:
    with Net("obr") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        write(host, TABLE.format(family="ip", address="ipv4_addr"))
        async with reading(host) as reader:
            write(
                host,
                "add chain ip kube-proxy odd",
                "add rule ip kube-proxy odd meta l4proto tcp redirect to :8080",
            )
            await eventually(lambda: "redir" in reader.problem)
            assert not reader.is_current


async def test_both_families_and_a_table_that_is_removed() -> None:
    with Net("obr") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        write(host, TABLE.format(family="ip6", address="ipv6_addr"))
        write(
            host,
            "add chain ip6 kube-proxy service-1",
            "add rule ip6 kube-proxy service-1 meta l4proto tcp dnat ip6 to numgen random mod 1 "
            "map { 0 : fd00::1 . 8080 }",
            "add element ip6 kube-proxy service-ips { fd00:96::1 . tcp . 80 : goto service-1 }",
            "add element ip6 kube-proxy service-nodeports { tcp . 30080 : goto service-1 }",
        )
        async with reading(host) as reader:
            assert listed(reader.graphs["IPv6"]) == {
                "[fd00:96::1]:80/TCP": ["[fd00::1]:8080"],
                "node port 30080/TCP": ["[fd00::1]:8080"],
            }
            assert not reader.graphs["IPv4"].is_hooked
            # ``explain --kernel`` reads them once.
            once = await asyncio.to_thread(read_graphs, ("IPv6",), host.netns)
            destination = ClusterDestination("fd00:96::1", "tcp", 80)
            targets = frozenset({ServedTarget("fd00::1", 8080)})
            assert served(once["IPv6"]) == {destination: targets}
            write(host, "delete table ip6 kube-proxy")
            await eventually(lambda: not reader.graphs["IPv6"].is_hooked)
