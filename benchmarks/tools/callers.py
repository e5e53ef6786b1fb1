"""A program that calls a Service: by gRPC (``grpc TARGET``, its xDS server by
``GRPC_XDS_BOOTSTRAP``), or by HTTP through an Envoy (``http HOST:PORT``). Lines of standard input
tell it what to do.

    call            one call: the address of the Pod that answered, or "!" and what went wrong
    until ADDRESS   calls until that Pod answers: "MONOTONIC FAILED CALLS"
    away ADDRESS    calls until another one answers, the same
    load RATE       so many calls a second, whether or not those before are answered, until "end": JSON of ``Load``
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from grpc import aio

from benchmarks.tools.pods import METHOD

CALL_TIMEOUT_S = 10.0
PAUSE_S = 0.0005
CONNECTIONS_MAX = 64


class Load(msgspec.Struct, kw_only=True):
    """Calls by who answered them; *failed* by what went wrong."""

    seconds: float
    answered: dict[str, int]
    failed: dict[str, int]


class HttpCaller:
    """Connections are kept, as a program's client keeps them."""

    def __init__(self, host: str, port: int) -> None:
        self._place = (host, port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)

    async def call(self) -> str:
        """Raises ``OSError`` and ``IncompleteReadError``."""
        async with self._slots:
            reader, writer = (
                self._idle.pop() if self._idle else await asyncio.open_connection(*self._place)
            )
            try:
                writer.write(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n")
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                length = next(
                    int(line.partition(":")[2])
                    for line in head
                    if line.startswith("content-length:")
                )
                body = (await reader.readexactly(length)).decode()
            except BaseException:
                writer.close()
                raise
            self._idle.append((reader, writer))
        status = head[0].split()[1]
        return body if status == "200" else f"!{status} {body}"

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def answered(call: Callable[[], Awaitable[str]]) -> str:
    try:
        return await asyncio.wait_for(call(), CALL_TIMEOUT_S)
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        return f"!{type(error).__name__} {error}"
    except aio.AioRpcError as error:
        return f"!{error.code().name} {error.details()}"


class Caller:
    def __init__(self, kind: str, target: str) -> None:
        if kind == "grpc":
            say = aio.insecure_channel(target).unary_unary(METHOD)

            async def call() -> str:
                answer: bytes = await say(b"")
                return answer.decode()
        else:
            host, _, port = target.rpartition(":")
            call = HttpCaller(host, int(port)).call
        self._call = call
        self._seen: Counter[str] = Counter()
        self._loading: asyncio.Task[None] | None = None
        self._began = 0.0
        self._ended = asyncio.Event()

    async def call(self) -> str:
        return await answered(self._call)

    async def until(self, address: str, *, is_wanted: bool = True) -> str:
        calls = failed = 0
        while True:
            calls += 1
            text = await answered(self._call)
            failed += text.startswith("!")
            if not text.startswith("!") and (text == address) is is_wanted:
                return f"{time.monotonic():.6f} {failed} {calls}"
            await asyncio.sleep(PAUSE_S)

    async def away(self, address: str) -> str:
        return await self.until(address, is_wanted=False)

    async def load(self, rate: str) -> str:
        self._began = time.monotonic()
        self._loading = asyncio.create_task(self._load(1 / float(rate)))
        return "loading"

    async def _load(self, pause_s: float) -> None:
        async def note() -> None:
            self._seen[await answered(self._call)] += 1

        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._ended.is_set():
                while due <= time.monotonic():
                    group.create_task(note())
                    due += pause_s
                await asyncio.sleep(max(due - time.monotonic(), 0.0))

    async def end(self) -> str:
        assert self._loading is not None, "there is load"
        took_s = time.monotonic() - self._began
        self._ended.set()
        await self._loading
        failed = {text: count for text, count in self._seen.items() if text.startswith("!")}
        good = {text: count for text, count in self._seen.items() if text not in failed}
        return msgspec.json.encode(Load(seconds=took_s, answered=good, failed=failed)).decode()


async def main(kind: str, target: str) -> None:
    caller = Caller(kind, target)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        verb, *arguments = line.split()
        print(await getattr(caller, verb)(*arguments), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
