"""Two servers and two controllers are replaced one after the other under load, and nobody but the
log notices.

With SIGTERM no request may fail at all, not even in a way in which it may be sent again; with
``kill -9`` only in such ways. What was acknowledged stays, watches go on where they were, readers
of endpoints lose none and see none twice.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.replicated.members import Member
from tests.replicated.rolling_clients import (
    NAMESPACE,
    REQUEST_SECONDS_MAX,
    Creator,
    Flipper,
    Holders,
    RawWatch,
    Record,
    Requests,
    cancelled,
)
from tests.replicated.rolling_plane import MAX_ENDPOINTS, RollingPlane
from tests.waiting import eventually

from sliceplane.api.codec import decode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.client import EndpointView, Informer
from sliceplane.slices import oracle

FLIPPED, STEADY, GROUP = 8, 4, 3
HANDOVER_SECONDS_MAX = 5.0
#: who gives its Lease back is followed long before that; who is killed, after it
LEASE_SECONDS = 60.0
LEASE_SECONDS_OF_KILLED = 3.0
SETTLE_SECONDS_MAX = 60.0
GRACEFUL = signal.SIGTERM


@dataclass
class Load:
    """Everybody who uses the plane while it is replaced."""

    plane: RollingPlane
    requests: Requests
    flippers: list[Flipper]
    creator: Creator
    raw: list[RawWatch]
    informers: list[Informer[Any]]
    view: EndpointView
    addresses: frozenset[str]
    #: what the reader of endpoints saw that it must not see
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    over: bool = False

    async def look(self) -> None:
        """Each state that a reader may see, at once and whole."""
        async for _ in self.view:
            shown = [each.address for each in self.view.endpoints]
            usable = {each.address for each in self.view.usable}
            self.looks += 1
            if len(shown) != len(set(shown)):
                self.wrong.append(f"doubled: {sorted(shown)}")
            if set(shown) != self.addresses:
                self.wrong.append(
                    f"lost {sorted(self.addresses - set(shown))}, new {set(shown) - self.addresses}"
                )
            if not {_address(FLIPPED + number) for number in range(STEADY)} <= usable:
                self.wrong.append(f"ready ones are not used: {sorted(usable)}")


def _address(number: int) -> str:
    return f"10.1.0.{number + 1}"


async def _make_objects(requests: Requests) -> None:
    assert await requests.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    service = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }
    assert await requests.call("POST", f"{NAMESPACE}/services", service)
    for number in range(FLIPPED + STEADY + GROUP):
        name = f"pod-{number}"
        head = {"name": name, "labels": {"app": "web" if number < FLIPPED + STEADY else "group"}}
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}
        assert await requests.call("POST", f"{NAMESPACE}/pods", {"metadata": head, "spec": spec})
        status = {
            "phase": "Running",
            "podIP": _address(number),
            "podIPs": [{"ip": _address(number)}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        patch = {"status": status}
        assert await requests.call(
            "PATCH",
            f"{NAMESPACE}/pods/{name}/status",
            patch,
            "application/strategic-merge-patch+json",
        )


@asynccontextmanager
async def under_load(
    folder: Path, etcd: Member, *, lease_s: float = LEASE_SECONDS, **options: Any
) -> AsyncIterator[Load]:
    plane = RollingPlane(folder, etcd, lease_s=lease_s, **options)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(plane.close)
        await plane.start()
        connector = aiohttp.TCPConnector(ssl=plane.tls(), limit=0)
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout)
        )
        # A request that is sent again behind our back is one that nobody counts.
        session._retry_connection = False
        requests = Requests(session, plane.url)
        await _make_objects(requests)
        since = (await plane.client().list(Pods, namespace="default")).resource_version
        load = Load(
            plane,
            requests,
            flippers=[
                Flipper(requests, [f"pod-{each}" for each in range(first, FLIPPED, 2)], 0.1)
                for first in (0, 1)
            ],
            creator=Creator(requests, {"app": "group"}, 0.25),
            raw=[
                RawWatch(plane.client(0), since),
                RawWatch(plane.client(1), since),
                RawWatch(plane.client(), since),
            ],
            informers=[
                Informer(plane.client(0), EndpointSlices, namespace="default"),
                Informer(plane.client(1), EndpointSlices, namespace="default"),
                Informer(plane.client(), EndpointSlices, namespace="default"),
                # Nothing happens to these: all that they hear is where to go on.
                *(Informer(plane.client(), Nodes) for _ in range(3)),
            ],
            view=EndpointView(plane.client(), "web"),
            addresses=frozenset(map(_address, range(FLIPPED + STEADY))),
        )
        for informer in load.informers:
            await stack.enter_async_context(informer)
            await informer.wait_synced(SETTLE_SECONDS_MAX)
        await stack.enter_async_context(load.view)
        await load.view.wait_ready(SETTLE_SECONDS_MAX, count=FLIPPED + STEADY)
        requests.record = Record()
        tasks = [asyncio.create_task(each.run()) for each in load.raw] + [
            asyncio.create_task(load.look())
        ]
        over = lambda: load.over  # noqa: E731
        work = [asyncio.create_task(each.run(over)) for each in (*load.flippers, load.creator)]
        try:
            await eventually(
                lambda: (
                    all(each.streams for each in load.raw) and len(requests.record.acknowledged) > 5
                )
            )
            yield load
            load.over = True
            await asyncio.gather(*work)
            await _check_everything(load)
            for task in tasks:
                assert not task.done(), task.result()
        finally:
            await cancelled(*tasks, *work)


# The steps


async def _replace_server(load: Load, number: int, how: signal.Signals) -> str:
    plane, balancer = load.plane, load.plane.balancer
    began = time.monotonic()
    homeless, misled = balancer.homeless, balancer.misled
    code = await plane.servers[number].end(how)
    ended = time.monotonic()
    last = max(
        (revision for each in load.flippers for _, revision in each.ready.values()), default=0
    )
    await eventually(lambda: balancer.ready[number], lambda ready: not ready)
    plane.servers[number].start()
    await balancer.until_ready(number)
    took = time.monotonic() - ended
    # From memory, so that nobody is asked: what was acknowledged before it started is there when it
    # is green.
    memory = await plane.client(number).list(Pods, namespace="default", resource_version="0")
    assert int(memory.resource_version) >= last, "a server was ready before it was current"
    states = balancer.states(number, began)
    assert balancer.homeless == homeless, "there was a moment without a server"
    if how is GRACEFUL:
        assert code == 0, plane.servers[number].log.read_text()[-4000:]
    if how is GRACEFUL and plane.delay_s:
        assert states[0] == "draining", states
        assert ended - began >= plane.delay_s, f"drained for {ended - began:.2f} s"
        assert balancer.misled == misled, "a client was sent to a server that was gone"
    assert balancer.states(1 - number, began) == [], (
        "the server that stayed was not ready for a moment"
    )
    assert states[-1] == "ready", states
    assert "ready" not in states[:-1], f"it was ready, and then not: {states}"
    return (
        f"server {number}: ended in {ended - began:.2f} s, the new one ready {took:.2f} s later, "
        f"seen as {states}"
    )


async def _replace_controllers(load: Load, number: int, how: signal.Signals) -> str:
    plane = load.plane
    one, other = plane.controllers[number], plane.controllers[1 - number]
    led = await plane.leader() == number
    began = time.monotonic()
    ending = asyncio.create_task(one.end(how))
    handed_over = ""
    if led:
        await other.until("ok: leading")
        handed_s = time.monotonic() - began
        limit_s = plane.lease_s if how is GRACEFUL else plane.lease_s + HANDOVER_SECONDS_MAX
        assert handed_s < limit_s, f"the other one led after {handed_s:.1f} s"
        handed_over = f", handed over in {handed_s:.2f} s"
    assert await ending == (0 if how is GRACEFUL else -9)
    one.start()
    await one.until("ok")
    return f"controllers {number}: back in {time.monotonic() - began:.2f} s{handed_over}"


async def _roll(load: Load, how: signal.Signals) -> list[str]:
    """The leader goes first among the controllers, so that it is handed over twice."""
    leader = await load.plane.leader()
    told = [await _replace_server(load, number, how) for number in (0, 1)]
    if how is GRACEFUL:
        assert await load.plane.leader() == leader, (
            "the leader lost its Lease as a server was replaced"
        )
    leader = await load.plane.leader()
    return told + [await _replace_controllers(load, number, how) for number in (leader, 1 - leader)]


# What must hold


async def _check_everything(load: Load) -> None:
    plane = load.plane
    await _until_converged(load)
    _, pods, services = await _objects(load)
    for flipper in load.flippers:
        for name, (value, revision) in flipper.ready.items():
            pod = pods[name]
            assert pod["status"]["conditions"][0]["status"] == value, (
                f"lost: {name} {value} of {revision}"
            )
    for name, uid in load.creator.created.items():
        assert services[name]["metadata"]["uid"] == uid, f"lost: {name}"
    assert not load.wrong, load.wrong[:5]
    assert load.looks > 5, "the reader saw nothing"
    for each in load.raw:
        assert not each.refused, each.refused
    assert load.raw[0].streams > 1, "the watch of a server that was replaced was not opened again"
    assert load.raw[1].streams > 1, "the watch of a server that was replaced was not opened again"
    last = int((await plane.client().list(Pods, namespace="default")).resource_version)
    histories = [[event for event in each.events if event[2] <= last] for each in load.raw]
    assert histories[0] == histories[1] == histories[2], "watches differ"
    assert [informer.counters.lists for informer in load.informers] == [1] * len(load.informers), (
        "somebody listed anew"
    )
    assert load.view._informer.counters.lists == 1, "the view listed anew"


async def _until_converged(load: Load) -> None:
    async def converged() -> bool:
        await _check_converged(load)
        return True

    await eventually(converged, ignoring=(AssertionError,))


async def _objects(load: Load) -> tuple[list[bytes], dict[str, Any], dict[str, Any]]:
    client = load.plane.client()
    slices = (await client.list(EndpointSlices, namespace="default")).items
    listed = [(await client.list(each, namespace="default")).items for each in (Pods, Services)]
    pods, services = (
        {each["metadata"]["name"]: each for each in map(json.loads, items)} for items in listed
    )
    return list(slices), pods, services


async def _check_converged(load: Load) -> None:
    """The slices are what the plain specification says; every informer and every watch is there,
    too.
    """
    bodies, raw_pods, raw_services = await _objects(load)
    slices = [decode(each, EndpointSlice) for each in bodies]
    pods = [decode(json.dumps(each).encode(), Pod) for each in raw_pods.values()]
    nodes = {
        each.metadata.name: each
        for each in [decode(await load.plane.client().get(Nodes, "", "n1"), Node)]
    }
    for name, document in raw_services.items():
        if name != "kubernetes":
            service = decode(json.dumps(document).encode(), Service)
            oracle.check_converged(service, pods, nodes, slices, MAX_ENDPOINTS)
    shown = {each.metadata.name: each.metadata.resource_version for each in slices}
    for informer in load.informers[:3]:
        assert {each.metadata.name: each.metadata.resource_version for each in informer} == shown
    newest = max(int(each["metadata"]["resourceVersion"]) for each in raw_pods.values())
    assert all(int(each.version) >= newest for each in load.raw), "a watch is behind"


def _tell(load: Load, steps: list[str], record: Record) -> None:
    watches = ", ".join(f"{each.streams} streams, {len(each.broken)} broken" for each in load.raw)
    print(
        *steps,
        record.line(),
        f"raw watches: {watches}; {load.looks} looks at the endpoints",
        sep="\n",
    )


async def test_a_rolling_upgrade_is_not_noticed(etcd: Member, tmp_path: Path) -> None:
    async with under_load(tmp_path, etcd) as load:
        steps = await _roll(load, GRACEFUL)
        record = load.requests.record
        _tell(load, steps, record)
        assert not record.failed, record.failed[:5]
        assert not record.broken, record.broken[:5]
        assert not record.put_off, record.put_off[:5]
        # Streams through the address of all never broke, and began anew where they were.
        assert not load.raw[2].broken, load.raw[2].broken


@pytest.mark.slow
async def test_whoever_is_killed_is_replaced_as_well(etcd: Member, tmp_path: Path) -> None:
    async with under_load(tmp_path, etcd, lease_s=LEASE_SECONDS_OF_KILLED) as load:
        steps = await _roll(load, signal.SIGKILL)
        record = load.requests.record
        _tell(load, steps, record)
        assert not record.failed, record.failed[:5]


@pytest.mark.slow
async def test_without_a_delay_requests_fail_only_where_they_may_be_sent_again(
    etcd: Member, tmp_path: Path
) -> None:
    async with under_load(tmp_path, etcd, delay_s=0.0) as load:
        steps = [await _replace_server(load, number, GRACEFUL) for number in (0, 1)]
        record = load.requests.record
        _tell(load, steps, record)
        assert not record.failed, record.failed[:5]


@pytest.mark.slow
async def test_servers_with_controllers_hand_them_over_and_stay_ready(
    etcd: Member, tmp_path: Path
) -> None:
    async with under_load(tmp_path, etcd, embedded=True) as load:
        holders = Holders(load.plane.client())
        following = asyncio.create_task(holders.run())
        steps = []
        try:
            await eventually(lambda: bool(holders.seen))
            for number in (0, 1):
                began, before = time.monotonic(), holders.seen[-1][1]
                steps.append(await _replace_server(load, number, GRACEFUL))
                await eventually(lambda: bool(holders.seen[-1][1]))
                if holders.seen[-1][1] != before:
                    handed_s = holders.seen[-1][0] - began
                    steps.append(f"handed over in {handed_s:.2f} s")
                    assert handed_s < HANDOVER_SECONDS_MAX, holders.seen
        finally:
            await cancelled(following)
        record = load.requests.record
        _tell(load, steps, record)
        assert len({holder for _, holder in holders.seen if holder}) > 1, "nobody else ever led"
        assert [*record.failed, *record.broken, *record.put_off] == []


@pytest.mark.slow
@pytest.mark.kubectl
async def test_kubectl_does_not_notice_either(etcd: Member, tmp_path: Path) -> None:
    async with under_load(tmp_path, etcd) as load:
        text = (tmp_path / "shared.kubeconfig").read_text()
        assert load.plane.url in text
        asked, over = [0], [False]

        async def ask() -> None:
            while not over[0]:
                for arguments in (
                    ["get", "pods"],
                    ["annotate", "node", "n1", f"seen={asked[0]}", "--overwrite"],
                ):
                    process = await asyncio.create_subprocess_exec(
                        "kubectl",
                        "--kubeconfig",
                        str(tmp_path / "shared.kubeconfig"),
                        *arguments,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                    )
                    _, said = await process.communicate()
                    assert process.returncode == 0, said.decode()
                    asked[0] += 1

        asking = asyncio.create_task(ask())
        await eventually(lambda: asked[0])
        steps = [await _replace_server(load, number, GRACEFUL) for number in (0, 1)]
        over[0] = True
        await asking
        _tell(load, [*steps, f"{asked[0]} calls of kubectl"], load.requests.record)
        assert asked[0] > 4
