"""aiohttp is loaded without the system's authorities, and has them as soon as a program connects with its contexts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from sliceplane.shell.server.keys.pki import ensure

ROOT = Path(__file__).parents[3]
#: asks a server whose authority is the system's only one, with the context that aiohttp made
PROGRAM = """
import asyncio, json, ssl, sys
from sliceplane.shell.process.aiohttp_loading import load_aiohttp

load_aiohttp()
from aiohttp import ClientSession, connector


async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
    await writer.drain()
    writer.close()


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:])
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    ours = connector._SSL_CONTEXT_VERIFIED
    held = [len(ours.get_ca_certs())]
    port = server.sockets[0].getsockname()[1]
    async with server, ClientSession() as session:
        async with session.get(f"https://127.0.0.1:{port}/") as response:
            body = await response.text()
    held.append(len(ours.get_ca_certs()))
    print(json.dumps({"body": body, "held": held, "others": len(ssl.create_default_context().get_ca_certs())}))


asyncio.run(main())
"""


def test_authorities_are_read_with_the_first_connection(tmp_path: Path) -> None:
    pki, _ = ensure(tmp_path, ("127.0.0.1",), time.time())
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SSL_CERT_FILE": str(pki.ca_file), "SSL_CERT_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(pki.server_file), str(pki.server_key_file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"body": "ok", "held": [0, 1], "others": 1}
