"""A part of the plane in a process of its own: started with it, started again if it dies, ended with it.

So a list of 100,000 endpoints that the plane serves does not hold up what that part answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

from sliceplane.shell.process.last_steps import ends_within
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.transport.service import ServiceContext

_START_S: Final = 60.0
_STOP_S: Final = 5.0
_AGAIN_S: Final = (0.5, 30.0)

_log = get_logger("plane")


class ChildService:
    """A ``PlaneService`` that is the command ``sliceplane NAME``, whose flag *listens* says where it listens."""

    def __init__(self, name: str, listens: str, listen: tuple[str, int]) -> None:
        self.name: Final = name
        self._listens = listens
        self._listen = listen
        self._command: tuple[str, ...] = ()
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        #: where it listens
        self.address: tuple[str, int] = listen

    def flags(self, context: ServiceContext) -> tuple[str, ...]:
        """More of the command's."""
        return ()

    async def start(self, context: ServiceContext) -> None:
        """Raises ``StartError`` where the process does not come to answer."""
        common = ("--progress-lease=true", "--kubeconfig", str(context.kubeconfig))
        self._command = (sys.executable, "-m", "sliceplane", self.name, *common, *self.flags(context))
        self.address = await self._begin(self._listen)
        context.add_check(self.name, lambda: "" if self._is_running() else f"the process of {self.name} has ended")
        await self.started(context)
        self._keeping = asyncio.create_task(self._keep(), name=f"process of {self.name}")

    async def started(self, context: ServiceContext) -> None:
        """It answers at ``address``."""

    async def _begin(self, listen: tuple[str, int]) -> tuple[str, int]:
        host, port = listen
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._process = await asyncio.create_subprocess_exec(
            *self._command, f"{self._listens}={shown}", stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None, "asked for"
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                line = await self._process.stdout.readline()
        if not line.startswith(b"ready "):
            await self._end()
            raise StartError(f"--{self.name}: nothing answers at {shown}; its own words are above")
        return host, int(line.split()[1].rpartition(b":")[2])

    def _is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _keep(self) -> None:
        pause_s = _AGAIN_S[0]
        while True:
            assert self._process is not None, "it was started"
            code = await self._process.wait()
            _log.error("a process has ended, and is started again", process=self.name, exit_code=code)
            await asyncio.sleep(pause_s)
            try:
                await self._begin(self.address)
                pause_s = _AGAIN_S[0]
            except StartError as error:
                _log.error("a process does not start", process=self.name, error=str(error))
                pause_s = min(2 * pause_s, _AGAIN_S[1])

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            if not await ends_within(_STOP_S, self._process.wait()):
                self._process.kill()
                await self._process.wait()

    async def drain(self) -> None:
        """Clients are served to the end."""

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._end()
