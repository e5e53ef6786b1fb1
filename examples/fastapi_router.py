"""A router in front of model servers: same conversation to the same Pod, streaming, health that
tells the truth.

    SERVICE=vllm NAMESPACE=models PORT=http uvicorn examples.fastapi_router:app

``/health`` fails when the endpoints have not been heard of for too long: a router whose health is
green while it sends requests to Pods that went hours ago is worse than one that is restarted.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sliceplane.client import Endpoint, EndpointView, NoEndpoint, connect

ATTEMPTS = 3
#: a server that answers is heard of every minute and a half, however quiet the Service is
STALE_S = 180.0
#: of one connection only, or what our own server adds
HOP_BY_HOP = {
    b"connection",
    b"content-length",
    b"host",
    b"keep-alive",
    b"transfer-encoding",
    b"upgrade",
}
OURS = {b"date", b"server"}


class Relayed(StreamingResponse):
    """An answer on its way through: *held*, its lease and its connection, last as long as it,
    however it ends.
    """

    def __init__(self, answer: aiohttp.ClientResponse, held: AsyncExitStack) -> None:
        super().__init__(answer.content.iter_any(), answer.status)
        self.held = held
        lower = [(name.lower(), value) for name, value in answer.raw_headers]
        self.raw_headers = [(name, value) for name, value in lower if name not in HOP_BY_HOP | OURS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.held:
            await super().__call__(scope, receive, send)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    place = (os.environ["SERVICE"], os.environ.get("NAMESPACE", "default"))
    async with (
        connect() as client,
        EndpointView(client, *place, port=os.environ.get("PORT")) as view,
        # What passes through stays as it is: compressed, or not; a redirect; without headers or
        # cookies of ours.
        aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=2),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
        ) as session,
    ):
        app.state.view = view
        app.state.session = session
        app.state.picker = view.consistent_hash(load_factor=1.25)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, float | int]:
    view: EndpointView = app.state.view
    if view.staleness() > STALE_S:
        raise HTTPException(
            503, f"the endpoints are {view.staleness():.0f} s old: {view.last_error}"
        )
    return {"endpoints": len(view.usable), "staleness_s": round(view.staleness(), 1)}


@app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def route(path: str, request: Request) -> Relayed:
    picker = app.state.picker
    key = request.headers.get("x-conversation") or os.urandom(8)
    passed = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in request.headers.raw
        if name not in HOP_BY_HOP
    ]
    tried: list[Endpoint] = []
    while True:
        async with AsyncExitStack() as stack:
            try:
                endpoint = stack.enter_context(picker.lease(key, exclude=tried))
                asking = app.state.session.request(
                    request.method,
                    f"http://{endpoint.authority}/{path}",
                    headers=passed,
                    params=request.query_params.multi_items(),
                    data=await request.body(),
                    allow_redirects=False,
                )
                return Relayed(await stack.enter_async_context(asking), stack.pop_all())
            except NoEndpoint as error:
                raise HTTPException(503, str(error)) from error
            except aiohttp.ClientConnectionError as error:
                picker.failed(endpoint)
                tried.append(endpoint)
                # Another one, if the Pod has seen nothing of the request, or may see it twice.
                again = isinstance(error, aiohttp.ClientConnectorError) or request.method == "GET"
                if not again or len(tried) >= min(ATTEMPTS, len(app.state.view.usable)):
                    raise HTTPException(502, f"{endpoint.pod}: {error}") from error
