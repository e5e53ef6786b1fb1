"""``kill -9`` of relays under many informers, while objects change: no list, no gap, no duplicate."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.relay.relaying import ADMIN, kubeconfig
from tests.relay.test_relay_processes import Member
from tests.server.serving import endpoint_slice
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file
from sliceplane.watch.io.reflect import RunningInformer, loop_clock

INFORMERS = 60
LISTS_MAX = 12
#: all are back after their back-off and a bookmark of the parent; generous, as machines are busy
BACK_S = 60.0


@pytest.fixture
def members(tmp_path: Path) -> Iterator[dict[str, Member]]:
    """A server, two relays in front of it, and one that has both as parents."""
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(f'{ADMIN},admin,1,"system:masters"\n')
    data = tmp_path / "data"
    authority = data / "pki" / "ca.crt"
    parents = {"root": (), "east": ("root",), "west": ("root",), "leaf": ("east", "west")}
    found: dict[str, Member] = {}
    try:
        for name, upstreams in parents.items():
            port = free_port()
            config = kubeconfig(tmp_path, f"https://127.0.0.1:{port}", authority, ADMIN)
            if name == "root":
                arguments = (
                    *("apiserver", "--data-dir", str(data), "--secure-port", str(port)),
                    *("--token-auth-file", str(tokens)),
                )
            else:
                ways = [("--upstream", str(found[one].kubeconfig)) for one in upstreams]
                arguments = (
                    *("relay", *(word for way in ways for word in way)),
                    *("--listen", f"127.0.0.1:{port}", "--client-ca-file", str(authority)),
                    *("--tls-cert-file", str(data / "pki" / "apiserver.crt")),
                    *("--tls-private-key-file", str(data / "pki" / "apiserver.key")),
                )
            found[name] = Member(arguments, config, port)
            found[name].start()
        yield found
    finally:
        for member in reversed(found.values()):
            member.kill()


class Follower:
    """An informer, and the number of each change that it was told, in order."""

    def __init__(self, client: HttpClient, seed: int, selector: str) -> None:
        self.numbers: list[int] = []
        selection = Selection(EndpointSlices, "default", selector)
        self.informer: RunningInformer[Any] = RunningInformer(
            client, selection, clock=loop_clock(0.0), rng=Rng(seed)
        )
        self.informer.add_handler(self.note, lambda: None)

    def note(self, changes: Any) -> None:
        for change in changes:
            number = (change.object.metadata.labels or {}).get("number")
            if number is not None and change.new is not None:
                self.numbers.append(int(number))

    @property
    def lists(self) -> int:
        return self.informer.reflector.counters.lists


@contextlib.asynccontextmanager
async def following(member: Member, count: int = INFORMERS) -> AsyncIterator[list[Follower]]:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(HttpClient(from_file(member.kubeconfig)))
        followers = [
            Follower(client, seed, "" if seed % 2 else "!service.kubernetes.io/headless")
            for seed in range(count)
        ]
        tasks = [asyncio.create_task(one.informer.run()) for one in followers]
        try:
            for one in followers:
                await one.informer.wait_followed()
            yield followers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Changes:
    """Changes of one slice, numbered, until stopped."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._document = endpoint_slice("counted")
        self.last = 0
        self.is_over = False

    async def put(self) -> None:
        self.last += 1
        self._document["metadata"]["labels"] = {"number": str(self.last)}
        body = encode(self._document)
        if self.last == 1:
            await self._client.create(EndpointSlices, "default", body)
        else:
            await self._client.update(EndpointSlices, "default", "counted", body)

    async def run(self) -> None:
        while not self.is_over:
            await self.put()
            await asyncio.sleep(0.02)


async def lists_of(client: HttpClient) -> int:
    """Lists of EndpointSlices that the server has answered, but for those of its own processes."""
    page = (await client.page("/metrics", bytes_max=1 << 24)).decode()
    rows = re.findall(r"^apiserver_request_total\{(.*endpointslices.*)\} (\d+)", page, re.MULTILINE)
    return sum(int(count) for labels, count in rows if 'verb="LIST"' in labels)


@pytest.mark.parametrize(
    ("victim", "followed", "restarts"),
    [("east", "east", True), ("east", "leaf", False), ("leaf", "leaf", True)],
    ids=["restarted", "a parent with a sibling", "restarted behind a relay"],
)
async def test_informers_list_once_and_miss_nothing(
    members: dict[str, Member], victim: str, followed: str, restarts: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(HttpClient(from_file(members["root"].kubeconfig)))
        changes = Changes(client)
        await changes.put()
        followers = await stack.enter_async_context(following(members[followed]))
        writing = asyncio.create_task(changes.run())
        await eventually(lambda: all(len(one.numbers) > 20 for one in followers))
        before = await lists_of(client)
        assert before >= 2, "each relay has listed"
        members[victim].kill()
        await asyncio.sleep(1.0)
        if restarts:
            # Behind a sibling nobody needs to be late: it may have taken over within the second.
            assert changes.last > max(one.numbers[-1] for one in followers)
            await asyncio.to_thread(members[victim].start)
        reached = changes.last
        await eventually(
            lambda: all(one.numbers[-1] >= reached for one in followers), within_s=BACK_S
        )
        changes.is_over = True
        await writing
        await eventually(lambda: {one.numbers[-1] for one in followers} == {changes.last})
        for one in followers:
            assert one.numbers == list(range(one.numbers[0], changes.last + 1))
        assert {one.lists for one in followers} == {1}
        # A relay that starts lists once; questions for the newest version are lists with limit 1,
        # one for each parent that is followed and each catch-up.
        after = await lists_of(client)
        assert after - before <= LISTS_MAX
