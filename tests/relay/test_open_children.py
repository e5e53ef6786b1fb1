"""Checks of open watches while watches come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.users import User
from sliceplane.kit.metrics import Metrics
from sliceplane.relay.io import children
from sliceplane.relay.io.children import OpenChildren
from sliceplane.server.registry.authorization.open_watches import Claim
from sliceplane.server.registry.types import Attributes

CLAIM = Claim(user=User(name="one"), attributes=Attributes(verb="watch", resource="pods"))


class Asked:
    """The parent's answers; each question ends the watches that are in ``ends``."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.code = 0
        self.asked = 0
        self.ends: list[int] = []
        self.open: Any = None

    async def require(self, claim: Claim) -> None:
        self.asked += 1
        for number in self.ends:
            self.open.end(number)
        if self.code:
            raise StatusError(self.code, "", "no", {})


class Watch:
    def __init__(self) -> None:
        self.closed: list[StatusError] = []

    def close(self, error: StatusError) -> None:
        self.closed.append(error)

    def notify(self) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(children, "VERDICT_S", 0.1)
    asked = Asked()
    asked.open = OpenChildren(asked)  # type: ignore[arg-type]
    return asked


async def checked(asked: Asked, seconds: float = 0.3) -> None:
    task = asyncio.create_task(asked.open.run())
    await asyncio.sleep(seconds)
    assert not task.done(), "it runs as long as the relay"
    task.cancel()


async def test_watches_that_end_during_a_step_are_left_alone(asked: Asked) -> None:
    numbers = [asked.open.begin(CLAIM, Watch()) for _ in range(100)]
    asked.ends = numbers
    asked.code = 403
    await checked(asked)
    assert asked.asked == 1


@pytest.mark.parametrize(("code", "ends"), [(401, True), (403, True), (503, False), (0, False)])
async def test_only_a_refusal_ends_a_watch(asked: Asked, code: int, ends: bool) -> None:
    watch = Watch()
    asked.open.begin(CLAIM, watch)
    asked.code = code
    await checked(asked)
    assert asked.asked
    assert bool(watch.closed) == ends
