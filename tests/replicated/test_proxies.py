"""Links lose what they should and nothing else."""

from __future__ import annotations

import asyncio

from tests.replicated.proxies import Link
from tests.waiting import eventually


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


async def test_a_link_passes_loses_and_ends() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname()[1])
    port = await link.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"one")
    assert await reader.read(100) == b"one"
    link.cut = True
    writer.write(b"two")
    await eventually(lambda: link.lost)
    link.cut = False
    writer.write(b"three")
    try:
        left = await asyncio.wait_for(reader.read(100), 60)
    except ConnectionError:
        left = b""
    assert left == b""
    writer.close()
    await link.close()
    server.close()


async def test_a_deaf_link_loses_the_answers_only() -> None:
    heard = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))
        writer.write(b"answer")
        await writer.drain()
        await reader.read(1000)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname()[1])
    link.deaf = True
    reader, writer = await asyncio.open_connection("127.0.0.1", await link.start())
    writer.write(b"question")
    await eventually(lambda: link.lost)
    assert heard == [b"question"]
    writer.write(b"more")  # the server ends, and so does the link: nothing came before
    assert await reader.read(100) == b""
    writer.close()
    await link.close()
    server.close()


async def test_members_are_told_apart() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname()[1])
    link.cut_from.add(b"ab12")
    port = await link.start()
    for member, is_cut in ((b"ab12", True), (b"cd34", False)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        said = b"GET /raft/stream HTTP/1.1\r\nX-Server-From: " + member + b"\r\n\r\n"
        writer.write(said)
        if is_cut:
            await eventually(lambda: link.lost)
            writer.write_eof()  # what is echoed after it is nothing
        assert await reader.read(100) == (b"" if is_cut else said)
        writer.close()
    assert link.lost == 1
    await link.close()
    server.close()
