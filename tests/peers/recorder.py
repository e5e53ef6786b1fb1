"""A recorder between a client and an API server: it speaks plain HTTP/1.1 to the one and TLS to the
other.

Run as a program, ``recorder.py KUBECONFIG OUT``: prints its URL and ends with its standard input.
Then it writes to OUT what clients sent: a JSON array of connections, each the base64 of its bytes.
What they send is passed on as it is, under the certificate of the kubeconfig's user.
``requests_of`` reads such a file.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import sys
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_CHUNK_BYTES = 65_536


@dataclass(frozen=True)
class Recorded:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  #: names in lower case
    body: bytes


def requests_of(raw: str) -> list[Recorded]:
    """The requests of every connection, in the order in which the connections were opened."""
    return [request for each in json.loads(raw) for request in _parse(base64.b64decode(each))]


def _parse(sent: bytes) -> list[Recorded]:
    found = []
    while sent:
        head, gap, sent = sent.partition(b"\r\n\r\n")
        assert gap, f"half a request: {head!r}"
        first, *lines = head.decode("ascii").split("\r\n")
        method, target, version = first.split(" ")
        assert version == "HTTP/1.1", first
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        assert "transfer-encoding" not in headers, "bodies must have a length"
        length = int(headers.get("content-length", "0"))
        path, _, query = target.partition("?")
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        assert len(dict(pairs)) == len(pairs), f"a parameter given twice: {target}"
        found.append(Recorded(method, path, dict(pairs), headers, sent[:length]))
        sent = sent[length:]
    return found


def _identity(kubeconfig: dict[str, Any]) -> ssl.SSLContext:
    """The TLS side of a kubeconfig of ours, in which certificates are written out."""
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(
            base64.b64decode(user["client-certificate-data"])
            + base64.b64decode(user["client-key-data"])
        )
        pair.flush()
        context.load_cert_chain(pair.name)
    return context


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, copy: bytearray | None
) -> None:
    try:
        while chunk := await source.read(_CHUNK_BYTES):
            if copy is not None:
                copy.extend(chunk)
            sink.write(chunk)
            await sink.drain()
    finally:
        sink.close()


async def _record(kubeconfig: dict[str, Any]) -> list[bytearray]:
    connections: list[bytearray] = []
    context = _identity(kubeconfig)
    server = urllib.parse.urlsplit(kubeconfig["clusters"][0]["cluster"]["server"])

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(copy := bytearray())
        # A server that is away, a connection that is reset, the end of this program: the client
        # sees its own end.
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            above, below = await asyncio.open_connection(server.hostname, server.port, ssl=context)
            both = _pump(reader, below, copy), _pump(above, writer, None)
            await asyncio.gather(*both, return_exceptions=True)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    print("http://{}:{}".format(*listener.sockets[0].getsockname()), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    return connections


def main(kubeconfig: str, out: str) -> None:
    connections = asyncio.run(_record(yaml.safe_load(Path(kubeconfig).read_text())))
    Path(out).write_text(
        json.dumps([base64.b64encode(each).decode("ascii") for each in connections])
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
