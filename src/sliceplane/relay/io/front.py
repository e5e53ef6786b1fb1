"""The application of a relay: which requests are served from memory, and which are passed on.

What is served goes to the application of our API server (``server.io.requests.app``), with its order
of checks, limits, encoders and metrics. Before that the parent was asked who the child is, whether
it may, and which version memory must have reached; its answers are then at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextlib import closing
from typing import Any, Final, NamedTuple

from sliceplane.api.errors import StatusError, internal, unavailable
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import BY_PATH
from sliceplane.api.users import User, bearer_token
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.kit.io.log import get_logger
from sliceplane.relay.io.barriers import BarrierAnswers
from sliceplane.relay.io.children import ALWAYS_ALLOWED, Children
from sliceplane.relay.io.parent import CURRENT_S_MAX, PROGRESS_AFTER_S, Parent
from sliceplane.relay.io.passing import Passage
from sliceplane.relay.io.reports import ReplayedBody, ReportLeases
from sliceplane.relay.parts import part_of
from sliceplane.relay.reviews import may_report
from sliceplane.server.io.requests.auth import ANONYMOUS
from sliceplane.server.io.requests.limits import OverCapacity
from sliceplane.server.io.requests.render import status_response
from sliceplane.server.io.requests.request import (
    Receive,
    Request,
    ResourcePath,
    Send,
    parse,
    verb_of,
)
from sliceplane.server.io.requests.response import send_response, too_many_requests
from sliceplane.server.registry.types import Attributes
from sliceplane.server.registry.verbs.options import NEWEST, decode_continue

#: consistent lists that are passed on at a time instead of waiting for a proof that memory is
#: current: quick for a person, and no storm for the parent
LISTS_PASSED_MAX: Final = 2
#: how long such a list waits before it is passed on
QUICK_S: Final = 2 * PROGRESS_AFTER_S
#: in the place of a verb: the request is answered here
SERVED: Final = None
OWN_PAGES: Final = (*ALWAYS_ALLOWED, "/metrics")

_log = get_logger("relay")

App = Callable[[MutableMapping[str, Any], Receive, Send], Any]


class Read(NamedTuple):
    """A read that memory may serve.  ``revision`` ``None``: what the parent has now."""

    parent: Parent
    verb: str
    revision: int | None


class RelayFront:
    """One task for each request calls it.  *server* answers what is served here."""

    def __init__(
        self,
        server: App,
        parents: Mapping[Selection, Parent],
        children: Children,
        passage: Passage,
        answers: BarrierAnswers | None,
        *,
        name: str,
        clock: Callable[[], float],
    ) -> None:
        """*answers*: reports that are aggregated; ``None``: all are passed on. *name*: the relay's
        in the Via header.
        """
        self._server = server
        self._parents = parents
        self._children = children
        self._passage = passage
        self._answers = answers
        self.reports = None if answers is None else answers.leases
        self._name = name
        self._clock = clock
        #: the parent is no newer than our schemas, so protobuf loses no field
        self.knows_protobuf = False
        self._lists_passed = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = parse(request.path)
        reports = self.reports
        if path is None or reports is None or not reports.concerns(request, path):
            decision = self._passed_read(request, path)
            if await self._is_served(decision, request, scope, receive, send):
                del decision, request, path  # a watch lasts, and the server has a copy
                await self._server(scope, receive, send)
            return
        bodies = self._passage.bodies
        with closing(ReplayedBody(receive, bodies, request.client_address)) as body:
            decision = self._passed_report(request, path, body, reports)
            if await self._is_served(decision, request, scope, body, send):
                await self._server(scope, body, send)

    async def _is_served(
        self,
        decision: Coroutine[Any, Any, str | None],
        request: Request,
        scope: Any,
        receive: Receive,
        send: Send,
    ) -> bool:
        """Returns True if the server answers the request, and else answers it."""
        began = False

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            read = await decision
            if read is SERVED:
                return True
            self._lists_passed += read == "list"
            try:
                await self._passage.respond(request, scope, receive, noting)
                return False
            finally:
                self._lists_passed -= read == "list"
        except ConnectionAbortedError:
            return False  # an answer that is not complete ends its connection
        except OverCapacity:
            response = too_many_requests()
        except StatusError as error:
            response = status_response(request, error)
        except Exception as error:  # the last resort of every request
            _log.error("request failed unexpectedly", path=request.path, exc_info=error)
            response = status_response(request, internal("internal error of the relay"))
        if not began:
            now = self._clock()
            await send_response(request, send, response, None, now=now, audit_id="")
        return False

    # Decisions: the verb of a read that is passed on, "" for any other request that is, and
    # ``SERVED``. They raise ``StatusError``.

    def _refuse_loop(self, request: Request) -> None:
        if self._name in request.header(b"via"):
            message = f"{self._name} is its own parent: a request came back to it"
            raise StatusError(508, "LoopDetected", message, {})

    async def _passed_report(
        self, request: Request, path: ResourcePath, body: ReplayedBody, reports: ReportLeases
    ) -> str | None:
        self._refuse_loop(request)
        verb = verb_of(request.method, path, is_watch=False)
        if not await self._may(request, request.attributes(verb, path)):
            return SERVED  # the server has the refusal
        child = await self._child(request)
        if request.method != "GET" and child is not None and not may_report(child, path.name):
            return ""  # the parent's admission decides
        creates = verb in ("update", "patch") and not reports.has(path.name)
        if creates and not await self._may(request, request.attributes("create", path)):
            return ""
        return SERVED if await reports.keeps(request, path.name, body) else ""

    async def _passed_read(self, request: Request, path: ResourcePath | None) -> str | None:
        self._refuse_loop(request)
        if path is None:
            needed = self._answers and self._answers.right(request.method, request.path)
            if not needed:
                if self._passage.takes_all or not request.path.startswith(OWN_PAGES):
                    return ""
                needed = Attributes(verb=request.method.lower(), path=request.path)
            await self._may(request, needed)
            return SERVED
        read = self._read_of(request, path)
        if read is None:
            return ""
        attributes = request.attributes(read.verb, path)
        # A refusal is the server's business, and no reason to ask for versions.
        if not await self._may(request, attributes) or await self._has(request, read):
            return SERVED
        return read.verb

    async def _may(self, request: Request, attributes: Attributes) -> bool:
        """Returns True if the child is known and may; the answers are then at hand."""
        user = await self._child(request)
        return user is not None and (await self._children.decide(user, attributes)).allowed

    async def _child(self, request: Request) -> User | None:
        """Returns who the child is; ``None``: its token is not valid."""
        certificate = request.certificate
        if certificate is not None and certificate.counts(self._clock()):
            return certificate.user
        if token := bearer_token(request.headers.get(b"authorization", b"")):
            return await self._children.user_of(token)
        return ANONYMOUS

    async def _has(self, request: Request, read: Read) -> bool:
        """Returns True if memory is as new as *read* needs.  Raises the 503 and 504
        ``StatusError``.
        """
        parent = read.parent
        can_pass = self._passage.can_pass(request)
        is_quick = (
            can_pass
            and (read.verb, read.revision) == ("list", None)
            and self._lists_passed < LISTS_PASSED_MAX
        )
        if parent.trouble and parent.mirror.filled and read.verb == "watch":
            # An accepted watch tells its client that what it has is current.
            raise unavailable(f"no new watch: {parent.trouble}")
        if await parent.reach(read.revision, QUICK_S if is_quick else CURRENT_S_MAX):
            return True
        if not (parent.mirror.filled or is_quick):
            raise unavailable(parent.trouble)  # all that wait for a start would be a storm
        if not can_pass:
            raise StatusError(504, "Timeout", "the relay has not reached that version", {})
        return False

    def _read_of(self, request: Request, path: ResourcePath) -> Read | None:
        """Returns the read that a request is; ``None``: memory cannot serve it."""
        resource = BY_PATH.get((path.group, path.version, path.plural))
        if (
            resource is None
            or request.method != "GET"
            or path.subresource
            or path.overlong
            or path.legacy_watch
            or request.headers_of(b"impersonate-")
            or (not self.knows_protobuf and "protobuf" in request.header(b"accept"))
        ):
            return None
        parent = part_of(self._parents, resource, request.query.first("labelSelector"))
        if parent is None:
            return None
        verb = verb_of("GET", path, is_watch=request.query.flag("watch"))
        token = request.query.first("continue")
        if token and verb == "list":
            return Read(parent, verb, 0) if _continues_here(parent, token) else None
        text = request.query.first("resourceVersion")
        try:
            version = parse_uint64(text) if text else None
        except NotAnInteger:
            return Read(parent, verb, 0)  # the server has the error message
        if verb == "list" and request.query.first("resourceVersionMatch") == "Exact":
            is_kept = version is None or version >= parent.mirror.store.compacted
            return Read(parent, verb, version) if is_kept else None
        if verb == "get" and version is None and self._passage.can_pass(request):
            return None
        return Read(parent, verb, version)


def _continues_here(parent: Parent, token: str) -> bool:
    """Returns True if memory still has the version of a continue token, or the token is none."""
    try:
        revision = decode_continue(token).revision
    except StatusError:
        return True
    store = parent.mirror.store
    return revision == NEWEST or store.compacted <= revision <= store.revision
