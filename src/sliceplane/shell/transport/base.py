"""One interface to an API server, in this process or over HTTP.

Bodies are JSON bytes on purpose: whoever needs an object decodes the projection that it uses, and
nobody decodes twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from sliceplane.api.errors import StatusError, unreachable
from sliceplane.api.scheme import Resource

PatchType = Literal["merge", "strategic", "json", "apply"]


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page: item bodies (without kind and apiVersion, maybe), the list's version, the rest's token."""

    items: tuple[bytes, ...]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class WatchMessage:
    """One watch event: ``type`` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; ``body`` its object."""

    type: str
    body: bytes


class Reader(Protocol):
    """What reads.  Every method raises ``api.errors.StatusError`` for an answer that is an error, and
    ``shell.transport.base.Unreachable`` if there was no answer."""

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
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """A stream; leaving the context ends it.  The iterator ends when the server ends the watch."""

    async def close(self) -> None: ...


class Client(Reader, Protocol):
    """What also writes.  Raises as ``Reader`` does."""

    async def create(
        self, resource: Resource, namespace: str, body: bytes, *, subresource: str = "", name: str = ""
    ) -> bytes: ...

    async def update(
        self, resource: Resource, namespace: str, name: str, body: bytes, *, subresource: str = ""
    ) -> bytes: ...

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: bytes,
        *,
        patch_type: PatchType,
        subresource: str = "",
    ) -> bytes: ...

    async def delete(self, resource: Resource, namespace: str, name: str, options: bytes = b"") -> bytes: ...


class Unreachable(Exception):
    """No answer: refused, reset, timed out, TLS failed.  The cause is chained; nothing is known of the write."""


def no_answer(error: Exception) -> StatusError:
    """What a core is told when a request got no answer; if it was a write, its outcome is unknown."""
    return unreachable(str(error) or type(error).__name__)
