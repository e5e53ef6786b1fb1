"""Waits until the kernels of all nodes have applied a drain: the drain barrier for slices that an
agent wrote.

Nodes and their Leases are listed once a second. In between, nodes are queried through the server's
in-memory reports (``consume.drain.reports``), if it has them and the account may read them. So a
drain takes only as long as the nodes need, not until their next periodic report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease, Node
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes
from sliceplane.consume.drain.barrier import Nodes as KnownNodes
from sliceplane.consume.drain.barrier import compare
from sliceplane.consume.drain.cluster import NODE_LEASES
from sliceplane.consume.drain.relayed import NodeLeases
from sliceplane.consume.drain.reports import barrier_answers, pause_s, question
from sliceplane.consume.selections import SHARED
from sliceplane.watch.io.base import Client, Unreachable, send
from sliceplane.watch.paging import CACHE_BYTES_MAX, BadList, ListBounds

#: seconds between two lists
_LIST_S: Final = 1.0
_PAUSE_S: Final = 0.2
#: a Node has some 20 kB, and a page of the size that an agent reads delays nothing
_PAGE_OBJECTS: Final = 50


class _BarrierWait:
    def __init__(self, client: Client, revision: int) -> None:
        self._client = client
        #: no slice of an agent is for one zone only, so all nodes read it in their shared selection
        self._goal = {(EndpointSlices.plural, SHARED): revision}
        self._nodes = KnownNodes()
        self._leases = NodeLeases()
        self._listed: dict[str, Lease] = {}
        self._report_number = 0
        #: nodes that have not applied it, for the user
        self.missing = "no node was heard"

    async def wait_until_applied(self) -> int:
        """Returns the number of nodes. Raises ``StatusError`` and ``Unreachable``."""
        listed_at = float("-inf")
        while True:
            if time.monotonic() - listed_at >= _LIST_S:
                await self._list()
                listed_at = time.monotonic()
            proof = compare(self._goal, self._nodes.facts(), time.time())
            self.missing = ", ".join(node.text for node in (*proof.waiting, *proof.unknown)[:3])
            if not self.missing:
                return proof.required
            await self._query()

    async def _list(self) -> None:
        async for body in self._bodies(Selection(Nodes)):
            self._nodes.on_node(None, decode(body, Node))
        async for body in self._bodies(NODE_LEASES):
            lease = decode(body, Lease)
            name = lease.metadata.name
            for old, new, age_s in self._leases.on_lease(self._listed.get(name), lease):
                self._nodes.on_lease(old, new, time.time() - age_s)
            self._listed[name] = lease

    async def _bodies(self, selection: Selection) -> AsyncIterator[bytes]:
        """Yields the objects of *selection*. The loop runs other tasks between two pages, and after
        every ``_PAGE_OBJECTS`` of a larger page.
        """
        bounds = ListBounds(CACHE_BYTES_MAX)
        token = ""
        while True:
            page = await self._client.list(selection, limit=_PAGE_OBJECTS, continue_token=token)
            try:
                bounds.on_page(page.items, page.continue_token)
            except BadList as error:
                raise Unreachable(f"list of {selection.resource.plural}: {error}") from error
            for number, body in enumerate(page.items, 1):
                yield body
                if number % _PAGE_OBJECTS == 0:
                    await asyncio.sleep(0)
            token = page.continue_token
            if not token:
                return

    async def _query(self) -> None:
        request = question(self._goal, self._report_number)
        try:
            answer = barrier_answers.decode(await send(self._client, request))
        except (StatusError, msgspec.DecodeError) as error:
            if isinstance(error, StatusError) and error.reason not in request.tolerate:
                raise
            await asyncio.sleep(_PAUSE_S)
            return
        self._report_number = answer.number
        for lease_key, report in answer.reports.items():
            self._nodes.on_report(lease_key, report)
        await asyncio.sleep(pause_s(len(self._nodes)))


async def wait_for_nodes(client: Client, revisions: Mapping[str, int], at_most_s: float) -> str:
    """Waits until every node has applied *revisions*, or the time is over. Returns a sentence that
    says which.
    """
    barrier = _BarrierWait(client, max(revisions.values(), default=0))
    ends = time.monotonic() + at_most_s
    try:
        async with asyncio.timeout(at_most_s):
            return f"all {await barrier.wait_until_applied()} nodes have followed"
    except TimeoutError:
        missing = f"still to follow: {barrier.missing}"
    except (StatusError, Unreachable) as error:
        missing = f"nodes cannot be asked: {error}"
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
    return f"went on after {at_most_s:.1f} s; {missing}"
