"""Work with a bound on its time in a task that was cancelled: the bound ends the work, not what
follows it.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.waiting import eventually

from sliceplane.agent.io.child import Child
from sliceplane.agent.io.orphan import Custody
from sliceplane.kit.io.tasks import SharedCalls, ends_within

FOR_EVER_S = 3600.0


async def test_a_cancelled_task_is_told_what_did_not_end_and_goes_on() -> None:
    told: list[bool] = []
    begun = asyncio.Event()

    async def works() -> None:
        try:
            begun.set()
            await asyncio.sleep(FOR_EVER_S)
        finally:
            told.append(await ends_within(0.0, asyncio.sleep(FOR_EVER_S)))
            told.append(await ends_within(FOR_EVER_S, asyncio.sleep(0.0)))

    task = asyncio.create_task(works())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == [False, True]


async def test_what_the_work_raises_is_raised_and_what_is_cancelled_ends_its_work() -> None:
    async def fails() -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        await ends_within(FOR_EVER_S, fails())

    ended = asyncio.Event()

    async def lasts() -> None:
        try:
            await asyncio.sleep(FOR_EVER_S)
        finally:
            ended.set()

    task = asyncio.create_task(ends_within(FOR_EVER_S, lasts()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_an_agent_that_is_cancelled_kills_a_child_that_does_not_end(tmp_path: Path) -> None:
    """It was left running, and its socket open, on Python 3.11.2 (python/cpython#102780)."""
    codes: list[int] = []
    ready = asyncio.Event()
    says = "trap '' TERM; python3 -S -c \"$SAYS\"; while :; do sleep 1; done"
    program = (
        "import os, socket; "
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'READY=1', "
        "os.environ['NOTIFY_SOCKET'])"
    )

    custody = Custody(tmp_path / "child", "adopt", 1.0)

    async def works() -> None:
        child = await Child.start(
            ("env", f"SAYS={program}", "sh", "-c", says), ready.set, custody, print
        )
        try:
            await asyncio.sleep(FOR_EVER_S)
        finally:
            codes.append(await child.end(0.0))
            child.close()

    task = asyncio.create_task(works())
    await eventually(lambda: asyncio.sleep(0, ready.is_set()), bool)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert codes == [128 + signal.SIGKILL]


async def test_overlapping_calls_with_equal_keys_are_one_task() -> None:
    calls: SharedCalls[str, int] = SharedCalls()
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    begun = []

    async def call() -> int:
        begun.append(len(begun))
        return await answer

    first, second = (asyncio.ensure_future(asyncio.shield(calls.start("a", call))) for _ in "12")
    other = calls.start("b", call)
    await asyncio.sleep(0)
    assert begun == [0, 1]
    first.cancel()  # one caller goes, the task goes on
    calls.pop("b")  # the next caller begins anew, and nobody else is disturbed
    third = calls.start("b", call)
    answer.set_result(7)
    assert await asyncio.gather(second, other, third) == [7, 7, 7]
    assert not calls
    assert begun == [0, 1, 2]


async def test_a_shared_call_that_fails_is_forgotten() -> None:
    calls: SharedCalls[str, int] = SharedCalls()

    async def call() -> int:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await asyncio.shield(calls.start("a", call))
    assert not calls
