"""Connections to many services, each the first of its kind: what the kernel's rules cost a new
connection.

Run as ``python -m benchmarks.tools.first_packets SIZES COUNT`` in a network namespace of its own. A
proxy writes the rules of SIZES (as for ``proxied``); every endpoint's address is made one of this
host's, with one server for all, so that a connection to a cluster IP is a look at the rules, a
translation and a handshake within this kernel. COUNT connections go to services drawn at random, in
turn with as many straight to an endpoint. Prints one JSON object: ``services``, and lists
``through_s`` and ``straight_s``: seconds of connect().
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time

from demo.net import run_ip

from benchmarks.tools.objects import pod_ip
from benchmarks.tools.proxied import WAIT_MAX_S, Cluster, Server, service_ip, sizes_of
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import ProxyConfig

PORT = 8080


def prepare() -> None:
    """Pods' addresses (10.128.0.0/9) are this host's, cluster IPs (10.96.0.0/11) have a route."""
    run_ip("link", "set", "lo", "up")
    run_ip("addr", "add", "192.0.2.1/32", "dev", "lo")
    run_ip("route", "add", "local", "10.128.0.0/9", "dev", "lo")
    run_ip("route", "add", "10.96.0.0/11", "dev", "lo", "src", "192.0.2.1")


def connect(server: socket.socket, address: str, port: int) -> float:
    """Seconds until the connection stands; the server takes it and both ends close."""
    with socket.socket() as client:
        started = time.perf_counter()
        client.connect((address, port))
        took = time.perf_counter() - started
        accepted, _ = server.accept()
        accepted.close()
    return took


async def main(groups: str, count: int) -> None:
    sizes = sizes_of(groups)
    prepare()
    proxy = NodeProxy(ProxyConfig("node-00000", families=("IPv4",)), Nftables(NftRunner()))
    following = asyncio.create_task(proxy.follow(Server(Cluster(sizes)), Rng(1)))  # type: ignore[arg-type]  # it needs no writes
    try:
        async with asyncio.timeout(WAIT_MAX_S):
            await proxy.wait_ready()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    rng = Rng(2)
    through = list[float]()
    straight = list[float]()
    with socket.create_server(("", PORT), backlog=16) as server:
        for number in range(count):
            through.append(connect(server, service_ip(rng.below(len(sizes)) + 2), 80))
            straight.append(connect(server, pod_ip(number % sum(sizes)), PORT))
    print(
        json.dumps({"services": len(sizes), "through_s": through, "straight_s": straight}),
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
