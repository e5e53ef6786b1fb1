"""The ASGI application: one request from its head to its answer.

The order is upstream's: who is it (401), may they (403, also for what does not exist), is there
room (429), does it exist (404, 405), and only then what they want. Every error leaves here as a
Status; an unexpected one is logged with the request's audit id and told to the client as nothing
but an internal error.

Room is asked for when the client has nothing more to do: a request has no seat while its body
arrives, while it waits for a version of the client's choice, and while its answer is taken
(``limits``).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import msgspec

from sliceplane.api.errors import StatusError, internal, not_found
from sliceplane.api.gates import NEWEST, Release
from sliceplane.api.requests import PROGRESS_PATH
from sliceplane.api.scheme import Pods
from sliceplane.api.users import User, bearer_token
from sliceplane.kit.io.log import get_logger
from sliceplane.server.fairness.types import Flow, RequestAttributes
from sliceplane.server.io.audit.log import AuditEntry, AuditLog
from sliceplane.server.io.audit.loggable import (
    agent_of,
    error_of,
    has_secret_body,
    uri_of,
    without_frames,
)
from sliceplane.server.io.metrics import (
    LoopSteps,
    RequestKey,
    ServerMetrics,
    WatchTraffic,
    page_key,
    resource_key,
)
from sliceplane.server.io.nonresource.discovery import Discovery
from sliceplane.server.io.nonresource.pages import (
    HealthChecks,
    IssuerPages,
    LastWrites,
    NotedWrite,
    Pages,
    send_portions,
    snapshot_portions,
)
from sliceplane.server.io.requests import reports
from sliceplane.server.io.requests.auth import ANONYMOUS, authenticate
from sliceplane.server.io.requests.limits import InFlight, Limits, OverCapacity, RequestCharges
from sliceplane.server.io.requests.params import request_timeout_s
from sliceplane.server.io.requests.render import status_response, timeout_response
from sliceplane.server.io.requests.reports import ReportService
from sliceplane.server.io.requests.request import (
    Receive,
    Request,
    ResourcePath,
    Route,
    Send,
    parse,
    pod_of_containers,
    resolve,
    verb_of,
)
from sliceplane.server.io.requests.response import (
    NO_CACHE,
    Response,
    send_response,
    too_many_requests,
)
from sliceplane.server.registry.authentication import impersonation
from sliceplane.server.registry.authorization.index import refusal
from sliceplane.server.registry.authorization.open_watches import Claim
from sliceplane.server.registry.types import Attributes, Decision
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.snapshot import PATH as SNAPSHOT_PATH
from sliceplane.watch.io.flight import PATH as RECORDING_PATH
from sliceplane.watch.io.flight import FlightRecorder

READ_S_MAX = 60.0
WRITE_S_MAX = 34.0

_READ_VERBS = ("get", "list")

#: characters of a path in a log line about the event loop
_PATH_CHARACTERS_MAX = 256

_log = get_logger("apiserver")


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that the application uses; the plane creates them."""

    #: as ``ResourceHandlers.respond`` and ``WatchHandler.respond``
    respond: Callable[[Request, Route], Awaitable[Response]]
    stream: Callable[[Request, Route, Send, Callable[[], str], WatchTraffic], Awaitable[None]]
    discovery: Discovery
    health: HealthChecks
    metrics: ServerMetrics
    #: who shows a bearer token
    find_user: Callable[[str], User | None]
    impersonate: Callable[[User, impersonation.Impersonation], User]
    decide: Callable[[User, Attributes], Decision]
    limits: Limits
    #: what a snapshot is made of
    store: Store
    reports: ReportService
    #: ``None``: nothing is recorded
    flight: FlightRecorder | None = None
    emulated: Release = NEWEST
    audit: AuditLog | None = None
    #: who shows nothing may be ``system:anonymous``
    anonymous: bool = True
    #: keys that verify tokens, for other programs that have to
    issuer: IssuerPages | None = None
    #: tells what holds the loop; made of the metrics unless given
    steps: LoopSteps | None = None
    clock: Callable[[], float] = time.time


class _Exchange:
    """The state of one request and response, for headers, logs, metrics and the audit log."""

    __slots__ = (
        "attributes",
        "audit",
        "audit_id",
        "charges",
        "error",
        "key",
        "started",
        "streaming",
    )

    def __init__(self, request: Request, started: float) -> None:
        sent = request.header(b"audit-id")
        self.audit_id = sent if sent and sent.isascii() and len(sent) <= 64 else str(uuid.uuid4())
        self.started = started
        self.key = RequestKey("other")
        self.streaming = False
        #: set once the path was parsed
        self.attributes: Attributes | None = None
        self.error: StatusError | None = None
        #: ``None`` until the request is admitted
        self.charges: RequestCharges | None = None
        #: ``None``: there is no audit log
        self.audit: AuditEntry | None = None


class ApiServer:
    """The application.  One task for each request calls it; all state is in its services."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._writes = LastWrites()
        self._pages = Pages(
            writes=self._writes,
            discovery=services.discovery,
            health=services.health,
            metrics=services.metrics.render,
            issuer=services.issuer,
            emulated=services.emulated,
            clock=services.clock,
        )
        self.in_flight = InFlight(services.limits)
        self._steps = services.steps or LoopSteps(services.metrics)
        #: pages that are long, by path
        self._streams: dict[str, Callable[[], Iterator[bytes]]] = {
            SNAPSHOT_PATH: lambda: snapshot_portions(services.store)
        }
        flight = services.flight
        if flight is not None:
            self._streams[RECORDING_PATH] = lambda: flight.lines("asked for")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        exchange = _Exchange(request, time.perf_counter())
        await self._steps.timed(
            self._serve(request, exchange, send), lambda: _log_fields(request, exchange)
        )

    async def _serve(self, request: Request, exchange: _Exchange, send: Send) -> None:
        services = self._services
        if services.audit is not None:
            exchange.audit = AuditEntry(services.audit, services.clock, request, exchange.audit_id)
        code = 200
        aborted = False
        try:
            response = await self._respond(request, exchange, send)
            if response is not None:
                now = services.clock()
                code = await send_response(
                    request,
                    send,
                    response,
                    exchange.charges,
                    now=now,
                    audit_id=exchange.audit_id,
                )
        except ConnectionAbortedError:
            aborted = True
            code = code if exchange.streaming else 400
        if exchange.audit is not None:
            if request.user is None and exchange.error is not None:
                exchange.audit.refused(exchange.error)
            else:
                exchange.audit.complete(code, exchange.error)
        if aborted:
            return
        seconds = time.perf_counter() - exchange.started
        services.metrics.observe(exchange.key, code, seconds)
        if _log.writes("debug"):
            _log_request(request, exchange, code, seconds)

    async def _respond(self, request: Request, exchange: _Exchange, send: Send) -> Response | None:
        """The response, or ``None`` if a stream was sent and has ended.  Raises
        ``ConnectionAbortedError``.
        """
        try:
            return await self._answer(request, exchange, send)
        except StatusError as error:
            exchange.error = without_frames(error)
            return status_response(request, error)
        except OverCapacity:
            return too_many_requests()
        except TimeoutError:
            return timeout_response()
        except ConnectionAbortedError:
            raise
        except Exception as error:  # the last resort of every request
            _log.error(
                "request failed unexpectedly",
                audit_id=exchange.audit_id,
                method=request.method,
                path=request.path,
                exc_info=error_of(
                    error,
                    secret=exchange.attributes is not None and has_secret_body(exchange.attributes),
                ),
            )
            if exchange.streaming:
                # The head is out: all that is left is to break the connection, which uvicorn does
                # on an error.
                raise ConnectionAbortedError from error
            exchange.error = internal(f"internal error; audit id {exchange.audit_id}")
            return status_response(request, exchange.error)

    async def _answer(self, request: Request, exchange: _Exchange, send: Send) -> Response | None:
        services = self._services
        path = parse(request.path)
        if path is None:
            verb = request.method.lower()
            reporting = reports.rights(request.method, request.path)
            attributes = reporting or Attributes(verb=verb, path=request.path)
            exchange.key = page_key(request.method, PROGRESS_PATH if reporting else request.path)
        else:
            verb = verb_of(request.method, path, is_watch=request.query.flag("watch"))
            attributes = request.attributes(verb, path)
            exchange.attributes = attributes
            exchange.key = resource_key(
                verb,
                path,
                attributes.name,
                services.discovery.offered,
                dry_run="dryRun" in request.query,
                content_type=request.header(b"content-type"),
            )
        authorization = request.headers.get(b"authorization", b"")
        request.user = user = authenticate(
            request.certificate,
            authorization,
            services.find_user,
            now=services.clock(),
            anonymous=services.anonymous,
        )
        if user is not ANONYMOUS and not request.connection.authenticated(user):
            raise OverCapacity
        user, flow = self._admit(request, user, attributes, path, exchange)
        is_read = path is None or verb in (*_READ_VERBS, "watch")
        request.charges = exchange.charges = charges = RequestCharges(
            self.in_flight, flow, user, "read" if is_read else "write"
        )
        try:
            if verb == "watch" or (request.path in self._streams and request.method == "GET"):
                charges.open_stream(request.kept_bytes)
                await self._stream(request, path, exchange, send)
                return None
            if path is None and attributes.resource:
                return await self._report(request)
            if path is None:
                request_timeout_s(
                    request.query, READ_S_MAX
                )  # as upstream: an invalid one is refused on any path
                await charges.take_seat()
                return await self._pages.respond(request)
            if (pod := pod_of_containers(path)) is not None and services.store.latest(pod) is None:
                raise not_found(Pods.plural, Pods.group, path.name)
            route = resolve(path, verb, services.discovery.offered)
            limit_s = READ_S_MAX if is_read else WRITE_S_MAX
            async with asyncio.timeout(request_timeout_s(request.query, limit_s)):
                response = await services.respond(request, route)
            if not is_read and "dryRun" not in request.query:
                write = NotedWrite(services.clock(), user.name, verb, request.header(b"user-agent"))
                self._writes.note(attributes, attributes.name or request.created_name, write)
            return response
        finally:
            charges.close()

    async def _report(self, request: Request) -> Response:
        """Held for as long as its client wants, so it has no seat."""
        request.charges.open_stream(request.kept_bytes)
        body = await request.body()
        request.charges.finish_work()
        answer = await self._services.reports.answer(request.path, body)
        return Response(200, answer, headers=(NO_CACHE,))

    def _admit(
        self,
        request: Request,
        user: User,
        attributes: Attributes,
        path: ResourcePath | None,
        exchange: _Exchange,
    ) -> tuple[User, Flow]:
        """Authorises *user*, or the user whom they impersonate (the request's user from here on),
        for *attributes*.

        Returns that user and the flow of the request.

        Raises the 400 or 403 ``StatusError``; the audit log gets the request before and the
        decision after.
        """
        audit = exchange.audit
        if audit is not None:
            audit.received(user, attributes, path)
        acting = request.headers_of(b"impersonate-")
        other = impersonation.parse_headers(acting) if acting else None
        now = self._services.clock()
        has_certificate = request.certificate is not None and request.certificate.counts(now)
        token = "" if has_certificate else bearer_token(request.headers.get(b"authorization", b""))
        claim = Claim(user=user, token=token, acting=other, attributes=attributes)
        if other is not None:
            request.user = user = self._services.impersonate(user, other)
            if audit is not None:
                audit.impersonated(user)
        request_attributes = RequestAttributes(
            attributes.verb,
            attributes.group,
            attributes.combined_resource,
            attributes.namespace,
            attributes.path,
        )
        request.flow = flow = self.in_flight.flows.classify(
            user.name, user.groups, request_attributes
        )
        decision = self._services.decide(user, attributes)
        if audit is not None:
            audit.decided(decision)
        if not decision.allowed:
            raise refusal(user, attributes, decision.reason)
        request.claim = claim
        return user, flow

    async def _stream(
        self, request: Request, path: ResourcePath | None, exchange: _Exchange, send: Send
    ) -> None:
        """A watch, or a page that is long: its client decides how long it takes, so it has no
        seat.
        """
        services = self._services
        key = exchange.key

        def on_head() -> str:
            exchange.streaming = True
            if exchange.audit is not None:
                exchange.audit.started()
            return exchange.audit_id

        if path is None:
            portions = self._streams[request.path]()
            await send_portions(request, send, portions, now=services.clock(), audit_id=on_head())
            return
        route = resolve(path, "watch", services.discovery.offered)
        traffic = services.metrics.traffic(key.group, key.version, key.resource)
        services.metrics.on_stream(key, +1)
        try:
            await services.stream(request, route, send, on_head, traffic)
        finally:
            services.metrics.on_stream(key, -1)


def _log_fields(request: Request, exchange: _Exchange) -> dict[str, object]:
    """Returns the fields of a log line about the request."""
    return {
        "audit_id": exchange.audit_id,
        "verb": exchange.key.verb,
        "user": request.user.name if request.user is not None else "",
        "path": request.path[:_PATH_CHARACTERS_MAX],
    }


def _log_request(request: Request, exchange: _Exchange, code: int, seconds: float) -> None:
    """Writes a debug line for the request, which its audit id finds."""
    _log.debug(
        "request",
        audit_id=exchange.audit_id,
        verb=exchange.key.verb,
        uri=uri_of(request),
        code=code,
        milliseconds=round(seconds * 1000, 3),
        user=request.user.name if request.user is not None else "",
        agent=agent_of(request),
        source=request.client_address,
    )
