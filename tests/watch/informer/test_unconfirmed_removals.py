"""A list that lacks most of what was there is asked for twice; what is really gone goes a second
later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.fake_api import FakeApi
from tests.watch.informer.conftest import Driver

from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError, internal
from sliceplane.api.requests import ListPage, Selection
from sliceplane.api.scheme import ConfigMaps, EndpointSlices
from sliceplane.consume.io.client.informer import Informer
from sliceplane.kit.rng import Rng
from sliceplane.node.io.inputs import InputHandlers, Inputs
from sliceplane.watch.actions import StartList
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.unconfirmed import CONFIRM_BOUND_S, CONFIRM_PAUSE_S

NAMES = "abcdefgh"


def begun(api: FakeApi, driver: Any, names: str = NAMES) -> None:
    for name in names:
        api.put(ConfigMaps, "ns", name)
    driver.page_limit = 0
    driver.start()


def relist(driver: Any) -> None:
    """The watch cannot resume.  The list is over when this returns, and no second one was asked for
    yet.
    """
    lists = len(driver.taken(StartList))
    driver.stream = None
    driver.reflector.on_watch_ended(
        driver.now, StatusError(410, "Expired", "too old resource version")
    )
    for _ in range(100):
        driver.advance(0.1)
        if len(driver.taken(StartList)) > lists:
            return
    raise AssertionError("no list was asked for")


def answers(
    monkeypatch: pytest.MonkeyPatch, shorten: Callable[[ListPage], ListPage], times: int
) -> None:
    """The next *times* lists are answered with what *shorten* makes of them."""
    whole = FakeApi.list
    left = [times]

    def listed(self: FakeApi, *args: Any, **kwargs: Any) -> ListPage:
        page = whole(self, *args, **kwargs)
        left[0] -= 1
        return shorten(page) if left[0] >= 0 else page

    monkeypatch.setattr(FakeApi, "list", listed)


def first_three(page: ListPage) -> ListPage:
    return ListPage(page.items[:3], page.resource_version)


def nothing(page: ListPage) -> ListPage:
    return ListPage((), page.resource_version)


@pytest.mark.parametrize("shorten", [first_three, nothing])
def test_a_list_that_was_cut_short_removes_nothing(
    api: FakeApi,
    driver: Any,
    monkeypatch: pytest.MonkeyPatch,
    shorten: Callable[[ListPage], ListPage],
) -> None:
    begun(api, driver)
    answers(monkeypatch, shorten, 1)
    relist(driver)
    driver.advance(30)
    assert driver.deleted == []
    driver.assert_current()
    assert (driver.reflector.unconfirmed.suspected, driver.reflector.unconfirmed.refuted) == (1, 1)


def test_what_is_really_gone_goes_after_a_second_list(api: FakeApi, driver: Any) -> None:
    begun(api, driver)
    driver.stream = None  # nothing is heard of what follows
    for name in NAMES[2:]:
        api.remove(ConfigMaps, "ns", name)
    relist(driver)
    assert driver.deleted == []
    driver.advance(CONFIRM_PAUSE_S)
    assert len(driver.deleted) == 6
    driver.assert_current()
    assert (driver.reflector.unconfirmed.suspected, driver.reflector.unconfirmed.refuted) == (1, 0)


def test_a_list_that_lacks_half_is_believed_at_once(
    api: FakeApi, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(api, driver)
    answers(monkeypatch, lambda page: ListPage(page.items[:4], page.resource_version), 1)
    relist(driver)
    assert len(driver.deleted) == 4
    assert driver.reflector.unconfirmed.suspected == 0


def test_three_objects_are_never_missed(
    api: FakeApi, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(api, driver, "abc")
    answers(monkeypatch, nothing, 1)
    relist(driver)
    assert len(driver.deleted) == 3


def test_a_list_that_is_older_confirms_nothing(
    api: FakeApi, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(api, driver)
    short = iter(["", "1", "1"])

    def lagging(page: ListPage) -> ListPage:
        return ListPage(page.items[:2], next(short) or page.resource_version)

    answers(monkeypatch, lagging, 3)
    relist(driver)
    driver.advance(2.5 * CONFIRM_PAUSE_S)
    assert driver.deleted == []
    driver.advance(30)
    driver.assert_current()
    assert driver.deleted == []


def test_any_list_is_believed_in_the_end(
    api: FakeApi, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was restored after its first answer counts from an older version for good."""
    begun(api, driver)
    backup = api.snapshot()
    for name in "12345678":
        api.put(ConfigMaps, "ns", name)
    driver.advance(1)
    relist(driver)
    driver.assert_current()
    answers(monkeypatch, nothing, 1)
    relist(driver)
    api.restore(backup)
    driver.advance(CONFIRM_BOUND_S - CONFIRM_PAUSE_S)
    assert driver.deleted == []
    driver.advance(2 * CONFIRM_PAUSE_S)
    assert len(driver.deleted) == 8
    driver.assert_current()


def test_while_no_list_can_be_had_all_stays(
    api: FakeApi, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(api, driver)
    answers(monkeypatch, first_three, 1)
    relist(driver)
    api.fail(internal("no leader"), "list", times=8)
    driver.advance(3 * CONFIRM_BOUND_S)
    assert driver.deleted == []
    driver.advance(300)
    assert driver.deleted == []
    driver.assert_current()


def put_slice(api: FakeApi, endpoints: int) -> None:
    found = [
        {"addresses": [f"10.0.0.{number}"], "conditions": {"ready": True}}
        for number in range(1, endpoints + 1)
    ]
    api.put(EndpointSlices, "ns", "cart-1", {"addressType": "IPv4", "endpoints": found})


def following(api: FakeApi, informer: RunningInformer[Any]) -> Driver:
    driver = Driver(api, page_limit=0)
    driver.cache, driver.reflector = informer.cache, informer.reflector
    driver.start()
    assert len(driver.cache) == 1
    return driver


NOBODY: Any = None


def of_an_endpoint_view() -> RunningInformer[Any]:
    async def made() -> RunningInformer[Any]:
        return Informer[EndpointSlice](NOBODY, EndpointSlices, seed=1)._make()

    return asyncio.run(made())


def of_a_node_proxy() -> RunningInformer[Any]:
    ignored: Any = lambda *_: None  # noqa: E731
    inputs = Inputs(
        NOBODY,
        (Selection(EndpointSlices),),
        InputHandlers(ignored, ignored, ignored, ignored),
        clock=lambda: 0.0,
        rng=Rng(1),
    )
    return inputs._informers[0]


def of_a_controller() -> RunningInformer[Any]:
    return RunningInformer(NOBODY, Selection(EndpointSlices), clock=lambda: 0.0, rng=Rng(1))


READERS = [of_an_endpoint_view, of_a_node_proxy]


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_slices_holds_them_until_a_controller_of_a_restored_server_has_written_them(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, reader: Callable[[], RunningInformer[Any]]
) -> None:
    """The copy had none of them.  A controller confirms for a second, and then it writes."""
    put_slice(api, 5)
    driver = following(api, reader())
    answers(monkeypatch, nothing, 6)
    relist(driver)
    driver.advance(5.5 * CONFIRM_PAUSE_S)
    assert driver.reflector.unconfirmed.refuted == 0
    driver.advance(30)
    assert driver.deleted == []
    driver.assert_current()
    assert driver.reflector.unconfirmed.refuted == 1


@pytest.mark.parametrize("reader", READERS)
def test_slices_that_are_gone_for_good_go_at_the_bound(
    api: FakeApi, reader: Callable[[], RunningInformer[Any]]
) -> None:
    put_slice(api, 5)
    driver = following(api, reader())
    driver.stream = None
    api.remove(EndpointSlices, "ns", "cart-1")
    relist(driver)
    driver.advance(CONFIRM_BOUND_S - CONFIRM_PAUSE_S)
    assert driver.deleted == []
    driver.advance(2 * CONFIRM_PAUSE_S)
    assert len(driver.deleted) == 1
    driver.assert_current()


def test_a_controller_believes_the_second_list_and_writes(api: FakeApi) -> None:
    put_slice(api, 5)
    driver = following(api, of_a_controller())
    driver.stream = None
    api.remove(EndpointSlices, "ns", "cart-1")
    relist(driver)
    assert driver.deleted == []
    driver.advance(CONFIRM_PAUSE_S)
    assert len(driver.deleted) == 1


def test_a_slice_of_three_endpoints_is_never_missed(api: FakeApi) -> None:
    put_slice(api, 3)
    driver = following(api, of_an_endpoint_view())
    driver.stream = None
    api.remove(EndpointSlices, "ns", "cart-1")
    relist(driver)
    assert len(driver.deleted) == 1
