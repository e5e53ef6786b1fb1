"""The seam between the stage and what it judges."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from sliceplane.lab.conformance.model import Belief
from sliceplane.lab.conformance.story import AskedPort, Claim, Need


class FollowedService(msgspec.Struct, frozen=True):
    """One Service to follow, and the way to its API server."""

    kubeconfig: Path
    namespace: str
    service: str
    asked_port: AskedPort
    #: of the Service, for a consumer that ``has_cluster_ip``
    cluster_ip: str = ""


class FollowingConsumer(Protocol):
    """One Service, followed by the consumer.  ``beliefs`` only grows; equal ones in a row are
    one.
    """

    beliefs: list[Belief]
    #: why it follows no more; "" while it does
    ended: str
    #: the last that it printed and that was no belief
    other_words: str

    @abstractmethod
    async def look(self) -> None:
        """Bring ``beliefs`` up to date with what the consumer would do now."""


class JudgedConsumer(Protocol):
    """What is judged."""

    name: str
    claims: frozenset[Claim]
    ables: frozenset[Need]
    #: seconds until it must believe what is right
    patience_s: float
    #: whether the Service must have one; else it is headless
    has_cluster_ip: bool = False

    @abstractmethod
    def follow(self, asked: FollowedService) -> AbstractAsyncContextManager[FollowingConsumer]:
        """What runs for one case: a back-off that one case caused is none of the next. Raises
        ``OSError`` and ``TimeoutError`` where it does not start.
        """


class Beliefs(FollowingConsumer):
    """A follower that is told beliefs."""

    def __init__(self) -> None:
        self.beliefs = []
        self.ended = ""
        self.other_words = ""

    def believe(self, belief: Belief) -> None:
        if not self.beliefs or self.beliefs[-1] != belief:
            self.beliefs.append(belief)

    async def look(self) -> None:
        """It is told by itself."""
