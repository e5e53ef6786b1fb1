"""Counts the connections of ``node.demand`` in the kernel, beside any node proxy, and passes the
totals to the node's report (``consume.progress``), which a Lease has anyway.

The kernel counts; this task reads the counters as often as the Lease may be written.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sliceplane.consume.demand import write_demand
from sliceplane.consume.progress import Progress
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.node.demand import SERVICES, ServiceDemand, demand_table
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.kernel.nft_backend import NftRunner
from sliceplane.node.io.kernel.nft_netlink import read_counters
from sliceplane.node.nft.objects import deletion

_log = get_logger("demand")


async def count_connections(demand: ServiceDemand, progress: Progress, netns: str = "") -> None:
    """Counts until cancelled, then removes the tables.  *netns*: a name under /run/netns; "" is our
    own. While the kernel cannot count, nothing is reported: a total that stays would mean that
    there are no clients.
    """
    runner = NftRunner(netns=netns)
    logged = ""
    try:
        while True:
            problem = ""
            for family in demand.families:
                problem = await _update(demand, family, runner, netns) or problem
            progress.on_demand("" if problem else write_demand(demand.totals()))
            if not problem and demand.uncounted:
                problem = f"the table is full: {demand.uncounted} ports are left out"
            if problem != logged and demand.totals():
                logged = problem
                if problem:
                    _log.warning("connections to Services are not counted", problem=problem)
            await asyncio.sleep(progress.changed_period_s)
    finally:
        with suppress(KernelError):  # the next start removes them
            await remove_counters(demand.families, netns)


async def remove_counters(families: tuple[Family, ...], netns: str = "") -> None:
    """Removes the tables, if there are any and nftables can be read.  Raises ``KernelError``."""
    for family in families:
        with suppress(OSError, RuntimeError):
            if await _read(family, netns) is not None:
                await NftRunner(netns=netns).write(deletion(demand_table(family)))


async def _update(demand: ServiceDemand, family: Family, runner: NftRunner, netns: str) -> str:
    """Reads the counters, and writes what changed. Returns the problem; "" if there is none."""
    try:
        if demand.is_table_possible(family):
            demand.on_counts(family, await _read(family, netns))
        transaction = demand.take_transaction(family)
        if transaction is not None:
            await runner.write(transaction)
    except (OSError, RuntimeError, KernelError) as error:  # RuntimeError: no thread can be started
        demand.on_failed(family)
        return str(error)
    return ""


async def _read(family: Family, netns: str) -> dict[bytes, int] | None:
    return await asyncio.to_thread(read_counters, demand_table(family), SERVICES.name, netns)
