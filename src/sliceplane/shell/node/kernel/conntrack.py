"""Runs ``conntrack``: forgets the UDP flows that ``proxy.conntrack`` finds stale, and counts open connections.

One listing a pass, read line by line, whatever its length; then one deletion for each pair of a service address and an
endpoint that is gone, which takes all their clients' flows at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sliceplane.kit.ip import Family
from sliceplane.proxy.conntrack import Expected, UdpFlow, parse_flow
from sliceplane.shell.process import descriptors

TIMEOUT_S = 60.0
_FAMILY: dict[Family, str] = {"IPv4": "ipv4", "IPv6": "ipv6"}


class ConntrackError(Exception):
    """Flows could not be listed or forgotten; ``str()`` is one sentence for people."""


class Conntrack:
    """The flows of one network namespace (``netns``: a name under /run/netns; "" is our own)."""

    def __init__(self, *, netns: str = "", program: str = "conntrack", timeout_s: float = TIMEOUT_S) -> None:
        self._prefix = ("ip", "netns", "exec", netns) if netns else ()
        self._program = program
        self._timeout_s = timeout_s

    async def reconcile(self, family: Family, expected: Expected) -> int:
        """Forgets the stale UDP flows of *family*; how many there were.  Raises ``ConntrackError``."""
        if not expected:
            return 0
        try:
            async with asyncio.timeout(self._timeout_s):
                return sum([await self._forget(family, flow) for flow in await self._stale(family, expected)])
        except TimeoutError as error:
            raise ConntrackError(f"conntrack did not answer within {self._timeout_s:g} s") from error

    async def established(self, address: str) -> int:
        """How many TCP connections *address* answers, by a Service or straight.  Raises ``ConntrackError``."""
        chosen = ("-L", "-p", "tcp", "-f", "ipv6" if ":" in address else "ipv4", "--state", "ESTABLISHED")
        try:
            async with asyncio.timeout(self._timeout_s), self._running(*chosen, "--reply-src", address) as process:
                stdout, _ = await process.communicate()
        except TimeoutError as error:
            raise ConntrackError(f"conntrack did not answer within {self._timeout_s:g} s") from error
        if process.returncode != 0:
            raise ConntrackError(f"conntrack could not list connections: exit code {process.returncode}")
        return stdout.count(b"\n")

    async def _stale(self, family: Family, expected: Expected) -> tuple[UdpFlow, ...]:
        stale: set[UdpFlow] = set()
        async with self._running("-L", "-p", "udp", "-f", _FAMILY[family]) as process:
            assert process.stdout is not None, "its output is a pipe"
            async for line in process.stdout:
                flow = parse_flow(line.decode(errors="replace"), family)
                if flow is not None and expected.is_stale(flow):
                    stale.add(flow)
            if await process.wait() != 0:
                raise ConntrackError(f"conntrack could not list the flows: exit code {process.returncode}")
        return tuple(sorted(stale))

    async def _forget(self, family: Family, flow: UdpFlow) -> int:
        """That there is none any more (exit code 1) is as good."""
        (to, to_port), (by, by_port) = flow
        chosen = ("-D", "-p", "udp", "-f", _FAMILY[family], "--orig-dst", to, "--orig-port-dst", str(to_port))
        async with self._running(*chosen, "--reply-src", by, "--reply-port-src", str(by_port)) as process:
            _, stderr = await process.communicate()
            if process.returncode not in {0, 1}:
                raise ConntrackError(f"conntrack could not forget a flow: exit code {process.returncode}")
        counted = re.search(rb"(\d+) flow entries", stderr)
        return int(counted[1]) if counted else 0

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
        except (OSError, RuntimeError) as error:  # no process, or no thread to wait for it
            descriptors.tell(error, command[0])
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ConntrackError(f"{command[0]} could not be started: {why}") from error
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
