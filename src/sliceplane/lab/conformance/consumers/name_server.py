"""Any name server of Kubernetes: it is started for each case, and queried by DNS for the SRV
records of the port.

Its command contains ``{port}`` as the port to listen on (UDP and TCP on 127.0.0.1); ``KUBECONFIG``
is in its environment. Belief: the targets of ``_PORT._tcp.SERVICE.NAMESPACE.svc.cluster.local``
with the addresses to which they resolve (Kubernetes DNS specification 1.1.0, section 2.4). NXDOMAIN
means no endpoints; any other code than NOERROR counts as no answer, and the previous belief stays.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from sliceplane.dns.forwarding.message import Reply, encode_query, read_reply
from sliceplane.dns.wire import AAAA, NOERROR, NXDOMAIN, SRV, A, WireError, data_text, name_of
from sliceplane.lab.conformance.consumers.consumer import (
    FollowedService,
    FollowingConsumer,
)
from sliceplane.lab.conformance.consumers.program import CommandConsumer, ignored, process
from sliceplane.lab.conformance.model import Belief, authority
from sliceplane.lab.conformance.steps import Claim

_ZONE: Final = "cluster.local"
_ANSWERS_S: Final = 5.0
_STARTS_S: Final = 30.0
#: bytes before the target of an SRV record: priority, weight, port (RFC 2782)
_BEFORE_TARGET: Final = 6


class NameServerConsumer(CommandConsumer):
    """See the module.  Raises ``ValueError`` for a command without ``{port}``, too."""

    kind = "name-server"

    def __init__(
        self, command: str, *, name: str = "", claims: Iterable[Claim] = (), patience_s: float
    ) -> None:
        if "{port}" not in command:
            raise ValueError(
                "the command of a name server needs {port} where the port to listen on stands"
            )
        # The SRV records of a thousand endpoints do not fit into an answer of 64 KiB, and unnamed
        # ports have none.
        super().__init__(
            command, name=name, claims=claims, ables=("families",), patience_s=patience_s
        )

    @asynccontextmanager
    async def follow(self, followed: FollowedService) -> AsyncIterator[FollowingConsumer]:
        port = _free_port()
        command = [word.replace("{port}", str(port)) for word in self._command]
        async with process(command, followed) as running, ignored(running):
            try:
                async with asyncio.timeout(_STARTS_S):
                    while not await _answers(port):
                        if running.process.returncode is not None:
                            raise ChildProcessError(f"it ended: {await running.farewell()}")
                        await asyncio.sleep(0.05)
            except TimeoutError:
                raise TimeoutError(
                    f"no answer by TCP from 127.0.0.1:{port} within {_STARTS_S:g} s"
                ) from None
            yield _DnsFollower(port, followed)


async def _answers(port: int) -> bool:
    replies = await _send_queries(port, [name_of(f"kubernetes.default.svc.{_ZONE}")], A)
    return bool(replies) and replies[0].rcode == NOERROR


class _DnsFollower(FollowingConsumer):
    def __init__(self, port: int, followed: FollowedService) -> None:
        super().__init__()
        self._port = port
        self._name = name_of(
            f"_{followed.query.port}._tcp.{followed.service}.{followed.namespace}.svc.{_ZONE}"
        )
        self._kind = AAAA if followed.query.family == "IPv6" else A

    async def poll(self) -> None:
        believed = await self._believed()
        if believed is not None:
            self.believe(believed)

    async def _believed(self) -> Belief | None:
        replies = await _send_queries(self._port, [self._name], SRV)
        if not replies or replies[0].rcode not in (NOERROR, NXDOMAIN):
            return None
        targets = [
            (record.data[_BEFORE_TARGET:], int.from_bytes(record.data[4:_BEFORE_TARGET], "big"))
            for record in replies[0].answer
            if record.type == SRV
        ]
        of_targets = await _send_queries(self._port, [name for name, _ in targets], self._kind)
        if len(of_targets) < len(targets):
            return None
        return frozenset(
            authority(data_text(record.type, record.data), port)
            for (_, port), reply in zip(targets, of_targets, strict=True)
            for record in reply.answer
            if record.type == self._kind
        )


async def _send_queries(port: int, names: Sequence[bytes], kind: int) -> list[Reply]:
    """Returns the replies in the order of *names*; none if one of them is missing."""
    queries = [
        encode_query(number, name, kind, edns=True, do=False, flags=0)
        for number, name in enumerate(names)
    ]
    try:
        async with asyncio.timeout(_ANSWERS_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"".join(len(query).to_bytes(2, "big") + query for query in queries))
                replies: dict[int, Reply] = {}
                while len(replies) < len(queries):  # in any order (RFC 7766, 7)
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    reply = read_reply(await reader.readexactly(size))
                    replies[reply.id] = reply
            finally:
                writer.close()
        return [replies[number] for number in range(len(queries))]
    except (OSError, EOFError, TimeoutError, WireError, KeyError):
        return []


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
