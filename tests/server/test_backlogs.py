"""Events that wait for clients are counted by account, and no account's watches take what is the
others'.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.server.serving import Server, run_plane
from tests.server.test_slow_watchers import watching
from tests.waiting import until

from sliceplane.kit.shares import Standing
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.requests import watch as watch_module
from sliceplane.server.io.requests.watch import Backlogs

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


class Watch:
    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.ended = False

    def end_slow(self) -> None:
        self.waiting = 0
        self.ended = True


def begin(
    owner: Backlogs, account: str, *waiting: int, standing: Standing = "ordinary"
) -> list[Watch]:
    watches = [Watch(number) for number in waiting]
    for watch in watches:
        owner.begin(watch, account, standing)
    return watches


@pytest.fixture
async def owner() -> Backlogs:
    return Backlogs(1000)


async def test_an_account_loses_its_longest_queues_and_others_none(owner: Backlogs) -> None:
    slow = begin(owner, "eve", 300, 400, 100, 0)
    others = begin(owner, "ann", 100) + begin(owner, "node", 90, standing="vital")
    owner.count()
    assert [watch.ended for watch in slow] == [False, True, False, False]
    assert not any(watch.ended for watch in others)
    assert owner.ended.value == 1
    owner.shares.check()
    owner.close()


async def test_what_a_client_has_taken_counts_no_more(owner: Backlogs) -> None:
    (watch,) = begin(owner, "eve", 400)
    owner.count()
    assert owner.shares.used_by("eve") == 400
    watch.waiting = 5
    owner.count()
    assert owner.shares.total == 5
    owner.end(watch)
    owner.count()
    assert owner.shares.total == 0
    owner.close()


async def test_one_account_alone_gets_half(owner: Backlogs) -> None:
    begin(owner, "ann", 1)
    watches = begin(owner, "eve", *[50] * 20)
    owner.count()
    assert sum(watch.waiting for watch in watches) <= 450
    assert owner.shares.used_by("ann") == 1
    owner.close()


@pytest.fixture
def small_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Ten events may wait for all."""
    monkeypatch.setattr(watch_module, "BACKLOG_PERIOD_S", 0.05)
    monkeypatch.setattr(watch_module, "Backlogs", lambda: Backlogs(10))
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


def test_watches_that_nobody_reads_end_and_the_shortest_stay(small_server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(watching(small_server))
        for number in range(60):
            body = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * 200_000}}
            assert small_server.request("POST", CONFIG_MAPS, body).code == 201
        hub = small_server.plane.hub
        until(lambda: len(hub), lambda watches: watches <= 1)
        lines = small_server.get("/metrics").body.decode().splitlines()
    ended = next(
        line for line in lines if line.startswith("sliceplane_watch_backlog_ended_watches_total ")
    )
    assert float(ended.split()[1]) >= 3
