"""Requests to a Service with aiohttp: each to the endpoint with the fewest in flight, to another
one if that one fails.

python examples/aiohttp_client.py web shop http
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp

from sliceplane.client import Endpoint, EndpointView, NoEndpoint, Picker, connect

#: an endpoint may die between the pick and the answer; each further try is another endpoint's
ATTEMPTS = 3


async def get(session: aiohttp.ClientSession, picker: Picker, path: str) -> str:
    """The body.  Raises ``aiohttp.ClientError`` or ``TimeoutError``, and ``NoEndpoint`` if there is
    none to use.
    """
    tried: list[Endpoint] = []
    why: Exception | None = None
    while len(tried) < ATTEMPTS:
        try:
            with picker.lease(exclude=tried) as endpoint:
                try:
                    async with session.get(f"http://{endpoint.authority}{path}") as response:
                        response.raise_for_status()
                        return await response.text()
                except (
                    aiohttp.ClientConnectionError,
                    aiohttp.ClientPayloadError,
                    TimeoutError,
                ) as error:
                    # No whole answer: others shall not meet it either. Repeat only what may be
                    # repeated, as GET.
                    picker.failed(endpoint)
                    tried.append(endpoint)
                    why = error
        except NoEndpoint as error:
            raise why or error from None
    raise why or AssertionError("a try ends with an answer or an error")


async def main(service: str, namespace: str, port: str) -> None:
    async with (
        connect() as client,
        EndpointView(client, service, namespace, port=port) as view,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
    ):
        await view.wait_ready(timeout=10)
        picker = view.least_outstanding()
        while True:
            print(f"{len(view.usable)} endpoints:", (await get(session, picker, "/")).strip())
            await asyncio.sleep(1)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
