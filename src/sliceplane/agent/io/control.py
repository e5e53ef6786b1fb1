"""The local socket of an agent: one line of JSON is the request, one the answer. Only this user and
root may connect.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

_LINE_MAX: Final = 65536
_ANSWER_S: Final = 5.0

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class NoAgent(Exception):
    """A sentence for the user."""


def socket_path(name: str) -> Path:
    """Returns a path below $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR, else below /tmp with the user's
    id; creates its folder.
    """
    base = os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("XDG_RUNTIME_DIR")
    folder = (
        Path(base.partition(":")[0]) / "sliceplane"
        if base
        else Path(f"/tmp/sliceplane-{os.getuid()}")
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.lstat().st_uid != os.getuid():
        raise NoAgent(f"{folder} belongs to another user")
    return folder / f"agent-{name}.sock"


class _Connection(asyncio.Protocol):
    """One connection: a line in, a line out, within ``_ANSWER_S``.

    It is not a stream: a flood would create thousands of reference cycles, whose collection blocks
    the loop for longer than serving them.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._line = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._deadline = asyncio.get_running_loop().call_later(_ANSWER_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._line += data
        if b"\n" in data:
            self._reply()
        elif len(self._line) > _LINE_MAX:
            self._transport.abort()

    def eof_received(self) -> None:
        self._reply()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        del self._transport, self._deadline, self._answer

    def _reply(self) -> None:
        if self._transport.is_closing():
            return
        try:
            reply = self._answer(_object(self._line.partition(b"\n")[0][:_LINE_MAX]))
        except ValueError as error:
            reply = {"error": str(error)}
        self._transport.write(json.dumps(reply).encode() + b"\n")
        self._transport.close()


async def serve(name: str, answer: Answer) -> asyncio.Server:
    """Serves requests; *answer* is called in the loop, and the client receives the text of a
    ``ValueError``.
    """
    path = socket_path(name)
    with suppress(FileNotFoundError):
        path.unlink()  # left by a killed agent: the name's lock is ours
    server = await asyncio.get_running_loop().create_unix_server(lambda: _Connection(answer), path)
    path.chmod(0o600)
    return server


def _object(line: bytes) -> dict[str, Any]:
    """Raises ``ValueError``."""
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("a line of JSON that is no object")
    return value


def close(name: str, server: asyncio.Server) -> None:
    server.close()
    with suppress(OSError):
        socket_path(name).unlink()


async def only_agent() -> str:
    """Returns the name of the only agent of this user on this machine. Raises ``NoAgent`` for none
    and for several.
    """
    running = await running_agents()
    if len(running) > 1:
        raise NoAgent(f"{len(running)} agents run on this machine, name one: {', '.join(running)}")
    if not running:
        raise NoAgent("no agent of this user runs on this machine")
    return running[0]


async def running_agents() -> list[str]:
    """Returns the agents of this user whose sockets accept a connection, sorted."""
    running = []
    for path in sorted(socket_path("").parent.glob("agent-*.sock")):
        with suppress(OSError):  # the socket of a killed agent
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            running.append(path.name[len("agent-") : -len(".sock")])
    return running


async def send_request(name: str, question: dict[str, Any]) -> dict[str, Any]:
    """Raises ``NoAgent``."""
    path = socket_path(name)
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
            writer.write(json.dumps(question).encode() + b"\n")
            answer = _object(await reader.readline())
            writer.close()
            await writer.wait_closed()
    except (OSError, ValueError, TimeoutError) as error:
        running = [other for other in await running_agents() if other != name]
        others = (
            f"; there {'are' if len(running) > 1 else 'is'} {', '.join(running)}" if running else ""
        )
        raise NoAgent(f"no agent {name!r} answers on this machine ({path}){others}") from error
    if "error" in answer:
        raise NoAgent(str(answer["error"]))
    return answer
