"""Jobs of the workers as values, and as bytes on the pipe between this program and its workers:
pickles behind their length.

A job is a function with its arguments, which reads nothing else. Both ends are the same program of
the same user, on a pipe that no other program has; nothing from outside is ever unpickled, request
bodies are bytes in a pickle. Resources are compared by identity everywhere, so they travel by name.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource, by_key
from sliceplane.server.io.requests.params import decode_delete_options_body, decode_object
from sliceplane.server.io.requests.render import RenderedError
from sliceplane.server.io.requests.response import Representation
from sliceplane.server.registry.offload import Input, Result, work_out
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import (
    Context,
    DeleteOptions,
    Outcome,
    PatchType,
    Target,
    WriteOptions,
)

T = TypeVar("T")
#: a job: a function with its arguments (``functools.partial``)
Job = Callable[[], T]
#: an error with more causes is rendered by the worker
CAUSES_MAX = 100
WriteVerb = Literal["create", "update", "patch", "delete"]
LENGTH: Final = struct.Struct(">Q")


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A write that a client requests. ``options`` is an error if the request's own are wrong, which
    counts once its body is decoded; ``deletion`` has the options of a DELETE without a body.
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

    def prepared(self, registry: Registry) -> Callable[[], Outcome]:
        """Returns the call of the verb; the body is decoded now, once.  Both raise
        ``StatusError``.
        """
        context = self.context
        target = self.target
        if self.verb == "delete":
            deletion = self.deletion
            if self.raw:
                deletion = decode_delete_options_body(self.media, self.raw, target.requested)
            return partial(registry.delete, context, target, deletion)
        if self.verb == "patch":
            return partial(registry.patch, context, target, self.patch, self.raw, self._options())
        body = decode_object(self.media, self.raw, target.requested, target.subresource)
        verb = registry.create if self.verb == "create" else registry.update
        return partial(verb, context, target, body, self._options())

    def _options(self) -> WriteOptions:
        if isinstance(self.options, StatusError):
            raise self.options
        return self.options


def work_out_write(write: WriteRequest, basis: Input, errors_in: Representation) -> Result:
    """The job of a write; *errors_in*: the media type of an error with many causes."""
    result = work_out(basis, lambda core: write.prepared(Registry.around(core))())
    error = result.error
    if error is None or len((error.details or {}).get("causes", ())) <= CAUSES_MAX:
        return result
    return replace(result, error=RenderedError.of(error, errors_in))


def _named(key: str) -> Resource:
    resource = by_key(key)
    assert resource is not None, f"no resource is called {key}"
    return resource


def _restored(kind: type[StatusError], members: dict[str, Any]) -> StatusError:
    """Returns the error that was pickled; its class would be called with other arguments."""
    error = kind.__new__(kind)
    error.__dict__.update(members)
    return error


def _copied(proxy: MappingProxyType[Any, Any]) -> Any:
    """Copies the mapping of a record that was read from disk without labels: pickle cannot look up
    its type.
    """
    return dict, (dict(proxy),)


copyreg.pickle(MappingProxyType, _copied)
copyreg.pickle(Resource, lambda resource: (_named, (resource.schema_key,)))
for _kind in (StatusError, RenderedError):
    copyreg.pickle(_kind, lambda error: (_restored, (type(error), error.__dict__)))


def dump(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def load(data: bytes) -> Any:
    return pickle.loads(data)
