"""A TCP balancer before several servers: a connection goes to the first that accepts it, and its
bytes are counted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass


@dataclass(slots=True)
class Carried:
    """One connection.  ``server``: its port; ``octets``: from there to the client, so far."""

    server: int
    octets: int = 0


class Balancer:
    """``start`` once, then ``close``.  *servers*: ports of 127.0.0.1."""

    def __init__(self, servers: tuple[int, ...]) -> None:
        self._servers = servers
        #: in the order in which they came
        self.connections: list[Carried] = []

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", port)

    async def close(self) -> None:
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in self._servers:
            with suppress(OSError):
                from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
                carried = Carried(port)
                self.connections.append(carried)
                with suppress(asyncio.CancelledError):  # the benchmark ends
                    await asyncio.wait(
                        {
                            asyncio.create_task(_copy(reader, to_server, None)),
                            asyncio.create_task(_copy(from_server, writer, carried)),
                        },
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                to_server.close()
                break
        writer.close()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, carried: Carried | None
) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            if carried is not None:
                carried.octets += len(data)
            writer.write(data)
            await writer.drain()
