"""Clients that do what controllers, agents and people do: read, list in pages, watch, create,
update, patch, delete.

Run as ``python -m benchmarks.tools.load_clients KUBECONFIG FIRST COUNT SECONDS``: *COUNT* clients,
numbered from *FIRST*, each with a TLS connection that it keeps, ``PACE_S`` from one request to the
next. Prints ``open`` when all of them are connected, starts when it gets a line, and prints one
line of JSON: the latencies of each verb in seconds, and what went wrong. A client owns its objects,
so no conflict is anybody's fault.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import uvloop

from benchmarks.tools.objects import NAMESPACE, slice_document
from sliceplane.watch.io.kubeconfig import load

PACE_S = 0.2
ANSWER_MAX_S = 20.0
LABEL = "bench.example.com/client"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
PATHS = {
    "slice": _SLICES,
    "service": f"{_CORE}/services",
    "pod": f"{_CORE}/pods",
    "lease": f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases",
}
VERBS = {
    "get": 30,
    "list": 8,
    "create": 12,
    "update": 12,
    "json patch": 6,
    "merge patch": 6,
    "strategic patch": 6,
    "delete": 8,
    "dry run": 6,
    "watch": 2,
}


def document_of(kind: str, name: str, number: int) -> dict[str, Any]:
    labels = {LABEL: str(number)}
    if kind == "slice":
        document = slice_document(name, "web", range(20))
        document["metadata"]["labels"] |= labels
        return document
    body: dict[str, Any] = {"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}}
    if kind == "service":
        return body | {"spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]}}
    if kind == "pod":
        # Without a grace period a delete is one at once, as there is no kubelet.
        containers = [
            {"name": "c", "image": "registry.example.com/app:1", "ports": [{"containerPort": 8080}]}
        ]
        return body | {"spec": {"containers": containers, "terminationGracePeriodSeconds": 0}}
    return body | {
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0}
    }


class Client:
    """One client with its connection and its objects."""

    def __init__(self, number: int, host: str, port: int, context: ssl.SSLContext) -> None:
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self._number = number
        self._host = host
        self._port = port
        self._context = context
        self._rng = Random(number)
        #: kind and name of what this client has made
        self._mine: list[tuple[str, str]] = []
        self._made = 0

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._context, limit=1 << 20
        )

    async def run(self, until: float) -> None:
        due = time.monotonic() + self._rng.random() * PACE_S
        verbs = list(VERBS)
        weights = list(VERBS.values())
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + PACE_S, time.monotonic() - 1)
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    await self._do(self._rng.choices(verbs, weights)[0])
            except (
                Exception
            ) as error:  # whatever it is, it is counted, and the next request has a new connection
                self.errors[repr(error)[:200]] += 1
                self._writer.transport.abort()
                await self.open()
        self._writer.close()

    async def _do(self, verb: str) -> None:
        if verb == "create" or not self._mine:
            await self._create()
            return
        kind, name = self._mine[self._rng.randrange(len(self._mine))]
        path = f"{PATHS[kind]}/{name}"
        match verb:
            case "get":
                await self._timed("get", "GET", path)
            case "list":
                page = json.loads(await self._timed("list", "GET", f"{PATHS['slice']}?limit=20"))
                token = quote(page["metadata"].get("continue", ""))
                if token:
                    await self._timed("list", "GET", f"{PATHS['slice']}?limit=20&continue={token}")
            case "update":
                document = json.loads(await self._timed("get", "GET", path))
                document["metadata"].setdefault("annotations", {})["n"] = str(time.monotonic())
                await self._timed("update", "PUT", path, document)
            case "json patch":
                operations = [
                    {
                        "op": "add",
                        "path": "/metadata/labels/p",
                        "value": str(self._rng.randrange(1000)),
                    }
                ]
                await self._timed(verb, "PATCH", path, operations, "application/json-patch+json")
            case "merge patch" | "strategic patch":
                change = {"metadata": {"labels": {"p": str(self._rng.randrange(1000))}}}
                await self._timed(
                    verb,
                    "PATCH",
                    path,
                    change,
                    f"application/{verb.replace(' ', '-').replace('strategic', 'strategic-merge')}+json",
                )
            case "delete":
                self._mine.remove((kind, name))
                await self._timed("delete", "DELETE", path)
            case "dry run":
                body = document_of(kind, f"dry-{self._number}", self._number)
                await self._timed(verb, "POST", f"{PATHS[kind]}?dryRun=All", body)
            case "watch":
                await self._watch(
                    f"{PATHS[kind]}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3D{name}"
                )

    async def _create(self) -> None:
        kind = self._rng.choice(list(PATHS))
        self._made += 1
        name = f"load-{self._number}-{self._made}"
        await self._timed("create", "POST", PATHS[kind], document_of(kind, name, self._number))
        self._mine.append((kind, name))
        if len(self._mine) > 8:
            kind, name = self._mine.pop(0)
            await self._timed("delete", "DELETE", f"{PATHS[kind]}/{name}")

    async def _timed(
        self, verb: str, method: str, path: str, body: Any = None, media: str = "application/json"
    ) -> bytes:
        """The body of the answer.  Raises ``RuntimeError`` if it is an error."""
        began = time.perf_counter()
        content = await self.exchange(
            method, path, b"" if body is None else json.dumps(body).encode(), media
        )
        self.latencies[verb].append(time.perf_counter() - began)
        return content

    async def exchange(self, method: str, path: str, raw: bytes, media: str) -> bytes:
        """The body of the answer.  Raises ``RuntimeError`` if it is an error."""
        head = await self._send(method, path, raw, media)
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        content = await self._reader.readexactly(length)
        if head[9:10] != b"2":
            raise RuntimeError(f"{method} {path}: {content[:150]!r}")
        return content

    async def begin_watch(self, path: str) -> None:
        """What comes is read and passed over from then on."""
        head = await self._send("GET", path)
        if head[9:12] != b"200":
            raise RuntimeError(f"watch {path}: {head[:60]!r}")

        async def read() -> None:
            while await self._reader.read(1 << 16):
                pass

        self._reading = asyncio.create_task(read())

    async def _watch(self, path: str) -> None:
        """The latency is that of the first byte of the stream."""
        began = time.perf_counter()
        head = await self._send("GET", path)
        if head[9:12] != b"200":
            raise RuntimeError(f"watch {path}: {head[:60]!r}")
        self.latencies["watch"].append(time.perf_counter() - began)
        while int(line := await self._reader.readuntil(b"\r\n"), 16):
            await self._reader.readexactly(int(line, 16) + 2)
        await self._reader.readexactly(2)

    async def _send(
        self, method: str, path: str, raw: bytes = b"", media: str = "application/json"
    ) -> bytes:
        lines = (
            f"{method} {path} HTTP/1.1",
            "Host: x",
            "Accept: application/json",
            f"Content-Type: {media}",
        )
        head = "\r\n".join((*lines, f"Content-Length: {len(raw)}", "", ""))
        self._writer.write(head.encode() + raw)
        return await self._reader.readuntil(b"\r\n\r\n")


async def run(kubeconfig: Path, first: int, count: int, seconds: float) -> dict[str, Any]:
    connection = load(kubeconfig)
    host, _, port = connection.server.removeprefix("https://").rpartition(":")
    assert connection.ssl_context is not None, connection.server
    clients = [
        Client(first + number, host, int(port), connection.ssl_context) for number in range(count)
    ]
    for client in clients:
        await client.open()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    until = time.monotonic() + seconds
    await asyncio.gather(*(client.run(until) for client in clients))
    latencies: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    for client in clients:
        errors.update(client.errors)
        for verb, found in client.latencies.items():
            latencies[verb] += found
    return {"latencies": latencies, "errors": errors}


def main() -> None:
    kubeconfig, first, count, seconds = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(
            json.dumps(runner.run(run(Path(kubeconfig), int(first), int(count), float(seconds)))),
            flush=True,
        )


if __name__ == "__main__":
    main()
