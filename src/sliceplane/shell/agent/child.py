"""The process of ``agent run -- COMMAND``: started once, told the signals that we get, watched until its end.

It gets a ``NOTIFY_SOCKET`` of its own (sd_notify(3)); a child that says READY=1 there is believed from then on, so a
program that was written for systemd needs no check.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sliceplane.shell.process.last_steps import ends_within

Say = Callable[[str], None]


class Child:
    """Owned by one program.  ``on_ready`` is called when the child says that it is; ``wait`` gives its exit code."""

    def __init__(
        self, process: asyncio.subprocess.Process, notify: socket.socket, folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        self._process = process
        self._notify = notify
        self._folder = folder

    @classmethod
    async def start(cls, command: Sequence[str], on_ready: Callable[[], None]) -> Child:
        """Raises ``OSError`` for a command that cannot be started."""
        folder = tempfile.TemporaryDirectory(prefix="sliceplane-agent-")
        path = Path(folder.name, "notify")
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.setblocking(False)
        notify.bind(str(path))
        try:
            environment = {**os.environ, "NOTIFY_SOCKET": str(path)}
            for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
                environment.pop(name, None)
            process = await asyncio.create_subprocess_exec(*command, env=environment)
        except OSError:
            notify.close()
            folder.cleanup()
            raise

        def read() -> None:
            try:
                said = notify.recv(4096)
            except OSError:
                return
            if b"READY=1" in said.splitlines():
                on_ready()

        asyncio.get_running_loop().add_reader(notify, read)
        return cls(process, notify, folder)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: int) -> None:
        if self.is_running:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit code, as a shell tells it: 128 and the signal's number for one that a signal ended."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def end(self, grace_s: float) -> int:
        """SIGTERM, and SIGKILL for one that is still there after *grace_s*."""
        self.signal(signal.SIGTERM)
        if not await ends_within(grace_s, self.wait()):
            self.signal(signal.SIGKILL)
        return await self.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._notify)
        self._notify.close()
        self._folder.cleanup()
