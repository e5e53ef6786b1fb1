"""Jobs and answers as bytes, between this program and its own workers: pickles behind their length.

Both ends are the same program of the same user, on a pipe that no other program has; nothing from outside is ever
unpickled, request bodies are bytes in a pickle.  Resources are known by identity everywhere, so they travel by name.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
from typing import Any, Final

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource, by_key
from sliceplane.shell.server.requests.render import RenderedError

LENGTH: Final = struct.Struct(">Q")


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


def _again(code: int, reason: str, message: str, rendered: bytes, retry_after_s: int | None) -> RenderedError:
    error = RenderedError(code, reason, message, retry_after_s=retry_after_s)
    error.rendered = rendered
    return error


copyreg.pickle(RenderedError, _rendered)
copyreg.pickle(Resource, _resource)
copyreg.pickle(StatusError, _error)


def dump(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def load(data: bytes) -> Any:
    return pickle.loads(data)
