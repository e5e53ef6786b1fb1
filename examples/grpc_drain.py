"""A gRPC server that leaves its Services before it stops: no node sends any more, then calls come
to their end.

POD=shop/web-0 python examples/grpc_drain.py
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import grpc

from sliceplane.client import connect, drain


async def echo(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


async def serve(server: grpc.aio.Server, leave: asyncio.Event) -> str:
    """Until *leave* is set, and no node sends new connections to this Pod; at most 20 seconds
    longer.
    """
    await server.start()
    await leave.wait()
    try:
        async with connect() as client, drain(client, os.environ["POD"], timeout=20) as answer:
            return answer.outcome
    finally:
        await server.stop(grace=10)  # open connections are told to go elsewhere, calls end


async def main() -> None:
    server = grpc.aio.server()
    methods: dict[str, Any] = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("example.Echo", methods),)
    )
    server.add_insecure_port("[::]:50051")
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    print(await serve(server, leave))


if __name__ == "__main__":
    asyncio.run(main())
