"""A few read-only pages over plain HTTP beside a command that serves nothing else: health and metrics.

Who asks is anonymous and may be hostile: ``door`` bounds what a connection may cost.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sliceplane.shell.process.door import Door, GuardedPort, door


class PageError(Exception):
    """The pages cannot be served; the text is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    body: bytes
    healthy: bool = True
    content_type: str = "text/plain"


PageMaker = Callable[[], Page | Awaitable[Page]]


@asynccontextmanager
async def serve_pages(
    pages: Mapping[str, PageMaker], address: str, port: int, guard: Door = door
) -> AsyncIterator[int]:
    """Serves *pages* by path while the context lasts; yields the port (0 picks a free one).  Raises ``PageError``."""
    from aiohttp import web  # here: half of all starts do not want the pages

    async def answer(request: web.BaseRequest) -> web.Response:
        make = pages.get(request.path)
        if make is None:
            return web.Response(status=404, text="404 page not found\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        made = make()
        page = made if isinstance(made, Page) else await made
        return web.Response(
            status=200 if page.healthy else 503,
            body=page.body,
            headers={"Content-Type": page.content_type, "X-Content-Type-Options": "nosniff"},
        )

    served = GuardedPort(answer, guard)
    try:
        try:
            listening = await served.listen_at(address, port)
        except OSError as error:
            what = f"{', '.join(pages)} on {address} port {port}"
            raise PageError(f"cannot serve {what}: {os.strerror(error.errno or 0)}") from error
        yield listening
    finally:
        await served.close()
