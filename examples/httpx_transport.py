"""A transport for httpx: URLs name Services (``http://web.shop/path``), requests go to their Pods.

Consistent hashing: requests with the same header ``x-session`` meet the same Pod, while Pods come
and go; those without one go anywhere.

    python examples/httpx_transport.py http://web.shop/ http
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import TracebackType

import httpx

from sliceplane.client import Client, Endpoint, EndpointView, NoEndpoint, NotReady, Picker, connect

ATTEMPTS = 3
#: errors after which a Pod has seen nothing of the request, so that any request may go to another
#: one
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
SAFE = ("GET", "HEAD", "OPTIONS")


class ServiceTransport(httpx.AsyncHTTPTransport):
    """Follows a Service from the first request to it on.  *port* is the name of the Services'
    port.
    """

    def __init__(self, client: Client, *, port: str | None = None) -> None:
        super().__init__()
        self._client = client
        self._port = port
        self._followed: dict[str, tuple[EndpointView, Picker]] = {}

    def _follow(self, host: str) -> tuple[EndpointView, Picker]:
        if host not in self._followed:
            service, namespace = [*host.split("."), "default"][:2]
            view = EndpointView(self._client, service, namespace, port=self._port)
            view.start()
            self._followed[host] = view, view.consistent_hash()
        return self._followed[host]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            view, picker = self._follow(request.url.host)
            await view.wait_ready(request.extensions.get("timeout", {}).get("connect"))
            key = request.headers.get("x-session") or os.urandom(8)
            tried: list[Endpoint] = []
            while True:
                # Counts as in flight until its answer begins.
                with picker.lease(key, exclude=tried) as endpoint:
                    try:
                        return await self._send(request, endpoint)
                    except httpx.TransportError as error:
                        picker.failed(endpoint)
                        tried.append(endpoint)
                        again = isinstance(error, NOT_SENT) or request.method in SAFE
                        if not again or len(tried) >= min(ATTEMPTS, len(view.usable)):
                            raise
        except (NotReady, NoEndpoint, ValueError) as error:
            raise httpx.ConnectError(str(error), request=request) from error

    async def _send(self, request: httpx.Request, endpoint: Endpoint) -> httpx.Response:
        # A request of its own, for redirects are relative to the one that was made; the Host header
        # stays the Service.
        to_pod = httpx.Request(
            request.method,
            request.url.copy_with(host=endpoint.address, port=endpoint.port),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await super().handle_async_request(to_pod)

    async def aclose(self) -> None:
        await super().aclose()
        for view, _ in self._followed.values():
            await view.close()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


async def main(url: str, port: str) -> None:
    async with (
        connect() as client,
        httpx.AsyncClient(transport=ServiceTransport(client, port=port)) as session,
    ):
        for number in range(10):
            response = await session.get(url, headers={"x-session": f"user-{number % 3}"})
            print(number % 3, response.status_code, response.text.strip())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
