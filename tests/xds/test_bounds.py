"""Memory by account, turns by account, and made-up tokens: what one client does costs the others
nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import eventually

from sliceplane.api.requests import Write
from sliceplane.api.users import User
from sliceplane.consume.model import ServiceKey
from sliceplane.kit.http2.grpc import GrpcStatus
from sliceplane.watch.io.base import Unreachable
from sliceplane.xds.catalog import XdsCatalog, XdsConfig
from sliceplane.xds.io import authentication, budget
from sliceplane.xds.io.admission import AdmissionConfig
from sliceplane.xds.io.authentication import CallRefused, ReviewedTokens
from sliceplane.xds.io.budget import Budget, account_of
from sliceplane.xds.io.long_work import LongWork
from sliceplane.xds.io.server import XdsServer
from sliceplane.xds.names import LISTENER
from sliceplane.xds.streams.actions import VisibleNamespaces, XdsRefusal

ANA = User(name="ana")
BEN = User(name="ben")
ADMIN = User(name="admin", groups=("system:masters",))


def pod(uid: str) -> User:
    extra = (("authentication.kubernetes.io/pod-uid", (uid,)),)
    return User(name="system:serviceaccount:shop:default", extra=extra)


def test_an_account_has_a_bound_and_others_have_room() -> None:
    charges = Budget(account_bytes_max=1_000, process_bytes_max=10_000)
    first, second = charges.open(ANA), charges.open(ANA)
    assert first.set(600)
    assert not second.set(600)
    assert second.set(400)
    assert charges.open(BEN).set(1_000)
    assert charges.open(ADMIN).set(5_000)
    assert charges.shares.total == 7_000


async def test_what_is_returned_is_there_again() -> None:
    charges = Budget(account_bytes_max=1_000, process_bytes_max=10_000)
    charge = charges.open(ANA)
    assert charge.set(900)
    assert charge.set(100)
    assert charges.open(ANA).set(900)
    charge.close()
    assert charges.shares.used_by("ana") == 900
    charges.shares.check()


async def test_much_that_is_returned_goes_back_to_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed = []
    monkeypatch.setattr(budget, "trim", lambda: trimmed.append(True))
    monkeypatch.setattr(budget, "TRIM_S", 0.0)
    charges = Budget()
    charge = charges.open(ANA)
    assert charge.set(budget.TRIM_BYTES)
    charge.close()
    await eventually(lambda: list(trimmed), bool)
    await charges.stop()


def test_pods_of_one_account_are_accounts_of_their_own() -> None:
    assert account_of(pod("1")) != account_of(pod("2"))
    assert account_of(pod("1")) == account_of(pod("1"))
    assert account_of(ANA) == "ana"


async def test_an_account_with_many_streams_has_as_many_steps_as_one_with_one() -> None:
    done: list[str] = []
    ended = asyncio.Event()

    def step(item: str) -> bool:
        done.append(item)
        if item == "ben" and done.count("ben") == 10:
            ended.set()
        return len(done) < 1_000

    turns = LongWork(step)
    for number in range(100):
        turns.add("ana", f"ana-{number}")
    turns.add("ben", "ben")
    async with asyncio.timeout(10.0):
        await ended.wait()
    assert done[:20].count("ben") == 10
    for number in range(100):
        turns.discard("ana", f"ana-{number}")
    turns.discard("ben", "ben")


async def test_long_work_lets_the_loop_go_on() -> None:
    """Between two turns everything else on the loop has one."""
    steps = 0

    def step(_: str) -> bool:
        nonlocal steps
        steps += 1
        until = asyncio.get_running_loop().time() + 0.003
        while asyncio.get_running_loop().time() < until:
            pass
        return steps < 30

    turns = LongWork(step)
    turns.add("ana", "a")
    seen = []
    async with asyncio.timeout(10.0):
        while steps < 30:
            await asyncio.sleep(0)
            seen.append(steps)
    assert len(seen) >= 10
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 3


class Reviewing:
    """An API server that knows some tokens, and answers when it is told to."""

    def __init__(self, *good: str) -> None:
        self.good = good
        self.asked: list[str] = []
        self.under_way = self.most_under_way = 0
        self.open = asyncio.Event()
        self.open.set()
        self.away = False

    async def perform(self, write: Write) -> bytes:
        token = json.loads(write.body)["spec"]["token"]
        self.asked.append(token)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self.open.wait()
        self.under_way -= 1
        if self.away:
            raise Unreachable("no answer")
        status = {"authenticated": True, "user": {"username": token}} if token in self.good else {}
        return json.dumps({"status": status}).encode()


async def ask(tokens: ReviewedTokens, token: str, peer: str = "192.0.2.1:4711") -> str:
    """Whose the token is, or the status of gRPC."""
    try:
        user = tokens.user(None, f"Bearer {token}", peer)
        return user.name if isinstance(user, User) else (await user).name
    except CallRefused as error:
        return GrpcStatus(error.status).name


def reviewed(server: Reviewing, now: list[float]) -> ReviewedTokens:
    client: Any = server
    return ReviewedTokens(client, lambda: now[0])


async def test_made_up_tokens_of_an_address_cost_few_reviews_and_more_with_time() -> None:
    server, now = Reviewing("good"), [0.0]
    tokens = reviewed(server, now)
    answers = [await ask(tokens, f"made-up-{number}") for number in range(1_000)]
    assert len(server.asked) == authentication.INVALID_TOKENS_BURST
    assert answers.count("UNAUTHENTICATED") == authentication.INVALID_TOKENS_BURST
    assert answers.count("UNAVAILABLE") == 1_000 - authentication.INVALID_TOKENS_BURST
    assert await ask(tokens, "good", "198.51.100.7:1") == "good", "from elsewhere"
    assert await ask(tokens, "made-up-0") == "UNAUTHENTICATED", "remembered"
    now[0] = 30.0
    assert await ask(tokens, "good-later") == "UNAUTHENTICATED"


async def test_addresses_together_have_a_bound_too() -> None:
    server = Reviewing()
    tokens = reviewed(server, [0.0])
    for number in range(1_000):
        await ask(tokens, f"made-up-{number}", f"192.0.{number % 250}.1:{number}")
    assert len(server.asked) == authentication.INVALID_TOKENS_BURST_ALL


async def test_a_token_that_was_good_is_reviewed_whatever_strangers_do() -> None:
    server, now = Reviewing("good"), [0.0]
    tokens = reviewed(server, now)
    assert await ask(tokens, "good") == "good"
    for number in range(100):
        await ask(tokens, f"made-up-{number}")
    now[0] = authentication.CACHED_S + 1.0
    assert await ask(tokens, "good") == "good"
    assert server.asked.count("good") == 2
    server.open.clear()
    flood = [
        asyncio.create_task(ask(tokens, f"new-{number}", f"198.51.100.{number % 250}:1"))
        for number in range(3_000)
    ]
    await asyncio.sleep(0.05)
    now[0] += authentication.CACHED_S + 1.0
    again = asyncio.create_task(ask(tokens, "good"))
    await asyncio.sleep(0.05)
    assert server.asked[-1] == "good", "it waits for no stranger"
    assert server.most_under_way <= 2 * authentication.REVIEWS_MAX
    server.open.set()
    assert await again == "good"
    await asyncio.gather(*flood)


async def test_many_clients_with_good_tokens_come_through_one_address() -> None:
    """A restart behind a load balancer: good tokens take nothing of the address."""
    server = Reviewing(*(f"good-{number}" for number in range(500)))
    tokens = reviewed(server, [0.0])
    answers = await asyncio.gather(*(ask(tokens, f"good-{number}") for number in range(500)))
    assert answers == [f"good-{number}" for number in range(500)]


async def test_a_server_that_does_not_answer_takes_nothing_of_the_address() -> None:
    server = Reviewing("good")
    tokens = reviewed(server, [0.0])
    server.away = True
    for number in range(100):
        assert await ask(tokens, f"any-{number}") == "UNAVAILABLE"
    server.away = False
    assert await ask(tokens, "good") == "good"


async def test_good_tokens_are_not_forgotten_for_made_up_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authentication, "CACHED_MAX", 10)
    monkeypatch.setattr(authentication, "INVALID_TOKENS_BURST", 1e6)
    monkeypatch.setattr(authentication, "INVALID_TOKENS_BURST_ALL", 1e6)
    server = Reviewing("good")
    tokens = reviewed(server, [0.0])
    await ask(tokens, "good")
    for number in range(50):
        await ask(tokens, f"made-up-{number}")
    assert await ask(tokens, "good") == "good"
    assert server.asked.count("good") == 1
    assert len(tokens._invalid) == 10


async def test_a_token_that_is_no_token_is_refused_unreviewed() -> None:
    server = Reviewing()
    assert await ask(reviewed(server, [0.0]), "x" * 20_000) == "UNAUTHENTICATED"
    assert server.asked == []


def test_what_a_client_refuses_is_no_event_of_a_service_that_it_may_not_see() -> None:
    told: list[list[str]] = []
    view = SimpleNamespace(service_of=lambda _, name: ServiceKey(*name.split("/")))
    served = XdsServer(XdsCatalog(XdsConfig(), "p"), AdmissionConfig(), clock=lambda: 0.0)
    served._notes = SimpleNamespace(on_refusal=lambda keys, *_: told.append(list(keys)))  # type: ignore[assignment]
    stream = SimpleNamespace(view=view, visible=VisibleNamespaces(False, frozenset({"mine"})))
    item: Any = SimpleNamespace(stream=stream, client=SimpleNamespace(kind="grpc"), log_fields={})
    served._on_refusal(
        item, XdsRefusal(LISTENER, ("victim/web", "mine/web"), "a text of the client")
    )
    assert told == [["mine/web"]]
