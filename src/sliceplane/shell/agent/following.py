"""Whether the kernels of all nodes hold a drain: the drain barrier's question for slices that an agent wrote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease, Node
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Nodes
from sliceplane.drain.barrier import Nodes as KnownNodes
from sliceplane.drain.barrier import compare
from sliceplane.drain.cluster import LEASES
from sliceplane.drain.departure import EVERY
from sliceplane.shell.transport.base import Client, Unreachable

_PERIOD_S: Final = 0.2


async def followed(client: Client, revisions: Mapping[str, int], at_most_s: float) -> str:
    """Wait until every node holds *revisions*, or the time is over.  Gives a sentence that says which it was."""
    nodes = KnownNodes()
    leases: dict[str, Lease] = {}
    goal = {EVERY: max(revisions.values(), default=0)}
    ends = time.monotonic() + at_most_s
    missing = "no node told anything"
    while (left := ends - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                for body in (await client.list(Selection(Nodes))).items:
                    nodes.on_node(None, decode(body, Node))
                for body in (await client.list(LEASES)).items:
                    lease = decode(body, Lease)
                    nodes.on_lease(leases.get(lease.metadata.name), lease, time.time())
                    leases[lease.metadata.name] = lease
        except (StatusError, Unreachable, TimeoutError) as error:
            missing = f"nodes cannot be asked: {str(error) or 'no answer'}"
            await asyncio.sleep(max(0.0, ends - time.monotonic()))
            break
        proof = compare(goal, nodes.facts(), time.time())
        if not proof.waiting and not proof.unknown:
            return f"all {proof.required} nodes have followed"
        missing = "still to follow: " + ", ".join(node.text for node in (*proof.waiting, *proof.unknown)[:3])
        await asyncio.sleep(_PERIOD_S)
    return f"went on after {at_most_s:g} s; {missing}"
