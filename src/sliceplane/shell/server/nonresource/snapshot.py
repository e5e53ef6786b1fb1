"""``/sliceplane/snapshot``: the whole state at one revision, while the server goes on (``store.snapshot``).

Not a resource: the right is ``get`` on that non-resource URL, which ``system:masters`` has and nobody else unless a
ClusterRole says so, for everything is in it, Secrets too.
"""

from __future__ import annotations

import asyncio

from sliceplane.shell.server.requests.request import Send
from sliceplane.shell.server.requests.response import NO_CACHE, common_headers
from sliceplane.store.mvcc import Store
from sliceplane.store.snapshot import records_of, written

PATH = "/sliceplane/snapshot"


async def send_snapshot(send: Send, store: Store, *, now: float, audit_id: str) -> None:
    """A portion is made when the client has taken the one before; its connection cuts off one that takes nothing."""
    records, revision = records_of(store), store.revision
    headers = [*common_headers(now, audit_id), NO_CACHE, (b"content-type", b"application/x-ndjson")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for portion in written(records, revision):
        await send({"type": "http.response.body", "body": portion, "more_body": True})
        # A client that is quick must not keep others waiting.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})
