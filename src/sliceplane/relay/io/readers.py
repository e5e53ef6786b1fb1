"""The processes of a server that serve its port, as the server sees them (``sliceplane up
--readers``).

Each has a listening socket of the port, over which the kernel spreads clients, and is a relay of
the server (``reader``). This side opens the Unix socket, starts the processes, starts one again
that has ended, and stops them with the server; if the server is killed, they end at once
(``kit.io.process.lifeline``). The sockets stay open here: while a process starts, its new clients
wait in the queue of its socket.

Beside the API, the Unix socket has two pages for the processes alone: how far the events of a
resource are, for consistent reads, and metrics, which each process sends every few seconds. A
process that sends none is not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import shutil
import signal
import socket
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sliceplane.api.scheme import EndpointSlices, Nodes, Services
from sliceplane.api.users import AUTHENTICATED, MASTERS, User
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.process.lifeline import lifeline
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.metrics import Family
from sliceplane.server.io.audit.file import AuditConfig
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.connections.listener import App
from sliceplane.server.io.connections.local import Peer, private_socket, with_peers
from sliceplane.server.io.datadir import write_private
from sliceplane.server.io.plane import ServerPlane
from sliceplane.server.io.requests.request import Receive, Send, read_body
from sliceplane.server.store.mvcc import Compacted
from sliceplane.watch.io.certificates import Certificate

#: pages of the Unix socket, for the processes themselves
PROGRESS_PAGE: Final = "/readers/progress"
METRICS_PAGE: Final = "/readers/metrics/"
#: the user that the processes are for their own requests
READER: Final = "system:sliceplane-reader"
#: served from memory
RESOURCES: Final = (EndpointSlices, Services, Nodes)
METRICS_PERIOD_S: Final = 10.0
#: without metrics, until the process counts as stuck; and at its start
SILENT_S_MAX: Final = 30.0
START_S_MAX: Final = 60.0
#: from a start to the next, of a process that does not live
RESTART_S: Final = 1.0
STOP_S_MAX: Final = 10.0
_END_STREAMS_S: Final = 0.2
#: signals to the processes; SIGTERM, which a service manager sends to all, is for the server
DRAIN: Final = signal.SIGUSR1
STOP: Final = signal.SIGUSR2
_MODULE: Final = "sliceplane.relay.io.reader"

_log = get_logger("readers")


class ReaderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a process on its stdin, pickled.  *descriptor*: of its listening socket."""

    number: int
    descriptor: int
    socket_path: Path
    cert_file: Path
    key_file: Path
    authorities_file: Path
    plane: PlaneConfig
    #: level, form and colour
    logs: tuple[str, str, bool]


class _Process:
    """One reader as the server knows it."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.heard_at = 0.0
        self.ready = asyncio.Event()
        self.families: tuple[Family, ...] = ()


class ReaderProcesses:
    """Owned by the plane; see ``server.io.connections.local.Readers``."""

    def __init__(self, plane: ServerPlane, logs: tuple[str, str, bool]) -> None:
        self._plane = plane
        self._logs = logs
        self._readers = {f"reader-{one}": _Process() for one in range(1, plane.config.readers + 1)}
        self._tasks: list[asyncio.Task[None]] = []
        self._sockets: Sequence[socket.socket] = ()
        self._stopping = asyncio.Event()
        self.restarts = plane.metrics.counter(
            "sliceplane_reader_restarts_total", "Reader processes that ended and were started anew."
        )
        plane.metrics.of_processes = lambda: {
            name: reader.families for name, reader in self._readers.items()
        }
        plane.health.add_readiness("readers", self._trouble)

    # The socket

    def around(self, app: App) -> App:
        async def serve(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            is_page = scope["path"].startswith("/readers/")
            if not (is_page and scope["state"]["is_process"]):
                await app(scope, receive, send)
                return
            try:
                status, body = await self._answer(scope, receive)
            except Exception as error:  # a fault of ours, which would be a silent 500
                _log.error("a page of the readers failed", path=scope["path"], exc_info=error)
                raise
            headers = [(b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        return with_peers(serve)

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive) -> tuple[int, bytes]:
        path: str = scope["path"]
        body = await read_body(receive, lambda _: None)
        if path == PROGRESS_PAGE:
            return await self._progress(body)
        reader = self._readers[path.removeprefix(METRICS_PAGE)]
        reader.families = pickle.loads(body)  # of a process of this user, which has our keys, too
        reader.heard_at = asyncio.get_running_loop().time()
        reader.ready.set()
        return 200, b"{}"

    async def _progress(self, query: bytes) -> tuple[int, bytes]:
        """Answers with the version of the newest event of a resource after a version, else that
        version, and with the current version.
        """
        await self._plane.committer.current()
        resource, since = msgspec.json.decode(query, type=tuple[str, int])
        store = self._plane.store
        try:
            events = store.events_since(since, resource)
        except Compacted:
            return 410, b""
        seen = events[-1].revision if events else since
        return 200, msgspec.json.encode((seen, store.revision))

    # The processes

    @property
    def _folder(self) -> Path:
        return self._plane.data_dir.path / "readers"

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets
        local, path = private_socket(self._folder)
        self._write_authorities()
        await self._plane.listener.start_local(local, self._write_authorities)
        for number, (sock, reader) in enumerate(
            zip(sockets, self._readers.values(), strict=True), 1
        ):
            config = self._config(number, sock.fileno(), path)
            self._tasks.append(asyncio.create_task(self._keep(reader, config), name="reader"))
        waiting = asyncio.gather(*(reader.ready.wait() for reader in self._readers.values()))
        try:
            async with asyncio.timeout(START_S_MAX):
                await waiting
        except TimeoutError:
            raise StartError(
                f"the processes of --readers do not start: {self._trouble()}"
            ) from None

    def drain(self) -> None:
        self._signal(DRAIN)

    async def stop(self) -> None:
        self._stopping.set()
        for sock in self._sockets:  # or clients would go on waiting in the queues
            sock.close()
        self._signal(STOP)
        ends_at = asyncio.get_running_loop().time() + STOP_S_MAX
        while waiting := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(waiting, timeout=_END_STREAMS_S)
            # A client whose stream ended may open the next one at a process that goes on.
            self._plane.end_streams()
            if asyncio.get_running_loop().time() > ends_at:
                self._signal(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        for reader in self._readers.values():
            if reader.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    reader.process.send_signal(number)

    def _config(self, number: int, descriptor: int, path: Path) -> ReaderConfig:
        plane = self._plane.config
        audit = plane.audit
        if audit is not None and (audit.path.is_file() or not audit.path.exists()):
            own = audit.path.with_name(f"{audit.path.stem}.reader-{number}{audit.path.suffix}")
            audit = AuditConfig(path=own, size_max=audit.size_max, backups_max=audit.backups_max)
        pki = self._plane.pki
        return ReaderConfig(
            number=number,
            descriptor=descriptor,
            socket_path=path,
            cert_file=pki.server_file,
            key_file=pki.server_key_file,
            authorities_file=self._folder / "authorities.crt",
            plane=replace(plane, audit=audit, limits=plane.limits.share(plane.readers)),
            logs=self._logs,
        )

    def _write_authorities(self) -> None:
        """Tells the processes whose certificates count, until it succeeds."""
        try:
            write_private(self._folder / "authorities.crt", self._plane.authorities.encode())
        except StartError as error:
            _log.error("readers trust the authorities of before", problem=str(error))
            asyncio.get_running_loop().call_later(RESTART_S, self._write_authorities)

    async def _keep(self, reader: _Process, config: ReaderConfig) -> None:
        """Starts the process as often as it ends."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started_at = loop.time()
            code = await self._run(reader, config)
            reader.ready.clear()
            if self._stopping.is_set():
                return
            self.restarts.value += 1
            _log.error(
                "a reader process ended: it is started anew", number=config.number, code=code
            )
            await asyncio.sleep(max(0.0, started_at + RESTART_S - loop.time()))

    async def _run(self, reader: _Process, config: ReaderConfig) -> int:
        """Returns the exit code of one process."""
        environment, descriptors, _ = lifeline()
        try:
            process = reader.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _MODULE),
                env=environment,
                pass_fds=(*descriptors, config.descriptor),
                stdin=asyncio.subprocess.PIPE,
            )
        except OSError as error:  # the system has no memory, or no processes, for now
            _log.error("cannot start a reader process", problem=str(error))
            return -1
        assert process.stdin is not None, "it is a pipe"
        with contextlib.suppress(OSError):  # it has ended
            process.stdin.write(pickle.dumps(config))
            process.stdin.close()
        if self._stopping.is_set():
            process.send_signal(STOP)
        code = await process.wait()
        reader.process = None
        return code

    def _trouble(self) -> str:
        now = asyncio.get_running_loop().time()
        for name, reader in self._readers.items():
            if not reader.ready.is_set():
                return f"{name} is starting"
            if now - reader.heard_at > SILENT_S_MAX:
                return f"{name} is silent since {now - reader.heard_at:.0f} s"
        return ""


#: the processes, for their own requests
OWN_PEER: Final = Peer(
    Certificate(User(name=READER, groups=(MASTERS, AUTHENTICATED)), 0.0, 2.0**53), is_process=True
)
