"""What a change of one thing costs the kernel, by how much else the table has: the walk over chains
and verdict maps.

Run as root, ``python -m benchmarks.tools.kernel_walk [SIZES]`` (``1000,5000,44000``) in a network
namespace of its own. Nothing of the proxy takes part but its messages. Each size is loaded three
times: with a chain and a verdict for each destination, with verdicts that lead to a few chains, and
as data alone. Prints the median of one more element of a map of targets, of one more verdict, and
of one rule written again, each a transaction, in milliseconds.

Of a transaction that adds a rule or a verdict to a table, the kernel walks all rules that base
chains lead to, and all elements of verdict maps there, once from each base chain
(``nft_table_validate``, net/netfilter/nf_tables_api.c). A transaction that only deletes, or only
adds data, makes no walk.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

from benchmarks.tools.proxied import service_ip
from sliceplane.node.context import NodeContext
from sliceplane.node.io.kernel.nft_netlink import Channel
from sliceplane.node.nft.buckets import bucket_commands, bucket_map, bucket_set
from sliceplane.node.nft.layout import SERVICE_IPS, static_commands
from sliceplane.node.nft.netlink.batch import encode
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    AddTable,
    Command,
    DeleteTable,
    DnatTarget,
    FlushChain,
    Key,
    NftContainer,
    NftRule,
    TableRef,
    Transaction,
    jump,
)
from sliceplane.node.nft.statements import Balance

TABLE: Final = TableRef("ip", "kernel-walk")
TARGETS: Final = NftContainer("targets", ("numgen",), "target", "tcp")
TARGET: Final = DnatTarget("10.128.0.1", 80)
FEW: Final = 20
RUNS: Final = 21
#: numbers of what comes while it is measured
NEW: Final = 1_000_000


def send(channel: Channel, *commands: Command) -> float:
    """Milliseconds until the kernel has them."""
    batch = encode(Transaction(TABLE, commands))
    started = time.perf_counter()
    answers = channel.send(batch)
    took = time.perf_counter() - started
    refused = [answer for answer in answers if answer.errno]
    if refused:
        raise RuntimeError(f"refused: {refused[0]}")
    return took * 1e3


def destination(number: int) -> Key:
    return (service_ip(number), "tcp", 80)


def of_chains(size: int, chains: int) -> list[Command]:
    """*size* verdicts that lead to *chains*."""
    names = [f"service-{number}" for number in range(chains)]
    ways = tuple((destination(number), jump(names[number % chains])) for number in range(size))
    rule = NftRule((Balance("tcp", 1, 0, TARGETS.name),))
    made: list[Command] = [AddChain(name) for name in names]
    return [*made, AddElements(SERVICE_IPS.name, ways), *(AddRule(name, rule) for name in names)]


def of_data(size: int) -> list[Command]:
    """*size* destinations in a room, with an endpoint each, and a chain for the rule that is
    written again.
    """
    members = tuple((destination(number), None) for number in range(size))
    endpoints = tuple(((*key, 0), TARGET) for key, _ in members)
    places = [
        AddElements(bucket_set(4).name, members),
        AddElements(bucket_map(4).name, endpoints),
    ]
    return [*bucket_commands(4), *places, *of_chains(1, 1)]


def measured(what: list[Command]) -> tuple[float, float, float]:
    channel = Channel()
    static = static_commands(TABLE.family, NodeContext())
    base: list[Command] = [
        AddTable(),
        *static,
        AddContainer(TARGETS),
        AddElements(TARGETS.name, (((0,), TARGET),)),
    ]
    send(channel, *base, *what)

    def median(change: Callable[[int], tuple[Command, ...]]) -> float:
        return statistics.median(send(channel, *change(number)) for number in range(RUNS))

    rule = AddRule("service-0", NftRule((Balance("tcp", 1, 0, TARGETS.name),)))
    try:
        return (
            median(lambda number: (AddElements(TARGETS.name, (((1 + number,), TARGET),)),)),
            median(
                lambda number: (
                    AddElements(
                        SERVICE_IPS.name, ((destination(NEW + number), jump("service-0")),)
                    ),
                )
            ),
            median(lambda _: (FlushChain("service-0"), rule)),
        )
    finally:
        send(channel, DeleteTable())


def main(sizes: str) -> None:
    print(
        f"{'destinations':>12}  {'led to by':20}{'a target':>10}{'a verdict':>11}{'a rule':>9}   ms"
    )
    for size in map(int, sizes.split(",")):
        layouts = (
            ("a chain each", of_chains(size, size)),
            (f"{FEW} chains", of_chains(size, FEW)),
            ("data", of_data(size)),
        )
        for name, commands in layouts:
            target, verdict, rule = measured(commands)
            print(f"{size:>12,}  {name:20}{target:>10.3f}{verdict:>11.3f}{rule:>9.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1000,5000,44000")
