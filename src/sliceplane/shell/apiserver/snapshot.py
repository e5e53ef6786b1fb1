"""``/sliceplane/snapshot``: the whole state at one revision, while the server goes on (``store.snapshot``).

Not a resource: the right is ``get`` on that non-resource URL, which ``system:masters`` has and nobody else unless a
ClusterRole says so, for everything is in it, Secrets too.
"""

from __future__ import annotations

import asyncio

from sliceplane.shell.apiserver.request import Request, Send
from sliceplane.shell.apiserver.response import NO_CACHE, common_headers
from sliceplane.shell.apiserver.sending import STALLED_SECONDS_MAX
from sliceplane.store.mvcc import Store
from sliceplane.store.snapshot import records_of, written

PATH = "/sliceplane/snapshot"


async def send_snapshot(request: Request, send: Send, store: Store, *, now: float, audit_id: str) -> None:
    """A portion is made when the client has taken the one before; one that takes nothing for 30 s is cut off."""
    records, revision = records_of(store), store.revision
    headers = [*common_headers(now, audit_id), NO_CACHE, (b"content-type", b"application/x-ndjson")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        for portion in written(records, revision):
            async with asyncio.timeout(STALLED_SECONDS_MAX):
                await send({"type": "http.response.body", "body": portion, "more_body": True})
            # A client that is quick must not keep others waiting.
            await asyncio.sleep(0)
        async with asyncio.timeout(STALLED_SECONDS_MAX):
            await send({"type": "http.response.body", "body": b""})
    except TimeoutError:
        request.connection.abort()
