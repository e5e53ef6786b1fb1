"""Any name server of Kubernetes: one is started for each case, and asked by DNS for the SRV records of the port.

Its command has ``{port}`` where the port to listen on stands (UDP and TCP on 127.0.0.1), and finds ``KUBECONFIG`` in
its environment.  Belief: the targets of ``_PORT._tcp.SERVICE.NAMESPACE.svc.cluster.local`` with their addresses, which
the answer has beside them or which are asked for (Kubernetes DNS specification 1.1.0, section 2.4).  NXDOMAIN is no
endpoint; anything else but NOERROR is no answer, and what was believed before stays.
"""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sliceplane.conformance.consumers.consumer import Beliefs, FollowedService, FollowingConsumer, JudgedConsumer
from sliceplane.conformance.consumers.program import process
from sliceplane.conformance.model import Belief, authority
from sliceplane.conformance.story import Claim

if TYPE_CHECKING:
    from dns.message import Message

_ZONE: Final = "cluster.local"
_ANSWERS_S: Final = 5.0
_STARTS_S: Final = 30.0


class NameServerConsumer(JudgedConsumer):
    """See the module.  Raises ``ValueError`` for a command without ``{port}``."""

    def __init__(self, command: str, *, name: str = "", claims: Iterable[Claim] = (), patience_s: float) -> None:
        if "{port}" not in command:
            raise ValueError("the command of a name server needs {port} where the port to listen on stands")
        self._command = command
        self.name = name or Path(shlex.split(command)[0]).name
        self.claims = frozenset(claims)
        # An answer of 64 KiB does not hold the SRV records of a thousand endpoints, and unnamed ports have none.
        self.ables = frozenset(("ipv6",))
        self.patience_s = patience_s

    @asynccontextmanager
    async def follow(self, asked: FollowedService) -> AsyncIterator[FollowingConsumer]:
        port = _free_port()
        command = shlex.split(self._command.replace("{port}", str(port)))
        async with process(command, asked) as (program, last_words):
            drain = asyncio.create_task(_ignore(program))
            try:
                async with asyncio.timeout(_STARTS_S):
                    while not await _answers(port):
                        if program.returncode is not None:
                            raise ChildProcessError(" / ".join([f"exit code {program.returncode}", *last_words]))
                        await asyncio.sleep(0.05)
                yield _Asking(port, asked)
            finally:
                drain.cancel()


async def _answers(port: int) -> bool:
    from dns.rcode import NOERROR

    reply = await _ask(port, f"kubernetes.default.svc.{_ZONE}.", "A")
    return reply is not None and reply.rcode() == NOERROR


class _Asking(Beliefs):
    def __init__(self, port: int, asked: FollowedService) -> None:
        super().__init__()
        self._port = port
        self._name = f"_{asked.asked_port.port}._tcp.{asked.service}.{asked.namespace}.svc.{_ZONE}."
        self._kind = "AAAA" if asked.asked_port.family == "IPv6" else "A"

    async def look(self) -> None:
        believed = await self._believed()
        if believed is not None:
            self.believe(believed)

    async def _believed(self) -> Belief | None:
        from dns.rcode import NOERROR, NXDOMAIN

        reply = await _ask(self._port, self._name, "SRV")
        if reply is None or reply.rcode() not in (NOERROR, NXDOMAIN):
            return None
        beside = {
            (str(records.name), record.to_text())
            for records in reply.additional
            for record in records
            if records.rdtype.name == self._kind
        }
        believed = set()
        for records in reply.answer:
            for record in records:
                target = str(record.target)
                addresses = [address for name, address in beside if name == target]
                if not addresses:
                    addresses = await self._addresses(target)
                believed |= {authority(address, record.port) for address in addresses}
        return frozenset(believed)

    async def _addresses(self, target: str) -> list[str]:
        reply = await _ask(self._port, target, self._kind)
        if reply is None:
            return []
        return [record.to_text() for records in reply.answer for record in records if records.rdtype.name == self._kind]


async def _ask(port: int, name: str, kind: str) -> Message | None:
    from dns.asyncquery import tcp
    from dns.exception import DNSException
    from dns.message import make_query

    try:
        return await tcp(make_query(name, kind), "127.0.0.1", port=port, timeout=_ANSWERS_S)
    except (OSError, EOFError, DNSException):
        return None


async def _ignore(program: asyncio.subprocess.Process) -> None:
    """A pipe that nobody reads would hold the program up."""
    assert program.stdout is not None
    while await program.stdout.read(1 << 16):
        pass


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
