"""A part of the plane in a process of its own: started with it, started again if it dies, ended
with it.

So a list of 100,000 endpoints that the plane serves does not hold up what that part answers. The
process has an account of its own (``transport.accounts``) and ends with the plane whatever ends
that (``process.lifeline``). It leads a process group, so that ^C at a terminal is for the plane,
which ends it in order.

A child with a *grace* outlives the plane by so many seconds, for a plane that is started again at
once. Its identity is in ``children/NAME.process`` (``process.identity``): the next start finds it
there, starts a successor that shares its port, and kills it when the successor answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from sliceplane.consume.io.accounts import ChildAccount, Rule, write_child_file
from sliceplane.consume.progress import lease_prefix
from sliceplane.kit.io.identity import ProcessIdentity, identity
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.process.lifeline import lifeline
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tasks import ends_within
from sliceplane.kit.ip import join_host_port
from sliceplane.watch.io.service import ServiceContext

_START_S: Final = 60.0
_STOP_S: Final = 5.0
#: before a child that ended is started again, at first and at most; a stop that ended it is known
#: by then
_AGAIN_S: Final = (0.5, 30.0)

_log = get_logger("plane")


class ChildService:
    """A ``PlaneService`` that is the command ``sliceplane NAME``, whose flag *listens* says where
    it listens.

    *rules*: what it may do beside its own Lease, ``sliceplane-NAME-HOST``. *grace_s*: how long it
    outlives the plane.
    """

    def __init__(
        self,
        name: str,
        listens: str,
        listen: tuple[str, int],
        rules: Sequence[Rule],
        *,
        grace_s: int = 0,
    ) -> None:
        self.name: Final = name
        self._listens = listens
        self._listen = listen
        self._rules = tuple(rules)
        self._grace_s = grace_s
        self._record = Path()
        self._lifeline_fd = -1
        self._command: tuple[str, ...] = ()
        self._process: asyncio.subprocess.Process | None = None
        self._account: ChildAccount | None = None
        self._tasks: list[asyncio.Task[None]] = []
        #: why it does not serve, for the plane's health; "" while it does, and once a stop was
        #: asked for
        self._problem = ""
        self._stopping = False
        #: where it listens
        self.address: tuple[str, int] = listen

    def flags(self, context: ServiceContext) -> tuple[str, ...]:
        """More of the command's."""
        return ()

    async def start(self, context: ServiceContext) -> None:
        """Raises ``StartError`` where the process does not come to answer."""
        lease = f"{lease_prefix(self.name)}{socket.gethostname().lower()}"
        self._account = account = ChildAccount(context, self.name, self._rules, lease)
        await account.open()
        common = ("--progress-lease=true", "--kubeconfig", str(account.kubeconfig))
        self._command = (
            sys.executable,
            "-m",
            "sliceplane",
            self.name,
            *common,
            *self.flags(context),
        )
        self._record = account.kubeconfig.with_name(f"{self.name}.process")
        earlier = _living(self._record)
        if earlier is None:
            self.check_free(self._listen)
        self.address = await self._begin(self._listen)
        if earlier is not None and earlier.is_alive:
            os.kill(earlier.pid, signal.SIGKILL)  # its Lease is its successor's now, and stays
        context.add_check(self.name, lambda: "" if self._stopping else self._problem)
        await self.started(context)
        self._tasks = [
            asyncio.create_task(self._keep(context), name=f"process of {self.name}"),
            asyncio.create_task(account.keep_fresh(), name=f"token of {self.name}"),
        ]

    async def started(self, context: ServiceContext) -> None:
        """It answers at ``address``."""

    def check_free(self, listen: tuple[str, int]) -> None:
        """Raises ``StartError`` if another program has the port, for a command that shares it with
        its successor.
        """

    async def _begin(self, listen: tuple[str, int]) -> tuple[str, int]:
        address = join_host_port(*listen)
        try:
            environment, descriptors, lifeline_fd = lifeline(self._grace_s)
            self._process = await asyncio.create_subprocess_exec(
                *(*self._command, f"{self._listens}={address}"),
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
            if self._grace_s:
                os.close(descriptors[0])
                self._let_go()
                self._lifeline_fd = lifeline_fd
        except OSError as error:
            raise StartError(
                f"--{self.name}: no process can be started: {error.strerror}"
            ) from error
        assert self._process.stdout is not None, "asked for"
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                line = await self._process.stdout.readline()
        if not line.startswith(b"ready "):
            await self._end()
            raise StartError(
                f"--{self.name}: nothing answers at {address}; its own words are above"
            )
        own = identity(self._process.pid)
        if self._grace_s and own is not None:
            write_child_file(self._record, msgspec.json.encode(own))
        return listen[0], int(line.split()[1].rpartition(b":")[2])

    def _let_go(self) -> None:
        """Lets the process that was started last live on for its grace."""
        if self._lifeline_fd >= 0:
            os.close(self._lifeline_fd)
            self._lifeline_fd = -1

    async def _keep(self, context: ServiceContext) -> None:
        """An end that nobody asked for is an incident, of which a recording is saved. One that
        comes with a stop of the plane (a service manager signals every process of a unit) is none:
        this task is cancelled in the pause.
        """
        pause_s = _AGAIN_S[0]
        while True:
            assert self._process is not None, "it was started"
            code = await self._process.wait()
            await asyncio.sleep(pause_s)
            if not self._stopping:
                self._problem = f"the process of {self.name} has ended"
                _log.error(
                    "a process has ended, and is started again", process=self.name, exit_code=code
                )
                if context.flight is not None:
                    context.flight.recorder.trigger(self._problem)
            try:
                await self._begin(self.address)
                self._problem = ""
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
        self._stopping = True

    async def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if (
            self._grace_s
            and self._tasks
            and self._process is not None
            and self._process.returncode is None
        ):
            self._let_go()
            return  # it goes on, with its files
        await self._end()
        if self._account is not None:
            self._account.close()


def _living(record: Path) -> ProcessIdentity | None:
    """The process that *record* names, if it runs."""
    try:
        recorded = msgspec.json.decode(record.read_bytes(), type=ProcessIdentity)
    except (OSError, msgspec.DecodeError):
        return None
    return recorded if recorded.is_alive else None
