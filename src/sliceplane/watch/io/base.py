"""The seam between everything that uses an API server and the way to it: in this process, or over
HTTP.

A client performs a ``Write``, lists a ``Selection`` and watches one; whatever stands between (a
fence, a client that only reads) wraps those and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

from sliceplane.api.errors import StatusError, unknown_resource, unreachable
from sliceplane.api.requests import (
    NOT_REFUSED,
    PROGRESS_PATH,
    ListPage,
    PatchType,
    PortProbe,
    ProbeOutcome,
    Selection,
    WatchMessage,
    Write,
    listed_items,
)
from sliceplane.api.scheme import Resource

__all__ = [
    "Client",
    "ListPage",
    "Reader",
    "Unreachable",
    "Verbs",
    "WatchMessage",
    "no_answer",
    "post",
    "send",
]

#: endpoints that do not answer are tried one after the other, and there may be many
PROBE_TIMEOUT_S: Final = 0.5
CONNECT_TIMEOUT_S: Final = 1.0


class Reader(Protocol):
    """The reading part of a client. Every method raises ``api.errors.StatusError`` for an answer
    that is an error, and ``Unreachable`` if there was no answer.
    """

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
        """A stream; leaving the context ends it.  The iterator ends when the server ends the
        watch.
        """

    async def close(self) -> None: ...


class Client(Reader, Protocol):
    """A client that reads and writes. Raises as ``Reader`` does."""

    async def perform(self, write: Write) -> bytes:
        """The object as it is now, or a ``Status`` for some deletes.  *write* is no read."""


class Verbs:
    """A client's writes in the words of the API, for programs that have their objects at hand."""

    async def perform(self, write: Write) -> bytes:
        raise NotImplementedError

    async def create(
        self,
        resource: Resource,
        namespace: str,
        body: bytes,
        *,
        subresource: str = "",
        name: str = "",
    ) -> bytes:
        return await self.perform(
            Write(
                verb="create",
                resource=resource,
                namespace=namespace,
                name=name,
                subresource=subresource,
                body=body,
            )
        )

    async def update(
        self, resource: Resource, namespace: str, name: str, body: bytes, *, subresource: str = ""
    ) -> bytes:
        return await self.perform(
            Write(
                verb="update",
                resource=resource,
                namespace=namespace,
                name=name,
                subresource=subresource,
                body=body,
            )
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

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: bytes = b""
    ) -> bytes:
        return await self.perform(
            Write(verb="delete", resource=resource, namespace=namespace, name=name, body=options)
        )


async def send(client: Client, write: Write) -> bytes:
    """The answer to *write*, which may be one of the reads."""
    match write.verb:
        case "get":
            return await client.get(write.resource, write.namespace, write.name)
        case "list":
            page = await client.list(
                Selection(write.resource, write.namespace, write.label_selector)
            )
            return listed_items(page.items)
        case "probe":
            target = msgspec.json.decode(write.body, type=PortProbe)
            return b"" if await connect(target, PROBE_TIMEOUT_S) == "refused" else NOT_REFUSED
        case "ask":
            return await post(client, PROGRESS_PATH, write.body)
    return await client.perform(write)


async def post(client: Client, path: str, body: bytes) -> bytes:
    """The answer to a question of ``consume.drain.reports``. A client that cannot ask answers as a
    server that has none.
    """
    ask = getattr(client, "post", None)
    if ask is None:
        raise unknown_resource()
    answer: bytes = await ask(path, body)
    return answer


async def connect(target: PortProbe, timeout_s: float = CONNECT_TIMEOUT_S) -> ProbeOutcome:
    """Open a TCP connection and close it at once; nothing is sent. Without an answer in time, or a
    way there, it is "silent", which says nothing of the port.
    """
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(target.ip, target.port)
    except ConnectionRefusedError:
        return "refused"
    except (OSError, TimeoutError):
        return "silent"
    writer.transport.abort()
    return "open"


class Unreachable(Exception):
    """No answer: refused, reset, timed out, TLS failed.  The cause is chained; nothing is known of
    the write.
    """


def no_answer(error: Exception) -> StatusError:
    """Returns the error that a core gets for a request without an answer; the outcome of a write is
    then unknown.
    """
    return unreachable(str(error) or type(error).__name__)


class FencedClient(Verbs):
    """A ``Client`` that writes only while its owner may: for work that belongs to a term of
    leadership.

    A process that was stopped (SIGSTOP, a paused machine) wakes after its term, and its tasks may
    run before the one that ends them does. So *allowed* is asked before every write, last before it
    is sent; the write raises ``Unreachable`` where it says no. Reads are passed on.
    """

    def __init__(self, client: Client, allowed: Callable[[], bool]) -> None:
        self._client = client
        self._allowed = allowed
        self.get = client.get
        self.list = client.list
        self.watch = client.watch
        self.close = client.close
        self.post = getattr(client, "post", None)

    async def perform(self, write: Write) -> bytes:
        if not self._allowed():
            raise Unreachable("the term of leadership is over")
        return await self._client.perform(write)


class ReadOnlyClient(Verbs):
    """A ``Client`` that raises ``StatusError`` 405 for every write and does nothing else: for a run
    that computes everything and must change nothing.

    It is made of a ``Reader``, which has no way to write, so there is nothing behind it; and an
    ``HttpClient`` made with ``read_only`` sends no request but GET. A fault that gets past the one
    stands before the other.
    """

    def __init__(self, reader: Reader) -> None:
        self.get = reader.get
        self.list = reader.list
        self.watch = reader.watch
        self.close = reader.close
        #: how many writes were tried; a fault of ours, which tests look for
        self.refused = 0

    async def perform(self, write: Write) -> bytes:
        self.refused += 1
        message = f"{write.verb} of {write.resource.plural}: this client only reads"
        raise StatusError(405, "MethodNotAllowed", message)
