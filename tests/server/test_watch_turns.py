"""Streams that write in turns: everybody's turn comes, a few in each turn of the loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial

import pytest
from tests.server.serving import Server

from sliceplane.kit.io.batches import CALLS_PER_BATCH, BatchQueue


async def test_turns_are_in_order_and_others_run_in_between() -> None:
    turns, seen = BatchQueue(), []
    count = 2 * CALLS_PER_BATCH + 1
    for number in range(count):
        turns.add(partial(seen.append, number))
    after_each = []
    for _ in range(4):
        await asyncio.sleep(0)
        after_each.append(len(seen))
    assert seen == list(range(count))
    assert after_each == [CALLS_PER_BATCH, 2 * CALLS_PER_BATCH, count, count]


async def test_who_comes_again_waits_behind_the_others() -> None:
    turns, seen = BatchQueue(), []

    def greedy() -> None:
        seen.append("greedy")
        if seen.count("greedy") < 3:
            turns.add(greedy)

    turns.add(greedy)
    turns.add(lambda: seen.append("modest"))
    for _ in range(4):
        await asyncio.sleep(0)
    assert seen == ["greedy", "modest", "greedy", "greedy"]


async def test_a_stream_that_fails_takes_nobodys_turn() -> None:
    turns, seen = BatchQueue(), []
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def fail() -> None:
        raise ValueError("broken")

    turns.add(fail)
    turns.add(lambda: seen.append("other"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert seen == ["other"]
    assert [str(problem["exception"]) for problem in problems] == ["broken"]


@pytest.mark.parametrize(("first", "second"), [("AES128", "AES256"), ("AES256", "AES128")])
def test_the_clients_order_of_ciphers_counts(server: Server, first: str, second: str) -> None:
    context = server.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # Python cannot order those of 1.3
    context.set_ciphers(
        f"ECDHE-ECDSA-{first}-GCM-SHA{_hash(first)}:ECDHE-ECDSA-{second}-GCM-SHA{_hash(second)}"
    )
    with (
        socket.create_connection((server.host, server.port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        chosen = tls.cipher()
        assert chosen is not None
        assert first in chosen[0]


def _hash(cipher: str) -> str:
    return {"AES128": "256", "AES256": "384"}[cipher]
