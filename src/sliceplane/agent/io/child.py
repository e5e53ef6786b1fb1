"""The process of ``agent run -- COMMAND``: started or adopted, and watched until it ends; signals
are forwarded to it.

It gets a ``NOTIFY_SOCKET`` of its own (sd_notify(3)). A child that sends READY=1 there counts as
ready, so a program written for systemd needs no check. It leads a session: ^C at a terminal reaches
only the agent, which drains before it ends the child. ``agent.io.orphan`` handles the child of a
killed agent.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec.structs import replace

from sliceplane.agent.io import orphan
from sliceplane.agent.io.orphan import AdoptedProcess, ChildRecord, Custody
from sliceplane.kit.io.identity import identity
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.process.orphans import ended_with_us
from sliceplane.kit.io.tasks import ends_within

PrintLine = Callable[[str], None]

_log = get_logger("agent")


class Child:
    """Owned by one program; ``close`` it when it has ended. ``wait`` returns its exit code."""

    def __init__(
        self, process: asyncio.subprocess.Process | AdoptedProcess, custody: Custody
    ) -> None:
        self._process = process
        self._custody = custody
        #: ``None`` if the system does not report start times of processes
        self._record: ChildRecord | None = None
        self._cleanup = ExitStack()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        on_ready: Callable[[], None],
        custody: Custody,
        print_line: PrintLine,
    ) -> Child:
        """Starts or adopts the child. *on_ready* is called when it reports READY=1. Raises
        ``OSError`` for a command that cannot be started.
        """
        orphaned = orphan.find_orphan(custody.record)
        if orphaned is not None:
            record, process = orphaned
            if orphan.is_adopted(record, command, custody):
                print_line(
                    f"process {process.pid} was left by an agent that was killed: it is adopted"
                )
                return cls._adopt(record, process, on_ready, custody)
            await orphan.end(process, custody.stop_s)
            print_line(f"process {process.pid} was left by an agent that was killed: it was ended")
        orphan.forget(custody.record)
        folder = Path(tempfile.mkdtemp(prefix=orphan.FOLDER_PREFIX))
        notify = folder / "notify"
        undo = ExitStack()
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        with undo:
            listening = undo.enter_context(_listen(notify))
            environment = {**os.environ, "NOTIFY_SOCKET": str(notify)}
            for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
                environment.pop(name, None)
            started = await asyncio.create_subprocess_exec(
                *command, env=environment, start_new_session=True
            )
            undo.pop_all()
        child = cls(started, custody)
        process_identity = identity(started.pid)
        if process_identity is not None:
            child._save_record(ChildRecord(process_identity, tuple(command), str(notify)))
        if process_identity is None or custody.on_orphan == "end":
            child._cleanup.enter_context(ended_with_us(started.pid, custody.stop_s))
        child._watch_notify(listening, folder, on_ready)
        return child

    @classmethod
    def _adopt(
        cls,
        record: ChildRecord,
        process: AdoptedProcess,
        on_ready: Callable[[], None],
        custody: Custody,
    ) -> Child:
        child = cls(process, custody)
        child._record = record
        child._cleanup.callback(process.close)
        path = Path(record.notify)
        try:
            folder = orphan.get_notify_folder(record)
            path.unlink(missing_ok=True)
            child._watch_notify(_listen(path), folder, on_ready)
        except OSError as error:
            _log.warning(
                "what the adopted process says to its NOTIFY_SOCKET is not heard",
                problem=str(error),
            )
        if record.ready:
            asyncio.get_running_loop().call_soon(on_ready)
        return child

    def _save_record(self, record: ChildRecord) -> None:
        self._record = record
        try:
            record.write(self._custody.record)
        except OSError as error:
            _log.warning(
                "the process would not be known again after a kill of the agent", problem=str(error)
            )

    def _watch_notify(
        self, notify: socket.socket, folder: Path, on_ready: Callable[[], None]
    ) -> None:
        def read() -> None:
            try:
                message = notify.recv(4096)
            except OSError:
                return
            if b"READY=1" in message.splitlines():
                if self._record is not None and not self._record.ready:
                    self._save_record(replace(self._record, ready=True))
                on_ready()

        loop = asyncio.get_running_loop()
        loop.add_reader(notify, read)
        self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        self._cleanup.callback(notify.close)
        self._cleanup.callback(loop.remove_reader, notify)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: int) -> None:
        if self.is_running:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Returns its exit code as a shell does: 128 plus the signal's number if a signal ended it."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    def outcome(self, code: int) -> str:
        """Returns the outcome as a sentence for the user."""
        if isinstance(self._process, AdoptedProcess):
            return "the process ended; another agent started it, so its exit code is unknown"
        return f"the process ended with exit code {code}"

    async def end(self, grace_s: float) -> int:
        """Sends SIGTERM, and SIGKILL if it still runs after *grace_s*."""
        self.signal(signal.SIGTERM)
        if not await ends_within(grace_s, self.wait()):
            self.signal(signal.SIGKILL)
        return await self.wait()

    def close(self) -> None:
        with suppress(OSError):
            self._custody.record.unlink(missing_ok=True)
        self._cleanup.close()


def _listen(path: Path) -> socket.socket:
    """Raises ``OSError``."""
    notify = socket.socket(
        socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    try:
        notify.bind(str(path))
    except OSError:
        notify.close()
        raise
    return notify
