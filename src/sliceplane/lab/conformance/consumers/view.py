"""Our own ``EndpointView``, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sliceplane.consume.io.client.connecting import connect
from sliceplane.consume.io.client.view import EndpointView
from sliceplane.kit.ip import Family
from sliceplane.lab.conformance.consumers.consumer import (
    FollowedService,
    FollowingConsumer,
    JudgedConsumer,
    in_background,
)
from sliceplane.lab.conformance.steps import NODE, ZONE

#: seconds, shorter than the default, so that a silent watch is abandoned within the patience; a
#: server's bookmarks are a minute apart, so it lists a few times too often
IDLE_TIMEOUT_S: Final = 5.0


class ViewConsumer(JudgedConsumer):
    """See the module."""

    def __init__(self) -> None:
        self.name = "view"
        self.claims = frozenset(("hints", "fallback"))
        self.ables = frozenset(("large", "unnamed-port", "families", "silence"))
        self.patience_s = 20.0

    @asynccontextmanager
    async def follow(self, followed: FollowedService) -> AsyncIterator[FollowingConsumer]:
        query = followed.query
        family: Family = query.family
        beliefs = FollowingConsumer()
        async with connect(followed.kubeconfig) as client:
            view = EndpointView(
                client,
                followed.service,
                followed.namespace,
                port=query.port or None,
                node=NODE,
                zone=ZONE,
                family=family,
                idle_timeout_s=IDLE_TIMEOUT_S,
            )

            async def listen() -> None:
                await view.wait_synced()
                beliefs.believe(_usable(view))
                async for _ in view:
                    beliefs.believe(_usable(view))

            async with view, in_background(listen()):
                yield beliefs


def _usable(view: EndpointView) -> frozenset[str]:
    return frozenset(endpoint.authority for endpoint in view.usable)
