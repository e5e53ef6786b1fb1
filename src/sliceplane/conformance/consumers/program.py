"""Any program, in any language: one is started for each case, and prints a line whenever its belief changes.

It finds in its environment ``KUBECONFIG``, ``SLICEPLANE_NAMESPACE``, ``SLICEPLANE_SERVICE``, ``SLICEPLANE_PORT`` (the
name; empty: the only port) and ``SLICEPLANE_FAMILY`` (``IPv4`` or ``IPv6``), and for those that honour hints
``SLICEPLANE_NODE`` and ``SLICEPLANE_ZONE``.  A line is a JSON list of ``"ADDRESS:PORT"``, IPv6 in brackets; other lines
are ignored.  It is ended by SIGTERM, and by SIGKILL after two seconds.
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

from sliceplane.conformance.consumers.consumer import Beliefs, FollowedService, FollowingConsumer, JudgedConsumer
from sliceplane.conformance.story import NODE, ZONE, Claim, Need

_ENDS_S: Final = 2.0
#: of what the program writes to stderr, for the sentence that tells how it ended
_LAST_LINES: Final = 3
#: bytes of one line: a thousand endpoints of IPv6 are 60 kB
_LINE: Final = 1 << 20


class ProgramConsumer(JudgedConsumer):
    """*command* as a shell would split it.  Raises ``ValueError`` for one that is empty or cannot be split."""

    def __init__(
        self,
        command: str,
        *,
        name: str = "",
        claims: Iterable[Claim] = (),
        unable: Iterable[Need] = (),
        patience_s: float,
    ) -> None:
        self._command = shlex.split(command)
        if not self._command:
            raise ValueError("a program to run is missing after program:")
        self.name = name or Path(self._command[0]).name
        self.claims = frozenset(claims)
        every: frozenset[Need] = frozenset(("large", "unnamed-port", "families"))
        self.ables = every - frozenset(unable)
        self.patience_s = patience_s

    @asynccontextmanager
    async def follow(self, asked: FollowedService) -> AsyncIterator[FollowingConsumer]:
        async with process(self._command, asked) as running:
            beliefs = Beliefs()
            task = asyncio.create_task(_listen(running, beliefs))
            try:
                yield beliefs
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class RunningProgram:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._last_words: deque[str] = deque(maxlen=_LAST_LINES)
        self._keeping = asyncio.create_task(self._keep())

    async def farewell(self) -> str:
        """How it ended, with what it said last on stderr, once it has."""
        code = await self.process.wait()
        await asyncio.wait((self._keeping,), timeout=_ENDS_S)  # a child of it may hold the pipe
        return " / ".join([f"exit code {code}", *self._last_words])

    async def end(self) -> None:
        """Its children end with it."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDS_S):
                await self.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self._keeping.cancel()

    async def _keep(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self._last_words.append(line.decode(errors="replace").strip())


@asynccontextmanager
async def process(command: list[str], asked: FollowedService) -> AsyncIterator[RunningProgram]:
    """A program until the end of the block.  Raises ``OSError``."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(asked.kubeconfig),
        "SLICEPLANE_NAMESPACE": asked.namespace,
        "SLICEPLANE_SERVICE": asked.service,
        "SLICEPLANE_PORT": asked.asked_port.port,
        "SLICEPLANE_FAMILY": asked.asked_port.family,
        "SLICEPLANE_NODE": NODE,
        "SLICEPLANE_ZONE": ZONE,
    }
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        limit=_LINE,
        start_new_session=True,
    )
    running = RunningProgram(started)
    try:
        yield running
    finally:
        await running.end()


@asynccontextmanager
async def ignored(running: RunningProgram) -> AsyncIterator[None]:
    """What it prints is read: a pipe that is full would hold the program up."""

    async def read() -> None:
        assert running.process.stdout is not None
        while await running.process.stdout.read(1 << 16):
            pass

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()


async def _listen(running: RunningProgram, beliefs: Beliefs) -> None:
    assert running.process.stdout is not None
    while line := await running.process.stdout.readline():
        try:
            addresses = json.loads(line)
        except ValueError:
            continue
        if isinstance(addresses, list):
            beliefs.believe(frozenset(str(address) for address in addresses))
    beliefs.ended = await running.farewell()
