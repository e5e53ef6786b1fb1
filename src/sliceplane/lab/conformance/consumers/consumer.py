"""The interface between the stage and the consumers that it judges."""

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
    """One Service to follow, and the kubeconfig of its API server."""

    kubeconfig: Path
    namespace: str
    service: str
    query: PortQuery
    #: cluster IP of the Service, for a consumer that ``has_cluster_ip``
    cluster_ip: str = ""


class FollowingConsumer:
    """A consumer that follows one Service; it reports its beliefs by ``believe``."""

    def __init__(self) -> None:
        #: all beliefs in order; consecutive equal ones are stored once
        self.beliefs: list[Belief] = []
        #: why it stopped; "" while it runs
        self.ended = ""
        #: the last printed line that was no belief
        self.other_line = ""

    def believe(self, belief: Belief) -> None:
        if not self.beliefs or self.beliefs[-1] != belief:
            self.beliefs.append(belief)

    async def poll(self) -> None:
        """Updates ``beliefs``; does nothing if the consumer reports by itself."""


class JudgedConsumer(Protocol):
    """The consumer under test."""

    name: str
    claims: frozenset[Claim]
    ables: frozenset[Need]
    #: seconds until it must reach the correct belief
    patience_s: float
    #: whether the Service must have a cluster IP; otherwise it is headless
    has_cluster_ip: bool = False

    @abstractmethod
    def follow(self, followed: FollowedService) -> AbstractAsyncContextManager[FollowingConsumer]:
        """Starts the consumer for one case, so that no case inherits the back-off of another.
        Raises ``OSError`` and ``TimeoutError`` if it does not start.
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
