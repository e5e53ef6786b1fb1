"""A few read-only pages over plain HTTP beside a command that serves nothing else: health and metrics."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass


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
async def serve_pages(pages: Mapping[str, PageMaker], address: str, port: int) -> AsyncIterator[int]:
    """Serves *pages* by path while the context lasts; yields the port (0 picks a free one).  Raises ``PageError``."""
    from aiohttp import web  # here: half of all starts do not want the pages

    async def answer(request: web.Request) -> web.Response:
        made = pages[request.path]()
        page = made if isinstance(made, Page) else await made
        return web.Response(
            status=200 if page.healthy else 503,
            body=page.body,
            headers={"Content-Type": page.content_type, "X-Content-Type-Options": "nosniff"},
        )

    app = web.Application()
    for path in pages:
        app.router.add_get(path, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        try:
            await site.start()
        except OSError as error:
            what = f"{', '.join(pages)} on {address} port {port}"
            raise PageError(f"cannot serve {what}: {os.strerror(error.errno or 0)}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
