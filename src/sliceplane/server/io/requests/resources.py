"""The verbs of every resource over HTTP: parse, ask the registry, wait until it is durable, render.

Nothing here decides anything about objects; the registry does, synchronously, between two awaits,
or a worker does with the registry's verbs where that would take too long (``offload``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from sliceplane.api.errors import StatusError, too_large_body
from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import POSTED
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.server.io.offload.jobs import WriteRequest, WriteVerb
from sliceplane.server.io.offload.service import STORED_SHARE, OffloadService
from sliceplane.server.io.requests.lists import Lists
from sliceplane.server.io.requests.params import (
    PATCH_TYPES,
    decode_delete_options,
    delete_options_of_query,
    list_options,
    media_type,
    write_options,
)
from sliceplane.server.io.requests.render import error_representation, escape, render_object
from sliceplane.server.io.requests.request import Request, Route
from sliceplane.server.io.requests.response import (
    CONTENT_TYPES,
    DEPRECATIONS,
    NO_CACHE,
    PLAIN_JSON,
    Representation,
    Response,
    negotiate,
    warning_headers,
)
from sliceplane.server.io.requests.timers import Horizon
from sliceplane.server.io.storage.committing import Durability
from sliceplane.server.registry.core import key_of
from sliceplane.server.registry.offload import can_offload
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Context, Outcome, Target, WriteOptions
from sliceplane.server.store.mvcc import Store

if TYPE_CHECKING:
    from sliceplane.server.documents.table import IncludeObject

#: how long a read waits for a version that the server does not have yet, as upstream's watch cache
#: does
FUTURE_VERSION_S_MAX = 3.0


#: age of memory from which reads of any version get a warning
STALE_WARNING_S = 10.0
#: what is answered there is no row of anything
_POSTED = frozenset(row.name for row in SUBRESOURCES.values() if row.is_posted)


class ResourceHandlers:
    """Stateless but for its parts; called by every request's task."""

    def __init__(
        self,
        registry: Registry,
        store: Store,
        committer: Durability,
        clock: Callable[[], float],
        offload: OffloadService | None = None,
        *,
        future_version_s: float = FUTURE_VERSION_S_MAX,
    ) -> None:
        self._future_version_s = future_version_s
        self._registry = registry
        self._store = store
        self._horizon = Horizon(store)
        self._committer = committer
        self.clock = clock
        self._offload = offload if offload is not None else OffloadService()
        self._lists = Lists(registry, self._offload, committer)

    async def respond(self, request: Request, route: Route) -> Response:
        """Raises ``StatusError``."""
        target = route.target
        tables = target.resource not in POSTED and target.subresource not in _POSTED
        representation = negotiate(request.header(b"accept"), pretty=request.pretty, tables=tables)
        match route.verb:
            case "get":
                return await self._get(request, route.target, representation)
            case "list":
                return await self._list(request, route.target, representation)
            case "create" | "update" | "patch" | "delete" as verb:
                return await self._write(request, route.target, representation, verb)
            case "deletecollection":
                return await self._delete_collection(request, route.target, representation)
        raise AssertionError(f"verb {route.verb!r} is routed but not served")

    def context(self, request: Request) -> Context:
        assert request.user is not None, "requests are authenticated before they are served"
        return Context(now=self.clock(), user=request.user)

    async def _get(
        self, request: Request, target: Target, representation: Representation
    ) -> Response:
        version = request.query.optional("resourceVersion")
        await self._begin_read(request, target, version)
        record = self._registry.get(self.context(request), target, version)
        outcome = Outcome(code=200, body=record.body)
        return await self._object(request, target, representation, outcome, self.age_warnings())

    async def _list(
        self, request: Request, target: Target, representation: Representation
    ) -> Response:
        options = list_options(request.query)
        included = included_objects(request, representation)
        if options.resource_version_match == "Exact" or options.continue_token:
            # Another server may have issued a version that this one has not observed yet.
            await self._begin_read(request, target, None)
        else:
            await self._begin_read(request, target, options.resource_version)
        context = self.context(request)
        listed = await self._lists.find(context, target, options)
        body = await self._lists.render(context, target, listed, representation, included)
        return _response(200, body, target, representation, self.age_warnings())

    async def _read_write(self, request: Request, target: Target, verb: WriteVerb) -> WriteRequest:
        """Reads the body and the options of a write.  Raises ``StatusError``."""
        media = media_type(request)
        patch = PATCH_TYPES.get(media, "merge")
        if verb == "patch" and media not in PATCH_TYPES:
            raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        write = WriteRequest(
            verb=verb,
            raw=await request.body(),
            context=self.context(request),
            target=target,
            media=media,
            patch=patch,
        )
        if verb == "patch":
            return replace(write, options=write_options(request, "PatchOptions", patch))
        if verb != "delete":
            return replace(write, options=_options_or_error(request, verb))
        if write.raw:
            return write
        return replace(write, deletion=delete_options_of_query(request.query))

    async def _write(
        self, request: Request, target: Target, representation: Representation, verb: WriteVerb
    ) -> Response:
        """Executes a write in the loop, or in a worker if it is too much for the loop."""
        write = await self._read_write(request, target, verb)
        if self._needs_offload(target, write.raw):
            async with self._offload.slot(write.context.user):
                errors_in = error_representation(request.header(b"accept"), pretty=request.pretty)
                outcome = await self._offload.write(
                    write, self._registry, self._committer, errors_in
                )
                if verb == "create":
                    request.created = outcome.body
                return await self._object(request, target, representation, outcome, has_slot=True)
        execute = write.prepared(self._registry)

        def step() -> Outcome:
            outcome = execute()
            if verb == "create":
                request.created = outcome.body
            return outcome

        outcome = await self._committer.write(step, _revision_of)
        return await self._object(request, target, representation, outcome)

    def _needs_offload(self, target: Target, raw: bytes) -> bool:
        """Returns True if a write is too much for the loop. What needs the keys of tokens is done
        here, and has no business with so much: raises the 413 ``StatusError``.
        """
        stored = self._store.latest(key_of(target))
        stored_bytes = 0 if stored is None else len(stored.body)
        if len(raw) + stored_bytes // STORED_SHARE <= self._offload.offload_bytes:
            return False
        if not can_offload(target.resource, target.subresource):
            raise too_large_body(self._offload.offload_bytes)
        return True

    async def _delete_collection(
        self, request: Request, target: Target, representation: Representation
    ) -> Response:
        options = decode_delete_options(request, await request.body(), target.requested)
        selection = list_options(request.query)
        context = self.context(request)

        await self._committer.current()
        listed = await self._lists.find(context, target, selection)
        await self._lists.delete(context, target, listed, options)
        body = await self._lists.render(
            context, target, listed, Representation(representation.media), "Metadata"
        )
        return _response(200, body, target, representation, ())

    def age_warnings(self) -> tuple[str, ...]:
        """Returns a warning for reads of any version, if memory is old since storage is away."""
        age_s = self._committer.staleness_s
        if age_s <= STALE_WARNING_S:
            return ()
        return (f"storage is away; this was last known to be current {age_s:.0f} s ago",)

    async def _object(
        self,
        request: Request,
        target: Target,
        representation: Representation,
        outcome: Outcome,
        warnings: tuple[str, ...] = (),
        *,
        has_slot: bool = False,
    ) -> Response:
        """*has_slot*: the request has its offload slot."""
        included = included_objects(request, representation)
        render = partial(
            render_object,
            outcome.body,
            target.requested,
            representation,
            now=self.clock(),
            include_object=included,
        )
        if representation == PLAIN_JSON:
            # Stored bytes are sent nearly as they are, however long.
            body = escape(outcome.body) + b"\n"
        elif not self._offload.needs_offload(len(outcome.body)):
            body = render()
        else:
            user = None if has_slot else self.context(request).user
            body = await self._offload.render(render, user)
        return _response(outcome.code, body, target, representation, (*outcome.warnings, *warnings))

    async def _begin_read(
        self, request: Request, target: Target, resource_version: str | None
    ) -> None:
        """Return when the read may be worked on. It has its seat while the server asks storage, but
        not while it waits for a version of the client's choice.
        """
        if resource_version:
            await self.wait_for(request, target, resource_version)
        await request.charges.take_seat()
        if not resource_version:
            await self.wait_for(request, target, None)

    async def wait_for(
        self, request: Request, target: Target, resource_version: str | None
    ) -> None:
        """Wait until memory is as new as a read asks for: as storage is now, if it names no
        version; a little for a version from the future. Raises the 504 ``StatusError``, and
        ``OverCapacity`` if the user waits for too many; what is no number and what is not waited for is
        left to the registry to complain of.
        """
        if not resource_version:
            await self._committer.current()
            return
        if target.resource.uncached:
            return
        try:
            version = parse_uint64(resource_version or "")
        except NotAnInteger:
            return
        if version <= self._store.revision:
            return
        request.charges.raise_to("future-reads", 1)
        try:
            await self._horizon.reach(version, self._future_version_s)
        finally:
            request.charges.release("future-reads")


_revision_of = attrgetter("revision")


def _options_or_error(
    request: Request, verb: Literal["create", "update"]
) -> WriteOptions | StatusError:
    """Returns the options, or their error, which counts once the body was decoded."""
    try:
        return write_options(request, f"{verb.capitalize()}Options")
    except StatusError as error:
        return error


def included_objects(request: Request, representation: Representation) -> IncludeObject:
    """Returns the part of an object that the rows of a Table carry. Raises the 400
    ``StatusError``.
    """
    if representation.form != "Table":
        return "Metadata"
    from sliceplane.server.documents.table import parse_include_object

    return parse_include_object(request.query.first("includeObject"))


def _response(
    code: int,
    body: bytes,
    target: Target,
    representation: Representation,
    warnings: tuple[str, ...],
) -> Response:
    spoken = target.requested
    texts = (*DEPRECATIONS.get((spoken.group, spoken.version, spoken.plural), ()), *warnings)
    headers = (NO_CACHE, *warning_headers(texts)) if texts else (NO_CACHE,)
    return Response(code, body, CONTENT_TYPES[representation.media], headers)
