"""What a mirror does with the parent's lists, events and bookmarks, one case at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fakes.fake_api import FakeApi
from tests.relay.test_mirror_streams import PLAIN, MirrorDriver, wire

from sliceplane.api import codec
from sliceplane.api.errors import expired
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Services
from sliceplane.relay.earlier import CatchUp, WatchScope
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.relay.records import mirrored
from sliceplane.server.store.watcher import Interest, Watcher

#: longer than two idle limits and the longest back-off together
QUIET_S = 400.0


def follow(api: FakeApi, **bounds: float) -> MirrorDriver:
    driver = MirrorDriver(api, mirror=ResourceMirror(ConfigMaps, **bounds))  # type: ignore[arg-type]
    driver.start()
    return driver


def watch(driver: MirrorDriver, since: int | None = None) -> Watcher:
    interest = Interest(resource=ConfigMaps.storage_key, encoder=PLAIN)
    return driver.mirror.hub.subscribe(interest, now=0.0, since=since, bookmarks=True)


def received(watcher: Watcher) -> list[tuple[str, int]]:
    items: list[tuple[str, int]] = []
    while watcher.pending:
        items += [(item.type, item.revision) for item in watcher.take()]
    return items


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    for name in "abc":
        api.put(ConfigMaps, "ns", name)
    return api


def test_a_difference_without_removals_reaches_open_watches(api: FakeApi) -> None:
    driver = follow(api)
    open_watch = watch(driver)
    api.restart()
    api.put(ConfigMaps, "ns", "b")
    api.put(ConfigMaps, "ns", "d")
    api.put(ConfigMaps, "ns", "b")
    api.compact()
    driver.advance(QUIET_S)
    assert received(open_watch)[:3] == [("ADDED", 105), ("MODIFIED", 106), ("BOOKMARK", 106)]
    assert open_watch.error is None
    early = watch(driver, since=104)
    assert early.error is not None
    assert early.error.code == 410, "what came and went between 103 and 106 is not known"


@pytest.mark.parametrize("change", ["removed", "recreated"])
def test_a_difference_with_a_removal_ends_watches(api: FakeApi, change: str) -> None:
    driver = follow(api)
    open_watch = watch(driver)
    api.restart()
    api.remove(ConfigMaps, "ns", "b")
    if change == "recreated":
        api.put(ConfigMaps, "ns", "b")
    api.compact()
    driver.advance(QUIET_S)
    assert open_watch.error is not None
    assert open_watch.error.code == 410
    assert driver.mirror.store.revision == api.revision


def test_a_lost_watch_is_resumed_without_a_list(api: FakeApi) -> None:
    driver = follow(api)
    open_watch = watch(driver)
    api.cut_all()
    api.remove(ConfigMaps, "ns", "b")
    api.put(ConfigMaps, "ns", "b")
    driver.advance(30.0)
    assert received(open_watch) == [("DELETED", 104), ("ADDED", 105)]
    assert [verb for verb, _, _ in api.requests].count("list") == 1


def test_a_deletion_has_the_parents_bytes(api: FakeApi) -> None:
    driver = follow(api)
    open_watch = watch(driver)
    api.remove(ConfigMaps, "ns", "b")
    driver.settle()
    (item,) = open_watch.take()
    (event,) = api.since(ConfigMaps, 103)
    assert item.data == wire(event.document)


def test_only_the_parents_bookmarks_are_sent(api: FakeApi) -> None:
    driver = follow(api)
    open_watch = watch(driver)
    driver.mirror.hub.on_tick(10_000.0)
    assert received(open_watch) == [], "the parent was silent"
    api.put(EndpointSlices, "ns", "other")
    driver.advance(61.0)
    assert received(open_watch) == [("BOOKMARK", 104)]


def test_history_is_bounded_in_time(api: FakeApi) -> None:
    driver = follow(api, keep_s=10.0)
    api.put(ConfigMaps, "ns", "a")
    driver.settle()
    driver.mirror.on_tick(0.0)
    driver.mirror.on_tick(9.0)
    assert watch(driver, since=103).error is None
    driver.mirror.on_tick(11.0)
    assert watch(driver, since=103).error is not None
    assert watch(driver, since=104).error is None


def test_history_is_bounded_in_bytes(api: FakeApi) -> None:
    driver = follow(api, bytes_min=4_000, bytes_max=4_000)
    for _ in range(100):
        api.put(ConfigMaps, "ns", "a", {"data": {"text": "x" * 400}})
        driver.settle()
    kept = driver.mirror.store.events_since(driver.mirror.store.compacted, ConfigMaps.storage_key)
    assert 0 < sum(len(event.record.body) for event in kept) <= 4_000


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body[:-5],
        lambda body: body.replace(b'"ConfigMap"', b'"Secret"'),
        lambda body: body.replace(b'"resourceVersion":"', b'"resourceVersion":"x'),
        lambda body: body.replace(b'"name":"c"', b'"name":7'),
    ],
    ids=["cut off", "another kind", "no number", "another type"],
)
def test_garbage_is_no_progress(api: FakeApi, spoil: Callable[[bytes], bytes]) -> None:
    driver = follow(api)
    open_watch = watch(driver)
    api.put(ConfigMaps, "ns", "c")
    (event,) = api.since(ConfigMaps, 103)
    driver.reflector.on_watch_event("MODIFIED", spoil(wire(event.document)), driver.now)
    driver.collect()
    assert driver.mirror.store.revision == 103
    assert received(open_watch) == []
    driver.stream = None
    driver.advance(QUIET_S)
    assert received(open_watch)[0] == ("MODIFIED", 104), "the list brings it"


def test_items_of_lists_get_their_kind() -> None:
    service = {
        "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7", "uid": "u"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", "note": "<&>\u2028"},
    }
    head = b'{"kind":"Service","apiVersion":"v1",'
    record = mirrored(Services, codec.encode(service)).record
    assert record.body == head + codec.encode(service)[1:]
    assert record.fields == {"spec.type": "ClusterIP", "spec.clusterIP": "10.0.0.1"}
    moved = codec.encode({"metadata": service["metadata"], "apiVersion": "v1", "kind": "Service"})
    assert mirrored(Services, moved).record.body.startswith(head + b'"metadata"')


def catch_up(driver: MirrorDriver, since: int, *bodies: tuple[str, bytes]) -> CatchUp:
    earlier = driver.mirror.earlier
    earlier.want(WatchScope(), since)
    run = earlier.begin(WatchScope())
    for kind, body in bodies:
        run.on_message(kind, body)
    return run


def events_of(api: FakeApi, since: int) -> list[tuple[str, bytes]]:
    return [(event.kind, wire(event.document)) for event in api.since(ConfigMaps, since)]


def test_a_watch_from_before_the_list_begins_with_what_was_fetched(api: FakeApi) -> None:
    driver = follow(api)
    run = catch_up(driver, 101, *events_of(api, 101))
    assert run.is_complete, "an event of the list's own version ends it"
    driver.mirror.earlier.finish(WatchScope(), run)
    api.put(ConfigMaps, "ns", "d")
    driver.settle()
    resumed = watch(driver, since=101)
    expected = [("ADDED", 102), ("ADDED", 103), ("ADDED", 104), ("BOOKMARK", 104)]
    assert received(resumed) == expected
    assert received(watch(driver, since=102)) == expected[1:], "it serves later versions, too"
    assert watch(driver, since=100).error is not None, "nobody has fetched that"


def test_what_was_fetched_of_another_history_is_dropped(api: FakeApi) -> None:
    """The parent went back to a backup while its events were fetched."""
    driver = follow(api)
    backup = api.snapshot()
    api.put(ConfigMaps, "ns", "d")
    driver.settle()
    run = catch_up(driver, 101, *events_of(api, 101))
    api.restore(backup)
    driver.advance(QUIET_S)
    driver.mirror.earlier.finish(WatchScope(), run)
    assert watch(driver, since=101).error is not None


def test_a_slow_reader_of_what_was_fetched_is_ended_when_it_is_dropped(api: FakeApi) -> None:
    driver = follow(api)
    run = catch_up(driver, 100, *events_of(api, 100))
    driver.mirror.earlier.finish(WatchScope(), run)
    slow = watch(driver, since=100)
    assert len(slow.take(1)) == 1
    driver.mirror.earlier.clear()
    slow.take()
    assert slow.error is not None
    assert slow.error.code == 410


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("ADDED", b"{}"),
        ("BOOKMARK", b'{"metadata":{"resourceVersion":"1"}}'),
        ("SURPRISE", b"{}"),
        ("ERROR", codec.encode(expired("old").status())),
    ],
)
def test_a_catch_up_that_makes_no_sense_brings_nothing(
    api: FakeApi, kind: str, body: bytes
) -> None:
    driver = follow(api)
    earlier = driver.mirror.earlier
    earlier.finish(WatchScope(), catch_up(driver, 101, (kind, body)))
    assert watch(driver, since=101).error is not None
    assert not earlier.lacks(WatchScope(), 101), "the parent is not asked again"
    assert earlier.lacks(WatchScope(), 102)


def test_old_events_go_when_the_history_has_passed_them(api: FakeApi) -> None:
    driver = follow(api, keep_s=10.0)
    earlier = driver.mirror.earlier
    earlier.finish(WatchScope(), catch_up(driver, 101, *events_of(api, 101)))
    api.put(ConfigMaps, "ns", "d")
    driver.settle()
    for now in (0.0, 11.0):
        assert watch(driver, since=101).error is None
        driver.mirror.on_tick(now)
    assert watch(driver, since=101).error is not None
    assert not earlier._stretches
