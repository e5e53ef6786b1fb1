"""A router in front of model servers: same conversation to the same Pod, streaming, health that tells the truth.

    SERVICE=vllm NAMESPACE=models PORT=http uvicorn examples.fastapi_router:app

``/health`` fails when the endpoints have not been heard of for too long: a router whose health is green while it sends
requests to Pods that went hours ago is worse than one that is restarted.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from sliceplane.client import EndpointView, NoEndpoint, connect

#: bookmarks come every minute; three that are missing are a fault
STALE_S = 180.0
#: of one connection only
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    service, namespace = os.environ["SERVICE"], os.environ.get("NAMESPACE", "default")
    async with (
        connect() as client,
        EndpointView(client, service, namespace, port=os.environ.get("PORT")) as view,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=2)) as session,
    ):
        app.state.view, app.state.session = view, session
        app.state.picker = view.consistent_hash(load_factor=1.25)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, float | int]:
    view: EndpointView = app.state.view
    if view.staleness() > STALE_S:
        raise HTTPException(503, f"the endpoints are {view.staleness():.0f} s old: {view.last_error}")
    return {"endpoints": len(view.usable), "staleness_s": round(view.staleness(), 1)}


@app.api_route("/{path:path}", methods=["GET", "POST"])
async def route(path: str, request: Request) -> StreamingResponse:
    async with AsyncExitStack() as stack:
        try:
            key = request.headers.get("x-conversation", "")
            endpoint = stack.enter_context(app.state.picker.lease(key or os.urandom(8)))
        except NoEndpoint as error:
            raise HTTPException(503, str(error)) from error
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        try:
            answer = await stack.enter_async_context(
                app.state.session.request(
                    request.method,
                    f"http://{endpoint.authority}/{path}",
                    params=request.query_params.multi_items(),
                    headers=headers,
                    data=await request.body(),
                )
            )
        except aiohttp.ClientConnectionError as error:
            raise HTTPException(502, f"{endpoint.pod}: {error}") from error
        held = stack.pop_all()

    async def body() -> AsyncIterator[bytes]:
        # The lease and the connection last as long as the stream.
        async with held:
            async for chunk in answer.content.iter_any():
                yield chunk

    passed = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
    return StreamingResponse(body(), answer.status, passed)
