"""Over sockets: a server process with controllers and emulation, and clients that break the rules
of TLS and HTTP.

``python -m tests.fuzz.wire --seconds 600``. What must hold: every request is answered or its
connection closed within ``ANSWER_SECONDS_MAX``, no 5xx but Kubernetes' own, nothing in the server's
log, and afterwards no connection, no watch and no memory is left.
"""

# ruff: noqa: E501  # tables of hostile values, one thing beside the other
from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import re
import ssl
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.tools.process import PlaneProcess, scratch
from tests.fuzz import requests
from tests.fuzz.application import Ask
from tests.fuzz.properties import EXHAUSTED, QUIRKS

from sliceplane.watch.io.kubeconfig import load

ANSWER_SECONDS_MAX = 40.0
CLIENTS = 6
GROWTH_MIB_MAX = 60.0
#: a 504 that the client has asked for, by a version from the future or a short ``timeout``
_ASKED_FOR = ("Too large resource version", "request did not complete within the allotted timeout")
_HEADS = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/0.9\r\n\r\n",
    b"GET /\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"\x00" * 100,
    b"GET http://x/api HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"GET /api HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    b"GET /api HTTP/1.1\r\n folded: x\r\nHost: x\r\n\r\n",
    b"GET /api HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api HTTP/1.1\nHost: x\n\n",
    b"GET /a%ZZ%00%ff?%ff#frag HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET //x/../../etc HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n{}",
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b'POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;ext="\r\n{}\r\n0\r\nTrailer: x\r\n\r\n',
    b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n",
    b"GET /api HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 4000 + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" * 5,
    b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
)


@dataclass
class Findings:
    codes: Counter[int] = field(default_factory=Counter)
    told: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, detail: str) -> None:
        if kind not in self.told:
            self.told[kind] = detail
            print(f"\n{kind}\n  {detail[:2000]}", flush=True)


def on_the_wire(rng: Random, ask: Ask) -> tuple[bytes, bool]:
    """The bytes of a request, its framing by length or in chunks, sometimes wrong; and whether it
    may go on, so that the server is right to wait.
    """
    target = ask.path.encode("ascii", "replace").replace(b" ", b"%20") or b"/"
    if ask.query:
        target += b"?" + re.sub(rb"[\x00-\x20\x7f]", b"+", ask.query)
    lines = [ask.method.encode() + b" " + target + b" HTTP/1.1", b"Host: x"]
    lines += [
        name + b": " + re.sub(rb"[\r\n\0]", b"", value)
        for name, value in ask.headers
        if name != b"content-length"
    ]
    body = ask.body
    if rng.random() < 0.3:
        lines.append(b"Transfer-Encoding: chunked")
        pieces, size = [], rng.choice((1, 7, 1000, 100_000)) if len(body) < 2000 else 100_000
        for at in range(0, len(body), size):
            piece = body[at : at + size]
            pieces.append(b"%x\r\n" % len(piece) + piece + b"\r\n")
        body = b"".join(pieces) + b"0\r\n\r\n"
    elif body or rng.random() < 0.2:
        lines.append(b"Content-Length: %d" % (len(body) + rng.choice((0,) * 30 + (1, -1, 1000))))
    raw = b"\r\n".join(lines) + b"\r\n\r\n" + body
    if rng.random() < 0.05:
        return requests._mangle(rng, raw), True
    return raw, _incomplete(raw)


class Client:
    """One of a few that work at a time."""

    def __init__(self, number: int, port: int, context: ssl.SSLContext, findings: Findings) -> None:
        self._rng = Random(number)
        self._port = port
        self._context = context
        self._findings = findings
        #: the exchange before this one
        self._before = (b"", b"")

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX * 2):
                    await self._connection()
            except TimeoutError:
                self._findings.add("a connection hangs", "")
            except (OSError, EOFError, asyncio.IncompleteReadError):
                pass  # it was closed: that is an answer

    async def _connection(self) -> None:
        rng = self._rng
        if rng.random() < 0.02:
            await self._no_tls()
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)
        try:
            for _ in range(rng.choice((1, 3, 30))):
                ask = requests.make(rng, ["web", "web-1"])
                raw, goes_on = (
                    (rng.choice(_HEADS), True) if rng.random() < 0.1 else on_the_wire(rng, ask)
                )
                if not await self._exchange(reader, writer, raw, goes_on):
                    return
        finally:
            if rng.random() < 0.5:
                writer.transport.abort()
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await writer.wait_closed()

    async def _no_tls(self) -> None:
        """Plain text, or half a handshake, at a port that speaks TLS."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(
            self._rng.choice(
                (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"", b"\x00" * 5000)
            )
        )
        writer.write_eof()
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await reader.read(100)
        writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes, goes_on: bool
    ) -> bool:
        """True if the connection can be used again."""
        rng = self._rng
        if rng.random() < 0.03:
            writer.write(raw[: rng.randrange(len(raw) + 1)])
            return False  # gone in the middle
        if rng.random() < 0.03:
            for at in range(0, min(len(raw), 200), 20):
                writer.write(raw[at : at + 20])
                await asyncio.sleep(0.01)
            writer.write(raw[200:])
        else:
            writer.write(raw)
        try:
            async with asyncio.timeout(0.3 if goes_on else ANSWER_SECONDS_MAX):
                line = await reader.readline()
                head = await reader.readuntil(b"\r\n\r\n") if line else b""
        except asyncio.LimitOverrunError:
            self._findings.add("an endless head", repr(raw[:500]))
            return False
        except TimeoutError:
            if not goes_on:
                self._findings.add("no answer", repr(raw[:1500]))
            return False
        if not line:
            return False
        before, self._before = self._before, (raw, line + head)
        shape = re.fullmatch(rb"HTTP/1\.1 ([1-5]\d\d) .*\r\n", line)
        if shape is None:
            self._findings.add(
                "an answer that is none of HTTP",
                f"{raw[:500]!r}\n  {line[:300]!r}\n  before: {before!r}",
            )
            return False
        code = int(shape[1])
        self._findings.codes[code] += 1
        lower = head.lower()
        length = re.search(rb"content-length: (\d+)", lower)
        body = b""
        if length and not raw.startswith(b"HEAD"):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                body = await reader.readexactly(int(length[1]))
        if code >= 500 and not _excused(code, body):
            self._findings.add(f"answered {code}", f"{raw[:1500]!r}\n  {body[:500]!r}")
        # A stream has no length: a little of it, and away.
        if not length and code == 200:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read(1 << 16)
            return False
        # What goes on may be several requests.
        return b"connection: close" not in lower and not goes_on


def _incomplete(raw: bytes) -> bool:
    """A request that says it is longer than it is may be waited for (the server gives up after a
    minute).
    """
    head, _, body = raw.partition(b"\r\n\r\n")
    if not head or not _:
        return True
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    if length:
        return len(body) < int(length[1])
    return b"chunked" in head.lower() and not body.endswith(b"0\r\n\r\n")


def _excused(code: int, body: bytes) -> bool:
    text = body.decode(errors="replace")
    return (code == 504 and any(each in text for each in _ASKED_FOR)) or (
        code == 500 and any(each in text for each in (*QUIRKS, EXHAUSTED))
    )


async def fuzz(server: PlaneProcess, seconds: float, seed: int, findings: Findings) -> None:
    context = load(server.kubeconfig).ssl_context
    assert context is not None, "a plane speaks TLS"
    port = int(server.url.rpartition(":")[2])
    until = time.monotonic() + seconds
    clients = [Client(seed + number, port, context, findings) for number in range(CLIENTS)]
    await asyncio.gather(*(client.run(until) for client in clients))


def main() -> None:
    logging.getLogger("asyncio").setLevel(
        logging.CRITICAL
    )  # it tells of every connection that was cut
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.wire")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first client (from the clock)"
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    print(f"seed: {seed}", flush=True)
    findings = run(arguments.seconds, seed)
    print(f"answers by code: {dict(sorted(findings.codes.items()))}; {len(findings.told)} findings")
    sys.exit(bool(findings.told))


def run(seconds: float, seed: int) -> Findings:
    findings = Findings()
    with (
        scratch() as folder,
        PlaneProcess(Path(folder), "--emulate", "--history-keep", "5s") as server,
    ):
        sizes = []
        for quarter in range(4):
            asyncio.run(fuzz(server, seconds / 4, seed + 1000 * quarter, findings))
            sizes.append(server.rss_mib())
        print(f"server memory after each quarter, MiB: {[round(size) for size in sizes]}")
        if sizes[3] - sizes[1] > GROWTH_MIB_MAX:
            findings.add("the server grows", str(sizes))
        if server.process.poll() is not None:
            findings.add("the server has died", str(server.process.returncode))
        blamed = [
            line
            for line in (Path(folder) / "plane.log").read_text().splitlines()
            if _is_fault(line)
        ]
        for line in blamed:
            findings.add(f"logged: {re.sub(r'[0-9a-f-]{8,}', '_', line)[-160:]}", line)
    return findings


def _is_fault(line: str) -> bool:
    return any(
        mark in line
        for mark in (
            "Traceback",
            "Error(",
            "unexpectedly",
            "never retrieved",
            "starts again",
            '"error"',
            "[error",
        )
    )


if __name__ == "__main__":
    main()
