"""Netlink sockets to netfilter, in a network namespace if requested: transactions, and the
generation of nftables' rules.

**Writing.**  The kernel processes a batch during the system call: when ``sendto`` returns, the batch
was applied or refused as a whole, and the answers can be read. The call runs in a thread, since the
kernel may take a while.

**Fallback to the program.**  The program ``nft`` is always correct, but slower. It writes a
transaction that ``node.nft.netlink`` cannot encode, if no socket can be opened, or if the batch is
too large. After a refusal that another writer of the table does not explain, the program also does
the next write of the table, which is a full one: if we and the kernel disagree about a message,
nft's encoding decides. After ``REFUSALS_MAX`` such refusals without a success between them, the
program does all writes.

**The generation** is a number that the kernel increments with each transaction of any program.
Reading it costs one small message at any size of the rules, so it can be read often. (``nft`` itself
reads it before a listing, but does not print it.) Sources: linux/netlink.h,
linux/netfilter/nfnetlink.h and nf_tables.h.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import threading
import weakref
from collections.abc import Iterator

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.process import descriptors
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.kernel.netns import FOLDER, within_blocking
from sliceplane.node.nft.netlink.batch import MessageBatch, encode
from sliceplane.node.nft.netlink.clients import (
    DumpPart,
    elements_request,
    limits,
    parse_part,
    sets_request,
)
from sliceplane.node.nft.netlink.messages import (
    HEADER,
    REQUEST,
    Inexpressible,
    KernelAnswer,
    parse_answers,
)
from sliceplane.node.nft.objects import DynamicSetContents, FlushChain, TableRef, Transaction

_NETLINK_NETFILTER = 12

_GET_GENERATION, _NEW_GENERATION = 10 << 8 | 16, 10 << 8 | 15
_GENERATION_ID = 1  # NFTA_GEN_ID
#: bound for an answer of the kernel, which is immediate
_TIMEOUT_S = 1.0
_OWN_NAMESPACE = (0, 0)


def namespace_of(netns: str) -> tuple[int, int]:
    """Returns the identity of the namespace that has the name *netns* now.  Raises ``OSError``."""
    status = os.stat(FOLDER / netns)
    return status.st_dev, status.st_ino


def netfilter_socket(netns: str = "") -> socket.socket:
    """Opens a socket in *netns*, a name under /run/netns; "" is our own. The socket stays in that
    namespace. Raises ``OSError``.
    """
    return within_blocking(
        netns, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    )


def generation(netns: str = "") -> int | None:
    """Returns the generation of the rules in the network namespace *netns* (a name under /run/netns;
    "" is our own). ``None``: the rights, the namespace or nftables are missing.
    """
    try:
        with netfilter_socket(netns) as sock:
            sock.settimeout(_TIMEOUT_S)
            body = struct.pack("=BBH", 0, 0, 0)
            sock.sendto(
                HEADER.pack(HEADER.size + len(body), _GET_GENERATION, REQUEST, 1, 0) + body, (0, 0)
            )
            return parse_generation(sock.recv(4096))
    except OSError:
        return None


def read_dynamic_sets(table: TableRef, netns: str = "") -> DynamicSetContents:
    """Returns the elements that packets added to the client sets of *table*.  Slow; raises
    ``OSError``.
    """
    contents: dict[str, tuple[tuple[str, int], ...]] = {}
    names: list[str] = []
    for part in _dump(sets_request(table), table, netns):
        names += part.names
    for name, limit in limits(tuple(names)).items():
        clients: list[tuple[str, int]] = []
        for part in _dump(elements_request(table, name), table, netns) if limit else ():
            clients += part.clients
            if len(clients) >= limit:
                break
        contents[name] = tuple(clients[:limit])
    return contents


def read_counters(table: TableRef, name: str, netns: str = "") -> dict[bytes, int] | None:
    """Returns the packets that the elements of the set *name* have counted, by key; ``None`` if
    there is no such set. Blocks; raises ``OSError``.
    """
    counts: dict[bytes, int] = {}
    for part in _dump(elements_request(table, name), table, netns):
        if part.refused:
            return None
        counts.update(part.counts)
    return counts


def _dump(request: bytes, table: TableRef, netns: str) -> Iterator[DumpPart]:
    """Yields a dump in parts.  The socket serves this dump alone: closing it ends the dump early."""
    with netfilter_socket(netns) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.sendto(request, (0, 0))
        part = DumpPart()
        while not part.done:
            part = parse_part(sock.recv(_RECEIVE_BYTES), table)
            yield part


def parse_generation(message: bytes) -> int | None:
    """Returns the generation in *message*; ``None`` if it has none (an error, for example)."""
    if len(message) < HEADER.size:
        return None
    length, kind, *_ = HEADER.unpack_from(message)
    at = HEADER.size + 4
    while kind == _NEW_GENERATION and at + 8 <= min(length, len(message)):
        size, attribute = struct.unpack_from("=HH", message, at)
        if attribute == _GENERATION_ID:
            return int.from_bytes(message[at + 4 : at + 8], "big")
        at += (max(size, 4) + 3) & ~3
    return None


REFUSALS_MAX = 5
#: the message if the chain that names the table's writer (``node.nft.layout.writer_chain``) is missing
TABLE_OF_ANOTHER = "our table was removed, or replaced by another process: a second node proxy?"

_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_SO_SNDBUFFORCE = 32
#: the kernel needs more buffer space than the bytes of the message
_SEND_SLACK_BYTES = 4096
_RECEIVE_BYTES = 1 << 16
_COMMAND_LENGTH_MAX = 200

_log = get_logger("node-proxy")


class NftError(KernelError):
    """``nft`` failed, or the kernel refused a transaction."""


class Messages:
    """Writes transactions by messages in one network namespace (``netns``: a name under /run/netns;
    "" is our own).  Calls may be concurrent.
    """

    def __init__(self, netns: str = "") -> None:
        self._channel = Channel(netns)
        #: tables whose next write the program does
        self._detours: set[TableRef] = set()
        self._refusals = 0
        self._reported: set[str] = set()

    async def write(self, transaction: Transaction) -> bool:
        """Returns True if the kernel accepted it; False if ``nft`` must write it. Raises
        ``NftError`` if it was refused or the result is unknown.
        """
        table = transaction.table
        if self._refusals >= REFUSALS_MAX:
            return False
        if table in self._detours:
            self._detours.discard(table)
            return False
        void = threading.Event()
        try:
            last, answers = await asyncio.to_thread(self._send, transaction, void)
        except RuntimeError as error:
            # No thread could be started; the pool may still run it later.
            void.set()
            self._log_first("netlink messages failed, nft writes the rules", error)
            return False
        except (Inexpressible, OSError) as error:
            descriptors.report(error, "netlink socket")
            self._log_first("netlink messages failed, nft writes the rules", error)
            return False
        refusal = next((answer for answer in answers if answer.errno), None)
        if refusal is None:
            if not any(answer.sequence == last for answer in answers):
                raise NftError("timeout", "the kernel did not confirm the transaction")
            self._refusals = 0
            return True
        if refusal.errno == errno.EPERM and not refusal.sequence:
            self._log_first(
                "nft writes the rules",
                PermissionError(errno.EPERM, "netlink messages are not allowed"),
            )
            return False
        why = explain(transaction, refusal)
        if str(why) != TABLE_OF_ANOTHER:
            self._refusals += 1
            self._detours.add(table)
        raise why

    def _send(
        self, transaction: Transaction, void: threading.Event
    ) -> tuple[int, tuple[KernelAnswer, ...]]:
        if void.is_set():
            return 0, ()  # the program has written it
        batch = encode(transaction)
        return batch.last, self._channel.send(batch)

    def _log_first(self, event: str, error: Exception) -> None:
        """Logs each kind of error once."""
        kind = f"{type(error).__name__} {getattr(error, 'errno', '')}"
        if kind not in self._reported:
            self._reported.add(kind)
            _log.warning(event, error=str(error))


class Channel:
    """A socket that stays open: closing one waits until the kernel has freed all removed objects."""

    def __init__(self, netns: str = "") -> None:
        self._netns = netns
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._namespace: tuple[int, int] | None = None

    def send(self, batch: MessageBatch) -> tuple[KernelAnswer, ...]:
        """Returns the kernel's answers; none if the result of the batch is unknown.

        Raises ``OSError`` if the batch was not sent: no socket can be opened, the rights are missing,
        or the batch is too large.
        """
        with self._lock:
            sock = self._open()
            size = len(batch.data) + _SEND_SLACK_BYTES
            if size > sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF):
                _make_room(sock, size)
            sock.sendto(batch.data, (0, 0))
            return _answers(sock)

    def _open(self) -> socket.socket:
        """Opens the socket again if another namespace has the name now."""
        namespace = namespace_of(self._netns) if self._netns else _OWN_NAMESPACE
        if self._sock is None or namespace != self._namespace:
            if self._sock is not None:
                self._sock.close()
            self._sock = sock = netfilter_socket(self._netns)
            self._namespace = namespace
            weakref.finalize(self, sock.close)
            for option in (
                _NETLINK_CAP_ACK,
                _NETLINK_EXT_ACK,
            ):  # refusals are short, and have a text
                try:
                    sock.setsockopt(_SOL_NETLINK, option, 1)
                except OSError:  # kernels before 4.3 or 4.12: they are longer, or have no text
                    continue
        return self._sock


def explain(transaction: Transaction, refusal: KernelAnswer) -> NftError:
    """Returns the error for the kernel's answer, with the refused command."""
    if not 0 < refusal.sequence <= len(transaction.commands):
        return NftError(
            "rejected", f"the kernel refused the transaction: {os.strerror(refusal.errno)}"
        )
    command = transaction.commands[refusal.sequence - 1]
    if (
        isinstance(command, FlushChain)
        and command.name.startswith("writer-")
        and refusal.errno == errno.ENOENT
    ):
        return NftError("rejected", TABLE_OF_ANOTHER)
    line = command.render(transaction.table)
    if len(line) > _COMMAND_LENGTH_MAX:
        line = line[:_COMMAND_LENGTH_MAX] + "..."
    why = os.strerror(refusal.errno) + (f" ({refusal.text})" if refusal.text else "")
    return NftError("rejected", f"the kernel refused the transaction: {line}: {why}")


def _make_room(sock: socket.socket, size: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, size)
    except OSError:  # not root of the host: up to net.core.wmem_max
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def _answers(sock: socket.socket) -> tuple[KernelAnswer, ...]:
    answers: list[KernelAnswer] = []
    while True:
        try:
            answers.extend(parse_answers(sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)))
        except BlockingIOError:
            return tuple(answers)
        except OSError as error:
            if (
                error.errno != errno.ENOBUFS
            ):  # more refusals than the socket's buffer has room for: the first ones suffice
                return tuple(answers)
