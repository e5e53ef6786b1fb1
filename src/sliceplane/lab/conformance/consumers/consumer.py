"""The seam between the stage and what it judges."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sliceplane.lab.conformance.model import Belief
from sliceplane.lab.conformance.steps import Claim, Need, PortQuery


class FollowedService(msgspec.Struct, frozen=True):
    """One Service to follow, and the way to its API server."""

    kubeconfig: Path
    namespace: str
    service: str
    query: PortQuery
    #: of the Service, for a consumer that ``has_cluster_ip``
    cluster_ip: str = ""


class FollowingConsumer:
    """A consumer that follows one Service; what it believes is reported by ``believe``."""

    def __init__(self) -> None:
        #: only grows; equal ones in a row are one
        self.beliefs: list[Belief] = []
        #: why it follows no more; "" while it does
        self.ended = ""
        #: the last line that it printed and that was no belief
        self.other_line = ""

    def believe(self, belief: Belief) -> None:
        if not self.beliefs or self.beliefs[-1] != belief:
            self.beliefs.append(belief)

    async def poll(self) -> None:
        """Brings ``beliefs`` up to date; nothing to do where the consumer reports by itself."""


class JudgedConsumer(Protocol):
    """The consumer under test."""

    name: str
    claims: frozenset[Claim]
    ables: frozenset[Need]
    #: seconds until it must believe what is right
    patience_s: float
    #: whether the Service must have one; else it is headless
    has_cluster_ip: bool = False

    @abstractmethod
    def follow(self, followed: FollowedService) -> AbstractAsyncContextManager[FollowingConsumer]:
        """Starts the consumer for one case, so that no case inherits the back-off of another.
        Raises ``OSError`` and ``TimeoutError`` where it does not start.
        """


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs *work* until the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
