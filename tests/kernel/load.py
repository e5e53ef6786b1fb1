"""Steady load on one address, and pods that start and stop as those of a rolling update do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.kernel.netns import Host
from tests.waiting import eventually

#: each request is a connection of its own, begun at its time whatever became of those before, until stdin ends; on a
#: machine that is too busy for them, fewer.  Tells, now and then, how many were begun, before which all have ended, and
#: how many were answered
CLIENT = """
import asyncio, collections, json, sys, time
address, port, rate, patience_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), 60.0
answers, errors, slowest, running = collections.Counter(), [], 0.0, set()
async def one(number):
    global slowest
    running.add(number)
    began = time.monotonic()
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(b"?")
                answer = await reader.readline()
            finally:
                writer.close()
        answers[answer.decode().split()[0] if answer else "nothing"] += 1
        if not answer:
            errors.append((time.time(), "closed without an answer"))
    except (OSError, TimeoutError) as error:
        errors.append((time.time(), type(error).__name__))
    slowest = max(slowest, time.monotonic() - began)
    running.remove(number)
async def main():
    loop, due, sent, tasks, told = asyncio.get_running_loop(), 0, 0, set(), 0.0
    ended = asyncio.Event()
    loop.add_reader(0, lambda: ended.set())
    began = time.monotonic()
    print("ready", flush=True)
    while not ended.is_set():
        while due < (time.monotonic() - began) * rate:
            due += 1
            if len(running) > 100:
                continue
            tasks.add(task := asyncio.create_task(one(sent)))
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.002)
        if time.monotonic() - told > 0.02:
            told = time.monotonic()
            print(sent, min(running, default=sent), sum(answers.values()), flush=True)
    await asyncio.gather(*tasks)
    print(json.dumps({"sent": sent, "answers": answers, "errors": errors, "slowest_s": slowest}))
asyncio.run(main())
"""

#: servers, each on an address of its own; a line "start NAME ADDRESS..." or "stop NAME" on stdin, "ok" on stdout
PODS = """
import asyncio, socket, sys
async def answer(name, reader, writer):
    try:
        while await reader.read(100):
            writer.write(name + b"\\n")
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def main():
    lines, pods = asyncio.StreamReader(), {}
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        what, name, *addresses = line.decode().split()
        if what == "start":
            serve = lambda r, w, name=name.encode(): answer(name, r, w)
            pods[name] = [await asyncio.start_server(serve, ip, 8080, backlog=512) for ip in addresses]
        else:
            for server in pods.pop(name):
                server.close()
        print("ok", flush=True)
asyncio.run(main())
"""


@dataclass(frozen=True)
class Tally:
    """What became of the requests of one client."""

    sent: int
    answers: dict[str, int]
    errors: list[Any]
    slowest_s: float

    def assert_none_failed(self) -> None:
        assert self.errors == [], f"{len(self.errors)} of {self.sent} failed: {self.errors[:5]}"
        assert sum(self.answers.values()) == self.sent


@dataclass(frozen=True)
class Progress:
    """What a client under way has told last, in its *lines*-th line."""

    lines: int = 0
    sent: int = 0
    ended: int = 0
    answered: int = 0


class Load:
    """A client under way; ``tally`` ends it.

    A test counts its requests, not seconds: how many there are in one differs with the machine.
    """

    def __init__(self, host: Host, address: str, rate: float, port: int = 80) -> None:
        self._child = host.serve(CLIENT, address, str(port), str(rate))
        self._tally: Tally | None = None
        self._progress = Progress()
        self._last = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def more(self, count: int = 25) -> None:
        """So many requests were answered from now on."""
        begun = self._progress.answered
        await eventually(lambda: self._progress, lambda progress: progress.answered >= begun + count)

    async def passed(self) -> None:
        """All requests that are under way have ended."""
        lines = self._progress.lines
        now = await eventually(lambda: self._progress, lambda progress: progress.lines >= lines + 2)
        await eventually(lambda: self._progress, lambda progress: progress.ended >= now.sent)

    def _read(self) -> None:
        assert self._child.stdout is not None, "serve makes pipes"
        for line in self._child.stdout:
            if line.startswith("{"):
                self._last = line
            else:
                self._progress = Progress(self._progress.lines + 1, *map(int, line.split()))

    def _end(self) -> Tally:
        assert self._child.stdin is not None, "serve makes pipes"
        self._child.stdin.close()
        self._reader.join(120)
        return Tally(**json.loads(self._last))

    async def tally(self) -> Tally:
        if self._tally is None:
            self._tally = await asyncio.to_thread(self._end)
        return self._tally


@asynccontextmanager
async def load(host: Host, address: str, rate: float, port: int = 80) -> AsyncIterator[Load]:
    made = await asyncio.to_thread(Load, host, address, rate, port)
    try:
        yield made
    finally:
        await made.tally()


class Pods:
    """Pods of one host, number by number; ``ip4`` and ``ip6`` say where."""

    def __init__(self, host: Host, numbers: range) -> None:
        """*numbers*: of all pods that there will ever be."""
        self._host = host
        lines = [f"addr add {self.ip4(n)}/16 dev eth0\naddr add {self.ip6(n)}/64 dev eth0 nodad" for n in numbers]
        host.exec(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
        self._child = host.serve(PODS)
        self._turn = threading.Lock()

    @staticmethod
    def ip4(number: int) -> str:
        return f"10.10.{10 + number // 200}.{1 + number % 200}"

    @staticmethod
    def ip6(number: int) -> str:
        return f"fd10::10:{number + 1:x}"

    def start(self, number: int) -> None:
        self._say(f"start p{number} {self.ip4(number)} {self.ip6(number)}")

    def stop(self, number: int) -> None:
        """It takes no more connections; those that it has it serves to their end."""
        self._say(f"stop p{number}")

    def _say(self, line: str) -> None:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None, "serve makes pipes"
        assert stdout is not None, "serve makes pipes"
        with self._turn:  # callers are threads, and one may be starting a Pod while another stops one
            stdin.write(line + "\n")
            stdin.flush()
            assert stdout.readline() == "ok\n"
