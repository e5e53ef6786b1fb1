"""Any node proxy that writes nftables or iptables rules: it is started for each case in a network
namespace.

Its command may contain ``{kubeconfig}`` and ``{node}``; ``KUBECONFIG`` is in its environment.
Belief: the destinations of a connection to the cluster IP and port of the Service in that namespace
(``kernel_rules``, or ``saved_rules`` if there are iptables chains). It needs root, ``ip`` and
``nft``, and ``iptables-save`` for iptables rules; nothing outside of the namespace changes.

The API server listens on this machine's loopback. A socket at the same address inside the namespace
leads to it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sliceplane.lab.conformance.consumers.consumer import (
    FollowedService,
    FollowingConsumer,
)
from sliceplane.lab.conformance.consumers.kernel_rules import UnknownStatement, destinations
from sliceplane.lab.conformance.consumers.program import (
    CommandConsumer,
    RunningProgram,
    ignored,
    process,
)
from sliceplane.lab.conformance.consumers.saved_rules import saved_destinations
from sliceplane.lab.conformance.model import Belief
from sliceplane.lab.conformance.steps import NODE, NODE_ADDRESS, SERVICE_PORT
from sliceplane.node.io.kernel.netns import listening_in
from sliceplane.watch.io.kubeconfig import load

_CHUNK: Final = 1 << 16


class NodeProxyConsumer(CommandConsumer):
    """See the module."""

    kind = "node-proxy"
    has_cluster_ip = True

    def __init__(self, command: str, *, name: str = "", patience_s: float) -> None:
        super().__init__(
            command,
            name=name,
            claims=("hints", "fallback", "local"),
            ables=("large", "unnamed-port", "families"),
            patience_s=patience_s,
        )

    @asynccontextmanager
    async def follow(self, followed: FollowedService) -> AsyncIterator[FollowingConsumer]:
        values = {"{kubeconfig}": str(followed.kubeconfig), "{node}": NODE}
        async with _namespace() as netns, forward_port(netns, _port(followed.kubeconfig)):
            inside = ["ip", "netns", "exec", netns]
            command = [values.get(word, word) for word in self._command]
            async with process([*inside, *command], followed) as running, ignored(running):
                yield _RulesFollower(followed, running, inside)


class _RulesFollower(FollowingConsumer):
    def __init__(
        self, followed: FollowedService, running: RunningProgram, inside: list[str]
    ) -> None:
        super().__init__()
        self._followed = followed
        self._running = running
        self._inside = inside
        self._destinations: Callable[[], Awaitable[Belief | None]] = self._in_either

    async def poll(self) -> None:
        try:
            believed = await self._destinations()
        except UnknownStatement as error:
            self.ended = f"its rules are not understood: {error}"
            return
        if believed is not None:
            self.believe(believed)
        if self._running.process.returncode is not None:
            self.ended = await self._running.farewell()

    async def _in_either(self) -> Belief | None:
        """Detects the proxy's mode. nftables also lists iptables rules, which cannot be parsed
        there; they may have appeared between two reads.
        """
        unknown: UnknownStatement | None = None
        for read in (self._in_iptables, self._in_nftables, self._in_iptables):
            try:
                believed = await read()
            except UnknownStatement as error:
                unknown = unknown or error
                continue
            if believed is not None:
                self._destinations = read
                return believed
        if unknown is not None:
            raise unknown
        return None

    async def _in_iptables(self) -> Belief | None:
        program = "ip6tables-save" if ":" in self._followed.cluster_ip else "iptables-save"
        if shutil.which(program) is None:
            return None
        saved = await _output(*self._inside, program, "-t", "nat")
        return saved_destinations(saved, self._followed.cluster_ip, SERVICE_PORT, NODE_ADDRESS)

    async def _in_nftables(self) -> Belief | None:
        listing = await _output(*self._inside, "nft", "-j", "list", "ruleset")
        return destinations(listing, self._followed.cluster_ip, SERVICE_PORT, NODE_ADDRESS)


@asynccontextmanager
async def _namespace() -> AsyncIterator[str]:
    """Creates a network namespace until the end of the block, and yields its name. Raises
    ``OSError``.
    """
    netns = f"sliceplane-conformance-{os.getpid()}"
    await _output("ip", "netns", "add", netns)
    try:
        await _output("ip", "-n", netns, "link", "set", "lo", "up")
        yield netns
    finally:
        await _output("ip", "netns", "del", netns)


@asynccontextmanager
async def forward_port(netns: str, port: int) -> AsyncIterator[None]:
    """Forwards *port* of the namespace's loopback to the same port outside."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # reset, as if nothing listened
            writer.transport.abort()
            return
        await asyncio.gather(_pass_on(reader, back), _pass_on(upstream, writer))

    listening = await listening_in(netns)("127.0.0.1", port)
    server = await asyncio.start_server(connected, sock=listening)
    try:
        yield
    finally:
        server.close()  # its connections end with the program


def _port(kubeconfig: Path) -> int:
    port = urlsplit(load(str(kubeconfig)).server).port
    assert port is not None, "the stage's server says its port"
    return port


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies data until one side ends."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _output(*command: str) -> str:
    """Returns a command's output. Raises ``OSError`` with the stderr of a failed command."""
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    printed, stderr = await program.communicate()
    if program.returncode:
        raise OSError(f"{' '.join(command)}: {stderr.decode(errors='replace').strip()}")
    return printed.decode()
