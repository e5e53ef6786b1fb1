"""What workers do, as values, and as bytes between this program and its own workers: pickles behind
their length.

``run`` looks at nothing but its own members, so a job is the same anywhere. Both ends are the same
program of the same user, on a pipe that no other program has; nothing from outside is ever
unpickled, request bodies are bytes in a pickle. Resources are known by identity everywhere, so they
travel by name.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource, by_key
from sliceplane.server.io.requests.params import decode_delete_options_body, decode_object
from sliceplane.server.io.requests.render import (
    RenderedError,
    render_bytes,
    render_items,
    render_object,
)
from sliceplane.server.io.requests.response import Representation
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.rehearsal import Extract, Rehearsed, rehearse
from sliceplane.server.registry.types import (
    Context,
    DeleteOptions,
    Outcome,
    PatchType,
    Target,
    WriteOptions,
)

if TYPE_CHECKING:
    from sliceplane.server.documents.table import IncludeObject


#: an error with more of them is rendered by the worker
CAUSES_MAX = 100
WriteVerb = Literal["create", "update", "patch", "delete"]
LENGTH: Final = struct.Struct(">Q")


class HeavyJob(Protocol):
    def run(self) -> object: ...


class HeavyWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write to rehearse. ``options`` is an error where the request's own are wrong, which counts
    once its body is decoded; ``deletion`` is of a request whose body says nothing of it.
    """

    verb: WriteVerb
    context: Context
    target: Target
    #: the Content-Type, without parameters
    media: str = ""
    raw: bytes = b""
    patch: PatchType = "merge"
    options: WriteOptions | StatusError = msgspec.field(default_factory=WriteOptions)
    deletion: DeleteOptions = msgspec.field(default_factory=DeleteOptions)

    @property
    def dry_run(self) -> bool:
        if self.verb == "delete":
            return self.deletion.dry_run
        return isinstance(self.options, WriteOptions) and self.options.dry_run

    def apply(self, registry: Registry) -> Outcome:
        """What the verb does.  Raises ``StatusError``."""
        context = self.context
        target = self.target
        if self.verb == "delete":
            deletion = self.deletion
            if self.raw:
                deletion = decode_delete_options_body(self.media, self.raw, target.spoken)
            return registry.delete(context, target, deletion)
        if self.verb == "patch":
            return registry.patch(context, target, self.patch, self.raw, self._options())
        body = decode_object(self.media, self.raw, target.spoken, target.subresource)
        verb = registry.create if self.verb == "create" else registry.update
        return verb(context, target, body, self._options())

    def _options(self) -> WriteOptions:
        if isinstance(self.options, StatusError):
            raise self.options
        return self.options


class Rehearse(msgspec.Struct, frozen=True, kw_only=True):
    write: HeavyWrite
    found: Extract
    #: what an error is worded in
    errors_in: Representation

    def run(self) -> Rehearsed:
        def verb(core: Core) -> Outcome:
            return self.write.apply(Registry.around(core))

        done = rehearse(self.found, verb)
        if done.error is None or len((done.error.details or {}).get("causes", ())) <= CAUSES_MAX:
            return done
        return replace(done, error=RenderedError.of(done.error, self.errors_in))


class Render(msgspec.Struct, frozen=True, kw_only=True):
    """One object in the form that was negotiated."""

    body: bytes
    resource: Resource
    representation: Representation
    now: float
    include: IncludeObject

    def run(self) -> bytes:
        return render_object(
            self.body, self.resource, self.representation, now=self.now, include_object=self.include
        )


class RenderItems(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list: the rows of a Table, separated by commas, or messages as they stand in a
    list.
    """

    bodies: tuple[bytes, ...]
    resource: Resource
    representation: Representation
    now: float
    include: IncludeObject

    def run(self) -> bytes:
        return render_items(
            self.bodies,
            self.resource,
            self.representation,
            now=self.now,
            include_object=self.include,
        )


class Convert(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON document, complete but for its media type."""

    body: bytes
    representation: Representation

    def run(self) -> bytes:
        return render_bytes(self.body, self.representation)


def _named(key: str) -> Resource:
    resource = by_key(key)
    assert resource is not None, f"no resource is called {key}"
    return resource


def _resource(resource: Resource) -> Any:
    return _named, (resource.schema_key,)


def _error(error: StatusError) -> Any:
    # An exception is otherwise made again from its positional arguments alone.
    members = (error.code, error.reason, error.message, error.details, error.metadata)
    return StatusError, (*members, error.retry_after_s, error.allowed_methods)


def _rendered(error: RenderedError) -> Any:
    return _again, (error.code, error.reason, error.message, error.rendered, error.retry_after_s)


def _again(
    code: int, reason: str, message: str, rendered: bytes, retry_after_s: int | None
) -> RenderedError:
    error = RenderedError(code, reason, message, retry_after_s=retry_after_s)
    error.rendered = rendered
    return error


def _mapping(proxy: MappingProxyType[Any, Any]) -> Any:
    # Of a record that was read from disk and has no labels: the type has no name that pickle could
    # look up.
    return dict, (dict(proxy),)


copyreg.pickle(MappingProxyType, _mapping)
copyreg.pickle(RenderedError, _rendered)
copyreg.pickle(Resource, _resource)
copyreg.pickle(StatusError, _error)


def dump(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def load(data: bytes) -> Any:
    return pickle.loads(data)
