"""Heavy requests: whose turn it is, what becomes of workers, and that no write is lost to another
one.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.fuzz.application import Application
from tests.fuzz.heavy_bodies import CONFIG_MAPS, MERGE, SERVICES, asked
from tests.waiting import eventually

from sliceplane.api.errors import StatusError
from sliceplane.kit.metrics import Metrics
from sliceplane.server.io.metrics import LONG_STEP_S, LoopSteps
from sliceplane.server.io.offload import jobs
from sliceplane.server.io.offload.jobs import Job, T
from sliceplane.server.io.offload.pool import Inline, Pool, WorkerDied
from sliceplane.server.io.offload.service import ATTEMPTS_MAX, OffloadQueue, OffloadService
from sliceplane.server.io.requests.limits import OverCapacity
from sliceplane.server.io.requests.lists import Pace
from sliceplane.server.io.requests.render import RenderedError
from sliceplane.server.io.requests.response import PLAIN_JSON
from sliceplane.server.io.storage import rows
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def die() -> None:
    os._exit(1)


def swallow() -> int:
    """Takes as much memory as a worker may not have."""
    return len(bytearray(3 << 30))


def test_a_record_that_was_read_from_disk_travels_to_a_worker() -> None:
    """Without labels it has a mapping that pickle does not know: large writes to such objects were
    answered with 500 after a restart.
    """
    body = b'{"metadata":{"name":"a","resourceVersion":"7"}}'
    record = Record(
        key=Key("configmaps", "default", "a"),
        revision=7,
        created=7,
        uid="u",
        body=body,
        labels={},
        fields={},
    )
    stored = rows.decode(rows.encode(StoreEvent(7, EventType.ADDED, record, None))).record
    assert jobs.load(jobs.dump(stored)) == record


def test_an_error_travels_with_all_its_members() -> None:
    error = StatusError(
        405,
        "r",
        "m",
        {"a": 1},
        metadata={"continue": "c"},
        retry_after_s=1,
        allowed_methods=("GET",),
    )
    for sent in (error, RenderedError.of(error, PLAIN_JSON)):
        received = jobs.load(jobs.dump(sent))
        assert type(received) is type(sent)
        assert vars(received) == vars(sent)


# Turns


@effort(60)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(("asks", "ends", "leaves"))), max_size=40
    )
)
def test_a_user_has_one_turn_at_a_time_and_none_waits_while_there_is_room(
    steps: list[tuple[str, str]],
) -> None:
    async def run() -> None:
        queue = OffloadQueue(together=2, waiting_of_user_max=3, waiting_max=6)
        running: list[str] = []
        requests: list[tuple[asyncio.Task[None], asyncio.Event]] = []

        async def request(user: str, done: asyncio.Event) -> None:
            async with queue.admit(user):
                assert user not in running, f"{user} has two turns"
                running.append(user)
                assert len(running) <= 2, f"too many: {running}"
                try:
                    await done.wait()
                finally:
                    running.remove(user)

        for user, what in steps:
            if what == "asks":
                done = asyncio.Event()
                requests.append((asyncio.create_task(request(user, done)), done))
            elif requests and what == "ends":
                requests.pop(0)[1].set()
            elif requests:
                requests.pop()[0].cancel()
            for _ in range(6):
                await asyncio.sleep(0)
            queue.check()
            assert sorted(running) == sorted(set(running))
            assert queue.waiting <= 6
        for task, _ in requests:
            task.cancel()
        await asyncio.gather(*(task for task, _ in requests), return_exceptions=True)
        await asyncio.sleep(0)
        queue.check()
        assert (len(queue._busy), queue.waiting) == (0, 0)

    asyncio.run(run())


async def test_one_who_sends_many_is_refused_and_another_is_served_next() -> None:
    queue, order, gate = (
        OffloadQueue(together=1, waiting_of_user_max=3, waiting_max=10),
        [],
        asyncio.Event(),
    )

    async def request(user: str) -> None:
        async with queue.admit(user):
            await gate.wait()
            order.append(user)

    tasks = [asyncio.create_task(request("greedy")) for _ in range(6)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(request("modest")))
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, OverCapacity) for result in results) == 2 == queue.refused.value
    assert order == ["greedy", "greedy", "modest", "greedy", "greedy"]


# Workers


async def test_a_job_without_time_left_is_ended_and_the_next_has_a_worker() -> None:
    pool = Pool(job_s=2.0)
    try:
        with pytest.raises(TimeoutError):
            await pool.run(partial(sleep, 60))
        pool.job_s = 60.0
        assert await pool.run(partial(sleep, 0)) == 0
        assert pool.started == 2
    finally:
        await pool.close()


@pytest.mark.parametrize("job", [die, swallow], ids=["ends", "has no memory"])
async def test_a_job_that_takes_its_worker_along_is_an_error_of_that_job_alone(
    job: Job[object],
) -> None:
    pool = Pool()
    try:
        with pytest.raises((WorkerDied, MemoryError)):
            await pool.run(job)
        assert await pool.run(partial(sleep, 0)) == 0
    finally:
        await pool.close()


async def test_workers_without_work_end() -> None:
    pool = Pool(idle_s=0.05)
    try:
        await pool.run(partial(sleep, 0))
        assert len(pool._all) == 1
        await eventually(lambda: pool._all, lambda workers: not workers)
    finally:
        await pool.close()


# Writes


class _Interfering(Inline):
    """Somebody else writes while a job runs, so often."""

    def __init__(self, times: int, write: Any) -> None:
        self.times, self.write, self.runs = times, write, 0

    async def run(self, job: Job[T]) -> T:
        self.runs += 1
        result = await super().run(job)
        if self.runs <= self.times:
            await self.write(self.runs)
        return result


@pytest.mark.parametrize(("times", "code"), [(0, 200), (2, 200), (ATTEMPTS_MAX, 409)])
async def test_a_heavy_patch_meets_what_was_written_meanwhile(times: int, code: int) -> None:
    async def write(number: int) -> None:
        heavy.offload_bytes = 1 << 30  # this one is quick
        await application.whole(
            asked("PATCH", f"{CONFIG_MAPS}/a", b'{"data":{"other":"%d"}}' % number, MERGE)
        )
        heavy.offload_bytes = 100

    heavy = OffloadService(_Interfering(times, write), offload_bytes=1 << 30)
    async with Application(1, heavy) as application:
        await application.whole(asked("POST", CONFIG_MAPS, b'{"metadata":{"name":"a"}}'))
        heavy.offload_bytes = 100
        answer = await application.whole(
            asked("PATCH", f"{CONFIG_MAPS}/a", b'{"data":{"mine":"1"}}', MERGE)
        )
        assert answer.code == code, answer.body
        data = json.loads((await application.whole(asked("GET", f"{CONFIG_MAPS}/a", b""))).body)[
            "data"
        ]
        assert data == {
            **({"mine": "1"} if code == 200 else {}),
            **({"other": str(times)} if times else {}),
        }
        assert heavy.stale.value == times
        application.check()


async def test_two_heavy_services_never_get_one_address() -> None:
    """What was chosen elsewhere may be taken by the time that it is to be stored."""

    async def write(number: int) -> None:
        heavy.offload_bytes = 1 << 30
        for each in range(300):
            body = {
                "metadata": {"name": f"s{number}-{each}"},
                "spec": {"type": "NodePort", "ports": [{"port": 80}]},
            }
            await application.whole(asked("POST", SERVICES, json.dumps(body).encode()))
        heavy.offload_bytes = 100

    heavy = OffloadService(_Interfering(3, write), offload_bytes=100)
    async with Application(1, heavy) as application:
        ports = [{"port": 80 + number, "name": f"p{number}"} for number in range(200)]
        body = {"metadata": {"name": "web"}, "spec": {"type": "NodePort", "ports": ports}}
        answer = await application.whole(asked("POST", SERVICES, json.dumps(body).encode()))
        assert answer.code == 201, answer.body
        application.check()


async def test_questions_about_tokens_are_small() -> None:
    async with Application(1, OffloadService(Inline())) as application:
        body = json.dumps({"spec": {"token": "x" * 100_000}}).encode()
        answer = await application.whole(
            asked("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
        )
        assert answer.code == 413, answer.body


# Slices, and who held the loop


async def test_of_many_long_works_one_slice_runs_in_a_turn_of_the_loop() -> None:
    pace, running = Pace(), []

    async def work(number: int) -> None:
        for _ in range(5):
            await pace.next_slice()
            running.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(20)]
    most = 0
    while not all(task.done() for task in tasks):
        before = len(running)
        await asyncio.sleep(0)
        most = max(most, len(running) - before)
    assert most == 1
    assert len(running) == 100


async def test_who_held_the_loop_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from sliceplane.server.io import metrics as steps_module

    told: list[dict[str, object]] = []
    monkeypatch.setattr(
        steps_module,
        "_log",
        type("Log", (), {"warning": lambda _, message, **known: told.append(known)})(),
    )
    now = [0.0]
    steps = LoopSteps(Metrics(), clock=lambda: now[0])

    async def request(seconds: float) -> None:
        await asyncio.sleep(0)
        now[0] += seconds

    for seconds in (LONG_STEP_S / 2, LONG_STEP_S * 2, LONG_STEP_S * 3, LONG_STEP_S * 4):
        await steps.timed(request(seconds), lambda: {"audit_id": "x"})
    assert [each["times"] for each in told] == [1]
    now[0] += steps_module.LOG_INTERVAL_S
    await steps.timed(request(LONG_STEP_S * 2), lambda: {"audit_id": "y"})
    assert told[1] == {"audit_id": "y", "milliseconds": 100, "longest": 200, "times": 3}


@pytest.mark.looptime
async def test_a_timed_request_is_cancelled_and_fails_as_it_would_be() -> None:
    steps, seen = LoopSteps(Metrics()), []

    async def request() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        except TimeoutError:
            seen.append("time-out")
        await asyncio.sleep(10)

    task = asyncio.create_task(_of(steps, request()))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["time-out"]

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("as it was raised")

    with pytest.raises(ValueError, match="as it was raised"):
        await steps.timed(failing(), dict)


async def _of(steps: LoopSteps, request: Any) -> None:
    await steps.timed(request, dict)
