"""Bugs that other informers had, one test each (repository#issue in the name or beside it)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.fakes.fake_api import FakeApi

from sliceplane.api.errors import StatusError, internal, too_large_resource_version, unreachable
from sliceplane.api.meta import Object
from sliceplane.api.scheme import ConfigMaps
from sliceplane.kit.rng import Rng
from sliceplane.watch.actions import Phase, StartList, StartWatch, StopWatch
from sliceplane.watch.cache import Cache
from sliceplane.watch.reflector import Reflector

EXPIRED = StatusError(410, "Expired", "too old resource version")


def filled(api: FakeApi, *names: str) -> None:
    for name in names:
        api.put(ConfigMaps, "ns", name)


def test_production_stack_1091_a_delete_in_a_watch_gap_is_delivered_once(
    api: FakeApi, driver: Any
) -> None:
    """Also kubernetes#115658, kcp#4364: reconnecting without comparing lost the delete for ever."""
    filled(api, "a", "b", "c")
    driver.start()
    gone = api.objects(ConfigMaps)["ns/b"][0]
    api.cut_all(unreachable("connection reset"))
    api.remove(ConfigMaps, "ns", "b")
    api.compact()  # so that the watch cannot resume
    driver.advance(30)
    assert driver.deleted == [gone]
    driver.assert_current()


def test_a_delete_in_a_gap_that_the_history_still_covers_needs_no_list(
    api: FakeApi, driver: Any
) -> None:
    filled(api, "a", "b")
    driver.start()
    api.cut_all()
    api.remove(ConfigMaps, "ns", "b")
    driver.advance(30)
    assert len(driver.deleted) == 1
    assert len(driver.taken(StartList)) == 1
    driver.assert_current()


def test_kubernetes_115658_an_object_recreated_in_a_gap_is_a_delete_and_an_add(
    api: FakeApi, driver: Any
) -> None:
    filled(api, "a")
    driver.start()
    old = api.objects(ConfigMaps)["ns/a"][0]
    api.restart()
    api.remove(ConfigMaps, "ns", "a")
    filled(api, "a")
    api.compact()
    before = len(driver.changes)
    driver.advance(30)
    delete, add = driver.changes[before:]
    assert (delete.new, add.old) == (None, None)
    assert delete.old.metadata.uid == old
    assert add.new.metadata.uid != old


def test_production_stack_999_a_504_too_large_version_relists_and_does_not_loop(
    api: FakeApi, driver: Any
) -> None:
    filled(api, "a")
    driver.start()
    api.cut_all()
    api.fail(too_large_resource_version(1000, 100), "watch")
    driver.advance(30)
    assert len(driver.taken(StartList)) == 2
    assert driver.actions[-2][1] == StartList(None, 500, "")
    assert len(driver.taken(StartWatch)) <= 3
    driver.assert_current()


def test_production_stack_999_an_error_that_stays_is_asked_about_ever_more_seldom(
    api: FakeApi, driver: Any
) -> None:
    filled(api, "a")
    driver.start()
    api.fail(too_large_resource_version(1000, 100), times=10_000)
    api.cut_all()
    driver.advance(600)
    assert len(driver.actions) < 35
    times = driver.taken(StartList)[1:]
    waits = [after - before for before, after in pairwise(times)]
    assert waits[0] < waits[2] < waits[4]
    assert max(waits) <= 60.1
    assert driver.reflector.staleness(driver.now) > 590


def test_fabric8_7896_a_server_that_closes_without_a_410_is_relisted_within_a_bound(
    api: FakeApi, driver: Any
) -> None:
    filled(api, "a", "b")
    driver.start()
    api.remove(ConfigMaps, "ns", "b")
    api.compact()
    # Instead of answering 410 the server closes each stream at once.
    real_watch, version = api.watch, driver.reflector.resource_version

    def closing_watch(resource: Any, resource_version: str, **scope: Any) -> Any:
        stream = real_watch(resource, resource_version, **scope)
        if resource_version == version:
            stream.cut()
        return stream

    driver.stream.cut()
    driver.api.__class__ = type(
        "Closing",
        (FakeApi,),
        {"watch": lambda _self, *a, **k: closing_watch(*a, **k), "__slots__": ()},
    )
    driver.advance(15)
    assert len(driver.deleted) == 1
    assert len(driver.taken(StartWatch)) <= 5
    driver.assert_current()


def test_an_empty_watch_that_ends_within_a_second_backs_off(api: FakeApi, driver: Any) -> None:
    driver.start()
    for _ in range(100):
        if driver.stream is not None:
            driver.stream.cut()
        driver.advance(0.05)
    assert len(driver.taken(StartWatch)) + len(driver.taken(StartList)) <= 6


def test_kopf_585_a_half_open_connection_is_noticed_and_staleness_rises_meanwhile(
    api: FakeApi, driver: Any
) -> None:
    """Also kubernetes-client/python#2145: the watch went silent and nobody knew."""
    filled(api, "a")
    driver.start()
    assert driver.reflector.staleness(driver.now) == 0
    driver.stream.go_silent()
    api.remove(ConfigMaps, "ns", "a")
    driver.advance(80)
    assert driver.reflector.staleness(driver.now) == 80
    assert "ns/a" in driver.view
    driver.advance(11)
    assert driver.taken(StopWatch) == [1090.0]
    assert driver.view == {}
    assert driver.reflector.staleness(driver.now) <= 1


def test_a_quiet_kind_on_a_server_without_bookmarks_is_neither_stale_nor_in_trouble(
    api: FakeApi, driver: Any
) -> None:
    """kube-apiserver sends no bookmark before a kind's first event.  A router's ``staleness() >
    180`` flapped.
    """
    filled(api, "a")
    driver.start()
    worst = 0.0
    for _ in range(1200):
        if driver.stream is not None:
            driver.stream.go_silent()
        driver.advance(1)
        worst = max(worst, driver.reflector.staleness(driver.now))
        assert driver.reflector.last_error is None
    assert worst <= 90 + 5
    assert driver.reflector.counters.failures == 0
    assert len(driver.taken(StartWatch)) <= 1200 // 90 + 2


def test_a_second_restart_after_a_minute_of_health_is_met_at_once(
    api: FakeApi, driver: Any
) -> None:
    """The back-off that an outage has built up is no answer to the next one."""
    filled(api, "a")
    driver.start()
    for _ in range(2):
        api.fail(unreachable("connection refused"), times=4)
        api.cut_all()
        driver.advance(90)
        assert driver.reflector.last_error is None, "it is well again"
        assert driver.reflector.phase is Phase.WATCHING
    failed = driver.now
    api.fail(unreachable("connection refused"), times=1)
    api.cut_all()
    driver.advance(1.7)
    assert driver.reflector.phase is Phase.WATCHING, (
        "0.8 s and as much again at most, not seven or eight"
    )
    assert max(driver.taken(StartWatch)) - failed <= 1.7


def test_a_watch_that_is_never_answered_is_an_error(api: FakeApi) -> None:
    reflector: Reflector[Object] = Reflector(Cache(ConfigMaps, Object), Rng(1))
    reflector.start(0.0)
    reflector.on_page([], "7", "", 0.0)
    reflector.on_deadline(90.0)
    assert reflector.last_error is not None
    assert "no answer to a watch for 90 s" in str(reflector.last_error[0])
    assert reflector.staleness(90.0) == 90.0


def test_a_server_that_never_speaks_again_is_listed_after_the_second_silence(
    api: FakeApi, driver: Any
) -> None:
    """A server far behind our version accepts the watch and keeps quiet; only a list finds that
    out.
    """
    filled(api, "a", "b")
    backup = api.snapshot()
    for _ in range(5):
        filled(api, "c")
    driver.start()
    api.restore(backup)
    driver.advance(200)
    driver.assert_current()
    assert "ns/c" not in driver.view


def test_a_restored_backup_is_noticed_at_the_first_older_version(api: FakeApi, driver: Any) -> None:
    filled(api, "a")
    backup = api.snapshot()
    filled(api, "b", "c", "d")
    driver.start()
    stream = driver.stream
    api.restore(backup)
    driver.stream = stream
    stream.ended, stream._noticed = False, 0
    driver.advance(30)
    assert driver.reflector.counters.backwards == 1
    driver.assert_current()


def test_cilium_48050_a_deletion_during_reconnect_with_no_later_update_converges(
    api: FakeApi, driver: Any
) -> None:
    filled(api, "a", "b")
    driver.start()
    api.fail(unreachable("connection refused"), "watch", "list", times=6)
    api.restart()
    api.remove(ConfigMaps, "ns", "a")
    driver.advance(250)
    driver.assert_current()
    assert len(driver.deleted) == 1


def test_nacos_10209_a_restarting_server_never_empties_the_cache(api: FakeApi, driver: Any) -> None:
    """Also kubernetes#23034: failed and half-given lists change nothing."""
    filled(api, *"abcdefgh")
    driver.start()
    before = len(driver.changes)
    starting = StatusError(503, "ServiceUnavailable", "starting")
    api.restart(EXPIRED)
    api.fail(unreachable("connection refused"), "list", "watch", times=2)
    api.fail(starting, "list", "watch", times=2)
    # Then a list whose first page arrives and whose second does not, for a while.
    driver.between_pages = lambda: api.fail(starting, "list", times=1)
    driver.advance(20)
    assert len(driver.changes) == before
    assert len(driver.view) == 8
    driver.between_pages = None
    driver.advance(120)
    assert len(driver.changes) == before
    driver.assert_current()


def test_an_expired_continue_token_starts_the_list_again(api: FakeApi, driver: Any) -> None:
    filled(api, *"abcdefgh")

    def compact_once() -> None:
        driver.between_pages = None
        api.compact()

    driver.between_pages = compact_once
    driver.start()
    assert driver.view == {}
    assert not driver.reflector.synced
    driver.advance(5)
    driver.assert_current()


def test_a_list_whose_tokens_always_expire_is_asked_for_whole(api: FakeApi, driver: Any) -> None:
    filled(api, *"abcdefgh")
    driver.between_pages = api.compact
    driver.start()
    driver.advance(20)
    driver.assert_current()
    assert StartList(None, 0, "") in [action for _, action in driver.actions]


def test_a_failing_page_is_asked_for_again_with_its_token(api: FakeApi, driver: Any) -> None:
    filled(api, *"abcdefgh")

    def fail_once() -> None:
        driver.between_pages = None
        api.fail(internal("boom"), "list")

    driver.between_pages = fail_once
    driver.start()
    driver.advance(5)
    driver.assert_current()
    assert driver.reflector.counters.lists == 1
    assert [verb for verb, _, _ in api.requests if verb == "list"] == ["list"] * 4


def test_retry_after_is_honoured_within_reason(api: FakeApi, driver: Any) -> None:
    driver.start()
    api.fail(StatusError(429, "TooManyRequests", "slow down", retry_after_s=20), "watch")
    api.cut_all(unreachable("reset"))
    driver.advance(18)
    assert len(driver.taken(StartWatch)) == 2
    driver.advance(8)
    assert len(driver.taken(StartWatch)) == 3
    api.fail(StatusError(503, "ServiceUnavailable", "busy", retry_after_s=86_400), "watch")
    api.cut_all(unreachable("reset"))
    driver.advance(335)
    assert driver.reflector.phase is Phase.WATCHING


def test_an_unreachable_server_is_not_listed_when_it_comes_back(api: FakeApi, driver: Any) -> None:
    """Everyone relists after a restart otherwise, which is when a server can bear it least."""
    filled(api, "a")
    driver.start()
    api.fail(unreachable("connection refused"), "watch", times=8)
    api.cut_all(unreachable("connection reset"))
    driver.advance(400)
    assert len(driver.taken(StartList)) == 1
    driver.assert_current()


@pytest.mark.parametrize(
    "error",
    [
        EXPIRED,
        StatusError(410, "Gone", ""),
        StatusError(500, "", "invalid version"),
        StatusError(400, "Gone", ""),
    ],
)
def test_a_refused_version_leads_to_a_list(api: FakeApi, driver: Any, error: StatusError) -> None:
    driver.start()
    api.fail(error, "watch")
    api.cut_all(unreachable("reset"))
    driver.advance(10)
    assert len(driver.taken(StartList)) == 2


def test_the_back_off_starts_again_after_two_quiet_minutes(api: FakeApi, driver: Any) -> None:
    driver.start()
    api.fail(unreachable("refused"), "watch", times=5)
    api.cut_all(unreachable("reset"))
    driver.advance(300)
    api.cut_all(unreachable("reset"))
    began = driver.now
    driver.advance(1.7)
    assert 0.8 <= driver.taken(StartWatch)[-1] - began <= 1.6


def test_watches_ask_for_five_to_ten_minutes_at_random(api: FakeApi, make_driver: Any) -> None:
    asked = set()
    for seed in range(40):
        driver = make_driver(api, seed)
        driver.start()
        action = driver.actions[-1][1]
        assert isinstance(action, StartWatch)
        assert 300 <= action.timeout_s <= 600
        asked.add(action.timeout_s)
    assert len(asked) > 20


def test_a_quiet_day_costs_no_list_and_no_failure(api: FakeApi, driver: Any) -> None:
    filled(api, "a")
    driver.start()
    driver.advance(86_400)
    assert len(driver.taken(StartList)) == 1
    assert driver.reflector.counters.failures == 0
    assert driver.reflector.counters.bookmarks > 1000


def test_a_relist_that_finds_nothing_new_changes_nothing(api: FakeApi, driver: Any) -> None:
    filled(api, *"abcd")
    driver.start()
    before = len(driver.changes)
    api.restart(EXPIRED)
    driver.advance(10)
    assert driver.reflector.counters.lists == 2
    assert len(driver.changes) == before


def test_stop_ends_everything(api: FakeApi, driver: Any) -> None:
    driver.start()
    driver.reflector.stop()
    driver.perform()
    assert driver.reflector.phase is Phase.STOPPED
    assert driver.reflector.next_deadline() is None
    assert isinstance(driver.actions[-1][1], StopWatch)
