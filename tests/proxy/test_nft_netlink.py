"""When netlink messages will not do, ``nft`` writes, and what refusals say.  The kernel is a list
of answers here.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.node.io.kernel.nft_backend import NftError, NftRunner
from sliceplane.node.io.kernel.nft_netlink import (
    REFUSALS_MAX,
    Channel,
    namespace_of,
    netfilter_socket,
)
from sliceplane.node.nft.layout import writer_chain
from sliceplane.node.nft.netlink.batch import MessageBatch
from sliceplane.node.nft.netlink.clients import parse_part
from sliceplane.node.nft.netlink.messages import (
    KernelAnswer,
    attribute,
    long_number,
    message,
    nest,
    text,
)
from sliceplane.node.nft.objects import (
    AddRule,
    Command,
    DeleteChain,
    FlushChain,
    NftRule,
    TableRef,
    Transaction,
)
from sliceplane.node.nft.statements import Drop, FromInterface

TABLE = TableRef("ip", "sliceplane")
CHANGE: tuple[Command, ...] = (
    FlushChain(writer_chain("me").name),
    DeleteChain("c"),
    DeleteChain("d"),
)

#: "yes", "no" (the second command), "not me" (the first), "" (no word), or what sending fails with
Reply = str | OSError


class Kernel:
    """Replies in this order; then "yes" for good."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.replies = list(replies)
        self.batches = 0

    def send(self, batch: MessageBatch) -> tuple[KernelAnswer, ...]:
        self.batches += 1
        reply = self.replies.pop(0) if self.replies else "yes"
        if isinstance(reply, OSError):
            raise reply
        done = KernelAnswer(batch.last, 0)
        known: dict[str, tuple[KernelAnswer, ...]] = {
            "yes": (done,),
            "no": (KernelAnswer(2, errno.EBUSY, "in use"), done),
            "not me": (KernelAnswer(1, errno.ENOENT), done),
            "not allowed": (KernelAnswer(0, errno.EPERM),),
            "": (),
        }
        return known[reply]


class Counting(NftRunner):
    by_messages = by_program = 0

    async def write(self, transaction: Transaction) -> bool:
        by_messages = await super().write(transaction)
        self.by_messages += by_messages
        self.by_program += not by_messages
        return by_messages


@pytest.fixture
def runner(tmp_path: Path) -> Counting:
    """Its ``nft`` keeps what it is told."""
    path = tmp_path / "nft"
    path.write_text(f"#!/bin/sh\ncat >> {tmp_path}/told\n")
    path.chmod(0o755)
    return Counting(program=str(path))


def told(tmp_path: Path) -> str:
    path = tmp_path / "told"
    return path.read_text() if path.exists() else ""


async def write(runner: Counting, commands: tuple[Command, ...] = CHANGE) -> str:
    """ "" or why not."""
    try:
        await runner.write(Transaction(TABLE, commands))
    except NftError as error:
        return str(error)
    return ""


def replying(monkeypatch: pytest.MonkeyPatch, *replies: Reply) -> Kernel:
    kernel = Kernel(replies)
    monkeypatch.setattr(Channel, "send", kernel.send)
    return kernel


async def test_what_the_kernel_takes_is_not_told_to_nft(
    runner: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replying(monkeypatch)
    assert await write(runner) == ""
    assert (runner.by_messages, runner.by_program, told(tmp_path)) == (1, 0, "")


@pytest.mark.parametrize(
    "reply",
    [
        OSError(errno.EPROTONOSUPPORT, "no"),
        OSError(errno.EMSGSIZE, "no"),
        OSError(errno.ENOBUFS, "no"),
        "not allowed",
    ],
    ids=["no such socket", "too large", "no memory", "no rights"],
)
async def test_what_cannot_be_sent_is_written_by_nft(
    runner: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    replying(monkeypatch, reply)
    assert await write(runner) == ""
    assert (runner.by_messages, runner.by_program) == (0, 1)
    assert told(tmp_path) == Transaction(TABLE, CHANGE).render()
    assert await write(runner) == "", "the next one is tried again"
    assert (runner.by_messages, runner.by_program) == (1, 1)


async def test_what_messages_cannot_say_is_written_by_nft(
    runner: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = replying(monkeypatch)
    commands = (AddRule("c", NftRule((FromInterface("*"), Drop()))),)
    assert await write(runner, commands) == ""
    assert (kernel.batches, runner.by_program, told(tmp_path)) == (
        0,
        1,
        Transaction(TABLE, commands).render(),
    )


async def test_a_refusal_names_the_command_and_the_next_write_is_nfts(
    runner: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = replying(monkeypatch, "no")
    why = await write(runner)
    assert why == (
        "the kernel refused the transaction: delete chain ip sliceplane c: Device or resource "
        "busy (in use)"
    )
    assert await write(runner) == ""
    assert (kernel.batches, runner.by_messages, runner.by_program) == (1, 0, 1)
    assert await write(runner) == ""
    assert (kernel.batches, runner.by_messages, runner.by_program) == (2, 1, 1)


async def test_refusals_without_end_leave_it_to_nft(
    runner: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = replying(monkeypatch, *["no"] * 100)
    results = [await write(runner) for _ in range(4 * REFUSALS_MAX)]
    assert [bool(why) for why in results[: 2 * REFUSALS_MAX]] == [True, False] * REFUSALS_MAX
    assert not any(results[2 * REFUSALS_MAX :])
    assert kernel.batches == REFUSALS_MAX


async def test_refusals_now_and_then_change_nothing(
    runner: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = replying(monkeypatch, *["no", "yes"] * 3 * REFUSALS_MAX)
    for _ in range(9 * REFUSALS_MAX):
        await write(runner)
    assert kernel.batches == 6 * REFUSALS_MAX


async def test_a_table_of_another_writer_is_no_fault_of_messages(
    runner: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = replying(monkeypatch, *["not me"] * 3 * REFUSALS_MAX)
    for _ in range(3 * REFUSALS_MAX):
        assert "a second node proxy?" in await write(runner)
    assert await write(runner) == ""
    assert (kernel.batches, runner.by_program) == (3 * REFUSALS_MAX + 1, 0)


async def test_without_an_answer_nobody_knows(
    runner: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    replying(monkeypatch, "")
    with pytest.raises(NftError) as caught:
        await runner.write(Transaction(TABLE, CHANGE))
    assert caught.value.reason == "timeout"
    assert (runner.by_messages, runner.by_program) == (0, 0)


def test_a_namespace_that_is_not_there() -> None:
    for function in (namespace_of, netfilter_socket):
        with pytest.raises(FileNotFoundError):
            function("sliceplane-no-such-namespace")


@given(st.binary(max_size=200), st.lists(st.binary(max_size=60)))
def test_whatever_the_kernel_answers_is_parsed(data: bytes, bodies: list[bytes]) -> None:
    """Headers of elements before any bytes: no error, and counts are numbers."""
    table = TableRef("ip", "sliceplane-demand")
    answers = b"".join(message(10 << 8 | 12, 0, 1, 2, nest(3, nest(1, body))) for body in bodies)
    for part in (parse_part(data, table), parse_part(answers + data, table)):
        assert all(count >= 0 for _, count in part.counts)


def test_counters_are_parsed_and_a_missing_set_is_known() -> None:
    """Bytes as the kernel has them: an element's key, and an expression with bytes and packets."""
    table = TableRef("ip", "sliceplane-demand")
    key = nest(1, attribute(1, b"12chars-long"))
    counter = nest(7, text(1, "counter"), nest(2, long_number(1, 500), long_number(2, 2**40)))
    answer = message(10 << 8 | 12, 2, 1, 2, nest(3, nest(1, key, counter)))
    assert parse_part(answer, table).counts == ((b"12chars-long", 2**40),)
    refused = parse_part(message(2, 0, 1, 2, b""), table)
    assert (refused.done, refused.refused) == (True, True)
