"""Writers that each replace an object of their own, one request after the other, spread over
several servers.

Run as ``python -m benchmarks.tools.writers COUNT KUBECONFIG...``: *COUNT* writers in all, each with
a connection that it keeps. Prints ``open`` when all objects are there, then answers each line, a
number of seconds to write for, by one line of JSON: the writes at each server, how long each of
them waited, and the seconds that it took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from sliceplane.watch.io.kubeconfig import load

OBJECTS = "/api/v1/namespaces/default/configmaps"
#: about what a Lease and its owner's notes have
DATA = "x" * 800


class Writer:
    def __init__(self, count: int, number: int, kubeconfig: Path) -> None:
        self._connection = load(kubeconfig)
        self._name = f"writer-{count}-{number}"
        self.waits: list[float] = []

    async def open(self) -> None:
        host, _, port = self._connection.server.removeprefix("https://").rpartition(":")
        value = await self._connection.credentials.authorization()
        self._authorization = f"\r\nAuthorization: {value}" if value else ""
        self._reader, self._writer = await asyncio.open_connection(
            host, int(port), ssl=self._connection.ssl_context
        )
        await self._exchange("POST", OBJECTS, 0)

    async def run(self, until: float) -> None:
        self.waits = []
        path = f"{OBJECTS}/{self._name}"
        while (began := time.perf_counter()) < until:
            await self._exchange("PUT", path, len(self.waits))
            self.waits.append(time.perf_counter() - began)

    async def _exchange(self, method: str, path: str, number: int) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self._name},
            "data": {"text": DATA, "number": f"{time.monotonic()} {number}"},
        }
        body = json.dumps(document)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: "
            f"application/json{self._authorization}"
        )
        self._writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        content = await self._reader.readexactly(
            int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        )
        if answer[9:10] != b"2":
            raise RuntimeError(f"{method} {path}: {content[:300]!r}")


async def run(count: int, kubeconfigs: list[Path]) -> None:
    writers = [
        Writer(count, number, kubeconfigs[number % len(kubeconfigs)]) for number in range(count)
    ]
    for writer in writers:
        await writer.open()
    print("open", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        await asyncio.gather(*(writer.run(began + float(line)) for writer in writers))
        answer: dict[str, Any] = {
            "writes": [
                sum(len(writer.waits) for writer in writers[index :: len(kubeconfigs)])
                for index in range(len(kubeconfigs))
            ],
            "waits": [wait for writer in writers for wait in writer.waits],
            "seconds": time.perf_counter() - began,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(int(sys.argv[1]), list(map(Path, sys.argv[2:]))))
