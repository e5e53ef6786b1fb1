"""The forwarder's sockets and files: executes the actions of ``dns.forwarding``.

Each datagram has its own connected socket, so that the kernel picks a random port and accepts
replies only from the queried server (RFC 5452). Files are checked periodically, and reloaded when
they change; a file that cannot be read leaves the previous configuration in place.
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
from sliceplane.kit.io.process.descriptors import report

#: seconds between checks of the files
CHECK_S: Final = 5.0
#: bytes of a resolv.conf or a table of hosts
_FILE_BYTES_MAX: Final = 4 << 20
_REPLY_BYTES_MAX: Final = 4096

_log = get_logger("dns")


class ForwardFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of the forwarder.

    ``forward``: servers, and files in the format of ``resolv.conf``; ``skip``: addresses in files
    that lead to this server, like that of its Service; ``stubs``: ``ZONE=SERVER``; ``hosts``: path
    of a table, "" for none.
    """

    forward: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    stubs: tuple[str, ...] = ()
    hosts: str = ""
    max_concurrent: int = 1000
    stale_s: float = 0.0


class Upstreams:
    """The runner of a forwarder.

    Call ``begin``, which reads the files, then ``ask`` in the loop; run ``follow`` until cancelled,
    then ``close``. *own* returns True for an address on which this server listens, *is_own_name*
    for a name of the cluster.
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
            random_bits=lambda: secrets.randbits(64),
            is_own=is_own_name,
            max_concurrent=flags.max_concurrent,
            stale_s=flags.stale_s,
        )
        self.metrics = self._forwarder.metrics
        self._sockets: dict[int, socket.socket] = {}
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loaded_states: dict[str, object] = {}
        #: the last notice, if it reports a problem
        self.problem: ForwardNotice | None = None

    def begin(self) -> None:
        """Reads the files.  Raises ``ValueError`` with a sentence for the user, and ``OSError``."""
        if self._flags.hosts:
            self._read_hosts()
        self._forwarder.on_zones(self._zones(), self._clock())
        self._loaded_states = self._states()
        self._execute_actions()

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
        """Passes *question* to the forwarder; *send* gets the answer.  *before*: owner, TTL and
        target of each CNAME that leads to *target*.  Returns True if an upstream is queried for it.
        """
        aliases = tuple(WholeRecord(owner, CNAME, ttl, data) for owner, ttl, data in before)
        is_queried = self._forwarder.on_query(
            question, send, self._clock(), size=size, account=account, target=target, before=aliases
        )
        self._execute_actions()
        return is_queried

    async def follow(self) -> None:
        """Reloads files whenever they change."""
        while True:
            await asyncio.sleep(CHECK_S)
            states = self._states()
            if states != self._loaded_states:
                self._loaded_states = states
                self._reload()

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
                    self._without_self(text, configured.servers if configured is not None else ())
                )
            else:
                servers[parse_server(text)] = None
        zones = [parse_stub(text) for text in self._flags.stubs]
        if servers:
            zones.append(
                ZoneServers(ROOT, tuple(servers), "sequential" if policy is None else policy.policy)
            )
        return check_zones(zones, self._own)

    def _without_self(
        self, file: str, named: tuple[SocketAddress, ...]
    ) -> tuple[SocketAddress, ...]:
        """Returns the servers in *file* except this one: the resolv.conf of a host may name this
        server.
        """
        kept = tuple(
            server
            for server in named
            if server.host not in self._flags.skip and not self._own(server)
        )
        if named and not kept:
            _log.warning(
                "the file names no other server: names outside the cluster are refused", file=file
            )
        return kept

    @staticmethod
    def _resolv_conf(name: str) -> str:
        """Returns the text of the file; "" if it does not exist."""
        try:
            return _read(name)
        except FileNotFoundError:
            _log.warning(
                "the file does not exist: names outside the cluster are refused", file=name
            )
            return ""

    def _read_hosts(self) -> None:
        table: HostTable = parse_hosts(_read(self._flags.hosts))
        for problem in table.problems:
            _log.warning(
                "a line of the table of hosts is invalid", file=self._flags.hosts, problem=problem
            )
        self._forwarder.on_hosts(table)

    def _reload(self) -> None:
        try:
            if self._flags.hosts:
                self._read_hosts()
            self._forwarder.on_zones(self._zones(), self._clock())
        except (OSError, ValueError) as error:
            _log.error(
                "a changed file is not used: its previous content stays in effect", error=str(error)
            )
        self._execute_actions()

    # -- sockets

    def _execute_actions(self) -> None:
        """Executes all actions, and sets the timer for the next deadline."""
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
                        self.problem = None if action.is_well else action
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
        self._execute_actions()

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
            report(error, "a query to an upstream")
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
        self._execute_actions()

    async def _exchange(self, query: SendQuery) -> None:
        """Sends one query over its own TCP connection, which the end of the attempt closes."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(*query.server)
            writer.write(len(query.packet).to_bytes(2, "big") + query.packet)
            packet = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        except (OSError, asyncio.IncompleteReadError) as error:
            report(error, "a query to an upstream")
            self._forwarder.on_failed(query.attempt, self._clock())
        else:
            self._forwarder.on_reply(query.attempt, packet, query.server, self._clock())
        finally:
            if writer is not None:
                writer.transport.abort()
        # Removed first: following actions must not cancel this task.
        self._streams.pop(query.attempt, None)
        self._execute_actions()

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
