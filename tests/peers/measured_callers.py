"""Programs of users that call Services at given rates: by gRPC (``grpc TARGET...``, the xDS server by
``GRPC_XDS_BOOTSTRAP``), or by HTTP through Envoys (``http HOST:PORT...``).

A line of standard input has the calls a second to each target. The answer is a line of JSON: for each
target, which Pod answered how many calls since the last line; what went wrong begins with "!". On a
machine that is too busy for a rate there are fewer calls.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from benchmarks.tools.callers import HttpCaller, answered
from benchmarks.tools.pods import METHOD
from grpc import aio

PAUSE_S = 0.02
#: calls to one target that are not answered yet
OPEN_MAX = 32


class Calls:
    """Calls to one target, whether or not those before are answered."""

    def __init__(self, call: Callable[[], Awaitable[str]]) -> None:
        self._call = call
        self._seen: Counter[str] = Counter()
        self._open = 0
        self.rate = 0.0

    async def run(self) -> None:
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while True:
                now = time.monotonic()
                due = max(due, now - 0.5) if self.rate else now
                while self.rate and due <= now:
                    if self._open < OPEN_MAX:
                        self._open += 1
                        group.create_task(self._note())
                    due += 1 / self.rate
                await asyncio.sleep(PAUSE_S)

    async def _note(self) -> None:
        self._seen[await answered(self._call)] += 1
        self._open -= 1

    def take(self) -> dict[str, int]:
        seen, self._seen = self._seen, Counter()
        return dict(seen)


def calling(kind: str, target: str) -> Callable[[], Awaitable[str]]:
    if kind == "http":
        host, _, port = target.rpartition(":")
        return HttpCaller(host, int(port)).call
    say = aio.insecure_channel(target).unary_unary(METHOD)

    async def call() -> str:
        answer: bytes = await say(b"", wait_for_ready=True)
        return answer.decode()

    return call


async def main(kind: str, *targets: str) -> None:
    every = [Calls(calling(kind, target)) for target in targets]
    tasks = [asyncio.create_task(each.run()) for each in every]
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        for each, rate in zip(every, line.split(), strict=True):
            each.rate = float(rate)
        print(json.dumps([each.take() for each in every]), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
