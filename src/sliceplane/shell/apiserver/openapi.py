"""The OpenAPI documents over HTTP (reference B2)."""

from __future__ import annotations

from sliceplane.shell.apiserver.request import Request
from sliceplane.shell.apiserver.response import Response, text_response


async def respond(request: Request) -> Response:
    return text_response(404, "404 page not found\n")
