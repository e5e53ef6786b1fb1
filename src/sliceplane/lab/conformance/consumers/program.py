"""Any program, in any language: it is started for each case, and prints a line whenever its belief
changes.

Its environment has ``KUBECONFIG``, ``SLICEPLANE_NAMESPACE``, ``SLICEPLANE_SERVICE``,
``SLICEPLANE_PORT`` (the name; empty: the only port), ``SLICEPLANE_FAMILY`` (``IPv4`` or ``IPv6``),
and for programs that honour hints ``SLICEPLANE_NODE`` and ``SLICEPLANE_ZONE``. A line is a JSON
list of ``"ADDRESS:PORT"``, IPv6 in brackets; other lines are ignored. It is ended by SIGTERM, and
by SIGKILL after two seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from sliceplane.kit.io.process.orphans import ended_with_us
from sliceplane.kit.io.tasks import ends_within
from sliceplane.lab.conformance.consumers.consumer import (
    FollowedService,
    FollowingConsumer,
    JudgedConsumer,
    in_background,
)
from sliceplane.lab.conformance.steps import NODE, ZONE, Claim, Need

_ENDS_S: Final = 2.0
#: last lines of stderr that the sentence about its end quotes
_LAST_LINES: Final = 3
#: maximum bytes of one line: a thousand IPv6 endpoints are 60 kB
_LINE: Final = 1 << 20
_CHUNK: Final = 1 << 16
#: maximum characters of a line in a sentence
_TEXT_MAX: Final = 200


class CommandConsumer(JudgedConsumer):
    """A consumer that a *command* starts, split as by a shell. Raises ``ValueError`` for a command
    that is empty or cannot be split.
    """

    #: the word before the command in ``sliceplane conformance``
    kind: str

    def __init__(
        self,
        command: str,
        *,
        name: str = "",
        claims: Iterable[Claim] = (),
        ables: Iterable[Need] = (),
        patience_s: float,
    ) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise ValueError(
                f"the command after {self.kind}: cannot be split into words: {error}"
            ) from error
        if not self._command:
            raise ValueError(f"a program to run is missing after {self.kind}:")
        self.name = name or Path(self._command[0]).name
        self.claims = frozenset(claims)
        self.ables = frozenset(ables)
        self.patience_s = patience_s


class ProgramConsumer(CommandConsumer):
    """See the module."""

    kind = "program"

    def __init__(
        self,
        command: str,
        *,
        name: str = "",
        claims: Iterable[Claim] = (),
        unable: Iterable[Need] = (),
        patience_s: float,
    ) -> None:
        every: frozenset[Need] = frozenset(("large", "unnamed-port", "families"))
        ables = every - frozenset(unable)
        super().__init__(command, name=name, claims=claims, ables=ables, patience_s=patience_s)

    @asynccontextmanager
    async def follow(self, followed: FollowedService) -> AsyncIterator[FollowingConsumer]:
        async with process(self._command, followed) as running:
            beliefs = FollowingConsumer()
            async with in_background(_listen(running, beliefs)):
                yield beliefs


class RunningProgram:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._stderr_task = asyncio.create_task(self._read_stderr())

    async def farewell(self) -> str:
        """Waits for its end; returns its exit status with the last lines of its stderr."""
        code = await self.process.wait()
        await asyncio.wait(
            (self._stderr_task,), timeout=_ENDS_S
        )  # its children may keep the pipe open
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return " / ".join([how, *self._last_lines])

    async def end(self) -> None:
        """Ends the program and its children."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        await ends_within(_ENDS_S, self.process.wait())
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self._stderr_task.cancel()

    async def _read_stderr(self) -> None:
        async for line in _lines(self.process.stderr):
            if text := _to_text(line):
                self._last_lines.append(text)


@asynccontextmanager
async def process(command: list[str], followed: FollowedService) -> AsyncIterator[RunningProgram]:
    """Runs a program until the end of the block. Raises ``OSError``."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(followed.kubeconfig),
        "SLICEPLANE_NAMESPACE": followed.namespace,
        "SLICEPLANE_SERVICE": followed.service,
        "SLICEPLANE_PORT": followed.query.port,
        "SLICEPLANE_FAMILY": followed.query.family,
        "SLICEPLANE_NODE": NODE,
        "SLICEPLANE_ZONE": ZONE,
    }
    pipe = asyncio.subprocess.PIPE
    try:
        started = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    except OSError as error:
        raise OSError(f"{command[0]!r} cannot be started: {error.strerror}") from error
    running = RunningProgram(started)
    with ended_with_us(started.pid, _ENDS_S):
        try:
            yield running
        finally:
            await running.end()


@asynccontextmanager
async def ignored(running: RunningProgram) -> AsyncIterator[None]:
    """Reads and discards its output: a full pipe would block the program."""

    async def read() -> None:
        async for _ in _lines(running.process.stdout):
            pass

    async with in_background(read()):
        yield


async def _listen(running: RunningProgram, beliefs: FollowingConsumer) -> None:
    async for line in _lines(running.process.stdout):
        try:
            addresses = json.loads(line)
        except (ValueError, RecursionError):
            addresses = None
        if isinstance(addresses, list):
            beliefs.believe(frozenset(str(address) for address in addresses))
        else:
            beliefs.other_line = _to_text(line) or beliefs.other_line
    beliefs.ended = await running.farewell()


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    """Yields lines; a line that is too long is truncated."""
    assert stream is not None, "the program's output is a pipe"
    pending = b""
    while chunk := await stream.read(_CHUNK):
        *lines, rest = (pending + chunk).split(b"\n")
        for line in lines:
            yield line
        pending = rest[:_LINE]
    if pending:
        yield pending


def _to_text(line: bytes) -> str:
    """Returns *line* as printable text."""
    text = "".join(
        c if c.isprintable() else " " for c in line[: 4 * _TEXT_MAX].decode(errors="replace")
    ).strip()
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
