"""Deletes the UDP flows that ``node.conntrack`` finds stale, and counts open connections.

**Deleting.** The program ``conntrack`` lists the table once a pass; its output is read line by
line, at any length of the table. A netlink message deletes each stale entry
(``node.nft.netlink.flows``), ``BATCH`` of them at a time, while the listing continues. So a pass is
linear in the table, its memory does not depend on the number of stale entries, and the flows of one
Service do not delay those of another. A process for each pair of destination and endpoint would
walk the whole table each time (0.3 s at 200,000 entries), and a tenant has as many pairs as it has
ports.

**Counting.** The kernel dumps the entries that some addresses answer (``node.nft.netlink.flows``).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager

from sliceplane.consume.flow_counts import FlowTarget
from sliceplane.kit.io.process import descriptors
from sliceplane.kit.ip import Family
from sliceplane.node.conntrack import Expected, OpenFlow, TrackedFlow, parse_tracked
from sliceplane.node.io.kernel.nft_netlink import netfilter_socket
from sliceplane.node.nft.netlink.flows import deletions, flows_requests, parse_flows
from sliceplane.node.nft.netlink.messages import parse_answers

TIMEOUT_S = 60.0
#: entries deleted by one call; the answers to more would not fit into the socket's default buffer
BATCH = 128
#: bytes of one dump: some 250,000 entries, where the kernel does not filter
DUMP_BYTES_MAX = 64 << 20
_ANSWER_TIMEOUT_S = 5.0
_RECEIVE_BYTES = 1 << 16
_FAMILY: dict[Family, str] = {"IPv4": "ipv4", "IPv6": "ipv6"}


class ConntrackError(Exception):
    """Flows could not be listed or deleted; ``str()`` is one sentence for the user."""


class Conntrack:
    """The flows of one network namespace (``netns``: a name under /run/netns; "" is our own)."""

    def __init__(
        self, *, netns: str = "", program: str = "conntrack", timeout_s: float = TIMEOUT_S
    ) -> None:
        self._netns = netns
        self._prefix = ("ip", "netns", "exec", netns) if netns else ()
        self._program = program
        self._timeout_s = timeout_s

    async def reconcile(self, family: Family, expected: Expected) -> int:
        """Deletes the stale UDP flows of *family* and returns their number.  Raises
        ``ConntrackError``.
        """
        if not expected:
            return 0
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._forget_stale(family, expected)
        except TimeoutError as error:
            raise ConntrackError(
                f"conntrack did not answer within {self._timeout_s:g} s"
            ) from error

    async def established(self, address: str) -> int:
        """Returns the number of open TCP connections to *address*, by a Service or directly.
        Raises ``ConntrackError``.
        """
        return sum(flow.is_tcp for flow in await self._open_flows({address}))

    async def count_translated(self, targets: Sequence[FlowTarget]) -> dict[FlowTarget, int]:
        """Returns the number of open flows that Services lead to each of *targets*. Raises
        ``ConntrackError``.
        """
        flows = await self._open_flows({target.address for target in targets})
        counts = Counter[FlowTarget]()
        for flow in flows:
            if flow.is_translated:
                address, port = flow.answered_by
                counts.update({FlowTarget(address), FlowTarget(address, port)})
        return {target: counts[target] for target in targets}

    async def _open_flows(self, addresses: Collection[str]) -> list[OpenFlow]:
        try:
            return await asyncio.to_thread(self._list_open_flows, addresses)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            descriptors.report(error, "netlink socket")
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ConntrackError(f"connections could not be listed: {why or error}") from error

    def _list_open_flows(self, addresses: Collection[str]) -> list[OpenFlow]:
        """Blocks.  Raises ``OSError``."""
        with netfilter_socket(self._netns) as sock:
            sock.settimeout(_ANSWER_TIMEOUT_S)
            return [
                flow
                for request, packed in flows_requests(addresses)
                for flow in _dump(sock, request, packed)
            ]

    async def _forget_stale(self, family: Family, expected: Expected) -> int:
        forgotten = 0
        stale: list[TrackedFlow] = []
        async with self._running("-L", "-p", "udp", "-f", _FAMILY[family]) as process:
            assert process.stdout is not None, "its output is a pipe"
            async for line in process.stdout:
                tracked = parse_tracked(line.decode(errors="replace"), family)
                if tracked is not None and expected.is_stale(tracked.flow):
                    stale.append(tracked)
                    if len(stale) == BATCH:
                        forgotten += await self._forget(family, stale)
                        stale = []
            if await process.wait() != 0:
                raise ConntrackError(
                    f"conntrack could not list the flows: exit code {process.returncode}"
                )
        return forgotten + (await self._forget(family, stale) if stale else 0)

    async def _forget(self, family: Family, stale: Sequence[TrackedFlow]) -> int:
        """Deletes these entries; returns the number of those that still existed."""
        try:
            return await asyncio.to_thread(self._delete, deletions(family, stale), len(stale))
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            descriptors.report(error, "netlink socket")
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ConntrackError(f"a flow could not be deleted: {why}") from error

    def _delete(self, batch: bytes, count: int) -> int:
        with netfilter_socket(self._netns) as sock:
            sock.settimeout(_ANSWER_TIMEOUT_S)
            sock.sendto(batch, (0, 0))
            codes: list[int] = []
            while len(codes) < count:
                codes.extend(answer.errno for answer in parse_answers(sock.recv(_RECEIVE_BYTES)))
        refused = next((code for code in codes if code not in {0, errno.ENOENT}), 0)
        if refused:
            raise OSError(refused, os.strerror(refused))
        return codes.count(0)

    @asynccontextmanager
    async def _running(self, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        command = (*self._prefix, self._program, *arguments)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, RuntimeError) as error:  # no process, or no thread that waits for it
            descriptors.report(error, command[0])
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ConntrackError(f"{command[0]} could not be started: {why}") from error
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


def _dump(sock: socket.socket, request: bytes, addresses: Collection[bytes]) -> Iterator[OpenFlow]:
    """Yields the answer to *request*, which concerns *addresses*. Raises ``OSError``."""
    sock.sendto(request, (0, 0))
    size = 0
    while size <= DUMP_BYTES_MAX:
        data = sock.recv(_RECEIVE_BYTES)
        size += len(data)
        part = parse_flows(data, addresses)
        yield from part.flows
        if part.errno or part.is_interrupted:
            code = part.errno or errno.EAGAIN
            raise OSError(code, os.strerror(code))
        if part.done:
            return
    raise OSError(errno.EFBIG, f"more than {DUMP_BYTES_MAX >> 20} MiB of entries")
