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
    meanwhile,
)
from sliceplane.lab.conformance.story import NODE, ZONE

#: shorter than the default, so that a silent watch is given up within the patience; a server's
#: bookmarks are a minute apart, so it lists a few times too often
IDLE_TIMEOUT_S: Final = 5.0


class ViewConsumer(JudgedConsumer):
    """See the module."""

    def __init__(self) -> None:
        self.name = "view"
        self.claims = frozenset(("hints", "fallback"))
        self.ables = frozenset(("large", "unnamed-port", "families", "silence"))
        self.patience_s = 20.0

    @asynccontextmanager
    async def follow(self, asked: FollowedService) -> AsyncIterator[FollowingConsumer]:
        asked_port = asked.asked_port
        family: Family = asked_port.family
        beliefs = FollowingConsumer()
        async with connect(asked.kubeconfig) as client:
            view = EndpointView(
                client,
                asked.service,
                asked.namespace,
                port=asked_port.port or None,
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

            async with view, meanwhile(listen()):
                yield beliefs


def _usable(view: EndpointView) -> frozenset[str]:
    return frozenset(endpoint.authority for endpoint in view.usable)
