"""TCP connections that are passed on to other ports of this machine."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress


class Relay:
    """``start``, then ``port`` listens; ``_carry`` says where a connection goes.  No task outlives
    ``close``.
    """

    def __init__(self) -> None:
        self.port = 0
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

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._carry(reader, writer)
        finally:
            writer.transport.abort()

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection.  An ``OSError`` is an end like any other."""
        raise NotImplementedError


async def pump(
    source: StreamReader, sink: StreamWriter, is_cut: Callable[[], bool] = lambda: False
) -> None:
    """What *source* says to *sink*, to its end of file. What comes while it *is_cut* (asked once
    for each piece) is lost, and whatever comes after that is the end: bytes are missing, and the
    connection is worth nothing any more.
    """
    lost = False
    while data := await source.read(65536):
        if is_cut():
            lost = True
        elif lost:
            return
        else:
            sink.write(data)
            await sink.drain()
    with suppress(OSError, RuntimeError):
        sink.write_eof()
