"""Faults, one after the other and sometimes two at once, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

Fault = Callable[[], Awaitable[None]]


class Healing(Protocol):
    """What can be made whole again."""

    async def heal(self) -> None: ...


class Nemesis:
    """Does something to the plane, and undoes it after a while.

    All kinds of faults in turn, in an order that changes from round to round: after one round each
    was there.
    """

    def __init__(self, plane: Healing, seed: int, counts: Counter[str]) -> None:
        self._healing = plane
        self._random = random.Random(seed)
        self._counts = counts
        self._left: list[Fault] = []
        self.rounds = 0

    @abstractmethod
    def faults(self) -> list[Fault]:
        """All kinds of faults; each returns when it has lasted long enough."""

    def _next(self) -> Fault:
        if not self._left:
            faults = self.faults()
            self._left = self._random.sample(faults, len(faults))
        fault = self._left.pop()
        self.rounds += not self._left
        return fault

    async def run(self, stop: Callable[[], bool]) -> None:
        while not stop():
            await asyncio.sleep(self._random.uniform(0.5, 2.0))
            chosen = list(
                dict.fromkeys(self._next() for _ in range(2 if self._random.random() < 0.2 else 1))
            )
            for fault in chosen:
                self._counts[fault.__name__.strip("_").replace("_", " ")] += 1
            await asyncio.gather(*(fault() for fault in chosen))
            await self._healing.heal()

    async def _while(self, low: float = 0.5, high: float = 3.5) -> None:
        await asyncio.sleep(self._random.uniform(low, high))
