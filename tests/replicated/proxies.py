"""TCP between members and servers, in the hands of the test: each link can be made silent, or refused.

A link that is silent keeps its connections and loses what is sent, as a cut cable does; one end waits, nobody is told.
Links between members are told apart by the header ``X-Server-From`` of etcd's requests to its peers: all others come to
a member by one address.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable

_FROM = re.compile(rb"x-server-from: *([0-9a-f]+)", re.IGNORECASE)


class Link:
    """A listening port that leads to another.  ``cut`` from everybody, or ``cut_from`` some members."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.cut = False
        #: what is asked gets there, the answers are lost
        self.deaf = False
        #: ids of members, as etcd writes them in requests
        self.cut_from: set[bytes] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        there: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                first = await reader.read(65536)
                found = _FROM.search(first)
                sender = found.group(1) if found else b""
                back, there = await asyncio.open_connection("127.0.0.1", self.target)
                there.write(b"" if self._is_cut(sender) else first)
                pumps = [
                    asyncio.create_task(self._pump(reader, there, lambda: self._is_cut(sender))),
                    asyncio.create_task(self._pump(back, writer, lambda: self.deaf or self._is_cut(sender))),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            for each in (writer, there):
                if each is not None:
                    each.transport.abort()

    def _is_cut(self, sender: bytes) -> bool:
        return self.cut or sender in self.cut_from

    @staticmethod
    async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_cut: Callable[[], bool]) -> None:
        lost = False
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if is_cut():
                    lost = True
                elif lost:
                    return  # bytes are missing: the connection is worth nothing any more
                else:
                    sink.write(data)
                    await sink.drain()
