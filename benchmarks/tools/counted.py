"""New connections through rules as kube-proxy lays them out, with and without the table that counts
them, and the reads of its counters.

Run as ``python -m benchmarks.tools.counted SERVICES FLOWS ROUNDS`` in a network namespace made for
it. One table costs less than the noise, so ``COPIES`` of it are there in every other round. Each of
FLOWS datagrams to one of SERVICES has a source port of its own, so that it is a connection of its
own. Prints one JSON object: ``without_s`` and ``with_s``, CPU seconds of each round; ``copies``;
``read_s``, CPU seconds to read the counters of both families and to add them up; ``counted``,
connections.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time

from benchmarks.tools.first_packets import prepare
from benchmarks.tools.observed import table
from benchmarks.tools.proxied import service_ip
from sliceplane.api import codec
from sliceplane.api.core import Service
from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.consume.demand import MEASURED
from sliceplane.consume.progress import Progress
from sliceplane.kit.ip import FAMILIES
from sliceplane.node.demand import TABLE, ServiceDemand
from sliceplane.node.io.demand import count_connections

COPIES = 10
READS = 50
_HEADER = struct.Struct(">HHHH")


def service(number: int) -> Service:
    document = {
        "metadata": {
            "namespace": "bench",
            "name": f"s-{number}",
            "uid": f"{number:08x}",
            "annotations": {ANNOTATION_TOPOLOGY_MODE: MEASURED},
        },
        "spec": {
            "clusterIPs": [service_ip(number + 2), f"fd30::{number:x}"],
            "ports": [{"name": "dns", "port": 80, "protocol": "UDP"}],
        },
    }
    return codec.decode(codec.encode(document), Service)


def write(*lines: str) -> None:
    subprocess.run(["nft", "-f", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def copies(demand: ServiceDemand) -> list[str]:
    transaction = demand.take_transaction("IPv4")
    assert transaction is not None, "Services ask"
    return [transaction.render().replace(TABLE, f"copy-{at}") for at in range(COPIES)]


def send(sender: socket.socket, services: int, flows: int) -> float:
    """Returns the CPU seconds of *flows* new flows, without those of the loop itself."""
    addresses = [(service_ip(number % services + 2), 0) for number in range(flows)]
    datagrams = [_HEADER.pack(10_000 + at, 80, _HEADER.size, 0) for at in range(flows)]
    subprocess.run(["conntrack", "-F"], check=True, capture_output=True)
    began = time.process_time()
    for datagram, address in zip(datagrams, addresses, strict=True):
        sender.sendto(datagram, address)
    return time.process_time() - began


async def read(demand: ServiceDemand) -> float:
    """Returns the CPU seconds of one read, as often as it takes to be measured."""
    progress = Progress("bench", FAMILIES, changed_period_s=0.0)
    rounds = 0
    note = progress.on_demand

    def on_demand(demand: str) -> None:
        nonlocal rounds
        note(demand)
        rounds += 1

    progress.on_demand = on_demand  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(count_connections(demand, progress))
    while rounds < 2:
        await asyncio.sleep(0.01)
    before, began = rounds, time.process_time()
    while rounds < before + READS:
        await asyncio.sleep(0.01)
    took = (time.process_time() - began) / (rounds - before)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return took


def main(services: int, flows: int, rounds: int) -> None:
    prepare()
    write(*(line.replace("tcp", "udp") for line in table([2] * services)))
    demand = ServiceDemand(FAMILIES)
    for number in range(services):
        demand.on_service(None, service(number))
    measured: dict[str, list[float]] = {"without_s": [], "with_s": []}
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as sender:
        for _ in range(rounds):
            measured["without_s"].append(send(sender, services, flows))
            write(*copies(demand))
            measured["with_s"].append(send(sender, services, flows))
            listed = subprocess.run(
                ["nft", "-j", "list", "set", "ip", "copy-0", "services"],
                check=True,
                capture_output=True,
            ).stdout
            write(*(f"delete table ip copy-{at}" for at in range(COPIES)))
    elements = json.loads(listed)["nftables"][-1]["set"]["elem"]
    counted = sum(element["elem"]["counter"]["packets"] for element in elements)
    read_s = asyncio.run(read(demand))
    print(json.dumps({**measured, "copies": COPIES, "read_s": read_s, "counted": counted}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
