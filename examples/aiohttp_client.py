"""Requests to a Service with aiohttp: each to the endpoint with the fewest in flight, again if that one is gone.

python examples/aiohttp_client.py web shop http
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp

from sliceplane.client import EndpointView, Picker, connect

#: an endpoint may die between the pick and the connection; another pick finds another one
ATTEMPTS = 3


async def get(session: aiohttp.ClientSession, picker: Picker, path: str) -> str:
    """The body.  Raises ``aiohttp.ClientError``, or ``NoEndpoint`` if nobody may be used."""
    for attempt in range(1, ATTEMPTS + 1):
        with picker.lease() as endpoint:
            try:
                async with session.get(f"http://{endpoint.authority}{path}") as response:
                    response.raise_for_status()
                    return await response.text()
            except aiohttp.ClientConnectionError:
                # Nothing was answered.  Only repeat requests that may be repeated, as GET.
                if attempt == ATTEMPTS:
                    raise
    raise AssertionError("the loop returns or raises")


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
