"""The requests of a relay itself: everything goes to the parent in use (``relay.siblings``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

from sliceplane.api.errors import StatusError, expired
from sliceplane.api.meta import revision_of
from sliceplane.api.requests import ListPage, Selection, WatchMessage, Write
from sliceplane.kit.io.log import get_logger
from sliceplane.relay.siblings import Siblings
from sliceplane.watch.actions import is_expired, status_of
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection
from sliceplane.watch.io.http.client import HttpClient

T = TypeVar("T")

#: answers of a parent that cannot serve at the moment, which a sibling may
_FAILED: Final = (500, 502, 503, 504, 508)

_log = get_logger("relay")


class ParentClient:
    """Owned by one relay, in one loop.  Reads as ``watch.io.base.Reader``."""

    def __init__(self, connections: Sequence[Connection], siblings: Siblings) -> None:
        self.siblings = siblings
        self._clients = [HttpClient(connection) for connection in connections]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def post(self, path: str, body: bytes) -> bytes:
        return await self._ask(lambda client: client.post(path, body))

    async def page(self, path: str, *, bytes_max: int) -> bytes:
        return await self._ask(lambda client: client.page(path, bytes_max=bytes_max))

    async def perform(self, write: Write) -> bytes:
        return await self._ask(lambda client: client.perform(write))

    async def get(self, *target: Any) -> bytes:
        return await self._ask(lambda client: client.get(*target))

    async def list(self, selection: Selection, **options: Any) -> ListPage:
        return await self._ask(lambda client: client.list(selection, **options))

    @asynccontextmanager
    async def watch(
        self, selection: Selection, *, resource_version: str | None = None, **options: Any
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        number = self.siblings.current
        client = self._clients[number]
        if self.siblings.moves_watch(selection, number):
            # A parent that is behind would be silent, as if nothing happened. A list with limit 1
            # is as new as the root.
            page = await self.list(selection, limit=1)
            if revision_of(page.resource_version) < revision_of(resource_version or ""):
                raise expired(f"the history of {client.server} ends before {resource_version}")
        try:
            async with client.watch(
                selection, resource_version=resource_version, **options
            ) as messages:
                self.siblings.on_opened(selection, number)
                async with aclosing(self._checked(selection, number, messages)) as checked:
                    yield checked
        except (StatusError, Unreachable) as error:
            if isinstance(error, StatusError):
                self._on_error(selection, number, error)
            self._note(number, error)
            raise

    async def _checked(
        self, selection: Selection, number: int, messages: AsyncIterator[WatchMessage]
    ) -> AsyncGenerator[WatchMessage, None]:
        async for message in messages:
            if message.type == "ERROR":
                self._on_error(selection, number, status_of(message.body))
            else:
                self.siblings.on_news(selection)
            yield message

    def _on_error(self, selection: Selection, number: int, error: StatusError) -> None:
        """Raises ``Unreachable`` if another parent may have what this one has lost."""
        if is_expired(error) and self.siblings.on_expired(selection, number):
            server = self._clients[number].server
            raise Unreachable(f"{server} has lost the version of a watch") from error

    async def _ask(self, send: Callable[[HttpClient], Awaitable[T]]) -> T:
        number = self.siblings.current
        try:
            return await send(self._clients[number])
        except (StatusError, Unreachable) as error:
            self._note(number, error)
            raise

    def _note(self, number: int, error: StatusError | Unreachable) -> None:
        if isinstance(error, StatusError) and error.code not in _FAILED:
            return
        if self.siblings.on_failure(number):
            _log.warning(
                "another parent is followed",
                lost=self._clients[number].server,
                parent=self._clients[self.siblings.current].server,
                why=str(error),
            )
