"""Which parent a relay follows."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.errors import StatusError, expired
from sliceplane.api.requests import ListPage, Selection, WatchMessage
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.kit.rng import Rng
from sliceplane.relay.io.upstream import ParentClient
from sliceplane.relay.siblings import Siblings
from sliceplane.watch.io.base import Unreachable

SLICES, SERVICES = Selection(EndpointSlices), Selection(Services)


@given(st.integers(1, 6), st.integers(0, 1 << 32))
def test_a_round_visits_each_parent_once_and_begins_with_the_first(count: int, seed: int) -> None:
    siblings = Siblings(count, Rng(seed))
    visited = [siblings.current]
    while siblings.on_failure(siblings.current) and len(visited) < count:
        visited.append(siblings.current)
    assert visited[0] == 0
    assert sorted(visited) == list(range(count))


def test_relays_spread_over_the_siblings() -> None:
    seconds = set()
    for seed in range(50):
        siblings = Siblings(5, Rng(seed))
        siblings.on_failure(0)
        seconds.add(siblings.current)
    assert seconds == {1, 2, 3, 4}


def test_failures_of_one_moment_are_one_move() -> None:
    siblings = Siblings(3, Rng(1))
    assert [siblings.on_failure(0) for _ in range(4)] == [True, False, False, False]
    assert siblings.moves == 1


@given(st.integers(1, 5), st.data())
def test_a_list_is_due_when_every_parent_has_said_410(count: int, data: st.DataObject) -> None:
    siblings = Siblings(count, Rng(1))
    lacking: set[int] = set()
    for _ in range(30):
        if data.draw(st.booleans()):
            siblings.on_news(SLICES)
            lacking.clear()
        siblings.on_news(SERVICES)
        lacking.add(siblings.current)
        others = siblings.on_expired(SLICES, siblings.current)
        assert others == (len(lacking) < count)
        if not others:
            lacking.clear()


@dataclass
class FakeClient:
    """A parent."""

    revision: int = 10
    error: StatusError | Unreachable | None = None
    messages: list[WatchMessage] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    server: str = "https://parent"

    async def list(self, selection: Selection, **options: Any) -> ListPage:
        self.asked.append("list")
        if self.error is not None:
            raise self.error
        return ListPage((), str(self.revision), "", None)

    @contextlib.asynccontextmanager
    async def watch(self, selection: Selection, **options: Any) -> AsyncIterator[Any]:
        self.asked.append("watch")
        if self.error is not None:
            raise self.error

        async def stream() -> AsyncIterator[WatchMessage]:
            for message in self.messages:
                yield message

        yield stream()


def upstream(*clients: FakeClient) -> ParentClient:
    made = ParentClient([], Siblings(len(clients), Rng(1)))
    made._clients = list(clients)  # type: ignore[arg-type]
    return made


async def follow(made: ParentClient, version: int) -> list[str]:
    async with made.watch(SLICES, resource_version=str(version)) as messages:
        return [message.type async for message in messages]


GONE = WatchMessage("ERROR", b'{"kind":"Status","code":410,"reason":"Expired","message":"old"}')
NEWS = WatchMessage("BOOKMARK", b'{"metadata":{"resourceVersion":"10"}}')


async def test_a_parent_that_is_gone_is_left() -> None:
    first, second = FakeClient(messages=[NEWS]), FakeClient(messages=[NEWS])
    made = upstream(first, second)
    assert await follow(made, 10) == ["BOOKMARK"]
    first.error = Unreachable("refused")
    with pytest.raises(Unreachable):
        await follow(made, 10)
    assert await follow(made, 10) == ["BOOKMARK"]
    assert second.asked == ["list", "watch"], "one that is behind would be silent"
    assert await follow(made, 10) == ["BOOKMARK"]
    assert second.asked == ["list", "watch", "watch"]


@pytest.mark.parametrize("code", [500, 502, 503, 504, 508])
async def test_a_parent_that_cannot_serve_is_left(code: int) -> None:
    first = FakeClient(error=StatusError(code, "", "no", {}))
    made = upstream(first, FakeClient(messages=[NEWS]))
    with pytest.raises(StatusError):
        await follow(made, 10)
    assert await follow(made, 10) == ["BOOKMARK"]


@pytest.mark.parametrize("code", [400, 401, 403, 404, 429])
async def test_a_refusal_is_no_reason_to_move(code: int) -> None:
    made = upstream(FakeClient(error=StatusError(code, "", "no", {})), FakeClient())
    with pytest.raises(StatusError):
        await made.list(SLICES)
    assert made.siblings.moves == 0


async def test_a_sibling_whose_history_went_back_ends_the_version() -> None:
    first, second = FakeClient(messages=[NEWS]), FakeClient(revision=9, messages=[NEWS])
    made = upstream(first, second)
    await follow(made, 10)
    made.siblings.on_failure(0)
    with pytest.raises(StatusError) as refused:
        await follow(made, 10)
    assert refused.value.code == 410
    assert second.asked == ["list"]


@pytest.mark.parametrize("how", ["message", "answer"])
async def test_410_of_one_parent_is_no_reason_to_list(how: str) -> None:
    first, second = FakeClient(), FakeClient(messages=[NEWS])
    if how == "answer":
        first.error = expired("too old")
    else:
        first.messages = [GONE]
    made = upstream(first, second)
    with pytest.raises(Unreachable):
        await follow(made, 10)
    assert await follow(made, 10) == ["BOOKMARK"]


async def test_410_of_all_parents_is_410() -> None:
    made = upstream(FakeClient(messages=[GONE]), FakeClient(messages=[GONE]))
    with pytest.raises(Unreachable):
        await follow(made, 10)
    assert await follow(made, 10) == ["ERROR"]


async def test_one_parent_is_followed_as_it_is() -> None:
    only = FakeClient(messages=[GONE])
    made = upstream(only)
    assert await follow(made, 10) == ["ERROR"]
    only.error = Unreachable("gone")
    with pytest.raises(Unreachable):
        await follow(made, 10)
    assert made.siblings.current == 0
