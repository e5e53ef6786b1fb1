"""Checks of open watches while watches come and go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.users import User
from sliceplane.kit.metrics import Metrics
from sliceplane.relay.io import children
from sliceplane.relay.io.children import VERDICT_S, Children, OpenChildren
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

    async def require(self, claim: Claim, age_s_max: float) -> None:
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


class Root:
    """A parent that allows everything until *ends_at*."""

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.reviews = 0

    async def post(self, path: str, body: bytes) -> bytes:
        self.reviews += 1
        allowed = asyncio.get_running_loop().time() < self.ends_at
        return b'{"status":{"allowed":%s}}' % (b"true" if allowed else b"false")


class TimedWatch(Watch):
    closed_at = 0.0

    def close(self, error: StatusError) -> None:
        self.closed_at = self.closed_at or asyncio.get_running_loop().time()


@pytest.mark.looptime
@pytest.mark.parametrize("ends_at", [20.0, 23.3, 29.99])
async def test_a_right_that_is_gone_ends_watches_in_time(ends_at: float) -> None:
    """Also while others ask the same, whose answers may be as old as a check is apart."""
    loop = asyncio.get_running_loop()
    root = Root(loop.time() + ends_at)
    every = Children(root, loop.time)  # type: ignore[arg-type]
    opened = OpenChildren(every)
    watches = [TimedWatch() for _ in range(40)]
    for watch in watches:
        opened.begin(CLAIM, watch)  # type: ignore[arg-type]
    task = asyncio.create_task(opened.run())
    while loop.time() < root.ends_at + 2.5 * VERDICT_S:
        await every.decide(CLAIM.user, CLAIM.attributes)
        await asyncio.sleep(0.7)
    task.cancel()
    late = [watch.closed_at - root.ends_at for watch in watches]
    assert min(late) > 0
    assert max(late) <= VERDICT_S
    assert root.reviews < 150, "answers are shared within a step"


class RbacRoot(Root):
    """A parent that allows all names, or one."""

    def __init__(self, *names: str) -> None:
        super().__init__(0.0)
        self.names = names

    async def post(self, path: str, body: bytes) -> bytes:
        self.reviews += 1
        name = json.loads(body)["spec"]["resourceAttributes"].get("name", "")
        allowed = name in self.names or "" in self.names
        return b'{"status":{"allowed":%s}}' % (b"true" if allowed else b"false")


@pytest.mark.looptime
async def test_a_right_to_all_names_is_one_question() -> None:
    """Thousands of node proxies renew a Lease each, as one user."""
    loop = asyncio.get_running_loop()
    root = RbacRoot("")
    every = Children(root, loop.time)  # type: ignore[arg-type]
    for number in range(1_000):
        renewal = Attributes(verb="update", resource="leases", name=f"node-{number}")
        assert (await every.decide(CLAIM.user, renewal)).allowed
        assert every.known_decision(CLAIM.user, renewal).allowed
    assert root.reviews == 1
    root.names = ()
    await asyncio.sleep(VERDICT_S)
    assert not (await every.decide(CLAIM.user, renewal)).allowed
    assert not every.known_decision(CLAIM.user, renewal).allowed


async def test_a_right_to_one_name_is_no_right_to_another() -> None:
    root = RbacRoot("mine")
    every = Children(root, asyncio.get_running_loop().time)  # type: ignore[arg-type]
    for name, allowed in (("mine", True), ("other", False), ("mine", True)):
        attributes = Attributes(verb="get", resource="leases", name=name)
        assert (await every.decide(CLAIM.user, attributes)).allowed == allowed
        assert every.known_decision(CLAIM.user, attributes).allowed == allowed
    assert root.reviews == 3, "one for all names, one for each"
