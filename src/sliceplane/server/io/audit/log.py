"""The audit log: who asked for what and how it ended, one JSON line for each stage
(audit.k8s.io/v1, Metadata).

``AuditLog`` hands lines to a thread (``line_writer``) that owns the file (``audit.file``), so that
``write`` never waits: for a full disk, a FIFO that no one opens for reading, a file system that
hangs. What cannot be kept is counted.

**No stranger fills it.**  A line has a bound, a smaller one for an anonymous request. Anonymous
requests that are refused, or that are for pages and not for resources, are recorded at a bounded
rate; the next recorded one has the number of those omitted. A request that an anonymous user was
allowed to make on a resource is always recorded.

``AuditEntry`` is one request on its way: it makes the events of its stages, at level Metadata:
never a body, nor a message that repeats one of a Secret (``loggable``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.users import ANONYMOUS_NAME, User, user_info
from sliceplane.kit.delays import TokenBucket
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.logs.line_writer import LineWriter
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.times import format_micro_time
from sliceplane.server.io.audit.file import AuditConfig, AuditFile, NotAll
from sliceplane.server.io.audit.loggable import (
    agent_of,
    has_secret_body,
    shortened,
    status_of,
    uri_of,
)
from sliceplane.server.io.requests.render import escape
from sliceplane.server.io.requests.request import Request, ResourcePath
from sliceplane.server.registry.types import Attributes, Decision

__all__ = ["AuditConfig", "AuditEntry", "AuditLog"]

#: what waits for the disk at most
QUEUE_BYTES_MAX = 16 * 1024 * 1024
CLOSE_S_MAX = 5.0
#: how long a start waits for the file: one that cannot be opened ends it, one that hangs does not
OPEN_S_MAX = 1.0
LINE_BYTES_MAX = 32 * 1024
STRANGER_LINE_BYTES_MAX = 4 * 1024
#: bounds of recorded anonymous requests: a burst, and a rate
STRANGERS_BURST = 100
STRANGERS_PER_SECOND = 2.0

#: on an event that lost part of itself, as upstream's audit back ends have it
TRUNCATED = "audit.k8s.io/truncated"
#: on the first anonymous event after others were omitted: their number
OMITTED_ANNOTATION = "sliceplane.dev/requests-left-out"
#: characters of a string, items of a list: tried in turn until an event fits
_SIZES = ((1024, 64), (256, 16), (64, 6))

_log = get_logger("audit")


class AuditLog:
    """Owns the file's writer, and what strangers may still have of it.  From the loop's thread;
    ``close`` once.
    """

    def __init__(
        self,
        config: AuditConfig,
        clock: Callable[[], float],
        steady: Callable[[], float] = time.monotonic,
        *,
        close_s: float = CLOSE_S_MAX,
    ) -> None:
        """Opens the file.  Raises ``StartError``."""
        self._path = config.path
        self._file = AuditFile(config, clock)
        self._steady = steady
        self._close_s = close_s
        self._strangers = TokenBucket(rate_per_s=STRANGERS_PER_SECOND, burst=STRANGERS_BURST)
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "apiserver_audit_lost_events",
            "Audit events that could not be written.",
            lambda: self.lost,
        )
        self.omitted = self.metrics.counter(
            "sliceplane_audit_left_out_requests_total",
            "Anonymous requests beyond the rate that the audit log tells of.",
        )
        #: omitted requests whose number was reported
        self._omitted_reported: float = 0
        self._failing = self._overflowing = False
        self._opened = threading.Event()
        #: why the file could not be opened: one error or none
        self._refused: list[OSError] = []
        self._writer = LineWriter(
            "audit", self._append, bytes_max=QUEUE_BYTES_MAX, at_start=self._open
        )
        self._writer.start()
        if not self._opened.wait(OPEN_S_MAX):
            _log.warning(
                "the audit log is not open yet (is it a pipe without a reader?): events wait, as "
                "many as there is room "
                "for",
                path=str(config.path),
            )
        for error in self._refused:
            self._writer.close(self._close_s)
            why = (error.strerror or str(error)).lower()
            raise StartError(f"cannot open the audit log {config.path}: {why}") from error

    @property
    def lost(self) -> int:
        """Events that were not written: there was no room in the queue, or the file did not take
        them.
        """
        return self._writer.lost

    def write(self, event: dict[str, Any], line_bytes_max: int = LINE_BYTES_MAX) -> None:
        """Queue one line."""
        if self._writer.put(_line(event, line_bytes_max)):
            self._overflowing = False
        elif not self._overflowing:
            self._overflowing = True
            _log.error(
                "the audit log takes nothing: events are lost until it does", path=str(self._path)
            )

    def admits_stranger(self) -> bool:
        """Returns True if one more anonymous request may be written."""
        if self._strangers.try_take(self._steady()):
            return True
        self.omitted.value += 1
        return False

    def take_omitted(self) -> int:
        """Returns the number of requests omitted since the last call."""
        count = int(self.omitted.value - self._omitted_reported)
        self._omitted_reported = self.omitted.value
        return count

    def close(self) -> None:
        """Write what waits, for a few seconds at most."""
        if self._writer.close(self._close_s):
            self._file.close()
        unreported = self.take_omitted()
        if unreported:
            _log.warning("anonymous requests were left out of the audit log", requests=unreported)

    # In the writer's thread

    def _open(self) -> None:
        try:
            self._file.open()
        except OSError as error:
            self._refused.append(error)
        self._opened.set()

    def _append(self, lines: list[bytes]) -> int:
        """Writes *lines* and returns how many are lost."""
        try:
            self._file.append(lines)
        except NotAll as error:
            if not self._failing:
                self._failing = True
                _log.error(
                    "cannot write the audit log", path=str(self._path), problem=str(error.why)
                )
            return len(lines) - error.lines
        if self._failing:
            self._failing = False
            _log.warning("the audit log is written again", path=str(self._path), lost=self.lost)
        return 0


def _line(event: dict[str, Any], bytes_max: int) -> bytes:
    """*event* as one line of at most *bytes_max*; what does not fit is cut."""
    line = escape(encode(event)) + b"\n"
    for characters, items in _SIZES:
        if len(line) <= bytes_max:
            break
        cut = {name: shortened(value, characters, items) for name, value in event.items()}
        if (characters, items) == _SIZES[-1]:
            cut["user"] = {
                name: value for name, value in cut.get("user", {}).items() if name != "extra"
            }
            cut.get("responseStatus", {}).pop("details", None)
        cut["annotations"] = {**cut.get("annotations", {}), TRUNCATED: "true"}
        line = escape(encode(cut)) + b"\n"
    return line


class AuditEntry:
    """The events of one request.  Owned by the request's task; the methods are called in the order
    of the stages.
    """

    __slots__ = (
        "_annotations",
        "_clock",
        "_event",
        "_is_recorded",
        "_log",
        "_pending",
        "_request",
        "_secret",
        "_stranger",
    )

    def __init__(
        self, log: AuditLog, clock: Callable[[], float], request: Request, audit_id: str
    ) -> None:
        self._log = log
        self._clock = clock
        self._request = request
        self._annotations: dict[str, str] = {}
        self._secret = False
        #: until the user is authenticated
        self._stranger = True
        #: ``None``: an anonymous request, not decided yet
        self._is_recorded: bool | None = None
        #: the events that wait for that decision
        self._pending: list[dict[str, Any]] = []
        self._event: dict[str, Any] = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": audit_id,
            "stage": "",
            "requestURI": uri_of(request),
            "verb": request.method.lower(),
            "user": {},
            "sourceIPs": [request.client_address] if request.client_address else [],
            "userAgent": agent_of(request),
            "requestReceivedTimestamp": format_micro_time(clock()),
            "stageTimestamp": "",
        }

    def received(self, user: User, attributes: Attributes, path: ResourcePath | None) -> None:
        """The request is authenticated and parsed, but not authorised."""
        self._stranger = user.name == ANONYMOUS_NAME
        self._is_recorded = None if self._stranger else True
        self._secret = has_secret_body(attributes)
        self._event["verb"] = attributes.verb
        self._event["user"] = user_info(user)
        if path is not None:
            members = {
                "resource": attributes.resource,
                "namespace": attributes.namespace,
                "name": attributes.name,
                "apiGroup": attributes.group,
                "apiVersion": path.version,
                "subresource": attributes.subresource,
            }
            self._event["objectRef"] = {name: value for name, value in members.items() if value}
        self._record("RequestReceived")

    def impersonated(self, user: User) -> None:
        """Whom the request acts as; its own user stays who was authenticated."""
        self._event["impersonatedUser"] = user_info(user)

    def decided(self, decision: Decision) -> None:
        self._annotations = {
            "authorization.k8s.io/decision": "allow" if decision.allowed else "forbid",
            "authorization.k8s.io/reason": decision.reason,
        }
        if self._is_recorded is None and decision.allowed and "objectRef" in self._event:
            self._decide_recording(is_recorded=True)

    def started(self) -> None:
        """The head of a stream was sent."""
        self._record("ResponseStarted", {"metadata": {}, "code": 200})

    def refused(self, error: StatusError) -> None:
        """The user is not known (401): the one event of the request."""
        self._decide_recording(is_recorded=self._log.admits_stranger())
        self._record("ResponseStarted", status_of(error, secret=self._secret))

    def complete(self, code: int, error: StatusError | None) -> None:
        if self._is_recorded is None:
            self._decide_recording(is_recorded=self._log.admits_stranger())
        name = self._request.created_name
        if name and "objectRef" in self._event:
            self._event["objectRef"].setdefault("name", name)
        status = status_of(error, secret=self._secret) if error else {"metadata": {}, "code": code}
        self._record("ResponseComplete", status)

    def _decide_recording(self, *, is_recorded: bool) -> None:
        """Writes the pending events of the request, or drops them."""
        self._is_recorded = is_recorded
        pending, self._pending = self._pending, []
        for event in pending if is_recorded else ():
            self._write(event)

    def _record(self, stage: str, status: dict[str, Any] | None = None) -> None:
        if self._is_recorded is False:
            return
        event = {**self._event, "stage": stage, "stageTimestamp": format_micro_time(self._clock())}
        if status is not None:
            event["responseStatus"] = status
            if self._annotations:
                event["annotations"] = self._annotations
        if self._is_recorded is None:
            self._pending.append(event)
        else:
            self._write(event)

    def _write(self, event: dict[str, Any]) -> None:
        if self._stranger:
            omitted = self._log.take_omitted()
            if omitted:
                event["annotations"] = {
                    **event.get("annotations", {}),
                    OMITTED_ANNOTATION: str(omitted),
                }
        ordered = {name: event[name] for name in _ORDER if name in event}
        self._log.write(ordered, STRANGER_LINE_BYTES_MAX if self._stranger else LINE_BYTES_MAX)


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
