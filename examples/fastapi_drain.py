"""A FastAPI program that leaves its Services before it closes: readiness fails, no node sends any
more, uvicorn ends.

    POD=shop/web-0 python examples/fastapi_drain.py

uvicorn closes its sockets first when it is told to end, so the barrier comes before it is told. A
second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import os
from types import FrameType

import uvicorn
from fastapi import FastAPI, Response

from sliceplane.client import connect, drain

app = FastAPI()
app.state.leaving = False


@app.get("/readyz")
async def readyz(response: Response) -> str:
    response.status_code = 503 if app.state.leaving else 200
    return "leaving" if app.state.leaving else "ready"


@app.get("/")
async def root() -> str:
    return "hello"


class LeavingServer(uvicorn.Server):
    """Ends when no node sends new connections to this Pod, or after 20 seconds."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if app.state.leaving:
            super().handle_exit(sig, frame)
            return
        app.state.leaving = True
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(lambda: setattr(self, "_leaves", loop.create_task(self.leave())))

    async def leave(self) -> None:
        try:
            async with connect() as client, drain(client, os.environ["POD"], timeout=20) as answer:
                print(answer.outcome)
        finally:
            self.should_exit = True


if __name__ == "__main__":
    LeavingServer(uvicorn.Config(app, host="0.0.0.0", port=8080)).run()
