"""The seam between everything that uses an API server and the way to it: in this process, or over HTTP.

A client performs a ``Write``, lists a ``Selection`` and watches one; whatever stands between (a fence, a client that
only reads) wraps those and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sliceplane.api.errors import StatusError, unreachable
from sliceplane.api.requests import ListPage, PatchType, Selection, WatchMessage, Write
from sliceplane.api.scheme import Resource

__all__ = ["Client", "ListPage", "Reader", "Unreachable", "Verbs", "WatchMessage", "no_answer", "send"]


class Reader(Protocol):
    """What reads.  Every method raises ``api.errors.StatusError`` for an answer that is an error, and ``Unreachable``
    if there was no answer."""

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes: ...

    async def list(
        self,
        selection: Selection,
        *,
        resource_version: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
    ) -> ListPage: ...

    def watch(
        self,
        selection: Selection,
        *,
        resource_version: str | None = None,
        timeout_s: int | None = None,
        bookmarks: bool = True,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """A stream; leaving the context ends it.  The iterator ends when the server ends the watch."""

    async def close(self) -> None: ...


class Client(Reader, Protocol):
    """What also writes.  Raises as ``Reader`` does."""

    async def perform(self, write: Write) -> bytes:
        """The object as it is now, or a ``Status`` for some deletes.  *write* is no read."""


class Verbs:
    """A client's writes in the words of the API, for programs that have their objects at hand."""

    async def perform(self, write: Write) -> bytes:
        raise NotImplementedError

    async def create(
        self, resource: Resource, namespace: str, body: bytes, *, subresource: str = "", name: str = ""
    ) -> bytes:
        return await self.perform(
            Write(verb="create", resource=resource, namespace=namespace, name=name, subresource=subresource, body=body)
        )

    async def update(
        self, resource: Resource, namespace: str, name: str, body: bytes, *, subresource: str = ""
    ) -> bytes:
        return await self.perform(
            Write(verb="update", resource=resource, namespace=namespace, name=name, subresource=subresource, body=body)
        )

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
        return await self.perform(
            Write(
                verb="patch",
                resource=resource,
                namespace=namespace,
                name=name,
                subresource=subresource,
                body=body,
                patch_type=patch_type,
            )
        )

    async def delete(self, resource: Resource, namespace: str, name: str, options: bytes = b"") -> bytes:
        return await self.perform(Write(verb="delete", resource=resource, namespace=namespace, name=name, body=options))


async def send(client: Client, write: Write) -> bytes:
    """The answer to *write*, which may be one of the reads."""
    match write.verb:
        case "get":
            return await client.get(write.resource, write.namespace, write.name)
        case "list":
            page = await client.list(Selection(write.resource, write.namespace, write.label_selector))
            return b'{"items":[' + b",".join(page.items) + b"]}"
    return await client.perform(write)


class Unreachable(Exception):
    """No answer: refused, reset, timed out, TLS failed.  The cause is chained; nothing is known of the write."""


def no_answer(error: Exception) -> StatusError:
    """What a core is told when a request got no answer; if it was a write, its outcome is unknown."""
    return unreachable(str(error) or type(error).__name__)
