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

#: each request is a connection of its own, begun at its time whatever became of those before, until
#: stdin ends; on a machine that is too busy for them, fewer. Tells, now and then, how many were
#: begun, before which all have ended, and how many were answered. One loop over epoll: a request
#: costs a tenth of what a task of asyncio's would
CLIENT = """
import collections, errno, json, select, socket, sys, time
address, port, rate, patience_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), 60.0
family, most = socket.AF_INET6 if ":" in address else socket.AF_INET, max(100, rate / 4)
answers, errors, running, poll = collections.Counter(), [], {}, select.epoll()
sent, due, slowest, told, going = 0, 0, 0.0, 0.0, True
def begin():
    global sent
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    running[made.fileno()] = [made, sent, time.monotonic(), False]
    sent += 1
    code = made.connect_ex((address, port))
    if code not in (0, errno.EINPROGRESS):
        end(made.fileno(), OSError(code, ""))
    else:
        poll.register(made, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
def end(fd, error=None, answer=b""):
    global slowest
    made, _, began, _ = running.pop(fd)
    made.close()
    slowest = max(slowest, time.monotonic() - began)
    if answer:
        answers[answer.decode().split()[0]] += 1
    else:
        errors.append((time.time(), type(error).__name__ if error else "closed without an answer"))
def on_event(fd, mask):
    request = running[fd]
    try:
        if not request[3]:
            request[0].send(b"?")
            request[3] = True
        if mask & ~select.EPOLLOUT:
            end(fd, answer=request[0].recv(100))
    except BlockingIOError:
        pass
    except OSError as error:
        end(fd, error)
poll.register(0, select.EPOLLIN)
print("ready", flush=True)
began = time.monotonic()
while running or going:
    now = time.monotonic()
    while going and due < (now - began) * rate:
        due += 1
        if len(running) <= most:
            begin()
    oldest = next(iter(running.values()), None)
    if oldest and now - oldest[2] > patience_s:
        end(oldest[0].fileno(), TimeoutError())
    if now - told > 0.02:
        told = now
        print(sent, oldest[1] if oldest else sent, answers.total(), flush=True)
    for fd, mask in poll.poll(min(0.02, max(0.0, began + due / rate - now))):
        if fd:
            on_event(fd, mask)
        else:
            going, seconds = False, time.monotonic() - began
            poll.unregister(0)
print(json.dumps({"sent": sent, "answers": answers, "errors": errors, "slowest_s": slowest, "seconds": seconds}))
"""

#: for other programs: servers on port 8080 that answer each question with a name
_ANSWERING = """
import select, signal, socket, sys, time
poll, sockets, count = select.epoll(), {}, 0
def put(made, name, listens):
    sockets[made.fileno()] = made, name, listens
    poll.register(made, select.EPOLLIN)
def listen(name, *addresses):
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.create_server((address, 8080), family=family, backlog=1024)
        made.setblocking(False)
        put(made, name.encode() + b"\\n", True)
def close(fd):
    sockets.pop(fd)[0].close()
def serve(fd):
    global count
    made, name, listens = sockets[fd]
    try:
        while listens:
            put(made.accept()[0], name, False)
            count += 1
        if made.recv(100):
            made.send(name)
        else:
            close(fd)
    except BlockingIOError:
        pass
    except OSError:
        if not listens:
            close(fd)
"""

#: servers, each on an address of its own; a line "start NAME ADDRESS..." or "stop NAME" on stdin,
#: "ok" on stdout
PODS = (
    _ANSWERING
    + """
def obey(line):
    what, name, *addresses = line.split()
    if what == "start":
        listen(name, *addresses)
    else:
        for fd, (_, known, listens) in list(sockets.items()):
            if listens and known == name.encode() + b"\\n":
                serve(fd)  # who has come already
                close(fd)
    print("ok", flush=True)
poll.register(0, select.EPOLLIN)
print("ready", flush=True)
while True:
    for fd, _ in poll.poll():
        if fd in sockets:
            serve(fd)
        elif fd == 0:
            line = sys.stdin.buffer.raw.readline()
            if not line:
                sys.exit()
            obey(line.decode())
"""
)

#: a server that answers with its name; at SIGTERM it serves who has come, and ends when no one
#: comes any more
SERVER = (
    _ANSWERING
    + """
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("to end"))
listen(sys.argv[1], "0.0.0.0")
seen, quiet_at = 0, time.monotonic()
while not told or seen != count or time.monotonic() < quiet_at:
    if not told or seen != count:
        seen, quiet_at = count, time.monotonic() + 0.5
    for fd, _ in poll.poll(0.1):
        serve(fd)
"""
)


@dataclass(frozen=True)
class Tally:
    """What became of the requests of one client."""

    sent: int
    answers: dict[str, int]
    errors: list[Any]
    slowest_s: float
    seconds: float

    @property
    def rate(self) -> float:
        """Requests a second: what was held of what was asked for."""
        return self.sent / self.seconds

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
        await eventually(
            lambda: self._progress, lambda progress: progress.answered >= begun + count
        )

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
        lines = [
            f"addr add {self.ip4(n)}/16 dev eth0\naddr add {self.ip6(n)}/64 dev eth0 nodad"
            for n in numbers
        ]
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
        with (
            self._turn
        ):  # callers are threads, and one may be starting a Pod while another stops one
            stdin.write(line + "\n")
            stdin.flush()
            assert stdout.readline() == "ok\n"
