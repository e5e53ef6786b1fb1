"""Answers to the wire, in one place, so that every reply has what every reply must have.

``Date`` and ``Audit-Id`` are added here, gzip is done here, and HEAD, 304 and Content-Length are right by
construction.  A large body is handed to the connection as its client takes it; what waits is counted, and there is an
end to how much; how long a client may take nothing is the connection's business.
"""

from __future__ import annotations

import asyncio

from sliceplane.shell.server.requests.labels import flow_headers
from sliceplane.shell.server.requests.limits import InFlight, TooMany, too_many_requests
from sliceplane.shell.server.requests.request import Request, Send
from sliceplane.shell.server.requests.response import Response, common_headers

GZIP_BYTES_MIN = 128 * 1024
#: larger bodies go out in portions of this size, each when the client has taken the one before, and are counted
PORTION_BYTES = 256 * 1024
_GZIP_LEVEL = 4


async def send_response(
    request: Request, send: Send, response: Response, in_flight: InFlight, *, now: float, audit_id: str
) -> int:
    """Send *response* whole; a client that went away is no error here, one that takes nothing is cut off.

    The code that was sent: 429 instead of a large response, if there are too many of them waiting to be taken.
    """
    if len(response.body) <= PORTION_BYTES or request.flow is None or request.user is None:
        await _send(request, send, response, now, audit_id)
        return response.code
    try:
        with in_flight.hold(in_flight.unsent, request.flow, request.user, len(response.body)):
            await _send(request, send, response, now, audit_id)
    except TooMany:
        response = too_many_requests()
        await _send(request, send, response, now, audit_id)
    return response.code


async def _send(request: Request, send: Send, response: Response, now: float, audit_id: str) -> None:
    body = response.body
    headers = common_headers(now, audit_id)
    if request.flow is not None:
        headers.extend(flow_headers(request.flow.schema.name, request.flow.level.name))
    headers.extend(response.headers)
    if response.content_type and response.code != 304:
        headers.append((b"content-type", response.content_type))
    if len(body) > GZIP_BYTES_MIN and request.wants_gzip:
        import gzip

        # zlib lets other threads run meanwhile, so other requests go on.
        body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL, mtime=0)
        headers.append((b"content-encoding", b"gzip"))
        headers.append((b"vary", b"Accept-Encoding"))
    if response.code != 304:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": response.code, "headers": headers})
    portions = memoryview(b"" if response.code == 304 else body)
    while len(portions) > PORTION_BYTES:
        await send({"type": "http.response.body", "body": portions[:PORTION_BYTES], "more_body": True})
        portions = portions[PORTION_BYTES:]
    await send({"type": "http.response.body", "body": portions})
