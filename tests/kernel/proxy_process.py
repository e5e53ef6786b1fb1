"""``sliceplane`` commands as processes, and what tests of the node proxy ask of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kernel.netns import Host

from sliceplane.api.codec import encode
from sliceplane.api.scheme import Resource
from sliceplane.watch.io.http.client import HttpClient

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler)
print("ready", flush=True)
server.serve_forever()
"""


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A ``sliceplane`` command and its ready line; ended with SIGTERM, which must be a clean
    exit.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sliceplane",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(90):
            line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("ready "), line
        yield process, line
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def create(
    client: HttpClient, resource: Resource, document: dict[str, Any], namespace: str = ""
) -> None:
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
    await client.create(resource, namespace, encode(whole))


def make_slice(hosts: list[Host], zones: list[str]) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "demo-1",
            "namespace": "demo",
            "labels": {"kubernetes.io/service-name": "demo"},
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [host.ip4],
                "conditions": {"ready": True},
                "hints": {"forZones": [{"name": zone}]},
            }
            for host, zone in zip(hosts, zones, strict=True)
        ],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def rules_in(node: Host) -> str:
    return node.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout


async def page(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 30)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


_ASK = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""


async def page_inside(host: Host, url: str) -> tuple[int, str]:
    """What a client in the namespace of *host* gets.  Raises ``RuntimeError`` if nobody answers."""
    done = await asyncio.to_thread(host.python, _ASK, url)
    status, _, body = done.stdout.partition(" ")
    return int(status), body
