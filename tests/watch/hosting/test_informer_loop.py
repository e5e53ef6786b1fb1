"""The informer's loop: handlers, time limits, faults, cancellation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sliceplane.api.errors import StatusError, internal
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.io.reflect import RunningInformer

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class View:
    """A handler that rebuilds the cache from changes and complains if they do not fit."""

    def __init__(self) -> None:
        self.held: dict[str, Object] = {}
        self.synced = 0

    def on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            key = change.object.metadata.key
            assert self.held.get(key) == change.old
            if change.new is None:
                del self.held[key]
            else:
                self.held[key] = change.new

    def on_synced(self) -> None:
        self.synced += 1


@asynccontextmanager
async def running(
    client: Any, **options: Any
) -> AsyncIterator[tuple[RunningInformer[Object], View]]:
    selection = Selection(
        ConfigMaps, **{name: options.pop(name) for name in ("label_selector",) if name in options}
    )
    informer: RunningInformer[Object] = RunningInformer(
        client, selection, clock=client.clock, rng=Rng(1), kind=Object, **options
    )
    view = View()
    informer.add_handler(view.on_changes, view.on_synced)
    task = asyncio.create_task(informer.run())
    try:
        yield informer, view
    finally:
        assert not task.done(), "an informer never ends by itself"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


async def test_it_follows_and_tells_once_that_it_is_synced(
    api: Any, client: Any, source: Callable[..., None]
) -> None:
    source(api, "a")
    async with running(client) as (informer, view):
        assert (informer.synced, informer.staleness()) == (False, math.inf)
        await informer.wait_synced()
        assert list(view.held) == ["ns/a"]
        source(api, "b")
        api.remove(ConfigMaps, "ns", "a")
        await asyncio.sleep(0.1)
        assert list(view.held) == ["ns/b"]
        assert view.synced == 1
        assert informer.staleness() <= 0.1


async def test_late_handlers_begin_with_what_there_is(
    api: Any, client: Any, source: Callable[..., None]
) -> None:
    source(api, "a")
    async with running(client) as (informer, view):
        await informer.wait_synced()
        late = View()
        informer.add_handler(late.on_changes, late.on_synced)
        assert late.held == view.held
        assert late.synced == 1
        source(api, "b")
        await asyncio.sleep(0.1)
        assert late.held == view.held
        informer.remove_handler(late.on_changes)
        source(api, "c")
        await asyncio.sleep(0.1)
        assert sorted(late.held) == ["ns/a", "ns/b"]
        assert sorted(view.held) == ["ns/a", "ns/b", "ns/c"]


async def test_a_handler_that_raises_does_not_disturb_others(
    api: Any, client: Any, source: Callable[..., None], capsys: Any
) -> None:
    def broken(changes: Any) -> None:
        raise RuntimeError("broken handler")

    async with running(client) as (informer, view):
        informer.add_handler(broken, lambda: None)
        source(api, "a")
        await asyncio.sleep(1)
        source(api, "b")
        await asyncio.sleep(1)
        assert sorted(view.held) == ["ns/a", "ns/b"]
    assert "broken handler" in capsys.readouterr().err


async def test_a_list_that_never_answers_is_given_up(
    api: Any, client: Any, source: Callable[..., None], capsys: Any
) -> None:
    source(api, "a")
    client.hang_lists = True
    async with running(client) as (informer, view):
        await asyncio.sleep(70)
        client.hang_lists = False
        assert not informer.synced
        await asyncio.sleep(70)
        assert informer.synced
        assert list(view.held) == ["ns/a"]
    assert "a list failed" in capsys.readouterr().err


async def test_kopf_585_a_half_open_stream_is_replaced(
    api: Any, client: Any, source: Callable[..., None], capsys: Any
) -> None:
    async with running(client) as (informer, view):
        await informer.wait_synced()
        await asyncio.sleep(1)
        api.watches[0].go_silent()
        source(api, "a")
        await asyncio.sleep(85)
        assert view.held == {}
        assert informer.staleness() > 80
        await asyncio.sleep(10)
        assert list(view.held) == ["ns/a"]
        assert informer.staleness() < 10
    assert capsys.readouterr().err == "", "to open a quiet watch anew is no news"


async def test_an_index_that_raises_is_seen_and_loses_nothing(
    api: Any, client: Any, source: Callable[..., None], capsys: Any
) -> None:
    broken = {"now": False}

    def index(item: Object) -> tuple[str, ...]:
        if broken["now"]:
            raise RuntimeError("broken index")
        return ()

    async with running(client, indexes={"x": index}) as (informer, view):
        await informer.wait_synced()
        broken["now"] = True
        source(api, "a")
        await asyncio.sleep(10)
        assert view.held == {}
        broken["now"] = False
        await asyncio.sleep(60)
        assert list(view.held) == ["ns/a"]
    assert "broken index" in capsys.readouterr().err


async def test_errors_of_every_kind_are_survived(
    api: Any, client: Any, source: Callable[..., None], capsys: Any
) -> None:
    source(api, "a")
    api.fail(StatusError(403, "Forbidden", "no"), "list", times=2)
    api.fail(internal("boom"), "watch", times=2)
    async with running(client) as (_, view):
        await asyncio.sleep(30)
        assert list(view.held) == ["ns/a"]
        api.cut_all()
        api.cut_all(internal("reset"))
        api.restart()
        source(api, "b")
        await asyncio.sleep(30)
        assert sorted(view.held) == ["ns/a", "ns/b"]
    capsys.readouterr()


async def test_many_messages_do_not_starve_others(
    api: Any, client: Any, source: Callable[..., None]
) -> None:
    turns = 0

    async def bystander() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with running(client) as (informer, view):
        await informer.wait_synced()
        for number in range(3000):
            source(api, f"s{number}")
        task = asyncio.create_task(bystander())
        while len(view.held) < 3000:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert turns >= 10


async def test_a_cache_that_is_wrong_is_listed_anew_at_once(
    api: Any, client: Any, source: Callable[..., None]
) -> None:
    source(api, "a")
    async with running(client) as (informer, view):
        await informer.wait_synced()
        await asyncio.sleep(1.0)
        lists = informer.reflector.counters.lists
        informer.cache.remove("ns/a", informer.reflector.resource_version)
        view.held.clear()
        informer.relist("a test has seen that the cache is wrong")
        informer.relist("and says it twice")
        await asyncio.sleep(0.2)
        assert list(view.held) == ["ns/a"]
        assert informer.reflector.counters.lists == lists + 1
        source(api, "b")
        await asyncio.sleep(0.1)
        assert list(view.held) == ["ns/a", "ns/b"], "and the next watch goes on"
