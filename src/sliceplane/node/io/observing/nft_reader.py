"""Keeps the graphs of kube-proxy's nftables rules current, by the kernel's events.

**Start.**  The socket of events is opened first. Then a thread reads the chains, the rules of each
chain and the verdict maps, one dump each: a dump that the kernel marks as interrupted is repeated, and
short ones seldom are. Events that arrive meanwhile are applied afterwards, all of them: they state what
is there, so that those that a dump has already seen change nothing.

**Then** each transaction costs its events, whatever the size of the table, and a quiet node costs
nothing. If events were lost (the socket's buffer was full), everything is read again.

The events also tell of changes of other tables: ``nat`` is where iptables-nft has its rules.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.node.io.kernel.nft_netlink import netfilter_socket
from sliceplane.node.observing.graph import RuleGraph, UnreadableRules
from sliceplane.node.observing.nftables import (
    GROUP,
    TABLE,
    Decoder,
    ReadPart,
    chains_request,
    elements_request,
    rules_request,
    sets_request,
)

_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
_SO_RCVBUFFORCE: Final = 33
#: buffer for events while a thread reads everything; the kernel counts some 4 KiB for each
_EVENT_BUFFER_BYTES: Final = 64 << 20
_RECEIVE_BYTES: Final = 1 << 17
_TIMEOUT_S: Final = 10.0
#: reads of the socket in one step of the event loop
_READS_MAX: Final = 64
#: more reads than the socket's buffer has messages
_ALL: Final = 1 << 20
#: attempts at one dump that changes interrupt
_ATTEMPTS_MAX: Final = 50
#: seconds between two attempts to read everything
_RELOAD_S: Final = 5.0
#: bytes of events that may wait while everything is read
_QUEUED_BYTES_MAX: Final = 64 << 20

_log = get_logger("observer")


class NftReader:
    """Run ``run`` until cancelled.  *on_change* is called after each transaction of kube-proxy's
    table, *on_other* after one of another table, with its name.
    """

    def __init__(
        self,
        families: tuple[Family, ...],
        on_change: Callable[[], None],
        on_other: Callable[[str], None],
        *,
        netns: str = "",
    ) -> None:
        self.graphs: Final = {family: RuleGraph(family) for family in families}
        self._decoder = Decoder(self.graphs)
        self._on_change = on_change
        self._on_other = on_other
        self._netns = netns
        self._events: socket.socket | None = None
        self._queued: list[bytes] | None = None
        self._queued_bytes = 0
        self._is_loaded = False
        self._is_between = True
        #: tables that the transaction under way has changed
        self._touched: set[str] = set()
        self._failed = asyncio.Event()
        #: why the rules cannot be read; "" if they can
        self.problem = ""
        #: how often everything was read
        self.loads = 0

    @property
    def is_current(self) -> bool:
        """Returns True if the graphs are those after a whole transaction."""
        return self._is_loaded and self._is_between and not self.problem

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._failed.clear()
            try:
                self._open()
                assert self._events is not None, "just opened"
                loop.add_reader(self._events, self._on_readable)
                await self._load()
                self.problem = ""
                self._on_change()
                await self._failed.wait()
            except (OSError, UnreadableRules) as error:
                self._report(str(error))
                await asyncio.sleep(_RELOAD_S)
            finally:
                self._close(loop)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("the rules of the node cannot be read", problem=problem)
        self.problem = problem
        self._on_change()

    def _open(self) -> None:
        self._events = events = netfilter_socket(self._netns)
        events.setblocking(False)
        with suppress(OSError):  # without CAP_NET_ADMIN of the host: the default, more reloads
            events.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _EVENT_BUFFER_BYTES)
        events.bind((0, 0))  # an unbound socket has the kernel's own number, and receives nothing
        events.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, GROUP)
        self._queued, self._queued_bytes = [], 0
        self._is_loaded = False

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._events is not None:
            loop.remove_reader(self._events)
            self._events.close()
            self._events = None
        self._is_loaded = False

    async def _load(self) -> None:
        """Reads everything, then applies the events that arrived meanwhile."""
        await asyncio.to_thread(_dump, self._decoder, self.graphs, self._netns)
        queued, self._queued = self._queued or [], None
        for at, data in enumerate(queued):
            self._apply(data)
            if at % _READS_MAX == 0:
                await asyncio.sleep(0)
        self.catch_up()
        self.loads += 1
        self._is_loaded = True

    def _on_readable(self, most: int = _READS_MAX) -> None:
        try:
            self._read_events(most)
        except OSError as error:
            lost = error.errno == errno.ENOBUFS
            self._fail("events were lost: the rules are read again" if lost else str(error))
        except UnreadableRules as error:
            self._fail(str(error))

    def _fail(self, problem: str) -> None:
        self._is_loaded = False
        self._report(problem)
        self._failed.set()

    def catch_up(self) -> None:
        """Applies the events that the kernel has sent so far."""
        self._on_readable(_ALL)

    def _read_events(self, most: int) -> None:
        """Reads at most *most* times.  Raises ``OSError`` and ``UnreadableRules``."""
        for _ in range(most):
            if self._events is None:
                return
            try:
                data = self._events.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if self._queued is None:
                self._apply(data)
                continue
            self._queued.append(data)
            self._queued_bytes += len(data)
            if self._queued_bytes > _QUEUED_BYTES_MAX:
                raise OSError(errno.ENOBUFS, "too many changes while the rules were read")

    def _apply(self, data: bytes) -> None:
        part = self._decoder.apply(data)
        if part.tables:
            self._is_between = part.ends_transaction
        elif part.generation:
            self._is_between = True
        self._touched |= part.tables
        if not self._is_between:
            return
        others, self._touched = self._touched - {TABLE}, set()
        for name in sorted(others):
            self._on_other(name)
        if self._is_loaded:
            self._on_change()


def read_graphs(families: tuple[Family, ...], netns: str = "") -> dict[Family, RuleGraph]:
    """Returns the rules as they are now. Blocks. Raises ``OSError`` and ``UnreadableRules``."""
    graphs = {family: RuleGraph(family) for family in families}
    _dump(Decoder(graphs), graphs, netns)
    return graphs


def _dump(decoder: Decoder, graphs: Mapping[Family, RuleGraph], netns: str) -> None:
    """Reads all chains, rules and maps into *graphs*, those of *decoder*.  Blocks."""
    with netfilter_socket(netns) as sock:
        sock.settimeout(_TIMEOUT_S)
        for graph in graphs.values():
            graph.clear()
            chains = _request(sock, decoder, chains_request(graph)).chains
            for chain in dict.fromkeys(chains):
                _request(sock, decoder, rules_request(graph, chain))
            for name in dict.fromkeys(_request(sock, decoder, sets_request(graph)).sets):
                _request(sock, decoder, elements_request(graph, name))


def _request(sock: socket.socket, decoder: Decoder, request: bytes) -> ReadPart:
    """Sends a request for a dump and applies the answer; repeats it if changes interrupted it."""
    for _ in range(_ATTEMPTS_MAX):
        sock.sendto(request, (0, 0))
        whole = ReadPart()
        while not whole.done:
            part = decoder.apply(sock.recv(_RECEIVE_BYTES))
            whole.chains += part.chains
            whole.sets += part.sets
            whole.interrupted |= part.interrupted
            whole.done = part.done
        if not whole.interrupted:
            return whole
    raise OSError(errno.EAGAIN, "the rules change too often to be read")
