"""The one address that clients of several servers have: a TCP load balancer that asks each server
whether it is ready.

It does what such programs do everywhere, and nothing kinder: a new connection goes to the next
server whose ``/readyz`` was green when it was last asked; a connection that is open stays where it
is; nothing is tried twice.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass

from tests.replicated.relay import Relay, pump
from tests.waiting import eventually

PROBE_SECONDS = 0.1
#: who is gone refuses at once; who is slow is not gone
PROBE_SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Seen:
    """What a server showed from ``at`` on: "ready", "draining" (alive, and not ready), "unready",
    "gone".
    """

    at: float
    server: int
    state: str


class Balancer(Relay):
    """``start``, then ``port`` leads to all of *ports*.  ``seen`` has every change of what they
    show.
    """

    def __init__(self, ports: list[int]) -> None:
        super().__init__()
        self.ports = ports
        self.seen: list[Seen] = []
        #: connections that found nobody ready, and those that were sent to somebody who was gone
        self.homeless = 0
        self.misled = 0
        self.connections = [0] * len(ports)
        self.ready = [False] * len(ports)
        self._turn = 0
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    async def start(self, port: int = 0) -> int:
        for number in range(len(self.ports)):
            self._tasks.add(asyncio.create_task(self._probe(number)))
        return await super().start(port)

    def states(self, server: int, since: float = 0.0) -> list[str]:
        return [each.state for each in self.seen if each.server == server and each.at >= since]

    async def until_ready(self, server: int) -> None:
        await eventually(lambda: (self.ready[server], self.states(server)), lambda seen: seen[0])

    # Health

    async def _probe(self, number: int) -> None:
        shown = ""
        while True:
            ready = await self._ask(number, "/readyz")
            alive = await self._ask(number, "/livez") if ready not in (0, 200) else 0
            state = {0: "gone", 200: "ready"}.get(ready) or {0: "gone", 200: "draining"}.get(
                alive, "unready"
            )
            self.ready[number] = ready == 200
            if state != shown:
                shown = state
                self.seen.append(Seen(time.monotonic(), number, state))
            await asyncio.sleep(PROBE_SECONDS)

    async def _ask(self, number: int, page: str) -> int:
        """The code; 0 without an answer."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.ports[number], ssl=self._context
                )
                writer.write(
                    f"GET {page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
                )
                return int((await reader.readline()).split()[1])
        except (OSError, TimeoutError, IndexError):
            return 0
        finally:
            if writer is not None:
                writer.transport.abort()

    # Connections

    def _next(self) -> int | None:
        for _ in self.ports:
            self._turn = (self._turn + 1) % len(self.ports)
            if self.ready[self._turn]:
                return self._turn
        return None

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self._next()
        if number is None:
            self.homeless += 1
            return
        self.connections[number] += 1
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self.ports[number])
        except OSError:
            self.misled += 1
            raise
        try:
            # Each direction ends by itself: what a server still says after its end of file is not
            # cut off.
            await asyncio.gather(pump(reader, there), pump(back, writer))
        finally:
            there.transport.abort()
