"""A node proxy tells how far it is: writes the Lease of ``proxy.progress``, beside the loop that writes rules.

One request each time, at a bounded rate: at a beat of its own, and soon after a slice asked for it.  Whether it
succeeds is nothing to the rules: a server that refuses (the proxy's role may lack Leases in kube-node-lease) is told of
once and asked again at the same slow pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Leases
from sliceplane.kit.rng import Rng
from sliceplane.proxy.progress import LEASE_NAMESPACE
from sliceplane.shell.node.node_proxy import NodeProxy
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.transport.base import Client, Unreachable, no_answer

#: a timer may ring so much before its time, and is not set again for the rest
EARLY_S: Final = 0.001

_log = get_logger("node-proxy")


async def report_progress(client: Client, proxy: NodeProxy, rng: Rng, clock: Callable[[], float]) -> None:
    """Until cancelled; begins when the first rules are written.  The Lease stays, and runs out by itself."""
    await proxy.wait_ready()
    period_s = proxy.progress.changed_period_s
    # thousands of proxies that were started by one command do not come at once
    await asyncio.sleep(rng.below(1000) / 1000 * period_s)
    complained = ""
    beat = clock()
    while True:
        proxy.note_progress()
        now = clock() + EARLY_S
        asked_at = proxy.progress.asked_deadline()
        at_beat = now >= beat and proxy.progress.next_deadline() <= now
        if at_beat or (asked_at is not None and asked_at <= now):
            problem = await _write(client, proxy, clock(), at_beat=at_beat)
            if problem and problem != complained:
                _log.warning("how far this node is cannot be told", problem=problem)
            complained = problem
            asked_at = None if problem else proxy.progress.asked_deadline()
        while beat <= now:
            beat += period_s
        await _wanted(proxy, max(min(beat, asked_at or beat) - clock(), 0.0))


async def _wanted(proxy: NodeProxy, delay_s: float) -> None:
    """Returns after *delay_s*, or as soon as a report on demand may be due."""
    try:
        async with asyncio.timeout(delay_s):
            await proxy.reports_wanted.wait()
    except TimeoutError:
        pass
    proxy.reports_wanted.clear()


async def _write(client: Client, proxy: NodeProxy, now: float, *, at_beat: bool) -> str:
    """The problem; "" if there is none."""
    progress = proxy.progress
    body = progress.take_report(now, at_beat=at_beat)
    try:
        try:
            await client.perform(
                Write(verb="patch", resource=Leases, namespace=LEASE_NAMESPACE, name=progress.name, body=body)
            )
        except StatusError as error:
            if error.reason != "NotFound":
                raise
            await client.perform(Write(verb="create", resource=Leases, namespace=LEASE_NAMESPACE, body=body))
    except StatusError as error:
        progress.on_failure()
        return str(error)
    except Unreachable as error:
        progress.on_failure()
        return str(no_answer(error))
    return ""
