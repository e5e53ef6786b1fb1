"""The audit log: who asked for what and how it ended, one JSON line for each stage (reference B17, "Audit event").

``AuditLog`` owns the file.  ``write`` never waits: lines go through a queue to a thread that writes them in runs, and
the queue has a bound, beyond which lines are lost and counted (a full disk must not take the API down).  The file is
the owner's alone.  When it would grow beyond its bound it is renamed, with the time in its name, and of the renamed
files only the newest few stay.

``AuditEntry`` is one request on its way: it makes the events of its stages, at level Metadata: never a body.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.errors import StatusError
from sliceplane.kit.times import format_micro_time
from sliceplane.registry.authentication.user_info import user_info
from sliceplane.registry.authorization.types import Attributes, Decision
from sliceplane.registry.types import User
from sliceplane.shell.apiserver.paths import ResourcePath
from sliceplane.shell.apiserver.render import escape
from sliceplane.shell.apiserver.request import Request
from sliceplane.shell.log import get_logger
from sliceplane.shell.start_error import StartError

#: what waits for the disk at most
QUEUE_BYTES_MAX = 16 * 1024 * 1024
CLOSE_SECONDS_MAX = 5.0
_MEGABYTE = 1024 * 1024

_log = get_logger("audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """``size_max``: bytes of one file; ``backups_max``: how many renamed files stay (0: all)."""

    path: Path
    size_max: int = 100 * _MEGABYTE
    backups_max: int = 10


class AuditLog:
    """The file and its writer.  ``write`` from the loop's thread; ``close`` once, at the end."""

    def __init__(self, config: AuditConfig, clock: Callable[[], float]) -> None:
        """Opens the file.  Raises ``StartError``."""
        self._config = config
        self._clock = clock
        self.lost = 0
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        #: guards the three above and says that there is work, or that it is over
        self._changed = threading.Condition()
        self._closing = False
        self._failing = False
        self._renamed_at_ms = 0
        try:
            self._fd, self._size = _open(config.path)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise StartError(f"cannot open the audit log {config.path}: {why}") from error
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def write(self, event: dict[str, Any]) -> None:
        """Queue one line."""
        line = escape(encode(event)) + b"\n"
        with self._changed:
            if self._waiting_bytes + len(line) > QUEUE_BYTES_MAX:
                self.lost += 1
                return
            self._waiting_bytes += len(line)
            self._lines.append(line)
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, for a few seconds at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closing:
                    self._changed.wait()
                lines = list(self._lines)
                self._lines.clear()
                self._waiting_bytes = 0
            if not lines:
                os.close(self._fd)
                return
            try:
                self._write_lines(lines)
                self._failing = False
            except OSError as error:
                with self._changed:
                    self.lost += len(lines)
                if not self._failing:
                    _log.error("cannot write the audit log", path=str(self._config.path), problem=str(error))
                self._failing = True

    def _write_lines(self, lines: list[bytes]) -> None:
        """In runs that end where the file is full.  Raises ``OSError``."""
        run: list[bytes] = []
        size = self._size
        for line in lines:
            if size and size + len(line) > self._config.size_max:
                self._append(b"".join(run))
                self._rotate()
                run, size = [], 0
            run.append(line)
            size += len(line)
        self._append(b"".join(run))

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self._size += written
            view = view[written:]

    def _rotate(self) -> None:
        path = self._config.path
        path.rename(self._backup_name())
        fd, self._size = _open(path)
        os.close(self._fd)
        self._fd = fd
        backups = sorted(path.parent.glob(f"{path.stem}-[0-9]*{path.suffix}"))
        if self._config.backups_max:
            for old in backups[: -self._config.backups_max]:
                old.unlink()

    def _backup_name(self) -> Path:
        """``audit-2026-01-31T12-00-00.000.log``; the order of the names is the order of the files."""
        path = self._config.path
        # Later than the last one also if the clock is not: names of files that went are not given again.
        milliseconds = max(int(self._clock() * 1000), self._renamed_at_ms + 1)
        while True:
            self._renamed_at_ms = milliseconds
            moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
            stamp = f"{moment:%Y-%m-%dT%H-%M-%S}.{milliseconds % 1000:03d}"
            name = path.with_name(f"{path.stem}-{stamp}{path.suffix}")
            if not name.exists():
                return name
            milliseconds += 1


def _open(path: Path) -> tuple[int, int]:
    """A descriptor that appends, and the size so far.  Raises ``OSError``."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)
    return fd, os.fstat(fd).st_size


class AuditEntry:
    """The events of one request.  Owned by the request's task; the methods are called in the order of the stages."""

    __slots__ = ("_annotations", "_clock", "_event", "_log", "_request")

    def __init__(self, log: AuditLog, clock: Callable[[], float], request: Request, audit_id: str) -> None:
        self._log = log
        self._clock = clock
        self._request = request
        self._annotations: dict[str, str] = {}
        self._event: dict[str, Any] = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": audit_id,
            "stage": "",
            "requestURI": request.uri,
            "verb": request.method.lower(),
            "user": {},
            "sourceIPs": [request.client_address] if request.client_address else [],
            "userAgent": request.header(b"user-agent"),
            "requestReceivedTimestamp": format_micro_time(clock()),
            "stageTimestamp": "",
        }

    def received(self, user: User, wanted: Attributes, path: ResourcePath | None) -> None:
        """It is known who asks for what; whether they may is not."""
        self._event["verb"] = wanted.verb
        self._event["user"] = user_info(user)
        if path is not None:
            members = {
                "resource": wanted.resource,
                "namespace": wanted.namespace,
                "name": wanted.name,
                "apiGroup": wanted.group,
                "apiVersion": path.version,
                "subresource": wanted.subresource,
            }
            self._event["objectRef"] = {name: value for name, value in members.items() if value}
        self._tell("RequestReceived")

    def impersonated(self, user: User) -> None:
        """Whom the request acts as; its own user stays who was authenticated."""
        self._event["impersonatedUser"] = user_info(user)

    def decided(self, decision: Decision) -> None:
        self._annotations = {
            "authorization.k8s.io/decision": "allow" if decision.allowed else "forbid",
            "authorization.k8s.io/reason": decision.reason,
        }

    def started(self) -> None:
        """The head of a stream was sent."""
        self._tell("ResponseStarted", {"metadata": {}, "code": 200})

    def refused(self, error: StatusError) -> None:
        """Nobody knows who it was (401): the one event of the request."""
        self._tell("ResponseStarted", _status(error))

    def complete(self, code: int, error: StatusError | None) -> None:
        created = self._request.created
        if created and "objectRef" in self._event:
            name = decode_document(created).get("metadata", {}).get("name", "")
            if name:
                self._event["objectRef"].setdefault("name", name)
        self._tell("ResponseComplete", _status(error) if error else {"metadata": {}, "code": code})

    def _tell(self, stage: str, status: dict[str, Any] | None = None) -> None:
        event = {**self._event, "stage": stage, "stageTimestamp": format_micro_time(self._clock())}
        if status is not None:
            event["responseStatus"] = status
            if self._annotations:
                event["annotations"] = self._annotations
        self._log.write({name: event[name] for name in _ORDER if name in event})


_ORDER = (
    "kind",
    "apiVersion",
    "level",
    "auditID",
    "stage",
    "requestURI",
    "verb",
    "user",
    "impersonatedUser",
    "sourceIPs",
    "userAgent",
    "objectRef",
    "responseStatus",
    "requestReceivedTimestamp",
    "stageTimestamp",
    "annotations",
)


def _status(error: StatusError) -> dict[str, Any]:
    status = error.status()
    return {name: value for name, value in status.items() if name not in ("kind", "apiVersion")}
