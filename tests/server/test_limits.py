"""What requests hold: seats, places in a queue and amounts, all given back whatever becomes of a
request.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import turns

from sliceplane.api.users import User
from sliceplane.server.fairness.types import RequestAttributes
from sliceplane.server.io.requests.limits import (
    BODY_BYTES_LEAST,
    InFlight,
    Limits,
    OverCapacity,
    RequestCharges,
)

ACCOUNTS = ("system:serviceaccounts", "system:authenticated")


def charges(in_flight: InFlight, name: str) -> RequestCharges:
    user = User(name=name, groups=ACCOUNTS)
    flow = in_flight.flows.classify(name, ACCOUNTS, RequestAttributes("list", resource="pods"))
    return RequestCharges(in_flight, flow, user, "read")


async def full() -> tuple[InFlight, list[RequestCharges]]:
    """Every seat that workloads can have is taken."""
    in_flight = InFlight(Limits(reads_max=8, writes_max=8))
    taken = []
    while True:
        task = asyncio.create_task((sat := charges(in_flight, "hog")).take_seat())
        await turns()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            sat.close()
            in_flight.flows.check()
            return in_flight, taken
        taken.append(sat)


async def test_who_stands_in_line_gets_the_next_seat() -> None:
    in_flight, taken = await full()
    waits = charges(in_flight, "quiet")
    task = asyncio.create_task(waits.take_seat())
    await turns()
    assert not task.done()
    taken[0].close()
    await asyncio.wait_for(task, 60)
    for each in (waits, *taken):
        each.close()
        each.close()
    in_flight.flows.check()
    assert in_flight.flows.seats["read"].in_use == 0


@pytest.mark.looptime
async def test_who_stood_in_line_for_too_long_is_told_to_come_back() -> None:
    in_flight, _ = await full()
    with pytest.raises(OverCapacity):
        await charges(in_flight, "quiet").take_seat()
    assert in_flight.flows.tally("service-accounts").refused["time-out"] == 1
    assert in_flight.flows.tally("service-accounts").waiting == 0
    in_flight.flows.check()


async def test_a_request_that_ends_in_line_or_just_as_it_gets_a_seat_leaves_nothing_behind() -> (
    None
):
    in_flight, taken = await full()
    in_line, just_seated = charges(in_flight, "a"), charges(in_flight, "b")
    tasks = [asyncio.create_task(each.take_seat()) for each in (just_seated, in_line)]
    await turns()
    taken.pop().close()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for each in (*taken, just_seated, in_line):
        each.close()
    in_flight.flows.check()
    assert in_flight.flows.seats["read"].in_use == 0
    assert in_flight.flows.tally("service-accounts").waiting == 0


async def test_a_body_counts_from_its_beginning_to_the_end_of_the_request() -> None:
    in_flight = InFlight(Limits())
    body = charges(in_flight, "a")
    body.on_body(0)
    assert in_flight.budgets["body-bytes"].used_by("a") == BODY_BYTES_LEAST
    body.on_body(100_000)
    assert in_flight.budgets["body-bytes"].used_by("a") == 100_000
    await body.take_seat()
    assert in_flight.budgets["body-bytes"].used_by("a") == 100_000
    body.close()
    assert in_flight.budgets["body-bytes"].total == 0


async def test_bodies_of_one_user_leave_room_for_another() -> None:
    in_flight = InFlight(Limits(bodies_bytes_max=100 * BODY_BYTES_LEAST))
    for _ in range(45):
        charges(in_flight, "hog").on_body(1)
    with pytest.raises(OverCapacity):
        charges(in_flight, "hog").on_body(1)
    charges(in_flight, "quiet").on_body(1)


async def test_waits_for_the_future_have_an_end_for_one_user() -> None:
    in_flight = InFlight(Limits(future_reads_of_user=2))
    waiting = [charges(in_flight, name) for name in ("hog", "hog", "quiet")]
    for each in waiting:
        each.raise_to("future-reads", 1)
    with pytest.raises(OverCapacity):
        charges(in_flight, "hog").raise_to("future-reads", 1)
    waiting[0].release("future-reads")
    charges(in_flight, "hog").raise_to("future-reads", 1)
    assert in_flight.budgets["future-reads"].used_by("hog") == 2
    for each in waiting:
        each.close()
    assert in_flight.budgets["future-reads"].used_by("quiet") == 0


def test_a_stream_that_is_refused_holds_nothing_once_it_is_closed() -> None:
    in_flight = InFlight(Limits(watch_bytes_max=1_000))
    charges(in_flight, "hog").open_stream(400)
    refused = charges(in_flight, "hog")
    with pytest.raises(OverCapacity):
        refused.open_stream(400)
    refused.close()
    assert (in_flight.budgets["watches"].total, in_flight.budgets["watch-bytes"].total) == (1, 400)
