"""A client that cannot write: for who computes everything and must change nothing.

It is made of a ``Reader``, which has no methods that write, so there is nothing behind its own ones; and an
``HttpClient`` made with ``read_only`` sends no request but GET.  Whoever gets past the one stands before the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NoReturn, Protocol

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource
from sliceplane.shell.client.base import ListPage, PatchType, WatchMessage


class Reader(Protocol):
    """The part of ``shell.client.base.Client`` that reads."""

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes: ...

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str | None = None,
        resource_version_match: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
    ) -> ListPage: ...

    def watch(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str | None = None,
        timeout_s: int | None = None,
        bookmarks: bool = True,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]: ...

    async def close(self) -> None: ...


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
