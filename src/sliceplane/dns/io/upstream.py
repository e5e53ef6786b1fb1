"""The forwarder's sockets and files: performs what ``dns.forwarding`` decides.

Each datagram goes out of a socket of its own, connected, so that the kernel draws its port and
takes replies from the asked server alone (RFC 5452). Files are looked at now and then, and count
anew when they changed; a table that cannot be read leaves the old one in place.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, cast

import msgspec

from sliceplane.dns.forwarding.asking import EndAttempt, SendQuery
from sliceplane.dns.forwarding.configuration import (
    ZoneServers,
    check_zones,
    parse_resolv_conf,
    parse_server,
    parse_stub,
)
from sliceplane.dns.forwarding.forwarder import Forwarder, ForwardNotice, SendAnswer
from sliceplane.dns.forwarding.local import HostTable, parse_hosts
from sliceplane.dns.forwarding.message import WholeRecord
from sliceplane.dns.forwarding.upstreams import SocketAddress
from sliceplane.dns.wire import CNAME, ROOT, DnsQuestion
from sliceplane.kit.io.files import read_bytes
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.process.descriptors import tell

#: how often files are looked at
LOOK_S: Final = 5.0
#: of a resolv.conf or a table of hosts
_FILE_BYTES_MAX: Final = 4 << 20
_REPLY_BYTES_MAX: Final = 4096

_log = get_logger("dns")


class ForwardFlags(msgspec.Struct, frozen=True, kw_only=True):
    """``forward``: servers and files in the form of ``resolv.conf``; ``skip``: addresses that files
    name and that lead here, as the Service's does; ``stubs``: ``ZONE=SERVER``; ``hosts``: a table,
    "" for none.
    """

    forward: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    stubs: tuple[str, ...] = ()
    hosts: str = ""
    max_concurrent: int = 1000
    stale_s: float = 0.0


class Upstreams:
    """``ask`` from within the loop, once ``begin`` read the files; ``follow`` until cancelled, then
    ``close``. *own*: whether an address is one at which we listen; *is_own_name*: whether a name is
    the cluster's.
    """

    def __init__(
        self,
        flags: ForwardFlags,
        *,
        clock: Callable[[], float],
        own: Callable[[SocketAddress], bool],
        is_own_name: Callable[[bytes], bool],
    ) -> None:
        self._flags = flags
        self._clock = clock
        self._own = own
        self._forwarder = Forwarder(
            draw=lambda: secrets.randbits(64),
            is_own=is_own_name,
            max_concurrent=flags.max_concurrent,
            stale_s=flags.stale_s,
        )
        self.metrics = self._forwarder.metrics
        self._sockets: dict[int, socket.socket] = {}
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._seen: dict[str, object] = {}
        #: what the last notice says, while it is not well
        self.trouble: ForwardNotice | None = None

    def begin(self) -> None:
        """Raises ``ValueError`` with a sentence for a person, and ``OSError``."""
        if self._flags.hosts:
            self._read_hosts()
        self._forwarder.on_zones(self._zones(), self._clock())
        self._seen = self._states()
        self._perform()

    def ask(
        self,
        question: DnsQuestion,
        send: Callable[[bytes], None],
        *,
        size: int,
        account: str = "",
        target: bytes | None = None,
        before: Iterable[tuple[bytes, int, bytes]] = (),
    ) -> bool:
        """*before*: owner, TTL and target of each CNAME that leads to *target*. Returns True if an
        upstream is asked for it.
        """
        aliases = tuple(WholeRecord(owner, CNAME, ttl, data) for owner, ttl, data in before)
        is_asked = self._forwarder.on_query(
            question, send, self._clock(), size=size, account=account, target=target, before=aliases
        )
        self._perform()
        return is_asked

    async def follow(self) -> None:
        """What files say from now on."""
        while True:
            await asyncio.sleep(LOOK_S)
            states = self._states()
            if states != self._seen:
                self._seen = states
                self._read_again()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for attempt in [*self._sockets, *self._streams]:
            self._end(attempt)

    # -- files

    def _files(self) -> list[str]:
        return [
            *(text for text in self._flags.forward if "/" in text),
            *filter(None, (self._flags.hosts,)),
        ]

    def _states(self) -> dict[str, object]:
        states: dict[str, object] = {}
        for name in self._files():
            try:
                status = Path(name).stat()
                states[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
            except OSError as error:
                states[name] = error.errno
        return states

    def _zones(self) -> tuple[ZoneServers, ...]:
        servers: dict[SocketAddress, None] = {}
        policy: ZoneServers | None = None
        for text in self._flags.forward:
            if "/" in text:
                configured = parse_resolv_conf(self._resolv_conf(text))
                policy = policy or configured
                servers |= dict.fromkeys(
                    self._others(text, configured.servers if configured is not None else ())
                )
            else:
                servers[parse_server(text)] = None
        zones = [parse_stub(text) for text in self._flags.stubs]
        if servers:
            zones.append(
                ZoneServers(ROOT, tuple(servers), "sequential" if policy is None else policy.policy)
            )
        return check_zones(zones, self._own)

    def _others(self, file: str, named: tuple[SocketAddress, ...]) -> tuple[SocketAddress, ...]:
        """Returns the servers of *file* that are not this one: a machine whose resolv.conf names it
        asks it for all.
        """
        kept = tuple(
            server
            for server in named
            if server.host not in self._flags.skip and not self._own(server)
        )
        if named and not kept:
            _log.warning(
                "the file names no server but this one: names of others are refused", file=file
            )
        return kept

    @staticmethod
    def _resolv_conf(name: str) -> str:
        """Where there is none, there is no upstream in it."""
        try:
            return _read(name)
        except FileNotFoundError:
            _log.warning("there is no such file: names of others are refused", file=name)
            return ""

    def _read_hosts(self) -> None:
        table: HostTable = parse_hosts(_read(self._flags.hosts))
        for problem in table.problems:
            _log.warning(
                "a line of the table of hosts says nothing", file=self._flags.hosts, problem=problem
            )
        self._forwarder.on_hosts(table)

    def _read_again(self) -> None:
        try:
            if self._flags.hosts:
                self._read_hosts()
            self._forwarder.on_zones(self._zones(), self._clock())
        except (OSError, ValueError) as error:
            _log.error(
                "a file of the forwarder is not used: what it said before stands", error=str(error)
            )
        self._perform()

    # -- sockets

    def _perform(self) -> None:
        """Until nothing is left to do, and then when something is due."""
        while actions := self._forwarder.take_actions():
            for action in actions:
                match action:
                    case SendQuery():
                        self._send(action)
                    case EndAttempt():
                        self._end(action.attempt)
                    case SendAnswer():
                        cast("Callable[[bytes], None]", action.token)(action.packet)
                    case ForwardNotice():
                        (_log.info if action.is_well else _log.error)(
                            action.text, reason=action.reason
                        )
                        self.trouble = None if action.is_well else action
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._forwarder.next_deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(due - self._clock(), 0.0), self._on_time
            )

    def _on_time(self) -> None:
        self._timer = None
        self._forwarder.on_time(self._clock())
        self._perform()

    def _send(self, query: SendQuery) -> None:
        loop = asyncio.get_running_loop()
        if query.tcp:
            self._streams[query.attempt] = loop.create_task(
                self._exchange(query), name=f"dns over TCP: {query.server}"
            )
            return
        family = socket.AF_INET6 if ":" in query.server.host else socket.AF_INET
        own: socket.socket | None = None
        try:
            own = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            own.connect(query.server)
            own.send(query.packet)
        except OSError as error:
            tell(error, "a query to an upstream")
            if own is not None:
                own.close()
            self._forwarder.on_failed(query.attempt, self._clock())
            return
        self._sockets[query.attempt] = own
        loop.add_reader(own.fileno(), self._on_readable, query, own)

    def _on_readable(self, query: SendQuery, own: socket.socket) -> None:
        try:
            packet = own.recv(_REPLY_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._forwarder.on_failed(query.attempt, self._clock())
        else:
            self._forwarder.on_reply(query.attempt, packet, query.server, self._clock())
        self._perform()

    async def _exchange(self, query: SendQuery) -> None:
        """One question over a connection of its own; it ends with the attempt at the latest."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(*query.server)
            writer.write(len(query.packet).to_bytes(2, "big") + query.packet)
            packet = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        except (OSError, asyncio.IncompleteReadError) as error:
            tell(error, "a query to an upstream")
            self._forwarder.on_failed(query.attempt, self._clock())
        else:
            self._forwarder.on_reply(query.attempt, packet, query.server, self._clock())
        finally:
            if writer is not None:
                writer.transport.abort()
        # The task is over: it must not be cancelled by what follows.
        self._streams.pop(query.attempt, None)
        self._perform()

    def _end(self, attempt: int) -> None:
        own = self._sockets.pop(attempt, None)
        if own is not None:
            asyncio.get_running_loop().remove_reader(own.fileno())
            own.close()
        stream = self._streams.pop(attempt, None)
        if stream is not None:
            stream.cancel()


def _read(name: str) -> str:
    return read_bytes(Path(name), _FILE_BYTES_MAX).decode(errors="replace")
