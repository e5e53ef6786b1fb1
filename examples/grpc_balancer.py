"""gRPC to Pods: a channel for each endpoint, calls to the least busy, channels of Pods that went
are closed.

grpcio resolves a DNS name when it connects and seldom after that, so that Pods that come get no
calls; and Python has no interface for resolvers. A channel per address does what a resolver and a
balancer would.

    python examples/grpc_balancer.py web shop grpc
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc

from sliceplane.client import Endpoint, EndpointView, connect

T = TypeVar("T")


class Channels:
    """One channel for each address that is or was an endpoint of the view; use while the view
    runs.
    """

    #: calls to a Pod that went may still come to their end
    GRACE_S = 30.0
    ATTEMPTS = 3

    def __init__(self, view: EndpointView) -> None:
        self._view = view
        self._picker = view.least_outstanding()
        self._channels: dict[str, grpc.aio.Channel] = {}

    @asynccontextmanager
    async def lease(
        self, exclude: Collection[Endpoint] = ()
    ) -> AsyncIterator[tuple[grpc.aio.Channel, Endpoint]]:
        """A channel to an endpoint, which counts as busy until the block is left: make stubs from
        it.
        """
        with self._picker.lease(exclude=exclude) as endpoint:
            channel = self._channels.get(endpoint.authority)
            if channel is None:
                channel = self._channels[endpoint.authority] = grpc.aio.insecure_channel(
                    endpoint.authority
                )
            yield channel, endpoint

    async def call(self, ask: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
        """What *ask* gives, a call that may be repeated: an endpoint that cannot be reached leaves
        it to another.
        """
        tried: list[Endpoint] = []
        while True:
            async with self.lease(tried) as (channel, endpoint):
                try:
                    return await ask(channel)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    self._picker.failed(endpoint)
                    tried.append(endpoint)
                    if len(tried) >= min(self.ATTEMPTS, len(self._view.usable)):
                        raise

    async def run(self) -> None:
        """A task: close what is gone.  Ends with the view, and then closes the rest."""
        async with asyncio.TaskGroup() as closing:
            async for change in self._view:
                for authority in change.gone:
                    channel = self._channels.pop(authority, None)
                    if channel is not None:
                        closing.create_task(channel.close(self.GRACE_S))
            for channel in self._channels.values():
                closing.create_task(channel.close(self.GRACE_S))


async def main(service: str, namespace: str, port: str) -> None:
    async with (
        asyncio.TaskGroup() as tasks,  # ends last: channels are closed when the view is
        connect() as client,
        EndpointView(client, service, namespace, port=port) as view,
    ):
        await view.wait_ready(timeout=10)
        channels = Channels(view)
        tasks.create_task(channels.run())

        async def check(channel: grpc.aio.Channel) -> bytes:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            method = channel.unary_unary("/grpc.health.v1.Health/Check")
            return await method(b"", timeout=5)

        print(await channels.call(check))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
