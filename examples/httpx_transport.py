"""A transport for httpx: URLs name Services (``http://web.shop/path``), requests go to their Pods.

Consistent hashing: requests with the same header ``x-session`` meet the same Pod, while Pods come and go.

    python examples/httpx_transport.py http://web.shop/
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import httpx

from sliceplane.client import Client, EndpointView, Picker, connect


class ServiceTransport(httpx.AsyncHTTPTransport):
    """Follows a Service from its first request on."""

    def __init__(self, client: Client, *, port: str | None = None) -> None:
        super().__init__()
        self._client = client
        self._port = port
        self._stack = AsyncExitStack()
        self._pickers: dict[str, asyncio.Task[Picker]] = {}

    async def _follow(self, host: str) -> Picker:
        service, _, namespace = host.partition(".")
        view = EndpointView(self._client, service, namespace or "default", port=self._port)
        await self._stack.enter_async_context(view)
        await view.wait_ready(timeout=10)
        return view.consistent_hash()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if host not in self._pickers:
            self._pickers[host] = asyncio.create_task(self._follow(host))
        picker = await asyncio.shield(self._pickers[host])
        endpoint = picker.pick(request.headers.get("x-session", ""))
        # The Host header keeps the Service's name.
        request.url = request.url.copy_with(host=endpoint.address, port=endpoint.port)
        return await super().handle_async_request(request)

    async def aclose(self) -> None:
        await super().aclose()
        await self._stack.aclose()


async def main(url: str) -> None:
    async with connect() as client, httpx.AsyncClient(transport=ServiceTransport(client)) as session:
        for number in range(10):
            response = await session.get(url, headers={"x-session": f"user-{number % 3}"})
            print(number % 3, response.status_code, response.text.strip())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
