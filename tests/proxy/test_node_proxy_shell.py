"""The node proxy's loop over a runner that remembers, fails and waits as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.node_proxies import make_proxy
from tests.waiting import eventually, turns

from sliceplane.api import codec
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, ServiceCIDRs, Services
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.rng import Rng
from sliceplane.node import tracker
from sliceplane.node.io import node_proxy, options
from sliceplane.node.io.kernel.nft_backend import Nftables, NftError
from sliceplane.node.io.metrics import ProxyRecord
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import ProxyTiming
from sliceplane.node.nft.layout import CLUSTER_IPS_CHECK
from sliceplane.node.nft.names import TABLE
from sliceplane.node.nft.objects import DynamicSetContents, TableRef, Transaction
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.io.base import ListPage, WatchMessage
from sliceplane.watch.recorder.entries import Changed, Marked
from sliceplane.watch.recorder.file import Header, Recording
from sliceplane.watch.recorder.recorder import Recorder

pytestmark = pytest.mark.looptime  # all is in the loop: time is what the test waits for


class Runner:
    def __init__(self) -> None:
        #: but second steps of whole tables
        self.texts: list[str] = []
        self.failures = self.disturbances = self.second_steps = self.second_failures = 0
        #: of other hands
        self.deleted: set[TableRef] = set()
        self.open = asyncio.Event()
        self.open.set()

    async def run(self, text: str) -> None:
        if f"{TABLE} {CLUSTER_IPS_CHECK}" in text and "add table" not in text:
            self.second_steps += 1
            if self.second_failures:
                self.second_failures -= 1
                raise NftError("rejected", "no")
            return
        self.texts.append(text)
        await self.open.wait()
        if self.failures:
            self.failures -= 1
            raise NftError("rejected", "no")
        self.deleted = {table for table in self.deleted if f"add table {table}" not in text}

    async def write(self, transaction: Transaction) -> bool:
        await self.run(transaction.render())
        return False

    async def dynamic_sets(self, table: TableRef) -> DynamicSetContents:
        return {}

    def disturbed(self) -> bool:
        self.disturbances -= 1
        return self.disturbances == 0

    async def tables(self) -> frozenset[TableRef]:
        return frozenset({TableRef("ip", TABLE), TableRef("ip6", TABLE)} - self.deleted)


def service(number: int = 1) -> Service:
    document = {
        "metadata": {"namespace": "ns", "name": f"svc-{number}"},
        "spec": {
            "clusterIP": f"172.30.0.{number}",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    }
    return codec.decode(codec.encode(document), Service)


def added(number: int = 1) -> Change[Service]:
    return Change(Services.key, None, service(number))


def proxy_of(runner: Runner, **options: Any) -> NodeProxy:
    """Of a family, and with the loop's time, unless the test says otherwise."""
    options = {"families": ("IPv4",), "clock": asyncio.get_running_loop().time, **options}
    return make_proxy("node-1", Nftables(runner), **options)


@asynccontextmanager
async def running(proxy: NodeProxy) -> AsyncIterator[None]:
    task = asyncio.create_task(proxy.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def synced(proxy: NodeProxy) -> None:
    for resource in (Services, EndpointSlices, Nodes, ServiceCIDRs):
        proxy.on_synced(resource.key)


async def settled(proxy: NodeProxy) -> None:
    await proxy.wait_ready()
    await eventually(
        lambda: [
            freshness
            for _, freshness in proxy.health().families
            if freshness.pending_since is not None
        ],
        lambda waiting: not waiting,
    )


async def test_nothing_is_written_before_both_lists() -> None:
    runner = Runner()
    proxy = proxy_of(runner)
    async with running(proxy):
        proxy.on_change(added())
        proxy.on_synced(Services.key)
        proxy.on_synced(Nodes.key)
        await asyncio.sleep(60)
        assert runner.texts == []
        assert not proxy.health().synced
        proxy.on_synced(EndpointSlices.key)
        await settled(proxy)
        assert len(runner.texts) == 1
        assert "172.30.0.1" in runner.texts[0]
        assert proxy.health().synced


async def test_a_recorder_is_told_what_the_proxy_is_told_and_what_it_writes() -> None:
    recorder = Recorder(1 << 20, b"saltsalt", 0.0)
    proxy = proxy_of(Runner(), record=ProxyRecord(recorder))
    async with running(proxy):
        proxy.on_change(added())
        synced(proxy)
        await settled(proxy)
    read = list(entries(Recording(Header(), list(recorder.segments()))))
    assert [entry.change for entry in read if isinstance(entry, Changed)] == [added()]
    (written,) = [entry for entry in read if isinstance(entry, Marked)]
    assert written.kind == "kernel"
    assert written.text.startswith("IPv4: ")
    assert written.text.endswith("commands, the whole table")


async def test_a_missing_node_does_not_hold_the_rules_for_ever() -> None:
    runner = Runner()
    proxy = proxy_of(runner, timing=ProxyTiming(node_grace_s=0.02))
    async with running(proxy):
        proxy.on_synced(Services.key)
        proxy.on_synced(EndpointSlices.key)
        await settled(proxy)
    assert len(runner.texts) == 1


async def test_a_name_that_no_node_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in --hostname-override: rules are written, without hints, and would be taken for right
    ones.
    """
    told: list[dict[str, object]] = []

    class Log:
        def warning(self, event: str, **values: object) -> None:
            told.append({"event": event, **values})

    monkeypatch.setattr(node_proxy, "_log", Log())
    known, unknown = (
        make_proxy(name, Nftables(Runner()), families=("IPv4",)) for name in ("node-1", "nodd-1")
    )
    known.on_change(Change(Nodes.key, None, codec.decode(b'{"metadata":{"name":"node-1"}}', Node)))
    synced(known)
    assert told == []
    synced(unknown)
    (said,) = told
    assert said["node"] == "nodd-1"
    assert str(said["event"]).startswith("there is no Node of this name")


async def test_what_comes_while_a_transaction_runs_is_one_transaction() -> None:
    runner = Runner()
    proxy = proxy_of(runner)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        runner.open.clear()
        proxy.on_change(added(1))
        await eventually(lambda: len(runner.texts) == 2)
        for number in range(2, 20):
            proxy.on_change(added(number))
            await asyncio.sleep(0)
        runner.open.set()
        await settled(proxy)
    assert len(runner.texts) == 3
    assert all(f"172.30.0.{number} " in runner.texts[2] for number in range(2, 20))


async def test_a_failure_is_retried_in_full() -> None:
    runner = Runner()
    proxy = proxy_of(runner)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        runner.failures = 1
        proxy.on_change(added(1))
        await settled(proxy)
        ((_, freshness),) = proxy.health().families
        assert freshness.last_failure is not None
        assert freshness.failures == 0
    assert [text.startswith("add table ip sliceplane\ndelete table") for text in runner.texts] == [
        True,
        False,
        True,
    ]


async def test_a_table_of_which_the_second_step_fails_is_written_anew() -> None:
    runner = Runner()
    runner.second_failures = 1
    proxy = proxy_of(runner)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        ((_, freshness),) = proxy.health().families
        assert freshness.last_failure is not None
    assert [text.startswith("add table ip sliceplane\ndelete table") for text in runner.texts] == [
        True,
        True,
    ]
    assert runner.second_steps == 2


async def test_health_turns_red_when_rules_cannot_be_written() -> None:
    now = 1000.0
    runner = Runner()
    runner.failures = 1000
    proxy = proxy_of(runner, clock=lambda: now)
    async with running(proxy):
        began = asyncio.get_running_loop().time()
        synced(proxy)
        await turns()
        assert asyncio.get_running_loop().time() == began, "with the first refusal"
        assert not proxy.health().healthy
        assert proxy.health().reasons == ("IPv4 rules are not written: no",)
        assert proxy.health().last_success is None
        runner.failures = 0
        now += 60.0
        proxy.on_change(added())
        await settled(proxy)
        assert proxy.health().healthy


async def test_health_turns_red_when_a_write_does_not_end() -> None:
    now = 1000.0
    runner = Runner()
    runner.open.clear()
    proxy = proxy_of(runner, clock=lambda: now)
    async with running(proxy):
        synced(proxy)
        await eventually(lambda: runner.texts)
        assert proxy.health().healthy
        now += options.HEALTH_TIMEOUT_S + 1
        assert proxy.health().reasons == ("a change has been waiting for its IPv4 rules for 61 s",)


async def test_families_do_not_wait_for_each_other() -> None:
    class OneSlow(Runner):
        async def run(self, text: str) -> None:
            if "ip6 sliceplane" in text:
                await asyncio.Event().wait()
            await super().run(text)

    runner = OneSlow()
    proxy = proxy_of(runner, families=FAMILIES)
    async with running(proxy):
        synced(proxy)
        await eventually(lambda: proxy.counts()["IPv4"][1], lambda written: written == 1)
        proxy.on_change(added(1))
        await eventually(lambda: proxy.counts()["IPv4"][1], lambda written: written == 2)
        assert proxy.counts()["IPv6"] == (0, 0)


async def test_every_watched_kind_is_understood_and_no_other() -> None:
    proxy = make_proxy("node-1", Nftables(Runner()))
    for resource, kind in ((Services, Service), (EndpointSlices, EndpointSlice), (Nodes, Node)):
        subject = codec.decode(b'{"metadata":{"namespace":"ns","name":"x"}}', kind)
        proxy.on_change(Change(resource.key, None, subject))
        proxy.on_change(Change(resource.key, subject, subject))
        proxy.on_change(Change(resource.key, subject, None))
    with pytest.raises(AssertionError, match="pods"):
        proxy.on_change(Change(Pods.key, None, Pod()))


def test_watches_are_narrow() -> None:
    services, slices, nodes, ranges = make_proxy("node-1", Nftables(Runner.__new__(Runner))).watches
    assert (services.label_selector, services.field_selector) == (
        "!service.kubernetes.io/service-proxy-name",
        "spec.clusterIP!=None",
    )
    assert slices.label_selector == "!service.kubernetes.io/headless"
    assert nodes.field_selector == "metadata.name=node-1"
    assert ranges.resource is ServiceCIDRs


async def test_cleanup_takes_all_tables_at_once() -> None:
    runner = Runner()
    await Nftables(runner).remove(FAMILIES)
    (text,) = runner.texts
    tables = (
        "ip sliceplane",
        "ip6 sliceplane",
        "ip sliceplane-drain-hook",
        "ip6 sliceplane-drain-hook",
    )
    assert text.splitlines() == [
        f"{verb} table {table}" for table in tables for verb in ("add", "delete")
    ]


async def test_a_table_that_somebody_deleted_comes_back_without_any_change() -> None:
    runner = Runner()
    proxy = proxy_of(runner, families=FAMILIES)
    async with running(proxy):
        proxy.on_change(added())
        synced(proxy)
        await settled(proxy)
        await asyncio.sleep(5 * options.CHECK_PERIOD_S)
        assert len(runner.texts) == 2, "nothing is written while the tables are there"
        runner.deleted = {TableRef("ip6", TABLE)}
        await asyncio.sleep(options.CHECK_PERIOD_S)
        assert not runner.deleted
        await settled(proxy)
        assert len(runner.texts) == 3
        assert runner.texts[2] == runner.texts[1] or runner.texts[2] == runner.texts[0]


async def test_a_refused_transaction_of_one_family_makes_the_other_look() -> None:
    runner = Runner()
    proxy = proxy_of(runner, families=FAMILIES)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        runner.deleted = {TableRef("ip", TABLE), TableRef("ip6", TABLE)}
        runner.failures = 1
        proxy.on_change(added())  # an IPv4 Service
        await asyncio.sleep(options.CHECK_PERIOD_S / 3)
        assert not runner.deleted, "before its time"


async def test_the_whole_table_is_written_anew_now_and_then() -> None:
    runner = Runner()
    proxy = proxy_of(runner)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        await asyncio.sleep(options.WHOLE_TABLE_PERIOD_S - options.CHECK_PERIOD_S)
        assert len(runner.texts) == 1
        await asyncio.sleep(2 * options.CHECK_PERIOD_S)
        assert len(runner.texts) == 2
        assert runner.texts[0] == runner.texts[1]
        await asyncio.sleep(options.WHOLE_TABLE_PERIOD_S / 2)
        assert len(runner.texts) == 2


async def test_a_clock_that_is_set_back_delays_nothing() -> None:
    runner, ahead_s = Runner(), 0.0
    loop = asyncio.get_running_loop()
    proxy = proxy_of(runner, min_period_s=0.01, clock=lambda: loop.time() + ahead_s)
    async with running(proxy):
        ahead_s = 86_400.0
        synced(proxy)
        await settled(proxy)
        ahead_s = -86_400.0
        began = loop.time()
        for number in range(1, 4):
            proxy.on_change(added(number))
            await settled(proxy)
        assert loop.time() - began < 1.0
    assert "172.30.0.3" in runner.texts[-1]


async def test_a_table_that_others_may_have_changed_is_written_anew_before_its_time() -> None:
    runner = Runner()
    proxy = proxy_of(runner)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        runner.disturbances = 1
        await asyncio.sleep(options.SUSPECT_PERIOD_S - options.CHECK_PERIOD_S)
        assert len(runner.texts) == 1, (
            "not at once: whoever changes rules all the time would make us do so too"
        )
        await asyncio.sleep(2 * options.CHECK_PERIOD_S)
        assert len(runner.texts) == 2
        await asyncio.sleep(5 * options.SUSPECT_PERIOD_S)
        assert len(runner.texts) == 2, "once"
    assert runner.texts[1] == runner.texts[0]


class _Api:
    """A server that answers lists with nothing until it is told otherwise, and remembers what was
    listed.
    """

    server = "https://192.0.2.77:6443"

    def __init__(self) -> None:
        self.listed: list[tuple[str, str]] = []
        self.nodes: tuple[bytes, ...] = ()
        self.services: tuple[bytes, ...] = ()
        self.may_list_nodes = asyncio.Event()

    async def list(self, selection: Selection, **ignored: Any) -> ListPage:
        resource = selection.resource
        self.listed.append((resource.key, selection.field_selector))
        if resource is Nodes and not selection.field_selector:
            await self.may_list_nodes.wait()
            return ListPage(self.nodes, "9")
        return ListPage(self.services if resource is Services else (), "9")

    @asynccontextmanager
    async def watch(
        self, selection: Selection, **ignored: Any
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        async def events() -> AsyncIterator[WatchMessage]:
            await asyncio.Event().wait()
            yield WatchMessage("", b"")

        yield events()


def _asking(*external: str) -> bytes:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    spec = {"clusterIP": "172.30.0.9", "ports": ports, "externalIPs": list(external)}
    return codec.encode(
        {
            "metadata": {"namespace": "ns", "name": "asks", "uid": "u", "resourceVersion": "7"},
            "spec": spec,
        }
    )


@pytest.mark.parametrize("asked_for", [False, True])
async def test_nodes_are_read_when_an_external_ip_is_asked_for_and_not_before(
    asked_for: bool,
) -> None:
    api, runner = _Api(), Runner()
    api.services = (_asking("203.0.113.1", "192.0.2.9", "192.0.2.77"),) if asked_for else ()
    status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}
    api.nodes = (
        codec.encode(
            {"metadata": {"name": "n2", "uid": "n", "resourceVersion": "5"}, "status": status}
        ),
    )
    proxy = proxy_of(runner)
    task = asyncio.create_task(proxy.follow(api, Rng(1)))  # type: ignore[arg-type]  # it writes nothing
    await settled(proxy)
    await asyncio.sleep(60)
    assert ((Nodes.key, "") in api.listed) == asked_for
    assert "203.0.113.1" not in runner.texts[-1], "nobody knows yet whose that is"
    api.may_list_nodes.set()
    await asyncio.sleep(60)
    assert ("203.0.113.1" in runner.texts[-1]) == asked_for
    written = "".join(runner.texts)
    assert "192.0.2.9" not in written, "another Node's"
    assert "192.0.2.77" not in written, "the API server's, as its client dials it"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class _Slow(Runner):
    """Lets others run while it writes."""

    async def run(self, text: str) -> None:
        await asyncio.sleep(0)
        await super().run(text)


async def test_the_lease_does_not_tell_of_what_is_left_for_the_next_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracker, "PORTION", 10)
    runner = _Slow()
    proxy = proxy_of(runner)
    async with running(proxy):
        synced(proxy)
        await settled(proxy)
        ports = [
            {"name": f"p{number}", "port": number, "protocol": "TCP"} for number in range(1, 60)
        ]
        rows = {
            "metadata": {
                "namespace": "ns",
                "name": "s",
                "resourceVersion": "77",
                "labels": {LABEL_SERVICE_NAME: "big"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}],
            "ports": ports,
        }
        spec = {"clusterIP": "172.30.0.8", "ports": ports}
        big = codec.decode(
            codec.encode({"metadata": {"namespace": "ns", "name": "big"}, "spec": spec}), Service
        )
        proxy.on_change(Change(Services.key, None, big))
        proxy.on_change(
            Change(EndpointSlices.key, None, codec.decode(codec.encode(rows), EndpointSlice))
        )
        proxy.on_mark(EndpointSlices.key, "", Mark(EndpointSlices.key, "77"))
        told = []
        (plane,) = proxy._planes
        while (
            not told
            or plane.tracker.portions.behind
            or plane.schedule.freshness.pending_since is not None
        ):
            await asyncio.sleep(0)
            told.append((bool(plane.tracker.portions.behind), proxy.progress.revision))
        assert any(behind for behind, _ in told)
        assert all(revision == 0 for behind, revision in told if behind), told
        assert proxy.progress.revision == 77
