"""A client that cannot write: for who computes everything and must change nothing.

It is made of a ``Reader``, which has no methods that write, so there is nothing behind its own ones; and an
``HttpClient`` made with ``read_only`` sends no request but GET.  Whoever gets past the one stands before the other.
"""

from __future__ import annotations

from typing import NoReturn

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource
from sliceplane.shell.transport.base import PatchType, Reader


class ReadOnlyClient:
    """A ``Client`` over a ``Reader``.  Its methods that write raise ``StatusError`` 405 and do nothing else."""

    def __init__(self, reader: Reader) -> None:
        self.get = reader.get
        self.list = reader.list
        self.watch = reader.watch
        self.close = reader.close
        #: how often somebody tried to write; a fault of ours, which tests look for
        self.refused = 0

    def _refuse(self, verb: str, resource: Resource) -> NoReturn:
        self.refused += 1
        raise refusal(verb, resource)

    async def create(
        self, resource: Resource, namespace: str, body: bytes, *, subresource: str = "", name: str = ""
    ) -> bytes:
        self._refuse("create", resource)

    async def update(
        self, resource: Resource, namespace: str, name: str, body: bytes, *, subresource: str = ""
    ) -> bytes:
        self._refuse("update", resource)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: bytes,
        *,
        patch_type: PatchType,
        subresource: str = "",
    ) -> bytes:
        self._refuse("patch", resource)

    async def delete(self, resource: Resource, namespace: str, name: str, options: bytes = b"") -> bytes:
        self._refuse("delete", resource)


def refusal(verb: str, resource: Resource) -> StatusError:
    return StatusError(405, "MethodNotAllowed", f"{verb} of {resource.plural}: this client only reads")
